"""Answers that call tools: as messages, as streams, as content blocks; cut, closed, thought about."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool

from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse._calls import BEYOND, CLOSED
from langchain_specfuse._tally import Tally
from langchain_specfuse.core.values import CallFormat, Draft, Effort, Round, Segment

from .conftest import asked


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def say(what: str, loud: bool = False) -> str:
    """Say something."""
    return what


def written(*calls: tuple[str, dict[str, Any]]) -> str:
    bodies = [json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) for name, arguments in calls]
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


SAID = {"what": "one two three four five six seven eight"}
BOTH = written(("say", SAID), ("add", {"a": 1, "b": 2}))
Make = Callable[..., SpecFuseChatModel]


@pytest.fixture
def llm(ensemble: Make) -> Make:
    """A chat model of members that answer so; segments of four words."""
    return ensemble


async def every_message(model: Any, question: Any = "?") -> list[AIMessage]:
    """The answer in all ways of asking."""
    joined = []
    for way in ("stream", "astream"):
        chunks = await asked(model, way, question)
        whole = chunks[0]
        for chunk in chunks[1:]:
            whole += chunk
        joined.append(whole)
    return [await asked(model, "invoke", question), await asked(model, "ainvoke", question), *joined]


def content(message: AIMessage) -> list[Any]:
    return [
        {k: v for k, v in b.items() if k not in ("id", "annotations", "index", "extras")}
        for b in message.content_blocks
    ]


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("words", ["", "Let me see < <tool. "])
async def test_words_and_calls_are_the_same_in_every_way_of_asking(llm: Make, version: str, words: str) -> None:
    bound = llm(words + BOTH, output_version=version).bind_tools([add, say])
    for message in await every_message(bound):
        assert message.text == words
        assert [(call["name"], call["args"]) for call in message.tool_calls] == [
            ("say", SAID),
            ("add", {"a": 1, "b": 2}),
        ]
        assert message.invalid_tool_calls == []
        assert message.response_metadata["finish_reason"] == "tool_calls"
        assert content(message) == [
            *([{"type": "text", "text": words}] if words else []),
            {"type": "tool_call", "name": "say", "args": SAID},
            {"type": "tool_call", "name": "add", "args": {"a": 1, "b": 2}},
        ]
        ids = [call["id"] for call in message.tool_calls]
        assert len(set(ids)) == 2
        assert [block["id"] for block in message.content_blocks if block["type"] == "tool_call"] == ids


@pytest.mark.parametrize("version", ["v0", "v1"])
def test_a_long_call_streams_its_arguments_and_its_name_once(llm: Make, version: str) -> None:
    bound = llm("So: " + BOTH, output_version=version).bind_tools([add, say])
    chunks: list[AIMessageChunk] = list(bound.stream("?"))  # type: ignore[arg-type]
    pieces = [piece for chunk in chunks for piece in chunk.tool_call_chunks]
    first = [piece for piece in pieces if piece["index"] == pieces[0]["index"]]
    assert len(first) > 2
    assert [bool(piece["name"]) for piece in first] == [True] + [False] * (len(first) - 1)
    assert [bool(piece["id"]) for piece in first] == [True] + [False] * (len(first) - 1)
    assert "".join(piece["args"] or "" for piece in first) == json.dumps(SAID)
    assert "".join(chunk.text for chunk in chunks) == "So: "


async def test_a_call_says_who_wrote_it(llm: Make) -> None:
    bound = llm("So: " + BOTH, "So: " + BOTH, output_version="v1").bind_tools([add, say])
    for message in await every_message(bound):
        first, second = (block["extras"] for block in message.content_blocks if block["type"] == "tool_call")  # type: ignore[typeddict-item]
        assert first["member"] == second["member"] == "a"
        assert 1 <= first["round"] < second["round"]
        assert (first["margin"], first["confidence"], first["dissent"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("runners_up", [True, None])
async def test_a_call_says_how_sure_the_others_were_and_what_lost(llm: Make, runners_up: bool | None) -> None:
    scripts = [written(("add", {"a": a, "b": 2})) for a in (1, 1, 3)]
    bound = llm(*scripts, output_version="v1", runners_up=runners_up, segment_tokens=40).bind_tools([add])
    for message in await every_message(bound):
        (block,) = (block for block in message.content_blocks if block["type"] == "tool_call")
        extras = block["extras"]  # type: ignore[typeddict-item]
        assert 0.5 < extras["confidence"] < 1 and 0 < extras["dissent"] <= 1
        assert ("runner_up" in extras) is bool(runners_up)
        if runners_up:
            assert extras["runner_up"]["member"] == "c" and '"a": 3' in extras["runner_up"]["text"]


async def test_prose_stays_prose_where_members_are_free(llm: Make) -> None:
    for message in await every_message(llm("No <tool_call> is needed here.").bind_tools([add])):
        assert (message.text, message.tool_calls) == ("No <tool_call> is needed here.", [])
        assert message.response_metadata["finish_reason"] == "stop"


def test_the_vote_decides_between_words_and_a_call() -> None:
    call = written(("add", {"a": 1, "b": 2}))
    members = [ScriptedMember("It is three I think.", name="a"), *(ScriptedMember(call, name=n) for n in "bc")]
    message = SpecFuseChatModel(members=members).bind_tools([add]).invoke("1 + 2?")
    assert [call["args"] for call in message.tool_calls] == [{"a": 1, "b": 2}]
    message = SpecFuseChatModel(members=members, prior={"a": 9.0}).bind_tools([add]).invoke("1 + 2?")
    assert (message.text, message.tool_calls) == ("It is three I think.", [])


def test_a_forced_call_is_written_whatever_members_would_say_and_is_none_of_theirs(llm: Make) -> None:
    message = llm("I would rather talk.").bind_tools([add], tool_choice="add").invoke("?")
    (call,) = message.invalid_tool_calls
    assert call["name"] == "add" and set(json.loads(str(call["args"]).removesuffix(CLOSED))) == {"a", "b"}
    assert message.tool_calls == []
    summary = message.response_metadata["specfuse"]
    assert summary["forced"] > 0
    assert message.text == ""


def test_with_none_a_call_is_only_text(llm: Make) -> None:
    text = written(("add", {"a": 1, "b": 2}))
    message = llm(text).bind_tools([add], tool_choice="none").invoke("?")
    assert (message.text, message.tool_calls) == (text, [])


def test_one_call_is_the_end_unless_several_are_allowed(llm: Make) -> None:
    for options, count in (({}, 1), ({"parallel_tool_calls": True}, 2)):
        message = llm(BOTH).bind_tools([add, say], tool_choice="any", **options).invoke("?")
        assert len(message.tool_calls) == count
    assert len(llm(BOTH).bind_tools([add, say], parallel_tool_calls=False).invoke("?").tool_calls) == 1


@pytest.mark.parametrize("stop", ["four", "\n", "tool_call", "}"])
def test_a_stop_string_ends_prose_and_cuts_no_call(llm: Make, stop: str) -> None:
    bound = llm("So: " + BOTH).bind_tools([add, say])
    message = bound.invoke("?", stop=[stop])
    assert (message.text, len(message.tool_calls), message.invalid_tool_calls) == ("So: ", 2, [])
    message = llm("So four: " + BOTH, stop=["four"]).bind_tools([add, say]).invoke("?")
    assert (message.text, message.tool_calls) == ("So ", [])
    assert message.response_metadata["finish_reason"] == "stop_string"


def closed(message: AIMessage, version: str) -> list[dict[str, Any]]:
    """The arguments of the calls that were closed by hand; they are nowhere among the others."""
    assert message.response_metadata["finish_reason"] == "length"
    assert message.response_metadata["specfuse"]["closed"] is True
    args = [str(call["args"]) for call in message.invalid_tool_calls]
    assert all(one.endswith(CLOSED) for one in args)
    blocks = [block for block in message.content_blocks if block["type"] == "tool_call"]
    assert [block["id"] for block in blocks] == [call["id"] for call in message.tool_calls]
    return [json.loads(one.removesuffix(CLOSED)) for one in args]


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("budget", range(1, 14))
async def test_a_call_that_the_budget_cuts_is_closed_and_invalid(llm: Make, version: str, budget: int) -> None:
    bound = llm(BOTH, max_tokens=budget, output_version=version).bind_tools([add, say], tool_choice="say")
    for message in await every_message(bound):
        if message.response_metadata["finish_reason"] != "length":
            assert (len(message.tool_calls), message.invalid_tool_calls) == (1, [])
            continue
        ((args),) = closed(message, version)
        assert isinstance(args["what"], str) and SAID["what"].startswith(args["what"])
        assert message.tool_calls == []


@pytest.mark.parametrize("version", ["v0", "v1"])
@pytest.mark.parametrize("words", ["", "So: "])
async def test_calls_that_were_whole_stay_valid_wherever_the_budget_ends(llm: Make, words: str, version: str) -> None:
    text = words + written(("add", {"a": 1, "b": 2}), ("say", SAID))
    seen = set()
    for budget in range(1, 30):
        bound = llm(text, max_tokens=budget, output_version=version, segment_tokens=2).bind_tools([add, say])
        for message in await every_message(bound):
            assert message.text in ("So:", words) and "<" not in message.text
            right, wrong = [call["name"] for call in message.tool_calls], message.invalid_tool_calls
            summary = message.response_metadata["specfuse"]
            if summary["closed"]:
                closed(message, version)
            names = [f"{kind}_calls" for kind in ("tool", "invalid_tool") if getattr(message, f"{kind}_calls")]
            assert {path.partition("[")[0] for path in summary.get("fields", {})} == set(names)
            assert right == ["add", "say"][: len(right)] and len(wrong) <= 1
            seen.add((len(right), len(wrong)))
    assert seen >= {(0, 1), (1, 0), (1, 1), (2, 0)}


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_a_closed_call_is_invalid_in_every_stream_of_events(llm: Make, version: str) -> None:
    bound = llm("So: " + BOTH, max_tokens=9, output_version=version).bind_tools([add, say])
    events = await asked(bound, "astream_events")
    told = [event["data"]["output"] for event in events if event["event"] == "on_chat_model_end"]
    native = bound.stream_events("?", version="v3").output
    for message in [*told, native]:
        assert message.tool_calls == []
        (call,) = message.invalid_tool_calls
        assert call["name"] == "say" and call["args"].endswith(CLOSED)


def test_an_agent_does_not_run_a_closed_call() -> None:
    from langchain.agents import create_agent

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
            agent = create_agent(SpecFuseChatModel(members=members, max_tokens=budget, output_version=version), [pay])
            state = agent.invoke({"messages": [HumanMessage("Pay ann.")]})
            assert [message.type for message in state["messages"]] == ["human", "ai"]
    assert paid == []


def test_usage_counts_what_members_wrote_and_not_what_was_forced(llm: Make) -> None:
    message = llm(BOTH, max_tokens=5).bind_tools([add, say], tool_choice="say").invoke("?")
    assert message.usage_metadata and message.usage_metadata["output_tokens"] <= 5


async def test_a_result_goes_back_to_every_member() -> None:
    seen: list[Any] = []

    def answer(query: Any) -> str:
        seen.append(query)
        return "It is three." if query.turns[-1].role == "tool" else written(("add", {"a": 1, "b": 2}))

    bound = SpecFuseChatModel(members=[ScriptedMember(answer, name=name) for name in "ab"]).bind_tools([add])
    question = HumanMessage("1 + 2?")
    call = await bound.ainvoke([question])
    result = add.invoke(call.tool_calls[0])
    assert isinstance(result, ToolMessage)
    final = await bound.ainvoke([question, call, result])
    assert final.text == "It is three."
    assert [one.name for one in seen[-1].tools] == ["add"]
    called, told = seen[-1].turns[1:]
    assert called.calls[0].id == told.call_id == call.tool_calls[0]["id"]
    assert (told.name, told.text) == ("add", "3")


async def test_calls_come_through_the_newest_event_stream(llm: Make) -> None:
    for version in ("v0", "v1"):
        stream = llm("So: " + BOTH, output_version=version).bind_tools([add, say]).stream_events("?", version="v3")
        message = stream.output
        assert [call["args"] for call in message.tool_calls] == [SAID, {"a": 1, "b": 2}]
        assert message.text == "So: "


# --- in whose words calls are written -----------------------------------------------------------------------------

OWN = CallFormat("[CALL]", "[/CALL]", "", "function", "parameters")
OTHER = CallFormat("<call>", "</call>")
COMMON = CallFormat()


class Trained(ScriptedMember):
    """Was trained to write calls in a format of its own; says whatever format it is asked for."""

    def __init__(self, calls: CallFormat | None, **options: Any) -> None:
        super().__init__(self._called, **options)
        self.calls = calls
        self.asked: list[str] = []

    def _called(self, query: Any) -> str:
        format = json.loads(query.constraint.body)
        self.asked.append(format["begin"])
        body = {format["name_key"]: "add", format["arguments_key"]: {"a": 1, "b": 2}}
        return str(format["begin"] + json.dumps(body) + format["end"])

    def probe(self) -> Any:
        return replace(super().probe(), calls=self.calls)


@pytest.mark.parametrize(
    ("writers", "verifier", "expected"),
    [
        ((OWN, OWN), None, OWN),
        ((OWN, None), None, OWN),
        ((OWN, OTHER), None, COMMON),
        ((None, None), None, COMMON),
        ((OWN, None), OTHER, OWN),
    ],
)
def test_calls_are_written_as_the_writers_know_them_if_they_agree(
    writers: tuple[CallFormat | None, ...], verifier: CallFormat | None, expected: CallFormat
) -> None:
    members = [Trained(calls, name=name) for calls, name in zip(writers, "ab", strict=True)]
    llm = SpecFuseChatModel(members=members, verifiers=[Trained(verifier, name="v")])
    message = llm.bind_tools([add], tool_choice="add").invoke("?")
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("add", {"a": 1, "b": 2})]
    assert message.text == ""
    assert {begin for member in members for begin in member.asked} == {expected.begin}


# --- thoughts -----------------------------------------------------------------------------------------------------


def a_round(number: int, text: str, *, finish: Any = None, thoughts: Any = None) -> Round:
    drafts = {"a": Draft(text, tokens=(1,), effort=Effort(prompt=3))}
    return Round(number, text, Segment(text), "a", drafts, {}, {}, {"a": 1.0}, {}, {"a": 1.0}, {"a": 1.0},
                 thoughts=thoughts or {}, finish=finish)  # fmt: skip


def told(version: str, rounds: list[Round]) -> AIMessageChunk:
    tally = Tally(["a", "b"], "a+b", output_version=version, seed=None)
    chunks = [chunk.message for round in rounds for chunk in tally.chunks(round)]
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk  # type: ignore[assignment]
    assert isinstance(whole, AIMessageChunk)
    return whole


def test_thoughts_are_reasoning_and_never_the_answer() -> None:
    rounds = [
        a_round(1, "The sky ", thoughts={"a": "Hm.", "b": "Blue?"}),
        a_round(2, "is ", thoughts={"b": " Yes."}),
        a_round(3, "blue.", finish="stop"),
    ]
    message = told("v1", rounds)
    assert message.text == "The sky is blue."
    thoughts = [block for block in message.content_blocks if block["type"] == "reasoning"]
    assert [(one["reasoning"], one["extras"]["member"]) for one in thoughts] == [("Hm.", "a"), ("Blue? Yes.", "b")]
    message = told("v0", rounds)
    assert message.content == "The sky is blue."
    assert message.additional_kwargs == {"reasoning_content": "Hm.\n\nBlue?\n\n Yes."}
    assert [block["type"] for block in message.content_blocks] == ["reasoning", "text"]


def test_a_thought_without_a_word_yet_is_shown() -> None:
    tally = Tally(["a"], "a", output_version="v0", seed=None)
    (chunk,) = tally.chunks(a_round(1, "", thoughts={"a": "Hm."}))
    assert chunk.message.additional_kwargs == {"reasoning_content": "Hm."}
    assert list(tally.chunks(a_round(2, ""))) == []


# --- the vote -----------------------------------------------------------------------------------------------------


@tool
def heat(degrees: float, rooms: dict[str, int]) -> str:
    """Heat rooms."""
    return "warm"


WARM = ('{"degrees": 21, "rooms": {"hall": 1, "attic": 2}}', '{"degrees": 21.0, "rooms": {"attic": 2, "hall": 1}}')


@pytest.mark.parametrize("choice", ["auto", "any"])
def test_the_same_call_in_other_writing_is_no_disagreement(choice: str) -> None:
    scripts = [f'<tool_call>\n{{"name": "heat", "arguments": {args}}}\n</tool_call>' for args in WARM]
    members = [ScriptedMember(script, name=name) for script, name in zip(scripts, "ab", strict=True)]
    margins: list[float] = []
    listener = SpecFuseCallbackHandler(on_round=lambda event: margins.append(event.margin))
    bound = SpecFuseChatModel(members=members, segment_tokens=40).bind_tools([heat], tool_choice=choice)
    message = bound.invoke("?", {"callbacks": [listener]})
    assert message.tool_calls[0]["args"] == {"degrees": 21.0, "rooms": {"hall": 1, "attic": 2}}
    assert margins == [1.0]


def test_two_that_write_one_call_outvote_a_third() -> None:
    scripts = [written(("say", {"what": what})) for what in ("no", "yes", "yes")]
    members = [ScriptedMember(script, name=name) for script, name in zip(scripts, "abc", strict=True)]
    message = SpecFuseChatModel(members=members, segment_tokens=40).bind_tools([say]).invoke("?")
    assert [call["args"] for call in message.tool_calls] == [{"what": "yes"}]


def test_an_agent_with_tools_and_a_format_calls_and_then_answers_in_it() -> None:
    from langchain.agents import create_agent
    from pydantic import BaseModel

    class Sum(BaseModel):
        """A sum."""

        total: int

    def answer(query: Any) -> str:
        return '{"total": 3}' if query.turns[-1].role == "tool" else written(("add", {"a": 1, "b": 2}))

    llm = SpecFuseChatModel(members=[ScriptedMember(answer, name=name) for name in "ab"])
    state = create_agent(llm, [add], response_format=Sum).invoke({"messages": [HumanMessage("1 + 2?")]})
    assert state["structured_response"] == Sum(total=3)
    assert [message.type for message in state["messages"]] == ["human", "ai", "tool", "ai"]


async def test_a_number_that_no_float_holds_is_no_infinity_anywhere(llm: Make) -> None:
    """JSON's grammar allows 1e999; whoever executed such a call would be given ``inf``."""

    def scale(factor: float) -> float:
        """Multiply by a number."""
        return factor

    call = '<tool_call>\n{"name": "scale", "arguments": {"factor": 1e999}}\n</tool_call>'
    for message in await every_message(llm(call).bind_tools([scale])):
        assert message.tool_calls == []
        (broken,) = message.invalid_tool_calls
        assert broken["name"] == "scale" and str(broken["args"]).endswith(BEYOND)
    assert "1e999" in (await every_message(llm("Well: 1e999.").bind_tools([scale])))[0].text
