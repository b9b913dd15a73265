"""Scripted members and fake chat models: every way in which an answer comes about."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from langchain_specfuse import (
    ChatModelMember,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    checks,
)
from tests import late
from tests.members.continued import begun_in
from tests.methods import in_method

from .record import asked, events_in_order, identity, streamed, traced

QUESTION = "Why is the sky blue?"
BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
RED = "The sun is red because thick air takes all blue out of its light at night."
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
}
PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {"name": {"type": "string"}, "born": {"type": "integer"}},
    "required": ["name", "born"],
}
ANN = {"name": "Ann", "born": 1867}


CONSULTING: dict[str, Any] = {"method": {"margin": 0.5}}
"""The lead asks the others where it is unsure."""


def members(**scripts: Any) -> list[ScriptedMember]:
    return [ScriptedMember(script, name=name) for name, script in scripts.items()]


def every_way(make: Callable[[], Any], question: Any = QUESTION, **call: Any) -> dict[str, Any]:
    """One answer by ``invoke``, ``stream`` and ``astream_events``, each of a new chat model."""
    record = asked(make(), question, **call)
    stream = streamed(make(), question, **call)
    if stream.get("message") == record.get("message"):
        stream.pop("message", None)
    if stream.get("error") == record.get("error"):
        stream.pop("error", None)
    return {**record, "stream": stream, "events": events_in_order(make(), question, **call)}


def everything(make: Callable[[], Any], question: Any = QUESTION, **call: Any) -> dict[str, Any]:
    """One answer in every way, and what LangSmith receives."""
    return {**every_way(make, question, **call), "runs": traced(make(), question, **call)}


def model(ensemble: list[Any], **options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(
        **in_method(**{"members": ensemble, "segment_tokens": 4, "lead": None, **options})
    )


# --- the method -----------------------------------------------------------------------------------


def equals() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        return model(members(ann=BLUE, bob=WIDE, cem=RED), prior={"ann": 2.0})

    return everything(make) | identity(make())


def lead_alone() -> dict[str, Any]:
    """A lead that is sure of its drafts consults nobody."""
    return everything(lambda: model(members(ann=BLUE, bob=WIDE), lead="ann", **CONSULTING))


def lead_consults() -> dict[str, Any]:
    """A lead that is unsure; another draft replaces its own where the verifiers prefer it."""

    def make() -> SpecFuseChatModel:
        unsure = ScriptedMember(BLUE, name="ann", confidence=12.0)
        return model([unsure, *members(bob=WIDE, cem=WIDE)], lead="ann", **CONSULTING)

    return everything(make)


def specem() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        return model(members(ann=BLUE, bob=WIDE, cem=RED), method="specem")

    return every_way(make) | identity(make())


def specfuse() -> dict[str, Any]:
    return every_way(lambda: model(members(ann=BLUE, bob=WIDE, cem=RED), method="specfuse"))


def exit_of_a_member() -> dict[str, Any]:
    words = [f"word{number}" for number in range(40)]
    other = [f"other{number}" for number in range(40)]
    scripts = {
        "ann": " ".join(words),
        "bob": " ".join(words[:30] + other[30:]),
        "cem": " ".join(other),
    }
    method = Method(min_members=1, learning_rate=1.0)
    return everything(lambda: model(members(**scripts), method=method))


def method_options() -> dict[str, Any]:
    method = Method(
        score="logprob_per_byte", weighting="equal", reward="wins", exit="never", margin=0.5
    )
    make = lambda: model(members(ann=BLUE, bob=WIDE), method=method, lead="bob")
    return asked(make(), QUESTION) | identity(make())


def verify_only() -> dict[str, Any]:
    voters = [ScriptedMember(WIDE, name="cem"), ScriptedMember(WIDE, name="dan")]
    make = lambda: model(members(ann=BLUE, bob=WIDE), verifiers=voters, prior={"cem": 0.5})
    return every_way(make) | identity(make())


def draft_only() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        silent = ScriptedMember(WIDE, name="bob", draft_only=True)
        return model([*members(ann=BLUE), silent])

    return asked(make(), QUESTION)


def looping_member() -> dict[str, Any]:
    again = "The sky is blue " + "and so is the sea " * 8
    make = lambda: model(members(ann=again, bob=again, cem=WIDE), max_tokens=40)
    return asked(make(), QUESTION)


def alone() -> dict[str, Any]:
    return every_way(lambda: model(members(ann=BLUE), lead="auto"))


# --- members that do not answer -------------------------------------------------------------------


def failing_member() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        failing = ScriptedMember(BLUE, name="cem", fails_in=2)
        return model([*members(ann=BLUE, bob=WIDE), failing])

    return everything(make)


def failing_lead() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        failing = ScriptedMember(BLUE, name="ann", fails_in=3)
        return model([failing, *members(bob=WIDE, cem=RED)], lead="ann", **CONSULTING)

    return everything(make)


def reserve() -> dict[str, Any]:
    """A lead that fails in mid-sentence, one that refuses, and one that cannot pass a check."""

    def failing() -> SpecFuseChatModel:
        lead = ScriptedMember(BLUE, name="ann", fails_in=2)
        return model([lead, *members(bob=WIDE, cem=RED)], lead="ann")

    refusing = lambda how: model(
        members(ann=ScriptedMember.refusal("No."), bob=WIDE),
        lead="ann",
        refusals=how,
    )
    rule = lambda text: "says blue" if "blue" in text else None
    checked = lambda: model(members(ann=BLUE, bob=WIDE), lead="ann", checks=[rule])
    return {
        "fails": everything(failing),
        "refuses": asked(refusing("outvoted"), QUESTION),
        "refusal ignored": asked(refusing("ignore"), QUESTION),
        "cannot pass a check": asked(checked(), QUESTION),
    }


def all_members_fail() -> dict[str, Any]:
    def make() -> SpecFuseChatModel:
        long = ScriptedMember(BLUE, name="bob", max_context=10)
        return model([ScriptedMember(BLUE, name="ann", fails_in=1), long])

    return everything(make)


class WaitingMember(ScriptedMember):
    """Never replies to a draft in the middle of an answer, until it is released."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.hanging, self.released = threading.Event(), threading.Event()

    def draft(self, jobs: Any) -> Any:
        if any(job.answer for job in jobs):
            self.hanging.set()
            self.released.wait(60)
        return super().draft(jobs)


def late_member() -> dict[str, Any]:
    waiting = WaitingMember(BLUE, name="cem", device="another")
    llm = model([*members(ann=BLUE, bob=WIDE), waiting], member_timeout=0.2)
    try:
        with late.only_where(lambda name: name == "cem" and waiting.hanging.is_set()):
            return asked(llm, QUESTION)
    finally:
        waiting.released.set()


def late_answer() -> dict[str, Any]:
    waiting = WaitingMember(BLUE, name="ann")
    try:
        with late.answers_only_where(waiting.hanging.is_set):
            return {"runs": traced(model([waiting], timeout=0.5), QUESTION)}
    finally:
        waiting.released.set()


def refusal() -> dict[str, Any]:
    no = ScriptedMember.refusal("I cannot help with that.")
    outvoted = lambda: model(members(ann=no, bob=BLUE, cem=WIDE))
    counted = lambda: model(members(ann=BLUE, bob=no), refusals="any")
    unanimous = lambda: model(members(ann=no, bob=ScriptedMember.refusal("No.")))
    return {
        "outvoted": everything(outvoted),
        "any": asked(counted(), QUESTION),
        "all": everything(unanimous),
    }


# --- forms of answers -----------------------------------------------------------------------------


def tool_call() -> dict[str, Any]:
    call = ScriptedMember.call
    scripts = {
        "ann": "Let me look. " + call("get_weather", city="Rome", days=2),
        "bob": "Let me look. " + call("get_weather", city="Rome", days=3),
    }
    after = ["It is sunny in Rome, and stays so.", "It is rainy in Rome, and stays so."]

    def make() -> Any:
        writers = [
            ScriptedMember([script, answer], name=name)
            for (name, script), answer in zip(scripts.items(), after, strict=True)
        ]
        return model(writers).bind_tools([WEATHER])

    called = AIMessage(
        "", tool_calls=[{"name": "get_weather", "args": {"city": "Rome"}, "id": "x"}]
    )
    second = [HumanMessage("Weather?"), called, ToolMessage("sunny", tool_call_id="x")]
    return {"first": everything(make), "second": asked(make(), second)}


def tool_choice() -> dict[str, Any]:
    calls = [ScriptedMember.call("get_weather", city=city) for city in ("Rome", "Bonn")]
    writers = members(ann="\n".join(calls), bob="I will not call.")
    both = model(writers).bind_tools([WEATHER], tool_choice="any", parallel_tool_calls=True)
    single = model(writers).bind_tools([WEATHER], tool_choice="get_weather")
    prevented = model(writers).bind_tools([WEATHER], tool_choice="none")
    return {
        "several": asked(both, QUESTION),
        "one": asked(single, QUESTION),
        "none": asked(prevented, QUESTION),
    }


def structured_output() -> dict[str, Any]:
    """The schema leaves no choice about the keys: they are forced text."""
    make = lambda: model(members(ann=ANN, bob={"name": "Bob", "born": 1900}))
    form = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}
    }
    methods = ("json_schema", "function_calling", "json_mode")
    call = ScriptedMember.call("Person", **ANN)
    objects = {}
    for method in methods:
        script = call if method == "function_calling" else ANN
        parser = model(members(ann=script)).with_structured_output(PERSON, method=method)
        objects[method] = parser.invoke(QUESTION)
    return {**everything(lambda: make().bind(**form)), "objects": objects}


def other_constraints() -> dict[str, Any]:
    writers = members(ann="Yes, because it is so.", bob="No.")
    writers += members(cem="No.")
    return {
        "choice": asked(model(writers), QUESTION, choice=["Yes", "No."]),
        "regex": asked(model(writers), QUESTION, regex="(Yes|No)[,.]"),
        "grammar": asked(model(writers), QUESTION, grammar='root ::= "No" "."'),
    }


def stop_strings() -> dict[str, Any]:
    make = lambda: model(members(ann=BLUE, bob=WIDE), stop=["short waves"])
    seam = asked(model(members(ann=BLUE), segment_tokens=1), QUESTION, stop=["air scatters"])
    length = asked(model(members(ann=BLUE, bob=WIDE)), QUESTION, max_tokens=7)
    return {**every_way(make), "across a seam": seam, "max_tokens": length}


def with_logprobs() -> dict[str, Any]:
    return asked(model(members(ann=BLUE, bob=WIDE)), QUESTION, logprobs=True)


# --- whole answers --------------------------------------------------------------------------------


def whole_answers() -> dict[str, Any]:
    texts = {
        "number": ("It is 41.", "So 6 * 7 = 42.", "The result is 42."),
        "choice": ("The answer is (B).", "C", "I say C."),
        "json": ('So {"a": 1}.', '{"a": 2}', 'It is {"a":2.0}'),
        "text": ("Yes.", "No.", "No."),
        "words": ("one two three", "one two", "four five"),
    }
    records = {}
    for result, answers in texts.items():
        writers = members(**dict(zip(("ann", "bob", "cem"), answers, strict=True)))
        options = {"segment": "answer", "result": result}
        if result == "words":
            options["result"] = word_count
        records[result] = asked(model(writers, **options), QUESTION)
    led = members(ann="It is 41.", bob="It is 42.", cem="It is 43.")
    tie = lambda: model(led, segment="answer", result="number", lead="cem")
    none = model(members(ann="Well.", bob="So."), segment="answer", result="number")
    objects = members(ann={**ANN, "born": 1}, bob=ANN, cem=ANN)
    bound = model(objects, segment="answer").bind(response_format=PERSON)
    return {
        **records,
        "tie": every_way(tie),
        "no result": asked(none, QUESTION),
        "object": asked(bound, QUESTION),
    }


def word_count(text: str) -> int:
    return len(text.split())


def samples() -> dict[str, Any]:
    writers = members(ann="It is 41.", bob="It is 42.", cem="It is 42.")
    options = {"segment": "answer", "result": "number", "samples": 3, "temperature": 0.7, "seed": 5}
    return every_way(lambda: model(writers, **options))


# --- chat models as members -----------------------------------------------------------------------


class Speaker(BaseChatModel):
    """A fake chat model: streams its script word by word, continues its own text, and counts down
    where it is asked to count."""

    script: str = BLUE
    thought: str = ""
    letter: str = "A"
    usage: bool = True

    @property
    def _llm_type(self) -> str:
        return "speaker"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        words = re.findall(r"\s*\S+", self._reply(messages))
        for word in words:
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        last = AIMessageChunk("", response_metadata={"finish_reason": "stop"})
        if self.usage:
            read = sum(len(message.text.split()) for message in messages)
            last.usage_metadata = {
                "input_tokens": read,
                "output_tokens": len(words),
                "total_tokens": read + len(words),
            }
        yield ChatGenerationChunk(message=last)

    def _reply(self, messages: list[BaseMessage]) -> str:
        if "Reply with its letter" in messages[-1].text:
            return self.letter
        begun = begun_in(messages)
        rest = self.script.split()[len(begun.split()) :]
        if begun:
            return " " + " ".join(rest)
        return self.thought + " ".join(rest)


def speakers(*scripts: str, **options: Any) -> list[ChatModelMember]:
    names = ("ann", "bob", "cem")
    return [
        ChatModelMember(Speaker(script=script, **options), name=name, price=(1.0, 4.0))
        for name, script in zip(names, scripts, strict=False)
    ]


def chat_models() -> dict[str, Any]:
    make = lambda: model(speakers(BLUE, WIDE))
    lead = lambda: model([*speakers(BLUE), *members(bob=WIDE)], lead="ann", **CONSULTING)
    return {"equals": everything(make), "lead": every_way(lead), **identity(make())}


def budget() -> dict[str, Any]:
    calls = lambda: model(speakers(BLUE, WIDE, RED), max_calls=7)
    costs = lambda: model(speakers(BLUE, WIDE, RED), max_cost=0.0005)
    mixed = [*speakers(BLUE, WIDE), *members(cem=RED)]
    lead = lambda: model(mixed, max_calls=1, lead="ann", **CONSULTING)
    return {
        "calls": every_way(calls),
        "cost": asked(costs(), QUESTION),
        "lead": asked(lead(), QUESTION),
    }


def reasoning() -> dict[str, Any]:
    thought = "<think>Short waves are blue.</think>"
    make = lambda: model([*speakers(BLUE, thought=thought), *members(bob=WIDE)])
    return {"hidden": asked(make(), QUESTION), "shown": every_way(make, reasoning=True)}


# --- checks ---------------------------------------------------------------------------------------


def checks_of_text() -> dict[str, Any]:
    """A rule that one member breaks, asked at every place; and what happens if all break it."""
    rule = checks.forbids("wide|thick")
    places = ("segment", "sentence", "answer")
    asked_at = {
        place: asked(
            model(members(ann=WIDE, bob=BLUE, cem=RED), checks=[checks.at(place, rule)]), QUESTION
        )
        for place in places
    }

    def alone(how: str) -> SpecFuseChatModel:
        return model(members(ann=WIDE), checks=[rule], on_failure=how)

    failing = {how: asked(alone(how), QUESTION) for how in ("raise", "end")}
    failing["stream"] = streamed(alone("raise"), QUESTION)
    options = {"lead": "ann", "checks": [rule], **CONSULTING}
    with_lead = everything(lambda: model(members(ann=WIDE, bob=BLUE), **options))
    whole = asked(
        model(members(ann=WIDE, bob=BLUE), segment="answer", samples=2, checks=[rule]), QUESTION
    )
    return {**asked_at, **failing, "lead": with_lead, "whole": whole}


SCENARIOS = [
    checks_of_text,
    equals,
    lead_alone,
    lead_consults,
    specem,
    specfuse,
    exit_of_a_member,
    method_options,
    verify_only,
    draft_only,
    looping_member,
    alone,
    failing_member,
    failing_lead,
    reserve,
    all_members_fail,
    late_member,
    late_answer,
    refusal,
    tool_call,
    tool_choice,
    structured_output,
    other_constraints,
    stop_strings,
    with_logprobs,
    whole_answers,
    samples,
    chat_models,
    budget,
    reasoning,
]
