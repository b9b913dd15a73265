"""Answers that are JSON of a certain form."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, model_validator

from langchain_specfuse import UsageError, checks

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "number", "minimum": 1}, "next": {"$ref": "#"}},
    "required": ["n"],
}


class Span(BaseModel):
    first: int = Field(ge=1)
    last: int

    @model_validator(mode="after")
    def ordered(self):
        if self.last < self.first:
            raise ValueError("last is before first")
        return self


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('{"n": 1}', None),
        (' {"n": 1, "next": {"n": 2.5}}\n', None),
        ('{"n": 0}', "n: 0 is less than the minimum of 1"),
        ('{"n": 1, "next": {}}', "next: 'n' is a required property"),
        ('{"n": 1', "is not JSON: Expecting ',' delimiter: line 1 column 8 (char 7)"),
        ("[]", "[] is not of type 'object'"),
        ('{"n": NaN}', "is not JSON: NaN is not a number of JSON, or too large"),
        ('{"n": 1e999}', "is not JSON: 1e999 is not a number of JSON, or too large"),
        ('So: {"n": 1}', "is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("", "is not JSON: Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_schema_judges_the_whole_answer(answer, reason):
    assert checks.json_schema(SCHEMA).function(answer) == reason


def test_an_answer_that_is_nested_too_deep_is_refused():
    assert "is not JSON" in checks.json_schema(SCHEMA).function("[" * 100_000)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('{"first": 1, "last": 2}', None),
        ('{"first": 0, "last": 2}', "first: "),
        ('{"first": 3, "last": 2}', "last is before first"),
        ('{"first": 3}', "last: Field required"),
        ("{", "Invalid JSON"),
    ],
)
def test_a_pydantic_class_judges_with_its_own_validators(answer, said):
    reason = checks.json_schema(Span).function(answer)
    assert (reason is None) if said is None else said in reason


@pytest.mark.parametrize(
    "schema",
    [
        "{}",
        None,
        int,
        [],
        {},
        {"name": "x", "schema": {"type": "object"}},
        {"type": "objekt"},
        {"type": "string", "pattern": "("},
        {"enum": {1}},
    ],
    ids=repr,
)
def test_what_is_no_schema_is_refused_with_a_way_out(schema):
    with pytest.raises(UsageError) as caught:
        checks.json_schema(schema)
    assert caught.value.notes[0].startswith("-> ")
