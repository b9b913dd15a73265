"""Constraints hold for real members that mask their drafts: tiny models that write at random."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from langchain_core.tools import tool
from members import tiny

from langchain_specfuse import SpecFuseChatModel
from tests.constraints.walks import assert_satisfies
from tests.methods import in_method


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Tell the weather."""
    return "sunny"


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


@cache
def members() -> tuple[Any, ...]:
    """Two architectures with different tokenizers: one of bytes, one that marks spaces."""
    return tuple(tiny.member(arch, seed=7) for arch in ("gpt2", "llama"))


def fused(**options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(members=list(members()), **in_method(**{"max_tokens": 40, **options}))


def test_whole_answers_satisfy_a_schema_with_several_keys() -> None:
    schema = {
        "type": "object",
        "properties": {
            "sky": {"enum": ["blue", "red"]},
            "sea": {"enum": ["wide", "deep"]},
            "wet": {"type": "boolean"},
        },
        "required": ["sky", "sea", "wet"],
    }
    asking = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for samples in (1, 3):
        message = fused(segment="answer", samples=samples).invoke(
            "Tell me something.", response_format=asking
        )
        assert message.response_metadata["finish_reason"] == "stop"
        assert_satisfies(message.text, schema)


@pytest.mark.parametrize("choice", ["any", "auto"])
def test_every_call_has_the_tools_arguments_and_is_not_in_the_text(choice: str) -> None:
    for number in range(5):
        llm = fused(temperature=1.5, seed=number, max_tokens=48)
        message = llm.bind_tools([get_weather, now], tool_choice=choice).invoke(
            f"Question {number}?"
        )
        for call in message.tool_calls:
            {"now": now, "get_weather": get_weather}[call["name"]].args_schema.model_validate(
                call["args"]
            )  # type: ignore[union-attr]
        assert "<tool_call>\n" not in message.text and (choice == "auto" or message.text == "")
        assert (
            not message.invalid_tool_calls or message.response_metadata["finish_reason"] == "length"
        )
