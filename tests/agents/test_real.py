"""Agents with the demo's two models."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from langchain_specfuse import SpecFuseChatModel, demo_members

from .conftest import PLAN, calls_made, kinds, results

pytestmark = [pytest.mark.real, pytest.mark.long]
HOURS = {"library": "from 9 to 6", "museum": "from 10 to 5"}
QUESTION: Any = {"messages": [("human", "When can I go to the museum?")]}


class ToolFirst(AgentMiddleware):
    """Force a tool call first and forbid calls after its result."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self._chosen(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._chosen(request))

    def _chosen(self, request: Any) -> Any:
        choice = "none" if request.messages[-1].type == "tool" else "any"
        # next to a schema, LangChain takes the tool choice only from the model's settings
        if request.response_format:
            return request.override(
                model_settings={**request.model_settings, "tool_choice": choice}
            )
        return request.override(tool_choice=choice)


@tool
def opening_hours(place: Literal["library", "museum"]) -> str:
    """Return when a place in town is open."""
    return f"The {place} is open {HOURS[place]}."


class Visit(BaseModel):
    """A visit to a place in town."""

    place: Literal["library", "museum"]
    hour: int = Field(ge=0, le=23)


@pytest.mark.parametrize("with_object", [False, True], ids=["text", "object"])
async def test_an_agent_calls_its_tool_and_answers(with_object: bool) -> None:
    llm = SpecFuseChatModel(members=demo_members(), max_tokens=32)
    format: Any = ProviderStrategy(Visit) if with_object else None
    agent = create_agent(llm, [opening_hours], middleware=[ToolFirst()], response_format=format)
    state: Any = await agent.ainvoke(QUESTION)
    assert kinds(state) == PLAN
    ((name, arguments),) = calls_made(state)
    assert name == "opening_hours"
    assert (
        results(state)[0].text == f"The {arguments['place']} is open {HOURS[arguments['place']]}."
    )
    assert state["messages"][-1].text and not state["messages"][-1].tool_calls
    assert isinstance(state.get("structured_response"), Visit) == with_object
