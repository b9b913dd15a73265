"""LangChain's agents run tools, pass results back, and get one answer from all members."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from chat.conftest import asked, auntil, free
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_specfuse.core.values import Query

from .conftest import PLAN, QUESTION, REPORT, called, calls_made, kinds, model, results, weather


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_an_agent_calls_its_tool_reads_the_result_and_answers(llm: Any, way: str) -> None:
    streams: Any = {"stream_mode": "values"} if "stream" in way else {}
    state = await asked(create_agent(llm, [weather]), way, QUESTION, **streams)
    state = state[-1] if streams else state
    assert kinds(state) == PLAN
    assert calls_made(state) == [("weather", {"city": "Paris"})]
    assert results(state)[0].tool_call_id == state["messages"][1].tool_calls[0]["id"]
    assert state["messages"][-1].text == REPORT
    assert await auntil(lambda: free(llm))


@tool
def facts(city: str) -> Any:
    """Facts about a city."""
    return {
        "list": [city, "ein Fluß"],
        "dict": {"people": 2_100_000},
        "none": None,
        "long": "x " * 5_000,
    }[city]


def test_parallel_calls_are_all_run_and_answered() -> None:
    calls = [
        ("weather", {"city": "Paris"}),
        ("weather", {"city": "Rome"}),
        ("facts", {"city": "dict"}),
    ]

    def curious(query: Query) -> str:
        return " ".join(turn.text for turn in query.turns if turn.role == "tool") or called(*calls)

    state = create_agent(model(curious, curious), [weather, facts]).invoke(QUESTION)
    assert calls_made(state) == calls
    ids = [call["id"] for call in state["messages"][1].tool_calls]
    assert [message.tool_call_id for message in results(state)] == ids and len(set(ids)) == 3
    assert "sunny in Rome" in state["messages"][-1].text and "2100000" in state["messages"][-1].text


def test_a_call_survives_a_checkpoint_where_a_person_approves_it(llm: Any) -> None:
    approval = HumanInTheLoopMiddleware(interrupt_on={"weather": True})
    agent = create_agent(llm, [weather], middleware=[approval], checkpointer=InMemorySaver())
    thread: Any = {"configurable": {"thread_id": "1"}}
    (pause,) = agent.invoke(QUESTION, thread)["__interrupt__"]
    assert pause.value["action_requests"][0]["args"] == {"city": "Paris"}
    state = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), thread)
    assert state["messages"][-1].text == REPORT
    assert state["messages"][-1].response_metadata["specfuse"]["rounds"] > 0


# --- objects --------------------------------------------------------------------------------------


class Report(BaseModel):
    """What the weather is like."""

    city: str
    sky: Literal["sunny", "cloudy"]
    degrees: int = Field(ge=-60, le=60)


class TypedReport(TypedDict):
    """What the weather is like."""

    city: str
    sky: str
    degrees: int


@dataclass
class PlainReport:
    """What the weather is like."""

    city: str
    sky: str
    degrees: int


FACTS: dict[str, Any] = {"city": "Paris", "sky": "sunny", "degrees": 21}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        # a schema alone means ProviderStrategy: the profile promises structured output
        (Report, Report(**FACTS)),
        (ProviderStrategy(TypedReport), FACTS),
        (ProviderStrategy(PlainReport), PlainReport(**FACTS)),
        (ProviderStrategy(Report.model_json_schema()), FACTS),
        (ToolStrategy(Report), Report(**FACTS)),
    ],
)
@pytest.mark.parametrize("tools", [[], [weather]], ids=["alone", "with a tool"])
def test_every_kind_of_schema_gives_its_kind_of_object(
    schema: Any, expected: Any, tools: Any
) -> None:
    answer = called(("Report", FACTS)) if isinstance(schema, ToolStrategy) else json.dumps(FACTS)

    def script(query: Query) -> str:
        if query.turns[-1].role == "tool" or not tools:
            return answer
        return called(("weather", {"city": "Paris"}))

    state = create_agent(model(script, script), tools, response_format=schema).invoke(QUESTION)
    assert state["structured_response"] == expected
    assert calls_made(state)[:1] == (
        [("weather", {"city": "Paris"})] if tools else calls_made(state)[:1]
    )
