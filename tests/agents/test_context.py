"""Agents that shorten their history use the chat model's profile before any member is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import PromptTooLongError, ScriptedMember, SpecFuseChatModel

from .conftest import PLAN, QUESTION, REPORT, caller, kinds, weather

LONG = {"messages": [("human", "word " * 150), ("ai", "Go on.")] * 60 + [("human", "And now?")]}


def summarizing(llm: SpecFuseChatModel) -> Any:
    return create_agent(
        llm,
        middleware=[
            SummarizationMiddleware(llm, trigger=("fraction", 0.7), keep=("fraction", 0.1))
        ],
    )


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of members as they are loaded."""
    names: list[str] = []
    monkeypatch.setattr(
        ScriptedMember, "probe", lambda self: names.append(self.name) or self.preview()
    )
    return names


@pytest.mark.parametrize("make_agent", [summarizing, create_deep_agent])
def test_an_agent_keeps_its_history_within_the_smallest_context(
    make_agent: Callable[..., Any], loads: list[str]
) -> None:
    members = [
        ScriptedMember("Short.", name=name, max_context=size)
        for name, size in (("a", 9000), ("b", 8000))
    ]
    llm = SpecFuseChatModel(members=members)
    agent = make_agent(llm)
    assert llm.profile["max_input_tokens"] == 8000 and loads == []
    with pytest.raises(PromptTooLongError):
        create_agent(llm).invoke(LONG)
    assert agent.invoke(LONG)["messages"][-1].text == "Short."


def test_a_deep_agent_calls_its_tool_and_answers(loads: list[str]) -> None:
    other = FakeListChatModel(responses=["I do not know."])
    members = [
        ScriptedMember(caller(), name="a", max_context=50_000),
        ScriptedMember(caller(), name="b"),
        other,
    ]
    agent = create_deep_agent(SpecFuseChatModel(members=members), tools=[weather])
    assert loads == []
    state = agent.invoke(QUESTION)
    assert kinds(state) == PLAN and state["messages"][-1].text == REPORT and loads == ["a", "b"]
