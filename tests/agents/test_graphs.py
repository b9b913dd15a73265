"""LangGraph graphs stream tokens, calls and rounds of the members that answer in a node."""

from __future__ import annotations

from typing import Any

import pytest
from chat.conftest import auntil, free
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from langchain_specfuse import RoundEvent, SpecFuseCallbackHandler

from .conftest import QUESTION, REPORT, calls_made, results, weather


def write(round: RoundEvent) -> None:
    get_stream_writer()(round)


ROUNDS: Any = {"callbacks": [SpecFuseCallbackHandler(on_round=write)]}
"""This handler is all that a graph needs to stream rounds in its custom stream."""


def loop(llm: Runnable[Any, Any], way: str = "invoke") -> Any:
    """Return a graph of two nodes: the members, called in the given way, and their tool."""

    def invoke(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"])]}

    async def ainvoke(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    def stream(state: MessagesState) -> dict[str, Any]:
        chunks = list(llm.stream(state["messages"]))
        return {"messages": [sum(chunks[1:], chunks[0])]}

    async def astream(state: MessagesState) -> dict[str, Any]:
        chunks = [chunk async for chunk in llm.astream(state["messages"])]
        return {"messages": [sum(chunks[1:], chunks[0])]}

    graph = StateGraph(MessagesState)
    graph.add_node(
        "answer", {"invoke": invoke, "ainvoke": ainvoke, "stream": stream, "astream": astream}[way]
    )
    graph.add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    return graph.compile()


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_tokens_calls_and_rounds_stream_while_the_node_runs(llm: Any, way: str) -> None:
    app, state = loop(llm.bind_tools([weather]), way), {}
    seen: list[tuple[str, Any]] = []
    async for mode, value in app.astream(
        QUESTION, ROUNDS, stream_mode=["messages", "custom", "values"]
    ):
        if mode == "values":
            state = value
        elif mode == "custom" or value[1]["langgraph_node"] == "answer":
            seen.append((mode, value if mode == "custom" else value[0]))
    assert calls_made(state) == [("weather", {"city": "Paris"})]
    assert results(state)[0].tool_call_id == state["messages"][1].tool_calls[0]["id"]
    assert state["messages"][-1].text == REPORT
    chunks = [chunk for mode, chunk in seen if mode == "messages"]
    pieces = [
        chunk for chunk in chunks if isinstance(chunk, AIMessageChunk) and chunk.tool_call_chunks
    ]
    (call,) = sum(pieces[1:], pieces[0]).tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Paris"})
    rounds = [round for mode, round in seen if mode == "custom"]
    assert [round.number for round in rounds].count(1) == 2, "two answers"
    last = [round for round in rounds if round.run_id == rounds[-1].run_id]
    # Each round is reported before its text is, and its text before the next round.
    texts = [(mode, value.text) for mode, value in seen if value.text][-2 * len(last) :]
    assert texts == [(mode, round.text) for round in last for mode in ("custom", "messages")]
    assert "".join(round.text for round in last) == REPORT
    assert await auntil(lambda: free(llm))


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
async def test_leaving_a_graphs_stream_frees_everything(llm: Any, way: str) -> None:
    stream = loop(llm.bind_tools([weather]), way).astream(QUESTION, stream_mode="messages")
    async for chunk, where in stream:
        if where["langgraph_node"] == "answer" and chunk.text:
            break
    await stream.aclose()
    assert await auntil(lambda: free(llm))
