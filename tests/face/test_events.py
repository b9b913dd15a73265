"""Every round and every departure is an event of the chat model's own run, wherever the chat model is called from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any
from unittest.mock import MagicMock
from uuid import UUID, uuid4

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from langchain_specfuse import (
    AsyncSpecFuseCallbackHandler,
    EnsembleError,
    ExitEvent,
    RoundEvent,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    UsageError,
    WeightsEvent,
)

ROUNDS = 4
"""Of each answer below."""


class Ear(BaseCallbackHandler):
    """Hears which chat model runs were started, and which events were booked on which run."""

    def __init__(self) -> None:
        self.runs: list[UUID] = []
        self.ended: list[UUID] = []
        self.events: list[tuple[UUID, str, dict[str, Any]]] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.runs.append(run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.ended.append(run_id)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        assert run_id in self.runs, "an event of a run that has not begun"
        assert run_id not in self.ended, "an event of a run that is over"
        self.events.append((run_id, name, json.loads(json.dumps(data))))


class AsyncEar(AsyncCallbackHandler):
    """The same, listening asynchronously."""

    def __init__(self) -> None:
        self.ear = Ear()
        self.runs, self.events = self.ear.runs, self.ear.events

    async def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.ear.on_chat_model_start(serialized, messages, **kwargs)

    async def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.ear.on_llm_end(response, **kwargs)

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.ear.on_custom_event(name, data, **kwargs)


# --- where a chat model may be called from ----------------------------------------------------------------------


def alone(llm: BaseChatModel) -> Runnable[Any, Any]:
    return llm


def bound(llm: BaseChatModel) -> Runnable[Any, Any]:
    return llm.bind(max_tokens=400).with_config(tags=["bound"])


def retried(llm: BaseChatModel) -> Runnable[Any, Any]:
    return llm.with_retry()


def in_a_chain(llm: BaseChatModel) -> Runnable[Any, Any]:
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    return RunnableLambda(lambda text: {"q": text}) | ChatPromptTemplate.from_template("{q}") | llm | StrOutputParser()


def _in_a_node(answer: Callable[..., Any], aanswer: Callable[..., Any]) -> Runnable[Any, Any]:
    from langgraph.graph import END, START, MessagesState, StateGraph

    graph = StateGraph(MessagesState)
    graph.add_node("answer", RunnableLambda(answer, afunc=aanswer))
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return RunnableLambda(lambda text: {"messages": [("human", text)]}) | graph.compile()


def in_a_node(llm: BaseChatModel) -> Runnable[Any, Any]:
    def answer(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"])]}

    async def aanswer(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    return _in_a_node(answer, aanswer)


def streamed_in_a_node(llm: BaseChatModel) -> Runnable[Any, Any]:
    def added(chunks: list[Any]) -> dict[str, Any]:
        return {"messages": [("ai", "".join(chunk.text for chunk in chunks))]}

    def answer(state: dict[str, Any]) -> dict[str, Any]:
        return added(list(llm.stream(state["messages"])))

    async def aanswer(state: dict[str, Any]) -> dict[str, Any]:
        return added([chunk async for chunk in llm.astream(state["messages"])])

    return _in_a_node(answer, aanswer)


def in_an_agent(llm: BaseChatModel) -> Runnable[Any, Any]:
    from langchain.agents import create_agent

    return RunnableLambda(lambda text: {"messages": [("human", text)]}) | create_agent(llm)


# --- how it may be called ---------------------------------------------------------------------------------------


async def invoke(chain: Runnable[Any, Any], config: Any) -> None:
    await asyncio.to_thread(chain.invoke, "Why?", config)


async def ainvoke(chain: Runnable[Any, Any], config: Any) -> None:
    await chain.ainvoke("Why?", config)


async def stream(chain: Runnable[Any, Any], config: Any) -> None:
    await asyncio.to_thread(lambda: list(chain.stream("Why?", config)))


async def astream(chain: Runnable[Any, Any], config: Any) -> None:
    assert [chunk async for chunk in chain.astream("Why?", config)]


async def astream_events(chain: Runnable[Any, Any], config: Any) -> None:
    events = [event async for event in chain.astream_events("Why?", config, version="v2")]
    started = [event["run_id"] for event in events if event["event"] == "on_chat_model_start"]
    told = [event for event in events if event["event"] == "on_custom_event"]
    assert [event["run_id"] for event in told] == started * ROUNDS
    assert [event["data"]["round"] for event in told] == list(range(1, ROUNDS + 1))


async def batch(chain: Runnable[Any, Any], config: Any) -> None:
    await asyncio.to_thread(chain.batch, ["Why?", "How?", "When?"], config)


async def abatch(chain: Runnable[Any, Any], config: Any) -> None:
    await chain.abatch(["Why?", "How?", "When?"], config)


PLACES = [alone, bound, retried, in_a_chain, in_a_node, streamed_in_a_node, in_an_agent]
WAYS = [invoke, ainvoke, stream, astream, astream_events, batch, abatch]


@pytest.mark.parametrize("ear_type", [Ear, AsyncEar], ids=["sync-handler", "async-handler"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_each_run_gets_its_own_rounds_once_and_in_order(
    ensemble: Any, place: Callable[..., Any], way: Callable[..., Any], ear_type: type[Any]
) -> None:
    ear = ear_type()
    await way(place(ensemble()), {"callbacks": [ear]})
    assert len(ear.runs) == (3 if "batch" in way.__name__ else 1)
    for run in ear.runs:
        told = [(name, data["round"]) for run_id, name, data in ear.events if run_id == run]
        assert told == [("specfuse_round", number) for number in range(1, ROUNDS + 1)]
    assert len(ear.events) == ROUNDS * len(ear.runs)


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
async def test_callbacks_of_the_chat_model_itself_hear_each_event_once(ensemble: Any, way: Any) -> None:
    ear = Ear()
    await way(ensemble(callbacks=[ear]), {"callbacks": [ear]})
    assert [data["round"] for _, _, data in ear.events] == [1, 2, 3, 4]


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
async def test_a_run_id_tags_and_metadata_of_the_caller_arrive(ensemble: Any, way: Any) -> None:
    seen: list[dict[str, Any]] = []

    class Whole(BaseCallbackHandler):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            seen.append(kwargs)

    run_id = uuid4()
    config = {"callbacks": [Whole()], "run_id": run_id, "tags": ["mine"], "metadata": {"user": "ann"}}
    await way(ensemble(tags=["own"]), config)
    assert {kwargs["run_id"] for kwargs in seen} == {run_id}
    assert all({"mine", "own"} <= set(kwargs["tags"]) for kwargs in seen)
    assert all(kwargs["metadata"]["user"] == "ann" for kwargs in seen)


@pytest.mark.parametrize("way", WAYS[:4], ids=lambda way: way.__name__)
async def test_tracers_see_one_run_with_the_whole_answer(ensemble: Any, way: Any) -> None:
    """As LangSmith's does: the callbacks are configured twice on the way, the run is traced once."""
    client = MagicMock(spec=Client, tracing_queue=None)
    tracer = LangChainTracer(client=client)
    await way(ensemble(), {"callbacks": [tracer]})
    tracer.wait_for_futures()
    created = [call.kwargs for call in client.create_run.call_args_list if call.kwargs["run_type"] == "llm"]
    updated = [call.kwargs for call in client.update_run.call_args_list]
    assert len(created) == len(updated) == 1
    message = updated[0]["outputs"]["generations"][0][0]["message"]["kwargs"]
    assert message["response_metadata"]["specfuse"]["rounds"] == ROUNDS
    assert created[0]["extra"]["metadata"]["ls_provider"] == "specfuse"


async def test_langgraph_streams_segments_as_messages_and_events_keep_their_run(ensemble: Any) -> None:
    from langchain.agents import create_agent

    ear, question = Ear(), {"messages": [("human", "Why?")]}
    answer = create_agent(ensemble()).stream(question, {"callbacks": [ear]}, stream_mode="messages")
    texts = [chunk.text for chunk, _ in answer]
    assert len([text for text in texts if text]) == ROUNDS
    assert [run_id for run_id, _, _ in ear.events] == ear.runs * ROUNDS


async def test_interleaved_streams_do_not_mix(ensemble: Any) -> None:
    llm, ears = ensemble(), [Ear() for _ in range(5)]
    streams = [llm.astream(f"Why {i}?", {"callbacks": [ear]}) for i, ear in enumerate(ears)]
    for _ in range(ROUNDS):
        for one in streams:
            await anext(one)
    assert all([data["round"] for _, _, data in ear.events] == [1, 2, 3, 4] for ear in ears)
    first, second = (llm.stream("Why?", {"callbacks": [ear]}) for ear in ears[:2])
    for chunks in zip(first, second, strict=True):
        assert chunks[0].text == chunks[1].text
    assert all(len(ear.events) == 2 * ROUNDS for ear in ears[:2])


def test_a_stream_closed_early_has_told_of_what_it_showed(ensemble: Any) -> None:
    ear = Ear()
    chunks = ensemble().stream("Why?", {"callbacks": [ear]})
    next(chunks), next(chunks)
    chunks.close()
    assert [data["round"] for _, _, data in ear.events] == [1, 2]


async def test_an_async_stream_closed_early_has_told_of_what_it_showed(ensemble: Any) -> None:
    ear = Ear()
    async for _ in ensemble().astream("Why?", {"callbacks": [ear]}):
        break
    assert [data["round"] for _, _, data in ear.events] == [1]


def test_a_handler_that_fails_does_not_disturb_the_answer(ensemble: Any, caplog: Any) -> None:
    def fail(event: RoundEvent) -> None:
        raise RuntimeError("my own mistake")

    answer = ensemble().invoke("Why?", {"callbacks": [SpecFuseCallbackHandler(on_round=fail)]})
    assert answer.text.startswith("The sky is blue")
    assert "my own mistake" in caplog.text


# --- typed records ----------------------------------------------------------------------------------------------


def failing_ensemble() -> SpecFuseChatModel:
    """Three members: one fails in its second draft; the others differ, so that weights move."""
    members = [
        ScriptedMember("one two three four five six seven eight", name="a"),
        ScriptedMember("one two THREE four five SIX seven eight", name="b"),
        ScriptedMember("one two three four five six seven eight", name="c", fails_in=2),
    ]
    return SpecFuseChatModel(members=members, segment_tokens=2)


def test_typed_records_tell_rounds_weights_and_exits_in_order() -> None:
    told: list[Any] = []
    handler = SpecFuseCallbackHandler(on_round=told.append, on_weights=told.append, on_exit=told.append)
    answer = failing_ensemble().invoke("Count.", {"callbacks": [handler]})
    rounds = [event for event in told if isinstance(event, RoundEvent)]
    exits = [event for event in told if isinstance(event, ExitEvent)]
    weights = [event for event in told if isinstance(event, WeightsEvent)]
    assert "".join(event.text for event in rounds) == answer.text
    assert [event.number for event in rounds] == [1, 2, 3, 4]
    assert [(event.member, event.kind, event.round) for event in exits] == [("c", "error", 2)]
    assert set(exits[0].weights) == {"a", "b"}
    assert all(event.before != event.after for event in weights)
    assert {event.run_id for event in told} == {rounds[0].run_id}
    assert told.index(exits[0]) > told.index(rounds[1])
    with pytest.raises(FrozenInstanceError):
        rounds[0].winner = "b"


@pytest.mark.parametrize("way", [invoke, ainvoke, stream, astream], ids=lambda way: way.__name__)
@pytest.mark.parametrize("first", [1, 2])
async def test_the_departure_with_which_an_answer_breaks_off_is_told_like_any_other(way: Any, first: int) -> None:
    ear, told = Ear(), list[ExitEvent]()
    members = [ScriptedMember("x y z w", name=name, fails_in=at) for name, at in (("a", first), ("b", 2))]
    llm = SpecFuseChatModel(members=members, segment_tokens=2)
    with pytest.raises(EnsembleError):
        await way(llm, {"callbacks": [SpecFuseCallbackHandler(on_exit=told.append), ear]})
    assert [(one.member, one.kind, one.round) for one in told] == [("a", "error", first), ("b", "error", 2)]
    assert "scripted failure" in told[-1].reason and told[-1].weights == {}
    assert [data["member"] for _, name, data in ear.events if name == "specfuse_exit"] == ["a", "b"]


@pytest.mark.parametrize("way", [invoke, ainvoke, stream, astream, batch, abatch], ids=lambda way: way.__name__)
async def test_coroutine_functions_are_awaited_in_every_way_of_calling(ensemble: Any, way: Any) -> None:
    numbers: list[int] = []

    async def note(event: RoundEvent) -> None:
        await asyncio.sleep(0)
        numbers.append(event.number)

    handler = AsyncSpecFuseCallbackHandler(on_round=note, on_weights=lambda event: None)
    await way(ensemble(), {"callbacks": [handler]})
    assert sorted(numbers) == sorted(list(range(1, ROUNDS + 1)) * (3 if "batch" in way.__name__ else 1))


def test_methods_may_be_overridden_instead() -> None:
    class Mine(SpecFuseCallbackHandler):
        left: tuple[str, ...] = ()

        def on_exit(self, event: ExitEvent) -> None:
            self.left += (event.member,)

    mine = Mine()
    failing_ensemble().invoke("Count.", {"callbacks": [mine]})
    assert mine.left == ("c",)


def test_a_coroutine_function_in_the_plain_handler_is_refused_with_the_right_one_named() -> None:
    async def note(event: RoundEvent) -> None: ...

    with pytest.raises(UsageError) as error:
        SpecFuseCallbackHandler(on_round=note)
    assert "AsyncSpecFuseCallbackHandler" in error.value.__notes__[0]


def test_events_of_others_are_let_alone() -> None:
    from langchain_core.callbacks.manager import dispatch_custom_event

    def chatty(messages: list[BaseMessage]) -> str:
        dispatch_custom_event("somebody_elses", {"round": 1})
        return "done"

    told: list[Any] = []
    RunnableLambda(chatty).invoke([], {"callbacks": [SpecFuseCallbackHandler(on_round=told.append)]})
    assert told == []
