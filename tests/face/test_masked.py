"""The same through real members that mask their drafting: tiny random models, whose every word is chance."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from constraints.schemas import schemas
from constraints.walks import assert_satisfies
from langchain_core.tools import tool
from members import tiny
from pydantic import BaseModel, Field

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse._calls import CLOSED

from .conftest import asked

MANY = schemas(200)


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Tell the weather."""
    return "sunny"


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


class Node(BaseModel):
    """A node."""

    name: str = Field(max_length=12)
    colour: str = Field(pattern="^(red|green)$")
    next: Node | None = None


@cache
def members() -> tuple[Any, ...]:
    """Two families with tokenizers of their own: bytes in one, pieces with a mark for spaces in the other."""
    return tuple(tiny.member(arch, seed=7) for arch in ("gpt2", "llama"))


def fused(**options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(members=list(members()), **{"max_tokens": 40, **options})


def asking(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}}


@pytest.mark.parametrize(
    ("max_tokens", "part", "parts"), [*((16, part, 8) for part in range(8)), (1, 3, 9), (80, 5, 9)]
)
def test_every_answer_satisfies_its_schema_whatever_the_budget(max_tokens: int, part: int, parts: int) -> None:
    llm = fused(max_tokens=max_tokens)
    for number in range(part, len(MANY), parts):
        message = llm.invoke("Tell me something.", **asking(MANY[number]))
        assert_satisfies(message.text, MANY[number])
        closed = message.response_metadata["specfuse"]["closed"]
        assert message.response_metadata["finish_reason"] == "length" or not closed


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_forced_call_has_the_tool_s_arguments(temperature: float) -> None:
    for number in range(6):
        llm = fused(temperature=temperature, seed=number, max_tokens=8 * number + 1)
        message = llm.bind_tools([get_weather, now], tool_choice="any").invoke(f"Question {number}?")
        (call,) = [*message.tool_calls, *message.invalid_tool_calls]
        assert bool(message.invalid_tool_calls) is message.response_metadata["specfuse"]["closed"]
        assert message.text == ""
        args = json.loads(str(call["args"]).removesuffix(CLOSED)) if message.invalid_tool_calls else call["args"]
        if call["name"] == "now":
            assert args == {}
        else:
            get_weather.args_schema.model_validate(args)  # type: ignore[union-attr]


OBJECTS = [one for one in MANY if one.get("type") == "object"]


@pytest.mark.parametrize("part", range(4))
def test_every_object_that_is_asked_for_as_a_call_satisfies_its_schema(part: int) -> None:
    llm = fused(max_tokens=16)
    for number in range(part, len(OBJECTS), 4):
        asked = llm.with_structured_output(OBJECTS[number], method="function_calling", include_raw=True)
        result = asked.invoke("Tell me something.")
        if "that a float holds" in str(result["parsing_error"]):
            continue  # a grammar counts no digits: such a number is refused, not read as infinity
        assert result["parsing_error"] is None
        assert_satisfies(json.dumps(result["parsed"]), OBJECTS[number])


@pytest.mark.parametrize("number", range(6))
def test_free_to_call_every_call_is_right_and_nothing_of_it_is_in_the_words(number: int) -> None:
    llm = fused(temperature=2.0, seed=number)
    message = llm.bind_tools([get_weather, now]).invoke("What now?")
    assert not message.invalid_tool_calls or message.response_metadata["specfuse"]["closed"]
    assert "<tool_call>\n" not in message.text
    assert all(call["name"] in ("get_weather", "now") for call in message.tool_calls)


ASKED: dict[str, dict[str, Any]] = {
    "prose or calls": {"tools": [get_weather, now]},
    "a call": {"tools": [get_weather, now], "tool_choice": "get_weather"},
    "an object": {"response_format": Node},
    "a call or an object": {"tools": [now], "response_format": Node},
    "any object": {"response_format": {"type": "json_object"}},
    "a pattern": {"regex": "[a-f]{3,8} [0-9]+"},
    "a choice": {"choice": ["yes", "no", "天空"]},
    "a grammar": {"grammar": 'root ::= ("a" | "b") root | "c"'},
}


def told(message: Any) -> Any:
    return message.text, [(call["name"], call["args"]) for call in message.tool_calls], message.usage_metadata


@pytest.mark.parametrize("what", ASKED)
async def test_streamed_is_invoked_is_async_is_batched(what: str) -> None:
    llm = fused(max_tokens=24).bind(**ASKED[what])
    once = told(await asked(llm, "invoke"))
    for way in ("ainvoke", "stream", "astream", "batch", "abatch"):
        answer = await asked(llm, way)
        if way in ("stream", "astream"):
            whole = answer[0]
            for chunk in answer[1:]:
                whole += chunk
            answer = whole
        for message in answer if isinstance(answer, list) else [answer]:
            again = told(message)
            assert again[:2] == once[:2]
            assert again[2]["output_tokens"] == once[2]["output_tokens"]


def test_a_class_is_filled_and_streams_as_it_grows() -> None:
    llm = fused().with_structured_output(Node)
    node = llm.invoke("A node?")
    assert isinstance(node, Node)
    assert list(llm.stream("A node?"))[-1] == node
    parts = list(fused().with_structured_output(Node.model_json_schema()).stream("A node?"))
    assert parts[-1] == node.model_dump(exclude_unset=True)
    assert all(set(one) <= set(other) for one, other in pairwise(parts))


def test_forced_text_costs_no_tokens() -> None:
    schema = {"type": "object", "properties": {"only": {"const": "this very long text that nobody chooses"}}}
    message = fused().invoke("?", **asking({**schema, "required": ["only"], "additionalProperties": False}))
    assert json.loads(message.text) == {"only": "this very long text that nobody chooses"}
    assert message.usage_metadata and message.usage_metadata["output_tokens"] <= 2
