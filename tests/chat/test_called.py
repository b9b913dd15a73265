"""Tool calls in answers: as messages, streams and content blocks, complete or cut off."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool

from langchain_specfuse import Method, ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.chat.call_text import CUT_OFF, marked
from langchain_specfuse.core.values import CallFormat
from tests.constraints.test_calls import PROSE

from .conftest import asked, joined


@tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


@tool
def say(what: str, loud: bool = False) -> str:
    """Say something."""
    return what


def written(*calls: tuple[str, dict[str, Any]]) -> str:
    return "\n".join(ScriptedMember.call(name, **arguments) for name, arguments in calls)


SAID = {"what": "one two three four five six seven eight"}
BOTH = written(("say", SAID), ("add", {"a": 1, "b": 2}))
Make = Callable[..., SpecFuseChatModel]


async def every_message(model: Any, question: Any = "?") -> list[AIMessage]:
    """Return the answer from every way of asking."""
    whole = [await asked(model, way, question) for way in ("invoke", "ainvoke")]
    return [*whole, *[joined(await asked(model, way, question)) for way in ("stream", "astream")]]


def content(message: AIMessage) -> list[Any]:
    dropped = ("id", "annotations", "index", "extras")
    return [
        {k: v for k, v in block.items() if k not in dropped} for block in message.content_blocks
    ]


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("words", ["", "Let me see < <tool. "])
async def test_text_and_calls_are_the_same_in_every_way_of_asking(
    ensemble: Make, version: str, words: str
) -> None:
    bound = ensemble(words + BOTH, output_version=version).bind_tools([add, say])
    for message in await every_message(bound):
        assert message.text == words
        assert message.invalid_tool_calls == []
        assert message.response_metadata["finish_reason"] == "tool_calls"
        assert content(message) == [
            *([{"type": "text", "text": words}] if words else []),
            {"type": "tool_call", "name": "say", "args": SAID},
            {"type": "tool_call", "name": "add", "args": {"a": 1, "b": 2}},
        ]
        ids = [call["id"] for call in message.tool_calls]
        assert len(set(ids)) == 2
        assert [
            block["id"] for block in message.content_blocks if block["type"] == "tool_call"
        ] == ids
    message = bound.stream_events("?", version="v3").output
    assert (message.text, [call["args"] for call in message.tool_calls]) == (
        words,
        [SAID, {"a": 1, "b": 2}],
    )


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=9)
SAY = st.tuples(
    st.just("say"), st.builds(lambda what, loud: {"what": what, "loud": loud}, TEXT, st.booleans())
)
ADD = st.tuples(
    st.just("add"),
    st.builds(lambda a, b: {"a": a, "b": b}, st.integers(-9, 9), st.sampled_from([0.5, -2])),
)
CALLS = st.lists(SAY | ADD, max_size=3, unique_by=str)


@settings(max_examples=25)
@given(PROSE, CALLS, st.integers(2, 30), st.sampled_from(["v0", "v1"]))
def test_any_text_and_calls_are_returned_as_written(
    words: str, calls: list[tuple[str, Any]], segment_tokens: int, version: str
) -> None:
    member = ScriptedMember(words + written(*calls))
    llm = SpecFuseChatModel(
        members=[member], method=Method(segment_tokens=segment_tokens), output_version=version
    )
    message = llm.bind_tools([add, say]).invoke("?")
    assert message.text == words
    assert [(call["name"], call["args"]) for call in message.tool_calls] == calls
    assert message.invalid_tool_calls == []


async def test_a_call_names_its_author_and_the_confidence_of_the_vote(ensemble: Make) -> None:
    scripts = [written(("add", {"a": a, "b": 2})) for a in (1, 1, 3)]
    for message in await every_message(
        ensemble(*scripts, output_version="v1", segment_tokens=40).bind_tools([add])
    ):
        (block,) = (block for block in message.content_blocks if block["type"] == "tool_call")
        extras = block["extras"]  # type: ignore[typeddict-item]
        assert (extras["member"], extras["round"]) == ("a", 1)
        assert 0.5 < extras["confidence"] < 1 and 0 < extras["dissent"] <= 1


async def test_prose_stays_prose_if_members_need_not_call(ensemble: Make) -> None:
    for message in await every_message(
        ensemble("No <tool_call> is needed here.").bind_tools([add])
    ):
        assert (message.text, message.tool_calls) == ("No <tool_call> is needed here.", [])
        assert message.response_metadata["finish_reason"] == "stop"
    text = written(("add", {"a": 1, "b": 2}))
    message = ensemble(text).bind_tools([add], tool_choice="none").invoke("?")
    assert (message.text, message.tool_calls) == (text, [])


def test_the_vote_decides_between_text_and_a_call() -> None:
    call = written(("add", {"a": 1, "b": 2}))
    members = [
        ScriptedMember("It is three I think.", name="a"),
        *(ScriptedMember(call, name=n) for n in "bc"),
    ]
    message = SpecFuseChatModel(members=members).bind_tools([add]).invoke("1 + 2?")
    assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}]
    message = (
        SpecFuseChatModel(members=members, method=Method(prior={"a": 9.0}))
        .bind_tools([add])
        .invoke("1 + 2?")
    )
    assert (message.text, message.tool_calls) == ("It is three I think.", [])


def test_a_forced_call_begins_whatever_members_would_write(ensemble: Make) -> None:
    message = (
        ensemble("I would rather talk.", max_tokens=9)
        .bind_tools([add], tool_choice="add")
        .invoke("?")
    )
    assert (message.text, message.tool_calls) == ("", [])
    assert [call["name"] for call in message.invalid_tool_calls] == ["add"]
    assert message.response_metadata["specfuse"]["forced"] > 0
    assert message.usage_metadata and message.usage_metadata["output_tokens"] <= 9


@pytest.mark.parametrize("stop", ["four", "\n", "tool_call", "}"])
def test_a_stop_string_ends_prose_but_never_cuts_a_call(ensemble: Make, stop: str) -> None:
    message = ensemble("So: " + BOTH).bind_tools([add, say]).invoke("?", stop=[stop])
    assert (message.text, len(message.tool_calls), message.invalid_tool_calls) == ("So: ", 2, [])
    message = ensemble("So four: " + BOTH, stop=["four"]).bind_tools([add, say]).invoke("?")
    assert (message.text, message.tool_calls) == ("So ", [])
    assert message.response_metadata["specfuse"]["finish"] == "stop_string"


@pytest.mark.parametrize(
    ("words", "stop", "expected"),
    [
        ("So a < b", "< b", "So a "),
        ("So a < b", "a <", "So "),
        ("So a <", "<", "So a "),
        ("So a <tool", "<too", "So a "),
        ("So a < b <", "<", "So a "),
    ],
)
def test_a_stop_string_is_found_where_a_call_might_begin(
    ensemble: Make, words: str, stop: str, expected: str
) -> None:
    for texts in ((words,), (words, words + " and")):
        for size in (1, 3):
            bound = ensemble(*texts, segment_tokens=size, stop=[stop]).bind_tools([add, say])
            message = bound.invoke("?")
            assert (message.text, message.tool_calls) == (expected, [])
            assert message.response_metadata["specfuse"]["finish"] == "stop_string"


STOPS = st.lists(st.text(st.sampled_from("ab <to>\n"), min_size=1, max_size=4), max_size=2)


@settings(max_examples=30)
@given(st.lists(PROSE, min_size=1, max_size=2), CALLS, STOPS, st.integers(1, 4), st.integers(1, 20))
def test_with_tools_stop_strings_only_cut_prose_and_never_appear_in_it(
    words: list[str], calls: list[tuple[str, Any]], stop: list[str], segment: int, budget: int
) -> None:
    members = [ScriptedMember(text + written(*calls), name=text or "silent") for text in set(words)]
    llm = SpecFuseChatModel(
        members=members, method=Method(segment_tokens=segment), max_tokens=budget
    )
    bound = llm.bind_tools([add, say])
    plain, chunks = bound.invoke("?"), list(bound.stream("?", stop=stop))
    stopped = joined(chunks)
    places = [
        (plain.text.find(stop_string) + len(stop_string), plain.text.find(stop_string))
        for stop_string in stop
    ]
    at = min(((end, at) for end, at in places if at >= 0), default=(0, None))[1]
    assert plain.text.startswith(stopped.text)
    assert not any(stop_string in stopped.text for stop_string in stop)
    if at is None and plain.response_metadata["finish_reason"] == "length":
        # Text that may begin a call is hidden at the end of the budget, but may contain a stop string.
        return
    assert stopped.text == plain.text[:at]
    if at is None:
        called, expected = [
            [
                (call["name"], call["args"])
                for call in (*message.tool_calls, *message.invalid_tool_calls)
            ]
            for message in (stopped, plain)
        ]
        assert called == expected
    else:
        assert stopped.tool_calls == stopped.invalid_tool_calls == []
        assert stopped.response_metadata["specfuse"]["finish"] == "stop_string"


# --- calls that are cut off -----------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("words", ["", "So: "])
async def test_a_call_cut_by_the_budget_is_invalid_and_complete_calls_stay_valid(
    ensemble: Make, words: str, version: str
) -> None:
    text = words + written(("add", {"a": 1, "b": 2}), ("say", SAID))
    seen = set()
    for budget in range(1, 24, 2):
        bound = ensemble(
            text, max_tokens=budget, output_version=version, segment_tokens=2
        ).bind_tools([add, say])
        events = [
            event
            for event in await asked(bound, "astream_events")
            if event["event"] == "on_chat_model_end"
        ]
        others = []
        if budget % 4 == 1:
            others = [events[0]["data"]["output"], bound.stream_events("?", version="v3").output]
        for message in [*await every_message(bound), *others]:
            assert message.text in ("So:", words) and "<" not in message.text
            right, wrong = [call["name"] for call in message.tool_calls], message.invalid_tool_calls
            assert right == ["add", "say"][: len(right)]
            # in a stream the reason is at the end of the arguments
            for call in wrong:
                assert (call["error"] == CUT_OFF) is not (marked(CUT_OFF) in str(call["args"]))
            assert not wrong or message.response_metadata["finish_reason"] == "length"
            seen.add((len(right), len(wrong)))
    assert seen >= {(0, 1), (1, 1), (2, 0)}


def test_a_forced_call_that_no_member_writes_is_not_blamed_on_max_tokens() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("I will not.")])
    message = llm.bind_tools([add], tool_choice="any").invoke("?")
    (call,) = message.invalid_tool_calls
    assert "no member could continue" in str(call["error"]) and not message.tool_calls
    assert message.response_metadata["specfuse"]["stalled"] is True
    assert "max_tokens" not in str(message)


def test_an_agent_does_not_run_a_call_that_was_cut_off() -> None:
    paid: list[tuple[float, str]] = []

    @tool
    def pay(amount: float, to: str) -> str:
        """Pay money."""
        paid.append((amount, to))
        return "paid"

    script = written(("pay", {"amount": 100.0, "to": "ann and bob and cyd and dan and eve"}))
    for version in ("v0", "v1"):
        for budget in range(1, 8):
            members = [ScriptedMember(script, name=name) for name in "ab"]
            agent = create_agent(
                SpecFuseChatModel(members=members, max_tokens=budget, output_version=version), [pay]
            )
            state = agent.invoke({"messages": [HumanMessage("Pay ann.")]})
            assert [message.type for message in state["messages"]] == ["human", "ai"]
    assert paid == []


def of_calls(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that are about calls."""
    return [message for message in caplog.messages if " call " in message]


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_the_log_says_once_per_answer_that_the_budget_cut_a_call(
    ensemble: Make, version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent ends there with an empty answer and without an error."""
    text = written(("add", {"a": 1, "b": 2}), ("say", SAID))
    caplog.set_level(logging.WARNING, "langchain_specfuse")
    for way in ("invoke", "ainvoke", "stream", "astream"):
        caplog.clear()
        bound = ensemble(text, max_tokens=14, output_version=version, segment_tokens=2)
        await asked(bound.bind_tools([add, say]), way)
        (warning,) = of_calls(caplog)
        assert "'say'" in warning and "max_tokens" in warning
        assert "'add'" not in warning, "that call is complete"


def test_the_log_also_tells_of_a_call_that_was_cut_before_its_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "langchain_specfuse")
    llm = SpecFuseChatModel(members=[ScriptedMember(written(("say", SAID)))], max_tokens=1)
    message = llm.bind_tools([add, say]).invoke("?")
    assert not message.text and not message.tool_calls and not message.invalid_tool_calls
    (warning,) = of_calls(caplog)
    assert "max_tokens" in warning


def test_the_log_tells_of_no_cut_call_if_prose_was_cut_or_the_calls_are_complete(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "langchain_specfuse")
    for script, budget in (("one two three four five", 3), (BOTH, 200)):
        llm = SpecFuseChatModel(members=[ScriptedMember(script)], max_tokens=budget)
        llm.bind_tools([add, say]).invoke("?")
    assert of_calls(caplog) == []


# --- results, formats and reasoning ---------------------------------------------------------------


async def test_every_member_reads_the_result_of_a_call() -> None:
    seen: list[Any] = []

    def answer(query: Any) -> str:
        seen.append(query)
        return (
            "It is three." if query.turns[-1].role == "tool" else written(("add", {"a": 1, "b": 2}))
        )

    bound = SpecFuseChatModel(
        members=[ScriptedMember(answer, name=name) for name in "ab"]
    ).bind_tools([add])
    question = HumanMessage("1 + 2?")
    call = await bound.ainvoke([question])
    result = add.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    assert (await bound.ainvoke([question, call, result])).text == "It is three."
    assert [tool.name for tool in seen[-1].tools] == ["add"]
    called, answered = seen[-1].turns[1:]
    assert called.calls[0].id == answered.call_id == call.tool_calls[0]["id"]
    assert (answered.name, answered.text) == ("add", "3.0")


OWN = CallFormat("[CALL]", "[/CALL]", "", "function", "parameters")
BARE = CallFormat("", "", "; ", "name", "parameters")
COMMON = CallFormat()


class Trained(ScriptedMember):
    """Was trained on a call format of its own; writes the requested format after some words."""

    def __init__(self, calls: CallFormat | None, words: str = "", **options: Any) -> None:
        super().__init__(self._called, **options)
        self.calls, self.words = calls, words

    def _called(self, query: Any) -> str:
        constraint = json.loads(query.constraint.body)
        format = constraint if isinstance(constraint, dict) else json.loads(constraint[1][1])
        body = {format["name_key"]: "add", format["arguments_key"]: {"a": 1, "b": 2}}
        return str(self.words + format["begin"] + json.dumps(body) + format["end"])

    def probe(self) -> Any:
        return replace(super().probe(), calls=self.calls)


@pytest.mark.parametrize(
    ("writers", "verifier", "begin"),
    [
        ((OWN, OWN), None, OWN),
        ((OWN, None), None, OWN),
        ((OWN, BARE), None, COMMON),
        ((None, None), BARE, COMMON),
    ],
)
def test_calls_use_the_format_the_writers_were_trained_on_if_they_share_one(
    writers: Any, verifier: Any, begin: Any
) -> None:
    members = [Trained(calls, name=name) for calls, name in zip(writers, "ab", strict=True)]
    seen: list[str] = []
    handler = SpecFuseCallbackHandler(on_round=lambda event: seen.append(event.text))
    llm = SpecFuseChatModel(members=members, method=Method(verifiers=[Trained(verifier, name="v")]))
    message = llm.bind_tools([add], tool_choice="add").invoke("?", {"callbacks": [handler]})
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [
        ("add", {"a": 1, "b": 2})
    ]
    assert "".join(seen).startswith(begin.begin) and message.text == ""


@pytest.mark.parametrize("format", [OWN, BARE, COMMON])
def test_text_before_a_call_streams_in_every_format(format: CallFormat) -> None:
    llm = SpecFuseChatModel(
        members=[Trained(format, "Well, let me see: ", name="a")], method=Method(segment_tokens=2)
    )
    chunks = list(llm.bind_tools([add]).stream("?"))
    assert [chunk.text for chunk in chunks if chunk.text][:2] == ["Well, let", " me see:"]
    assert llm.bind_tools([add]).invoke("?").tool_calls[0]["args"] == {"a": 1, "b": 2}


class Thinking(ScriptedMember):
    """Reasons before its first draft."""

    def draft(self, jobs: Any) -> Any:
        thoughts = ["" if job.answer else f"{self.name}?" for job in jobs]
        return [
            replace(draft, thought=thought)
            for draft, thought in zip(super().draft(jobs), thoughts, strict=True)
        ]


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_the_reasoning_of_the_first_winner_is_shown_on_request(version: str) -> None:
    members = [Thinking("The sky is blue and wide.", name=name) for name in "ab"]
    llm = SpecFuseChatModel(
        members=members, method=Method(segment_tokens=2), output_version=version, reasoning=True
    )
    for message in await every_message(llm):
        assert message.text == "The sky is blue and wide."
        first, *rest = message.content_blocks
        assert (first["type"], first.get("reasoning")) == ("reasoning", "a?")
        assert {block["type"] for block in rest} == {"text"}
        assert message.additional_kwargs == ({"reasoning_content": "a?"} if version == "v0" else {})
    message = llm.invoke("?", reasoning=False)
    assert [block["type"] for block in message.content_blocks] == [
        "text"
    ] and not message.additional_kwargs
