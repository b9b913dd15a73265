"""Callback handlers receive typed events and traces, and may fail without harm."""

from __future__ import annotations

import asyncio
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from langchain_specfuse import (
    AsyncSpecFuseCallbackHandler,
    EnsembleError,
    ExitEvent,
    Method,
    RoundEvent,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    Trace,
    TraceCallbackHandler,
    UsageError,
    WeightsEvent,
)

from .conftest import BLUE, WAYS, WIDE, asked, auntil, free


def failing_ensemble() -> SpecFuseChatModel:
    """Return three members that differ, so that weights move; one fails in its second draft."""
    members = [
        ScriptedMember("one two three four five six seven eight", name="a"),
        ScriptedMember("one two THREE four five SIX seven eight", name="b"),
        ScriptedMember("one two three four five six seven eight", name="c", fails_in=2),
    ]
    return SpecFuseChatModel(members=members, method=Method(segment_tokens=2))


def test_typed_events_report_rounds_weights_and_exits_in_order() -> None:
    events: list[Any] = []
    handler = SpecFuseCallbackHandler(
        on_round=events.append, on_weights=events.append, on_exit=events.append
    )
    answer = failing_ensemble().invoke("Count.", {"callbacks": [handler]})
    rounds = [event for event in events if isinstance(event, RoundEvent)]
    exits = [event for event in events if isinstance(event, ExitEvent)]
    assert "".join(event.text for event in rounds) == answer.text
    assert [event.number for event in rounds] == [1, 2, 3, 4]
    assert [(event.member, event.kind, event.round) for event in exits] == [("c", "error", 2)]
    assert set(exits[0].weights) == {"a", "b"}
    assert {event.run_id for event in events} == {rounds[0].run_id}
    assert events.index(exits[0]) > events.index(rounds[1])
    with pytest.raises(FrozenInstanceError):
        rounds[0].winner = "b"


def test_events_and_traces_have_the_same_data() -> None:
    recorder = TraceCallbackHandler()
    events: list[RoundEvent] = []
    handler = SpecFuseCallbackHandler(on_round=events.append)
    failing_ensemble().invoke("Count.", {"callbacks": [recorder, handler]})
    assert Trace(events).rounds == recorder.trace.rounds == [event.as_dict() for event in events]
    events[0].as_dict()["drafts"].clear()
    assert events[0].drafts, "what as_dict returns is a copy"


def test_a_change_of_weights_is_an_event(ensemble: Any) -> None:
    weights: list[WeightsEvent] = []
    handler = SpecFuseCallbackHandler(on_weights=weights.append)
    answer = ensemble(BLUE, BLUE, WIDE).invoke("Why?", {"callbacks": [handler]})
    assert weights and all(event.before != event.after for event in weights)
    assert weights[-1].after == answer.response_metadata["specfuse"]["weights"]


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "batch", "abatch"])
async def test_coroutine_functions_are_awaited_in_every_way_of_asking(
    ensemble: Any, way: str
) -> None:
    numbers: list[int] = []

    async def note(event: RoundEvent) -> None:
        await asyncio.sleep(0)
        numbers.append(event.number)

    handler = AsyncSpecFuseCallbackHandler(on_round=note, on_weights=lambda event: None)
    await asked(ensemble(), way, config={"callbacks": [handler]})
    assert sorted(numbers) == sorted([1, 2, 3, 4] * (2 if "batch" in way else 1))


async def test_methods_can_be_overridden_instead() -> None:
    class Mine(SpecFuseCallbackHandler):
        left: tuple[str, ...] = ()

        def on_exit(self, event: ExitEvent) -> None:
            self.left += (event.member,)

    class AsyncMine(AsyncSpecFuseCallbackHandler):
        left: tuple[str, ...] = ()

        async def on_exit(self, event: ExitEvent) -> None:
            self.left += (event.member,)

    synchronous, asynchronous = Mine(), AsyncMine()
    await failing_ensemble().ainvoke("Count.", {"callbacks": [synchronous, asynchronous]})
    assert synchronous.left == asynchronous.left == ("c",)


def test_a_coroutine_function_in_the_plain_handler_is_refused() -> None:
    async def note(event: RoundEvent) -> None: ...

    with pytest.raises(UsageError) as error:
        SpecFuseCallbackHandler(on_round=note)
    assert "AsyncSpecFuseCallbackHandler" in error.value.notes[0]


# --- listeners that fail --------------------------------------------------------------------------

HOOKS = ["on_chat_model_start", "on_llm_new_token", "on_llm_end", "on_custom_event", "on_llm_error"]


def fails(*_: Any, **__: Any) -> None:
    raise RuntimeError("the listener's own mistake")


async def afails(*_: Any, **__: Any) -> None:
    raise RuntimeError("the listener's own mistake")


def failing_listeners() -> list[Any]:
    events = dict.fromkeys(("on_round", "on_weights", "on_exit"), fails)
    return [
        type("Failing", (BaseCallbackHandler,), dict.fromkeys(HOOKS, fails))(),
        type("Failing", (AsyncCallbackHandler,), dict.fromkeys(HOOKS, afails))(),
        SpecFuseCallbackHandler(**events),
        AsyncSpecFuseCallbackHandler(**dict.fromkeys(events, afails)),
    ]


def text_of(result: Any, way: str) -> str:
    if way in ("stream", "astream"):
        return "".join(str(chunk.text) for chunk in result)
    if way == "astream_events":
        return "".join(
            str(e["data"]["chunk"].text) for e in result if e["event"] == "on_chat_model_stream"
        )
    return str((result[0] if isinstance(result, list) else result).text)


@pytest.mark.parametrize("way", WAYS)
async def test_listeners_that_fail_in_every_hook_change_nothing(ensemble: Any, way: str) -> None:
    llm = ensemble()
    result = await asked(llm, way, config={"callbacks": failing_listeners()})
    assert text_of(result, way) == BLUE
    assert await auntil(lambda: free(llm))


@pytest.mark.parametrize("way", WAYS)
async def test_a_listener_with_raise_error_ends_the_answer_and_everything_is_freed(
    ensemble: Any, way: str
) -> None:
    """With ``raise_error``, LangChain passes a listener's errors on to the caller."""
    llm, insistent = ensemble(), SpecFuseCallbackHandler(on_round=fails)
    insistent.raise_error = True
    with pytest.raises(RuntimeError, match="own mistake"):
        await asked(llm, way, config={"callbacks": [insistent]})
    assert await auntil(lambda: free(llm))
    assert llm.invoke("Why?").text == BLUE


# --- traces ---------------------------------------------------------------------------------------


def test_an_answer_becomes_a_trace_with_its_question(ensemble: Any) -> None:
    recorder = TraceCallbackHandler()
    messages = [
        SystemMessage("Be short."),
        HumanMessage("Hi"),
        AIMessage("Yes?"),
        HumanMessage("Why is it blue?"),
    ]
    answer = ensemble().invoke(messages, {"callbacks": [recorder]})
    assert recorder.trace.answer == answer.text == BLUE
    assert recorder.trace.question == "Why is it blue?" and recorder.trace.members == ["a", "b"]
    assert recorder.trace.rounds[-1]["finish"] == "stop" and recorder.trace.error == ""


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_traces_of_many_answers_do_not_mix(ensemble: Any, asynchronous: bool) -> None:
    recorder, llm, questions = (
        TraceCallbackHandler(),
        ensemble(),
        [f"Question {at}?" for at in range(8)],
    )
    config: Any = {"callbacks": [recorder]}
    _ = await llm.abatch(questions, config) if asynchronous else llm.batch(questions, config)
    assert sorted(trace.question for trace in recorder.traces.values()) == questions
    assert [trace.answer for trace in recorder.traces.values()] == [BLUE] * 8


def test_only_the_last_traces_are_kept(ensemble: Any) -> None:
    recorder, llm = TraceCallbackHandler(kept=2), ensemble()
    for at in range(5):
        llm.invoke(f"{at}?", {"callbacks": [recorder]})
    assert [trace.question for trace in recorder.traces.values()] == ["3?", "4?"]


@pytest.mark.parametrize(("fails_in", "agreed"), [(1, ""), (2, "The sky is blue")])
def test_the_trace_of_a_failed_answer_has_the_error_and_the_agreed_text(
    fails_in: int, agreed: str, tmp_path: Path
) -> None:
    recorder = TraceCallbackHandler()
    llm = SpecFuseChatModel(
        members=[ScriptedMember(BLUE, name="a", fails_in=fails_in)], method=Method(segment_tokens=4)
    )
    with pytest.raises(EnsembleError):
        llm.invoke("Why?", {"callbacks": [recorder]})
    trace = recorder.trace
    assert (trace.question, trace.answer) == ("Why?", agreed) and "no member is left" in trace.error
    trace.save(tmp_path / "run.json")
    assert Trace.load(tmp_path / "run.json").error == trace.error
