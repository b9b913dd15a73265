"""Rounds and exits are events and child runs of the chat model's run, however it is called."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from langchain_core.tracers.schemas import Run
from langgraph.graph import END, START, MessagesState, StateGraph

from .conftest import WAYS, asked

ROUNDS = 4
"""The number of rounds of each answer below."""
NAMES = [f"round {number}" for number in range(1, ROUNDS + 1)]


class Listener(BaseCallbackHandler):
    """Records the chat model's runs and the events of each."""

    def __init__(self) -> None:
        self.runs: list[UUID] = []
        self.ended: list[UUID] = []
        self.events: list[tuple[UUID, str, dict[str, Any]]] = []
        self.chains: list[str] = []

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any
    ) -> None:
        self.runs.append(run_id)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, name: str | None = None, **kwargs: Any
    ) -> None:
        self.chains.append(name or "")

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.ended.append(run_id)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        assert run_id in self.runs, "an event of a run that has not begun"
        assert run_id not in self.ended, "an event of a run that is over"
        self.events.append((run_id, name, json.loads(json.dumps(data))))


class AsyncListener(AsyncCallbackHandler):
    """The asynchronous counterpart of ``Listener``."""

    def __init__(self) -> None:
        self.listener = Listener()

    async def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.listener.on_chat_model_start(serialized, messages, **kwargs)

    async def on_llm_end(self, response: Any, **kwargs: Any) -> None:
        self.listener.on_llm_end(response, **kwargs)

    async def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.listener.on_custom_event(name, data, **kwargs)


def descendants(run: Run) -> Iterator[Run]:
    for child in run.child_runs:
        yield child
        yield from descendants(child)


# --- callers of a chat model ----------------------------------------------------------------------


def alone(llm: BaseChatModel) -> Runnable[Any, Any]:
    return llm


def bound(llm: BaseChatModel) -> Runnable[Any, Any]:
    return llm.bind(max_tokens=400).with_config(tags=["bound"])


def in_a_chain(llm: BaseChatModel) -> Runnable[Any, Any]:
    return (
        RunnableLambda(lambda text: {"q": text})
        | ChatPromptTemplate.from_template("{q}")
        | llm
        | StrOutputParser()
    )


def _in_a_node(answer: Callable[..., Any], aanswer: Callable[..., Any]) -> Runnable[Any, Any]:
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
    def message(chunks: list[Any]) -> dict[str, Any]:
        return {"messages": [("ai", "".join(chunk.text for chunk in chunks))]}

    def answer(state: dict[str, Any]) -> dict[str, Any]:
        return message(list(llm.stream(state["messages"])))

    async def aanswer(state: dict[str, Any]) -> dict[str, Any]:
        return message([chunk async for chunk in llm.astream(state["messages"])])

    return _in_a_node(answer, aanswer)


def in_an_agent(llm: BaseChatModel) -> Runnable[Any, Any]:
    from langchain.agents import create_agent

    return RunnableLambda(lambda text: {"messages": [("human", text)]}) | create_agent(llm)


# --- ways of calling ------------------------------------------------------------------------------


async def called(chain: Runnable[Any, Any], way: str, config: Any) -> None:
    """Call the chain in the given way, and check the events of a stream."""
    events = await asked(chain, way, config=config)  # type: ignore[arg-type]
    if way == "astream_events":
        started = [event["run_id"] for event in events if event["event"] == "on_chat_model_start"]
        custom = [event for event in events if event["event"] == "on_custom_event"]
        assert [event["run_id"] for event in custom] == started * ROUNDS
        assert [event["data"]["round"] for event in custom] == list(range(1, ROUNDS + 1))
        assert not [event for event in events if event["name"] in NAMES], (
            "child runs are no events of a stream"
        )


PLACES = [alone, bound, in_a_chain, in_a_node, streamed_in_a_node, in_an_agent]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_each_run_gets_its_own_rounds_once_and_in_order(
    ensemble: Any, place: Callable[..., Any], way: str
) -> None:
    plain, asynchronous, tracer = Listener(), AsyncListener(), RunCollectorCallbackHandler()
    await called(place(ensemble()), way, {"callbacks": [plain, asynchronous, tracer]})
    expected = [("specfuse_round", number) for number in range(1, ROUNDS + 1)]
    for listener in (plain, asynchronous.listener):
        assert len(listener.runs) == (2 if "batch" in way else 1)
        for run_id in listener.runs:
            assert [
                (name, data["round"]) for run, name, data in listener.events if run == run_id
            ] == expected
        assert len(listener.events) == ROUNDS * len(listener.runs)
    assert not [name for name in plain.chains if name in NAMES], "only tracers get child runs"
    runs = [
        run
        for top in tracer.traced_runs
        for run in [top, *descendants(top)]
        if run.run_type == "llm"
    ]
    assert {run.id for run in runs} == set(plain.runs)
    for run in runs:
        assert [child.name for child in run.child_runs] == NAMES
        assert run.extra["metadata"]["specfuse_rounds"] == ROUNDS
    assert not tracer.run_map


@pytest.mark.parametrize("way", WAYS[:4])
async def test_run_id_tags_metadata_and_callbacks_are_used_wherever_they_are_set(
    ensemble: Any, way: str
) -> None:
    seen: list[dict[str, Any]] = []

    class Noting(BaseCallbackHandler):
        def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
            seen.append(kwargs)

    run_id, noting = uuid4(), Noting()
    config = {
        "callbacks": [noting],
        "run_id": run_id,
        "tags": ["mine"],
        "metadata": {"user": "ann"},
    }
    await called(ensemble(callbacks=[noting], tags=["own"]), way, config)
    assert len(seen) == ROUNDS, "a handler of both gets each event once"
    assert {kwargs["run_id"] for kwargs in seen} == {run_id}
    assert all({"mine", "own"} <= set(kwargs["tags"]) for kwargs in seen)
    assert all(kwargs["metadata"]["user"] == "ann" for kwargs in seen)


async def test_interleaved_streams_do_not_mix(ensemble: Any) -> None:
    llm, listeners = ensemble(), [Listener() for _ in range(5)]
    streams = [
        llm.astream(f"Why {i}?", {"callbacks": [listener]}) for i, listener in enumerate(listeners)
    ]
    for _ in range(ROUNDS):
        for stream in streams:
            await anext(stream)
    assert all(
        [data["round"] for _, _, data in listener.events] == [1, 2, 3, 4] for listener in listeners
    )
    first, second = (llm.stream("Why?", {"callbacks": [listener]}) for listener in listeners[:2])
    for chunks in zip(first, second, strict=True):
        assert chunks[0].text == chunks[1].text
    assert all(len(listener.events) == 2 * ROUNDS for listener in listeners[:2])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_stream_closed_early_has_reported_every_round_it_showed(
    ensemble: Any, asynchronous: bool
) -> None:
    listener = Listener()
    if asynchronous:
        async for _ in ensemble().astream("Why?", {"callbacks": [listener]}):
            break
    else:
        for _ in ensemble().stream("Why?", {"callbacks": [listener]}):
            break
    assert [data["round"] for _, _, data in listener.events] == [1]
