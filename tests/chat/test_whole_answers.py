"""Whole answers under a constraint are compared by the value that the constraint defines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from members.calling_model import CallingModel, call_of
from pydantic import BaseModel

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.chat.calibration import Calibration


def agreed(*texts: str, result: Any = None, **options: Any) -> Any:
    """Return the answer of members that write these texts; the first leads if none agree."""
    members = [ScriptedMember(text, name=name) for text, name in zip(texts, "abcdef", strict=False)]
    method = Method(segment="answer", result=result)
    return SpecFuseChatModel(members=members, method=method, lead=None).invoke("?", **options)


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


def test_a_chat_model_and_a_local_member_that_make_the_same_call_agree() -> None:
    members = [
        ScriptedMember("I do not know.", name="a"),
        ScriptedMember(f"I look. {ScriptedMember.call('go', city='Oslo', days=2)}", name="b"),
        CallingModel(replies=[call_of("go", "Let me see.", days=2.0, city="Oslo")], asked=[]),
    ]
    llm = SpecFuseChatModel(members=members, method=Method(segment="answer"), lead=None)
    answer = llm.bind_tools([go]).invoke("Where to?")
    assert [call["args"] for call in answer.tool_calls] == [{"city": "Oslo", "days": 2}]


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


# --- with a calibration that compares whole answers by their numbers ------------------------------


def calibrated(folder: Path, *texts: str, **options: Any) -> SpecFuseChatModel:
    """Return a chat model whose members write these texts. In its file, the second member leads."""
    file = folder / "calibration.json"
    shares = {"a": 0.5, "b": 0.5, "c": 0.5}
    Calibration("b", shares, 40, use="consensus", result="number").save(file)
    members = [ScriptedMember(text, name=name) for text, name in zip(texts, "abc", strict=True)]
    return SpecFuseChatModel(members=members, calibration=file, **options)


@tool
def go(city: str, days: int) -> str:
    """Go to a city."""
    return city


class Trip(BaseModel):
    city: str
    days: int


TRIPS = [f'{{"city": "{city}", "days": 2}}' for city in ("Bergen", "Oslo", "Bergen")]
CALLS = [ScriptedMember.call("go", city=city, days=2) for city in ("Bergen", "Oslo", "Bergen")]


def test_a_calibrated_number_does_not_decide_calls_objects_and_choices(tmp_path: Path) -> None:
    answer = calibrated(tmp_path, *CALLS).bind_tools([go]).invoke("Where to?")
    assert [call["args"]["city"] for call in answer.tool_calls] == ["Bergen"]
    trip = calibrated(tmp_path, *TRIPS).with_structured_output(Trip).invoke("Where to?")
    assert trip == Trip(city="Bergen", days=2)
    rooms = ["room 2", "suite 2", "room 2"]
    answer = calibrated(tmp_path, *rooms).invoke("Which?", choice=["room 2", "suite 2"])
    assert answer.text == "room 2"


def test_a_calibrated_number_decides_plain_text(tmp_path: Path) -> None:
    texts = ["It is 4.", "It is 5.", "2 + 2 = 4"]
    assert calibrated(tmp_path, *texts).invoke("2 + 2?").text == "It is 4."
    llm = calibrated(tmp_path, *texts).bind_tools([go], tool_choice="none")
    assert llm.invoke("2 + 2?").text == "It is 4."


def test_a_number_that_the_user_chose_decides_calls_too(tmp_path: Path) -> None:
    llm = calibrated(tmp_path, *CALLS, method=Method(segment="answer", result="number"))
    llm = llm.bind_tools([go])
    assert [call["args"]["city"] for call in llm.invoke("Where to?").tool_calls] == ["Oslo"]
