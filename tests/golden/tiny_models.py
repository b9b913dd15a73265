"""Tiny random models that transformers runs: full attention, sliding windows, recurrent states."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from langchain_specfuse import SpecFuseChatModel, TransformersMember, checks
from tests.members import tiny
from tests.methods import in_method

from .record import asked, identity

QUESTION = "Why is the sky blue? " + "The air scatters blue light more than red light. " * 6
SCHEMA = {
    "title": "Sky",
    "type": "object",
    "properties": {
        "colour": {"enum": ["blue", "red", "grey"]},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 2},
    },
    "required": ["colour", "words"],
}


def member(arch: str, seed: int = 1, **options: Any) -> TransformersMember:
    """A member with weights of its own, so that no other test has filled its cache."""
    model, tokenizer = tiny.build(arch, seed)
    return TransformersMember(model, tokenizer, name=f"{arch}-{seed}", **options)


@contextmanager
def chat_model(*members: TransformersMember, **options: Any) -> Iterator[SpecFuseChatModel]:
    defaults = {"members": list(members), "segment_tokens": 5, "max_tokens": 20, "lead": None}
    llm = SpecFuseChatModel(**in_method(**(defaults | options)))
    try:
        yield llm
    finally:
        llm.unload()


def conversation(llm: SpecFuseChatModel, **call: Any) -> dict[str, Any]:
    """Two turns: the second uses what was read for the first."""
    first = asked(llm, QUESTION, **call)
    history = [HumanMessage(QUESTION), AIMessage(first["message"]["content"] or "...")]
    second = asked(llm, [*history, HumanMessage("And at night?")], **call)
    return {"first turn": first, "second turn": second}


def alone(arch: str) -> dict[str, Any]:
    with chat_model(member(arch)) as llm:
        greedy = conversation(llm)
        sampled = asked(llm, QUESTION, temperature=0.8, seed=3)
        another = asked(llm, QUESTION, temperature=0.8, seed=4, top_p=0.9, top_k=50, min_p=0.01)
        constrained = asked(llm, QUESTION, response_format=SCHEMA, max_tokens=60)
        repeating = asked(llm, QUESTION, repetition_penalty=1.3)
        logprobs = asked(llm, QUESTION, logprobs=True, max_tokens=6, stop=["e"])
    return {
        "greedy": greedy,
        "temperature 0.8, seed 3": sampled["message"]["content"],
        "temperature 0.8, seed 4": another["message"]["content"],
        "schema": constrained,
        "repetition_penalty": repeating["message"]["content"],
        "logprobs": logprobs["message"],
    }


def llama() -> dict[str, Any]:
    return alone("llama")


def gemma3() -> dict[str, Any]:
    return alone("gemma3")


def qwen3_next() -> dict[str, Any]:
    return alone("qwen3-next")


def together() -> dict[str, Any]:
    with chat_model(*(member(arch) for arch in tiny.THREE)) as llm:
        return conversation(llm) | identity(llm)


def together_sampled() -> dict[str, Any]:
    with chat_model(*(member(arch) for arch in tiny.THREE), temperature=0.8, seed=7) as llm:
        return asked(llm, QUESTION)


def together_constrained() -> dict[str, Any]:
    with chat_model(*(member(arch) for arch in tiny.THREE), max_tokens=60) as llm:
        return asked(llm, QUESTION, response_format=SCHEMA)


def lead_and_verifier() -> dict[str, Any]:
    verifier = member("qwen3-next", 3)
    options: dict[str, Any] = {"lead": "llama-1", "method": {"margin": 0.5}}
    with chat_model(member("llama"), member("gemma3"), verifiers=[verifier], **options) as llm:
        return asked(llm, QUESTION)


def one_model_twice() -> dict[str, Any]:
    """Two members with different system prompts share the weights; each has text in the cache."""
    model, tokenizer = tiny.build("llama", 1)
    members = [
        TransformersMember(model, tokenizer, name="plain"),
        TransformersMember(model, tokenizer, name="curt", system_prompt="Be curt."),
    ]
    with chat_model(*members) as llm:
        return conversation(llm)


def without_prefix_cache() -> dict[str, Any]:
    with chat_model(member("llama", prefix_cache=False), member("gemma3")) as llm:
        record = conversation(llm)
    return {turn: turn_record["message"]["usage_metadata"] for turn, turn_record in record.items()}


def many_questions() -> dict[str, Any]:
    """Questions that wait for the members together share their batches."""
    questions = ["Why?", QUESTION, "What is the answer?", "Hello! " * 30]
    with chat_model(member("llama"), member("gemma3")) as llm:
        return {"answers": [message.content for message in llm.batch(questions)]}


def whole_answers() -> dict[str, Any]:
    options = {"segment": "answer", "result": "text", "samples": 2, "temperature": 0.8, "seed": 2}
    with chat_model(member("llama"), member("gemma3"), **options, max_tokens=6) as llm:
        return asked(llm, QUESTION)


def checked() -> dict[str, Any]:
    """Drafts that are cut before a letter, and continued without the token that follows."""
    rules = {
        "letter": [checks.forbids("[aeiou]")],
        "lines": [checks.at("line", checks.forbids("[a-c]"))],
        "words": [checks.max_words(5)],
    }
    with chat_model(member("llama"), on_failure="end") as llm:
        alone = {name: asked(llm, QUESTION, checks=rule) for name, rule in rules.items()}
    with chat_model(member("llama"), member("gemma3"), on_failure="end") as llm:
        vote = {name: asked(llm, QUESTION, checks=rule) for name, rule in rules.items()}
    return {"alone": alone, "vote": vote}


SCENARIOS = [
    checked,
    llama,
    gemma3,
    qwen3_next,
    together,
    together_sampled,
    together_constrained,
    lead_and_verifier,
    one_model_twice,
    without_prefix_cache,
    many_questions,
    whole_answers,
]
