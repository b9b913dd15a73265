"""Agents whose members follow scripts: which tools they call, and how they use the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import CallFormat, Query

FORMAT = CallFormat()
QUESTION = {"messages": [("human", "How is the weather in Paris?")]}
PLAN = ("human", "ai", "tool", "ai")
"""The kinds of an agent's messages when it has called its tool once."""
REPORT = "The report says: sunny in Paris, 21 degrees."


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}, 21 degrees."


def called(*calls: tuple[str, dict[str, Any]]) -> str:
    """Return the text of these calls as a member writes them."""
    bodies = [
        json.dumps({FORMAT.name_key: name, FORMAT.arguments_key: arguments})
        for name, arguments in calls
    ]
    return FORMAT.between.join(FORMAT.begin + body + FORMAT.end for body in bodies)


def caller(last: str = "The report says: {}", city: str = "Paris") -> Callable[[Query], str]:
    """Return a script that calls its tool first, then answers with this text about the result."""

    def script(query: Query) -> str:
        turn = query.turns[-1]
        return (
            last.format(turn.text) if turn.role == "tool" else called(("weather", {"city": city}))
        )

    return script


def model(*scripts: Callable[[Query], str]) -> SpecFuseChatModel:
    members = [
        ScriptedMember(script, name=name) for script, name in zip(scripts, "abcd", strict=False)
    ]
    return SpecFuseChatModel(members=members, method=Method(segment_tokens=3))


@pytest.fixture
def llm() -> SpecFuseChatModel:
    """Two members that agree on the tool and on little else; the first one wins."""
    return model(caller(), caller("The forecast says: {}", "Lyon"))


def kinds(state: dict[str, Any]) -> tuple[str, ...]:
    return tuple(message.type for message in state["messages"])


def results(state: dict[str, Any]) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def calls_made(state: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls in the state, in order."""
    answers = [message for message in state["messages"] if isinstance(message, AIMessage)]
    return [(call["name"], call["args"]) for answer in answers for call in answer.tool_calls]
