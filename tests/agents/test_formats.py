"""Agents that owe their caller an object: with tools beside it, in both of LangChain's ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from langchain_specfuse.core.values import Query

from .conftest import PLAN, QUESTION, asoon, called, free, kinds, made, model, weather


class Report(BaseModel):
    """What the weather is like."""

    city: str
    sky: Literal["sunny", "cloudy"]
    degrees: int = Field(ge=-60, le=60)


class TypedReport(TypedDict):
    """What the weather is like."""

    city: str
    degrees: int


@dataclass
class PlainReport:
    """What the weather is like."""

    city: str
    degrees: int


FACTS = {"city": "Paris", "sky": "sunny", "degrees": 21}
FEW = {"city": "Paris", "degrees": 21}


def asker(last: str) -> Callable[[Query], str]:
    """Asks its tool first, then says this."""
    return lambda query: last if query.turns[-1].role == "tool" else called(("weather", {"city": "Paris"}))


WAYS = pytest.mark.parametrize("way", ["invoke", "ainvoke"])


async def asked(agent: Any, way: str) -> Any:
    return agent.invoke(QUESTION) if way == "invoke" else await agent.ainvoke(QUESTION)


@WAYS
@pytest.mark.parametrize("wrapped", [lambda schema: schema, ProviderStrategy], ids=["schema", "provider"])
async def test_the_last_answer_is_the_object_and_the_tool_was_asked_before(way: str, wrapped: Any) -> None:
    """A schema alone means this too: the model's profile says that it keeps to schemas."""
    llm = model(asker(json.dumps(FACTS)), asker(json.dumps(FACTS)))
    state = await asked(create_agent(llm, [weather], response_format=wrapped(Report)), way)
    assert kinds(state) == PLAN
    assert state["structured_response"] == Report(**FACTS)
    assert made(state) == [("weather", {"city": "Paris"})]
    assert await asoon(lambda: free(llm))


@WAYS
async def test_the_object_may_be_a_tool_s_arguments(way: str) -> None:
    llm = model(asker(called(("Report", FACTS))), asker(called(("Report", FACTS))))
    state = await asked(create_agent(llm, [weather], response_format=ToolStrategy(Report)), way)
    assert state["structured_response"] == Report(**FACTS)
    assert [name for name, _ in made(state)] == ["weather", "Report"]


@pytest.mark.parametrize(
    ("schema", "wanted"),
    [
        (Report, Report(**FACTS)),
        (TypedReport, FEW),
        (PlainReport, PlainReport(**FEW)),
        (Report.model_json_schema(), FACTS),
    ],
    ids=["pydantic", "TypedDict", "dataclass", "JSON schema"],
)
@pytest.mark.parametrize("tools", [[], [weather]], ids=["alone", "with a tool"])
def test_every_kind_of_schema_gives_its_kind_of_object(schema: Any, wanted: Any, tools: Any) -> None:
    """Without tools the object is the first answer."""
    facts = json.dumps(FACTS if schema is Report or isinstance(schema, dict) else FEW)
    script = asker(facts) if tools else lambda query: facts
    state = create_agent(model(script, script), tools, response_format=ProviderStrategy(schema)).invoke(QUESTION)
    assert state["structured_response"] == wanted


def test_of_several_schemas_the_members_choose_one() -> None:
    class Refusal(BaseModel):
        """Why there is no report."""

        reason: str

    script = asker(called(("Refusal", {"reason": "no line to Paris"})))
    state = create_agent(model(script), [weather], response_format=ToolStrategy(Report | Refusal)).invoke(QUESTION)
    assert state["structured_response"] == Refusal(reason="no line to Paris")


def test_members_that_would_rather_talk_are_held_to_the_object() -> None:
    """They never say anything that may be said: the answer is closed, legally."""

    def talker(query: Query) -> str:
        return "Well, let me think about the weather in Paris for a while."

    state = create_agent(model(talker, talker), [], response_format=ProviderStrategy(Report)).invoke(QUESTION)
    assert isinstance(state["structured_response"], Report)


class ToolFirst(AgentMiddleware):
    """With a schema beside the tools, the choice goes through the model's settings: LangChain drops it elsewhere."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        return handler(self._chosen(request))

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(self._chosen(request))

    def _chosen(self, request: Any) -> Any:
        choice = "none" if request.messages[-1].type == "tool" else "any"
        return request.override(model_settings={**request.model_settings, "tool_choice": choice})


@WAYS
async def test_a_middleware_chooses_between_tool_and_object(way: str) -> None:
    """The members would say the object at once where they may, and call their tool for ever after."""

    def contrary(query: Query) -> str:
        must = query.constraint is not None and query.constraint.kind == "calls"
        return called(("weather", {"city": "Rome"})) if must or query.turns[-1].role == "tool" else json.dumps(FACTS)

    agent = create_agent(model(contrary), [weather], middleware=[ToolFirst()], response_format=ProviderStrategy(Report))
    state = await asked(agent, way)
    assert kinds(state) == PLAN
    assert isinstance(state["structured_response"], Report)
