"""Graphs made by hand: the members answer in a node, and tokens, calls and rounds come out of the graph as they are."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Send

from langchain_specfuse import RoundEvent, SpecFuseCallbackHandler
from langchain_specfuse.core.values import Query

from .conftest import (
    PLAN,
    QUESTION,
    SlowMember,
    asoon,
    called,
    free,
    kinds,
    made,
    model,
    results,
    traveller,
    weather,
)
from .test_agents import REPORT, broken, determined


def written(round: RoundEvent) -> None:
    """All it takes for rounds to come out of a graph."""
    get_stream_writer()(round)


ROUNDS = {"callbacks": [SpecFuseCallbackHandler(on_round=written)]}


def loop(llm: Runnable[Any, Any], tools: Any, way: str = "invoke") -> Any:
    """A graph of two nodes: the members, and the tools that they call."""

    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [llm.invoke(state["messages"])]}

    async def aanswer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    def streamed(state: MessagesState) -> dict[str, Any]:
        chunks = list(llm.stream(state["messages"]))
        return {"messages": [sum(chunks[1:], chunks[0])]}

    async def astreamed(state: MessagesState) -> dict[str, Any]:
        chunks = [chunk async for chunk in llm.astream(state["messages"])]
        return {"messages": [sum(chunks[1:], chunks[0])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", {"invoke": answer, "ainvoke": aanswer, "stream": streamed, "astream": astreamed}[way])
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    return graph.compile()


INSIDE = pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
"""How the node asks the members."""


@INSIDE
async def test_a_loop_of_members_and_tools_ends_with_the_answer(llm: Any, way: str) -> None:
    state = await loop(llm.bind_tools([weather]), [weather], way).ainvoke(QUESTION)
    assert kinds(state) in (PLAN, ("human", "AIMessageChunk", "tool", "AIMessageChunk"))
    assert made(state) == [("weather", {"city": "Paris"})]
    assert results(state)[0].tool_call_id == state["messages"][1].tool_calls[0]["id"]
    assert state["messages"][-1].text == REPORT
    assert await asoon(lambda: free(llm))


@INSIDE
async def test_tokens_and_pieces_of_calls_come_out_while_the_node_works(llm: Any, way: str) -> None:
    app = loop(llm.bind_tools([weather]), [weather], way)
    seen = [item async for item in app.astream(QUESTION, stream_mode="messages")]
    answers = [chunk for chunk, where in seen if where["langgraph_node"] == "answer"]
    texts = [chunk.text for chunk in answers if chunk.text]
    assert "".join(texts) == REPORT
    assert len(texts) > 1
    pieces = [chunk for chunk in answers if isinstance(chunk, AIMessageChunk) and chunk.tool_call_chunks]
    first = pieces[0].tool_call_chunks[0]
    assert (first["name"], first["index"]) == ("weather", 0)
    assert first["id"]
    whole = sum(pieces[1:], pieces[0])
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [("weather", {"city": "Paris"})]
    assert not whole.invalid_tool_calls


def shown(item: Any) -> str:
    """What one item of ``stream_mode=["messages", "custom"]`` shows of the members."""
    mode, value = item
    return value.text if mode == "custom" else value[0].text if value[1]["langgraph_node"] == "answer" else ""


@pytest.mark.parametrize(
    ("way", "outside"),
    [
        *((way, "astream") for way in ("invoke", "ainvoke", "stream", "astream")),
        ("invoke", "stream"),
        ("stream", "stream"),
    ],
)
async def test_rounds_come_out_of_the_custom_stream_beside_the_tokens(llm: Any, way: str, outside: str) -> None:
    app = loop(llm.bind_tools([weather]), [weather], way)
    modes = {"stream_mode": ["messages", "custom"], "config": ROUNDS}
    if outside == "astream":
        seen = [item async for item in app.astream(QUESTION, **modes)]
    else:
        seen = list(app.stream(QUESTION, **modes))
    rounds = [value for mode, value in seen if mode == "custom"]
    assert all(isinstance(round, RoundEvent) for round in rounds)
    turns = [round.number for round in rounds]
    assert turns.count(1) == 2, "two answers, each with a first round"
    said = [round for round in rounds if round.run_id == rounds[-1].run_id]
    assert "".join(round.text for round in said) == REPORT
    # Each round is told before its text is, and its text before the next round is.
    told = [(mode, shown((mode, value))) for mode, value in seen if shown((mode, value))][-2 * len(said) :]
    assert told == [(mode, round.text) for round in said for mode in ("custom", "messages")]


@pytest.mark.parametrize("outside", ["stream", "astream"])
async def test_rounds_come_out_also_when_the_members_answer_inside_a_chain(llm: Any, outside: str) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "Be kind."), ("placeholder", "{messages}")])
    chain = (lambda messages: {"messages": messages}) | prompt | llm.bind_tools([weather])
    app = loop(chain, [weather])
    options = {"stream_mode": "custom", "config": ROUNDS}
    rounds = list(app.stream(QUESTION, **options))
    if outside == "astream":
        rounds = [round async for round in app.astream(QUESTION, **options)]
    assert "".join(round.text for round in rounds).endswith(REPORT)


async def test_the_graph_s_events_hold_tokens_tools_and_rounds(llm: Any) -> None:
    app = loop(llm.bind_tools([weather]), [weather])
    events = [event async for event in app.astream_events(QUESTION, version="v2")]
    names = [event["event"] for event in events]
    assert names.index("on_tool_start") < names.index("on_tool_end")
    chunks = [event["data"]["chunk"] for event in events if event["event"] == "on_chat_model_stream"]
    assert "".join(chunk.text for chunk in chunks) == REPORT
    rounds = [event for event in events if event["name"] == "specfuse_round"]
    assert {event["metadata"]["langgraph_node"] for event in rounds} == {"answer"}


def test_a_tool_node_that_tells_errors_lets_the_members_read_them() -> None:
    graph = StateGraph(MessagesState)
    llm = model(determined, determined).bind_tools([broken])
    graph.add_node("answer", lambda state: {"messages": [llm.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([broken], handle_tool_errors=True))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    state = graph.compile().invoke(QUESTION)
    assert results(state)[0].status == "error"
    assert "no line to Paris" in state["messages"][-1].text


# --- several at once --------------------------------------------------------------------------------------------


class Trip(TypedDict):
    cities: list[str]
    reports: Annotated[list[str], operator.add]


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_nodes_side_by_side_do_not_mix(way: str) -> None:
    """One superstep, many nodes, one ensemble: the calls and the rounds of each stay its own."""
    llm = model(traveller, traveller)
    bound = llm.bind_tools([weather], tool_choice="any")

    def one(city: str) -> dict[str, Any]:
        (call,) = bound.invoke(city).tool_calls
        return {"reports": [weather.invoke(call).content]}

    graph = StateGraph(Trip)
    graph.add_node("one", one)
    graph.add_conditional_edges(START, lambda state: [Send("one", city) for city in state["cities"]], ["one"])
    graph.add_edge("one", END)
    cities = [f"City{number}" for number in range(8)]
    app, trip = graph.compile(), {"cities": cities, "reports": []}
    state = app.invoke(trip) if way == "invoke" else await app.ainvoke(trip)
    assert sorted(state["reports"]) == sorted(f"sunny in {city}, 21 degrees." for city in cities)
    assert await asoon(lambda: free(llm))


@pytest.mark.parametrize("way", ["batch", "abatch"])
async def test_graphs_side_by_side_do_not_mix(way: str) -> None:
    llm = model(traveller, traveller)
    app = loop(llm.bind_tools([weather]), [weather])
    cities = [f"City{number}" for number in range(8)]
    questions = [{"messages": [("human", city)]} for city in cities]
    states = app.batch(questions) if way == "batch" else await app.abatch(questions)
    assert [state["messages"][-1].text for state in states] == [f"It is sunny in {c}, 21 degrees." for c in cities]


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
async def test_leaving_a_graph_s_stream_frees_everything(way: str) -> None:
    def endless(query: Query) -> str:
        long = " ".join(f"word{number}" for number in range(400))
        return long if query.turns[-1].role == "tool" else called(("weather", {"city": "Paris"}))

    llm = model(endless, endless, member=SlowMember, max_tokens=400, segment_tokens=2)
    stream = loop(llm.bind_tools([weather]), [weather], way).astream(QUESTION, stream_mode="messages")
    async for chunk, where in stream:
        if where["langgraph_node"] == "answer" and "word" in chunk.text:
            break
    await stream.aclose()
    assert await asoon(lambda: free(llm))
