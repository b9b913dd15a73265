"""Fused answers through the chat model: streams, metadata, events, traces, tools and objects."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from pydantic import BaseModel

from langchain_specfuse import (
    ChatModelMember,
    CheckError,
    EnsembleError,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    TraceCallbackHandler,
    demo_members,
)
from tests.members import tiny
from tests.members.test_chat_model import Talker

from .conftest import WAYS, FailingMember, GatedMember, asked, auntil, free, joined, until

FINAL = "Take a coat, an umbrella, and enough food for the Sunday."
OWN = ("Take a coat.", "Take an umbrella.", "Shops are closed on Sunday.")


def writes(own: Any, final: Any = FINAL) -> Any:
    """Return the script of a member that answers alone, and that merges answers."""
    return lambda query: final if "Answer 1:" in query.turns[-1].text else own


def council(*members: Any, **options: Any) -> SpecFuseChatModel:
    """Return a chat model whose first member merges the answers."""
    scripted = [
        ScriptedMember(writes(own), name=name) for own, name in zip(OWN, "abc", strict=True)
    ]
    fused = {"segment": "answer", "result": "fuse", "segment_tokens": 4}
    return SpecFuseChatModel(members=members or scripted, **{**fused, **options})


def panel_of(message: Any) -> Any:
    return message.response_metadata["specfuse"]["panel"]


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_ask_gives_the_same_answer(way: str) -> None:
    llm = council()
    result = asyncio.run(asked(llm, way))
    if way == "astream_events":
        result = [event["data"]["chunk"] for event in result if "stream" in event["event"]]
    if "stream" in way:
        result = joined(result)
    messages = result if "batch" in way else [result]
    assert {message.text for message in messages} == {FINAL}
    assert until(lambda: free(llm))


def test_the_final_answer_streams_in_segments_and_contains_none_of_the_others() -> None:
    texts = [chunk.text for chunk in council().stream("Bergen?")]
    assert texts[0] == "Take a coat, an" and "".join(texts) == FINAL


def test_the_message_says_how_long_each_answer_was_and_who_wrote_the_final_one() -> None:
    members = [
        ScriptedMember(writes("Take a coat."), name="a"),
        ScriptedMember("one two three four five six seven eight nine ten eleven twelve", name="b"),
        ScriptedMember(ScriptedMember.refusal("I do not travel."), name="c"),
        FailingMember("timeout", name="d"),
    ]
    message = council(*members, max_tokens=11).invoke("Bergen?")
    assert panel_of(message) == {
        "answers": {
            "a": {"tokens": 3, "finish": "stop"},
            "b": {"tokens": 11, "finish": "length"},
            "c": {"tokens": 0, "finish": "refusal"},
            "d": {"tokens": 0, "finish": "timeout"},
        },
        "writers": ["a"],
    }
    summary = message.response_metadata["specfuse"]
    assert summary["shares"] == {"a": 1.0} and summary["rounds"] == 3
    assert [gone["member"] for gone in summary["exits"]] == ["d"]
    assert "twelve" not in str(message) and "coat." not in str(message)


def test_usage_counts_the_final_answer_and_calls_the_others_discarded() -> None:
    usage = council().invoke("How is Bergen?").usage_metadata
    assert usage["input_tokens"] == 3  # the question, not the answers that were read
    assert usage["output_tokens"] == len(FINAL.split())
    assert usage["output_token_details"] == {
        "drafted": len(FINAL.split()) + 3 + 3 + 5,
        "verified": 0,
        "discarded": 3 + 3 + 5,
    }


def test_events_and_traces_have_the_answers_in_round_0() -> None:
    rounds: list[Any] = []
    recorder, tracer = TraceCallbackHandler(), RunCollectorCallbackHandler()
    handlers = [SpecFuseCallbackHandler(on_round=rounds.append), recorder, tracer]
    council(trace="members").invoke("Bergen?", {"callbacks": handlers})
    assert [event.number for event in rounds] == [0, 1, 2, 3]
    assert [draft["text"] for draft in rounds[0].drafts.values()] == list(OWN)
    assert recorder.trace.answer == FINAL and len(recorder.trace.rounds) == 4
    (run,) = tracer.traced_runs
    assert [child.name for child in run.child_runs] == [f"round {number}" for number in range(4)]
    first = run.child_runs[0]
    assert [(child.name, child.outputs["text"]) for child in first.child_runs] == [
        (f"draft {name}", own) for name, own in zip("abc", OWN, strict=True)
    ]
    names_and_metadata = json.dumps([run.name, run.tags, run.extra["metadata"]], default=str)
    assert "umbrella" not in names_and_metadata and "panel" in names_and_metadata


def test_if_all_fail_the_error_and_the_events_say_how() -> None:
    gone: list[Any] = []
    watch = {"callbacks": [SpecFuseCallbackHandler(on_exit=gone.append)]}
    llm = council(FailingMember("error", name="a"), FailingMember("timeout", name="b"))
    with pytest.raises(EnsembleError, match=r"a \(error\): a failure.*b \(timeout\)"):
        llm.invoke("Bergen?", watch)
    assert [(exit.member, exit.kind) for exit in gone] == [("a", "error"), ("b", "timeout")]


def test_another_member_continues_if_the_lead_fails_while_it_writes() -> None:
    lead = ScriptedMember(writes(OWN[0]), name="a", fails_in=3)
    message = council(lead, ScriptedMember(writes(OWN[1]), name="b")).invoke("Bergen?")
    assert message.text == FINAL and panel_of(message)["writers"] == ["a", "b"]


def test_log_probabilities_are_those_of_the_final_answer() -> None:
    message = council(logprobs=True).invoke("Bergen?")
    tokens = message.response_metadata["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens) == FINAL


class Sized(ScriptedMember):
    """A scripted member with a size."""

    size = 0

    def probe(self) -> Any:
        return replace(super().probe(), size=self.size)


@pytest.mark.parametrize(
    ("sizes", "options", "lead", "by"),
    [
        ((1, 1, 1), {}, "a", "first"),
        ((1, 9, 2), {}, "b", "largest"),
        ((1, 9, 2), {"lead": None}, "b", "largest"),
        ((1, 9, 2), {"lead": "c"}, "c", "named"),
        ((0, 0, 0), {"method": "specem"}, "a", "first"),
    ],
)
def test_the_lead_writes_else_the_largest_else_the_first(
    sizes: tuple[int, ...], options: dict[str, Any], lead: str, by: str
) -> None:
    members = [Sized(writes(f"{name}."), name=name) for name in "abc"]
    for member, size in zip(members, sizes, strict=True):
        member.size = size
    message = council(*members, **options).invoke("Bergen?")
    assert panel_of(message)["writers"] == [lead]
    assert message.response_metadata["specfuse"]["routing"] == {"lead": lead, "by": by}


def test_samples_of_one_member_are_fused() -> None:
    message = council(ScriptedMember(writes(OWN[0]), name="a"), samples=3).invoke("Bergen?")
    assert message.text == FINAL and list(panel_of(message)["answers"]) == ["a", "a#2", "a#3"]


class Trip(BaseModel):
    city: str
    days: int


def test_answers_and_the_final_one_have_the_form_that_was_asked_for() -> None:
    answers = [{"city": "Bergen", "days": days} for days in (2, 3)]
    seen: list[str] = []

    def merges(query: Any) -> Any:
        seen.append(query.turns[-1].text)
        return {"city": "Bergen", "days": 5} if "Answer 1:" in seen[-1] else answers[0]

    llm = council(ScriptedMember(merges, name="a"), ScriptedMember(answers[1], name="b"))
    trip = llm.with_structured_output(Trip).invoke("Plan a trip.")
    assert trip == Trip(city="Bergen", days=5)
    assert all(json.dumps(answer) in seen[-1] for answer in answers)


@tool
def find(city: str) -> str:
    """Find out about a city."""
    return f"{city} is rainy."


def test_members_propose_calls_and_the_lead_makes_one() -> None:
    seen: list[str] = []
    roles: list[str] = []

    def merges(query: Any) -> Any:
        seen.append(query.turns[-1].text)
        roles.append(query.turns[-1].role)
        if any(turn.role == "tool" for turn in query.turns):
            return FINAL if "Answer 1:" in seen[-1] else "It is rainy."
        return ScriptedMember.call("find", city="Oslo" if "Answer 1:" in seen[-1] else "Bergen")

    other = [ScriptedMember.call("find", city="Bodø"), "Take an umbrella."]
    llm = council(ScriptedMember(merges, name="a"), ScriptedMember(other, name="b"))
    llm_with_tools = llm.bind_tools([find])
    call = llm_with_tools.invoke("Where to?")
    assert [item["args"] for item in call.tool_calls] == [{"city": "Oslo"}]
    assert '"Bergen"' in seen[-1] and '"Bodø"' in seen[-1]
    result = ToolMessage("Oslo is rainy.", tool_call_id=call.tool_calls[0]["id"])
    answer = llm_with_tools.invoke([HumanMessage("Where to?"), call, result])
    assert answer.text == FINAL and not answer.tool_calls
    assert "Oslo" not in seen[-1] and "Take an umbrella." in seen[-1]
    assert roles == ["user", "user", "tool", "user"]


def test_checks_judge_what_is_streamed_and_not_what_is_read() -> None:
    refused: list[str] = []

    def no_umbrella(text: str) -> str | None:
        refused.append(text)
        return "sells umbrellas" if "umbrella" in text else None

    allowed = "Take a coat."
    passing = council(ScriptedMember(writes("umbrella", allowed), name="a"), checks=[no_umbrella])
    assert passing.invoke("Bergen?").text == allowed and "umbrella" not in refused
    with pytest.raises(CheckError) as error:
        council(checks=[no_umbrella]).invoke("Bergen?")
    assert "umbrella" not in error.value.text


def gated(first: int) -> GatedMember:
    return GatedMember(writes(OWN[0]), name="a", first=first)


@pytest.mark.parametrize(("first", "chunks"), [(0, 0), (1, 1)])
def test_an_answer_that_is_cancelled_frees_all_members(first: int, chunks: int) -> None:
    """While the members answer alone, and in the middle of the final answer."""
    lead = gated(first)
    llm = council(lead, ScriptedMember(OWN[1], name="b"))

    async def cancelled() -> None:
        got: list[str] = []

        async def ask() -> None:
            async for chunk in llm.astream("Bergen?"):
                got.append(chunk.text)  # noqa: PERF401 (kept when the task is cancelled)

        asking = asyncio.create_task(ask())
        assert await auntil(lead.waiting.is_set)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(got) == chunks
        lead.gate.set()
        assert await auntil(lambda: free(llm))

    asyncio.run(cancelled())


# --- chat models and models in this process -------------------------------------------------------


class Fuser(Talker):
    """A chat model that answers alone, and merges answers."""

    def _reply(self, messages: list[Any]) -> str:
        return FINAL if "Answer 1:" in messages[-1].text else self.script


def hosted(name: str, script: str) -> tuple[Talker, ChatModelMember]:
    model = Fuser(asked=[], said=[], closed=[], script=script)
    return model, ChatModelMember(model, name=name, price=(1, 2))


def test_chat_models_are_asked_once_each_and_the_lead_twice() -> None:
    (first, a), (second, b) = hosted("a", OWN[0]), hosted("b", OWN[1])
    message = council(a, b).invoke([AIMessage("Hello."), HumanMessage("Bergen?")])
    assert message.text == FINAL and (len(first.asked), len(second.asked)) == (2, 1)
    (history, read), _ = first.asked[1]
    assert history.text == "Hello." and "Answer 2:\nTake an umbrella.\n" in read.text
    used = message.response_metadata["specfuse"]["usage"]
    assert {name: usage["requests"] for name, usage in used.items()} == {"a": 2, "b": 1}
    assert message.response_metadata["specfuse"]["total_cost"] > 0


def test_the_budget_applies_to_all_requests_together() -> None:
    answers = lambda: [hosted(name, own)[1] for name, own in zip("ab", OWN, strict=False)]
    for calls, finish in ((3, "stop"), (2, "budget")):
        message = council(*answers(), max_calls=calls).invoke("Bergen?")
        used = message.response_metadata["specfuse"]["usage"].values()
        assert message.text == FINAL and sum(usage["requests"] for usage in used) == calls
        assert panel_of(message)["answers"]["b"]["finish"] == finish


def test_a_member_in_this_process_merges_where_the_budget_is_spent() -> None:
    local = ScriptedMember(writes(OWN[1]), name="b")
    message = council(hosted("a", OWN[0])[1], local, max_calls=1).invoke("Bergen?")
    assert message.text == FINAL and panel_of(message)["writers"] == ["b"]


def test_models_in_this_process_answer_from_their_caches_as_they_do_without() -> None:
    members = [tiny.member(arch, 7, name=arch) for arch in ("llama", "gemma3")]

    def answer() -> tuple[Any, int]:
        rounds: list[Any] = []
        watch = {"callbacks": [SpecFuseCallbackHandler(on_round=rounds.append)]}
        message = council(*members, max_tokens=12).invoke("Why is the sky blue?", watch)
        (effort,) = rounds[1].tokens["draft"].values()
        return message, effort["reused"]

    for member in members:
        member.drop_prefixes()
    (fresh, found), (cached, found_later) = answer(), answer()
    assert cached.text == fresh.text != ""
    assert panel_of(cached) == panel_of(fresh)
    assert found < found_later


@pytest.mark.real
def test_real_models_merge_their_answers() -> None:
    rounds: list[Any] = []
    watch = {"callbacks": [SpecFuseCallbackHandler(on_round=rounds.append)]}
    llm = SpecFuseChatModel(
        members=demo_members("small"), segment="answer", result="fuse", max_tokens=24
    )
    message = llm.invoke("Which colours has the sky?", watch)
    own = rounds[0].drafts
    assert len(own) == 2 and all(draft["text"].strip() for draft in own.values())
    assert message.text == "".join(event.text for event in rounds) != ""
    assert panel_of(message)["writers"] == [rounds[0].lead]
