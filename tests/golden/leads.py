"""Members that lead: what they and their reserves write, whichever pieces it arrives in.

A record has the joined text, how the answer ended, usage, weights, exits and the number of requests
of each member. It has no rounds, because the text of a lead is divided as it arrives.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from typing import Any

from langchain_core.messages import message_chunk_to_message

from langchain_specfuse import ChatModelMember, Method, ScriptedMember, SpecFuseChatModel, checks
from tests import late
from tests.chat.test_failover import failing_members
from tests.members.calling_model import CallingModel, call_of
from tests.methods import in_method

from .record import described_error, without_empty
from .scripted import BLUE, PERSON, QUESTION, WEATHER, WIDE, members
from .servers import WORK, served
from .tiny_models import chat_model, member

NAMES = {"name": "Köln", "born": 1867}


def outcome(llm: Any, question: Any = QUESTION, usage: bool = True, **call: Any) -> dict[str, Any]:
    """What one streamed answer comes to. ``usage``: False where it depends on how much had arrived
    when a request was closed or broke off."""
    chunks: list[Any] = []
    try:
        chunks.extend(llm.stream(question, **call))
    except Exception as error:
        return {"error": described_error(error)["classes"][0]}
    message: Any = message_chunk_to_message(functools.reduce(operator.add, chunks))
    own = message.response_metadata["specfuse"]
    record = {
        "content": message.content,
        "tool_calls": message.tool_calls,
        "finish": message.response_metadata["finish_reason"],
        "reasons": [found["reasons"] for found in own.get("checks", {}).values()],
        "exits": [f"{left['member']} ({left['kind']})" for left in own["exits"]],
    }
    record |= {name: own.get(name) for name in ("late", "looped", "refusals", "weights")}
    if usage:
        record |= {"usage": message.usage_metadata, "usage of hosted members": own["usage"]}
    return without_empty(record)


def hosted(*plans: tuple[int | None, str], call: Any = None, **options: Any) -> dict[str, Any]:
    """An answer of chat models that fail in these ways, the first of which leads."""
    writers = failing_members(*plans, words=12)
    llm = SpecFuseChatModel(
        **in_method(**{"members": writers, "segment_tokens": 4, "lead": "a", **options})
    )
    hanging = {writer.name: writer.model.hanging for writer in writers}
    try:
        with late.only_where(lambda name: hanging[name].is_set()):
            record = outcome(llm, **(call or {}))
    finally:
        writers[0].model.released.set()
    return record | {"requests": [len(writer.model.asked) for writer in writers]}


FINE = (None, "")


def chat_models() -> dict[str, Any]:
    return {
        "alone": hosted(FINE, lead="auto"),
        "with a reserve": hosted(FINE, FINE),
        "a check refuses nothing": hosted(FINE, FINE, checks=[checks.max_words(100)]),
        "stop": hosted(FINE, FINE, call={"stop": ["5 a6"], "usage": False}),
        "max_tokens": hosted(FINE, FINE, call={"max_tokens": 7, "usage": False}),
    }


def takeovers() -> dict[str, Any]:
    """The lead fails after some words. The numbers of the words are recorded and not their writers,
    because it depends on arrival which words the lead has written."""
    plans: dict[str, list[tuple[int | None, str]]] = {
        f"{how} after {after}": [(after, how), FINE]
        for how in ("raise", "cut", "500", "429", "401")
        for after in (0, 6)
    }
    plans["two fail"] = [(3, "raise"), (2, "cut"), FINE]
    plans["all fail"] = [(3, "raise"), (2, "raise")]
    records = {told: hosted(*plan, call={"usage": False}) for told, plan in plans.items()}
    hang = [(6, "hang"), FINE]
    records["hang after 6"] = hosted(*hang, member_timeout=0.2, call={"usage": False})
    for record in records.values():
        record["content"] = re.sub("[abc]", "", record.get("content", ""))
    full = [ScriptedMember(BLUE, name="ann", max_context=9), *members(bob=WIDE)]
    refuses = members(ann=ScriptedMember.refusal("No."), bob=WIDE)
    return records | {
        "full context": outcome(SpecFuseChatModel(members=full, lead="ann")),
        "refuses": outcome(
            SpecFuseChatModel(members=refuses, lead="ann", method=Method(refusals="ignore"))
        ),
    }


def checked() -> dict[str, Any]:
    """A check that refuses a word of the lead, at each place, with and without a reserve."""
    rule = lambda text: "has a6" if "a6" in text else None
    records: dict[str, Any] = {}
    for place in ("segment", "sentence", "answer"):
        options: dict[str, Any] = {
            "checks": [checks.at(place, rule)],
            "redrafts": 1,
            "call": {"usage": False},
        }
        records[f"{place}, reserve"] = hosted(FINE, FINE, **options)
        records[f"{place}, raise"] = hosted(FINE, lead="auto", **options)
        records[f"{place}, end"] = hosted(FINE, lead="auto", on_failure="end", **options)
    return records


def forms() -> dict[str, Any]:
    """Objects and calls of a chat model, whole and broken off."""

    def llm(reply: Any, fails_after: int | None) -> SpecFuseChatModel:
        models = [
            CallingModel(replies=[reply], fails_after=fails_after, asked=[]),
            CallingModel(replies=[reply], asked=[]),
        ]
        pair = [ChatModelMember(each, name=name) for each, name in zip(models, "ab", strict=True)]
        return SpecFuseChatModel(members=pair, method=Method(segment_tokens=4), lead="a")

    text = json.dumps(NAMES, ensure_ascii=False)
    call = call_of("get_weather", "Let me see.", city="Köln am Rhein", days=2)
    records: dict[str, Any] = {}
    for after in (None, 0, 5):
        told = "whole" if after is None else f"broken off after {after}"
        usage = after is None
        records[f"object {told}"] = outcome(
            llm(text, after).bind(response_format=PERSON), usage=usage
        )
        records[f"call {told}"] = outcome(llm(call, after).bind_tools([WEATHER]), usage=usage)
    return records


def of_server(engine: str) -> dict[str, Any]:
    """Answers that a server leads; its reserve is in this process."""
    with served(engine) as (server, lead):
        options: dict[str, Any] = {"lead": lead.name, "max_tokens": 15}
        with chat_model(lead, *members(ann=BLUE), **options) as llm:
            lead.probe()

            def one(**call: Any) -> dict[str, Any]:
                server.asked.clear()
                record = outcome(llm, **call)
                return record | {"requests": sum(path.endswith(WORK) for path, _ in server.asked)}

            greedy = one()
            text = greedy["content"]
            records = {
                "greedy": greedy,
                "sampled": one(temperature=0.8, seed=3),
                "stop": one(stop=[text[5:7]], usage=False),
                "object": one(response_format=PERSON, max_tokens=40),
                "checked": one(checks=[checks.forbids(f"[{text[7]}]")], usage=False),
                "questions at once": at_once(llm),
            }
            server.fault = lambda path, _: 400 if path.endswith(WORK) else None
            return records | {"fails": one()}


def at_once(llm: SpecFuseChatModel) -> list[Any]:
    return [message.content for message in llm.batch([QUESTION, "Why?", "Hello! " * 20])]


def vllm() -> dict[str, Any]:
    return of_server("vllm")


def llama_server() -> dict[str, Any]:
    return of_server("llama.cpp")


def in_this_process() -> dict[str, Any]:
    with chat_model(member("llama"), member("gemma3"), lead="llama-1") as llm:
        without = [checks.forbids("4")]
        return {
            "greedy": outcome(llm),
            "sampled": outcome(llm, temperature=0.8, seed=3),
            "object": outcome(llm, response_format=PERSON, max_tokens=60),
            "checked": outcome(llm, checks=without, on_failure="end", usage=False),
            "questions at once": at_once(llm),
        }


SCENARIOS = [
    chat_models,
    takeovers,
    checked,
    forms,
    vllm,
    llama_server,
    in_this_process,
]
