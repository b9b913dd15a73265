"""Agents whose members' lines are written down: what they call, and what they make of the result."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import CallFormat, Query

FORMAT = CallFormat()
QUESTION = {"messages": [("human", "How is the weather in Paris?")]}
PLAN = ("human", "ai", "tool", "ai")
"""The kinds of an agent's messages when it has asked its tool once."""


def called(*calls: tuple[str, dict[str, Any]]) -> str:
    """These calls as a member writes them."""
    bodies = [json.dumps({FORMAT.name_key: name, FORMAT.arguments_key: arguments}) for name, arguments in calls]
    return FORMAT.between.join(FORMAT.begin + body + FORMAT.end for body in bodies)


def reporter(query: Query) -> str:
    """Asks its tool first, then says what the tool said."""
    last = query.turns[-1]
    return f"The report says: {last.text}" if last.role == "tool" else called(("weather", {"city": "Paris"}))


def brief(query: Query) -> str:
    """Like ``reporter``, of another city and in other words: it loses every tie."""
    last = query.turns[-1]
    return f"The forecast says: {last.text}" if last.role == "tool" else called(("weather", {"city": "Lyon"}))


def city_of(query: Query) -> str:
    return next(turn.text for turn in reversed(query.turns) if turn.role == "user")


def traveller(query: Query) -> str:
    last = query.turns[-1]
    return f"It is {last.text}" if last.role == "tool" else called(("weather", {"city": city_of(query)}))


def model(*scripts: Callable[[Query], str], member: type[ScriptedMember] = ScriptedMember, **options: Any) -> Any:
    """A chat model of members that play these parts."""
    members = [member(script, name=name) for script, name in zip(scripts, "abcd", strict=False)]
    return SpecFuseChatModel(**{"members": members, "segment_tokens": 3, **options})


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}, 21 degrees."


class SlowMember(ScriptedMember):
    """Takes its time for every batch of drafts."""

    seconds = 0.02

    def draft(self, jobs: Any) -> Any:
        time.sleep(self.seconds)
        return super().draft(jobs)


def kinds(state: dict[str, Any]) -> tuple[str, ...]:
    return tuple(message.type for message in state["messages"])


def results(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def made(state: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The calls that were made, in their order."""
    answers = [message for message in state["messages"] if isinstance(message, AIMessage)]
    return [(call["name"], call["args"]) for answer in answers for call in answer.tool_calls]


def free(llm: SpecFuseChatModel) -> bool:
    """Whether no member keeps anything of any question."""
    return not any(member.open_queries for member in llm.members)


async def asoon(happened: Callable[[], bool]) -> bool:
    """Whether something becomes true within two seconds."""
    for _ in range(400):
        if happened():
            return True
        await asyncio.sleep(0.005)
    return False


@pytest.fixture
def llm() -> SpecFuseChatModel:
    """Two members that agree on the tool, and on little else."""
    return model(reporter, brief)
