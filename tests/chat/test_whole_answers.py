"""Whole answers under a constraint are compared by the value that the constraint defines."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import tool
from pydantic import BaseModel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel


def agreed(*texts: str, **options: Any) -> Any:
    """Return the answer of members that write these texts; the first leads if none agree."""
    members = [ScriptedMember(text, name=name) for text, name in zip(texts, "abcdef", strict=False)]
    llm = SpecFuseChatModel(members=members, segment="answer", lead=None)
    return llm.invoke("?", **options)


LANGUAGES = ["C", "C++", "C#"]
NUMBERS = "-?[0-9]+"
SIGNED = 'root ::= sign "1"\nsign ::= "-" | "+" | ""'
INTEGER = {"title": "Number", "type": "integer"}


@pytest.mark.parametrize("result", [None, "text"])
@pytest.mark.parametrize(
    ("texts", "most", "constraint"),
    [
        (("-1", "1", "1"), "1", {"choice": ["-1", "1"]}),
        (("C++", "C#", "C", "C#"), "C#", {"choice": LANGUAGES}),
        (("Yes", "yes", "yes"), "yes", {"choice": ["Yes", "yes"]}),
        (("...", "!", "!"), "!", {"choice": ["...", "!"]}),
        (("-1", "1", "1"), "1", {"regex": NUMBERS}),
        (("-1", "+1", "1", "1"), "1", {"grammar": SIGNED}),
        (("-1", "1", "1"), "1", {"response_format": INTEGER}),
    ],
)
def test_answers_to_a_constraint_are_compared_exactly(
    texts: tuple[str, ...], most: str, constraint: dict[str, Any], result: str | None
) -> None:
    assert agreed(*texts, **constraint, result=result).text == most


class Point(BaseModel):
    x: float
    label: str


def test_objects_are_compared_as_json_values() -> None:
    texts = (
        '{"x": -1, "label": "C++"}',
        '{"x": 1.0, "label": "C"}',
        '{"x": 1, "label": "C#"}',
        '{"x": 1, "label": "C"}',
    )
    answer = agreed(*texts, response_format=Point)
    assert answer.text == texts[1]
    shares = answer.response_metadata["specfuse"]["shares"]
    assert shares == {"b": 1.0}


@tool
def find(what: str) -> str:
    """Find something."""
    return what


def test_answers_beside_tools_are_compared_exactly() -> None:
    texts = ('{"x": -1, "label": ""}', '{"x": 1.0, "label": ""}', '{"x": 1, "label": ""}')
    assert agreed(*texts, response_format=Point, tools=[find]).text == texts[1]
    call = ScriptedMember.call("find", what="-1")
    other = ScriptedMember.call("find", what="1")
    answer = agreed(call, other, other, response_format=Point, tools=[find])
    assert [tool_call["args"] for tool_call in answer.tool_calls] == [{"what": "1"}]


def test_an_answer_cut_by_the_budget_has_no_result() -> None:
    long = '{"x": 1, "label": "one two three"}'
    short = '{"x": 2, "label": "one"}'
    answer = agreed(long, long, short, response_format=Point, max_tokens=4)
    assert answer.text == short
    assert answer.response_metadata["finish_reason"] == "stop"


@pytest.mark.parametrize("text", ["a <", "a <tool", "a <tool_call>"])
def test_a_stop_string_where_a_call_might_begin_ends_the_answer(text: str) -> None:
    answer = agreed(text, tools=[find], stop=["<"], result="text")
    assert answer.text == "a " and answer.response_metadata["finish_reason"] == "stop"
    assert answer.response_metadata["specfuse"]["finish"] == "stop_string"
