"""Finished values are checked against their whole schema, whatever grammars enforce of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import fault, refuse_invalid
from langchain_specfuse.errors import UsageError

from .test_any_schema import neighbours, pairs, valid

NEVER = {"const": "never this text"}
INEXPRESSIBLE: list[tuple[type, dict[str, Any]]] = [
    (object, {"not": NEVER}),
    (object, {"not": {"type": "integer"}}),
    (object, {"if": {"type": "string"}, "then": {"minLength": 3}, "else": {"not": NEVER}}),
    (object, {"if": {"type": "object"}, "then": {"minProperties": 2}}),
    (object, {"oneOf": [{"type": "number"}, {"type": "integer"}, {"type": "array"}]}),
    (object, {"x-anything": 1, "unheardOf": {"a": []}}),
    (list, {"contains": {"type": "string"}}),
    (list, {"contains": {"const": 1}, "minContains": 0, "maxContains": 1}),
    (list, {"uniqueItems": True}),
    (dict, {"minProperties": 2}),
    (dict, {"propertyNames": {"minLength": 2}}),
    (dict, {"dependentRequired": {"a": ["b"]}}),
    (str, {"pattern": "^(?!x)"}),
    (str, {"pattern": "(a|b)(?=c)|^.?$"}),
    (int, {"minimum": -(10**20), "not": {"const": 7}}),
]
"""Keywords with the type that they describe; a schema without a type has that type."""


@st.composite
def loose(draw: Any) -> tuple[Any, Any]:
    """Draw a schema with a keyword that no grammar expresses, and a value of the rest of it."""
    schema, value = draw(pairs())
    fitting = [part for kind, part in INEXPRESSIBLE if kind in (object, type(value))]
    more = draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=2))
    return {**schema, "allOf": [schema, *more]} if draw(st.booleans()) else schema | more[0], value


@given(st.data(), loose())
def test_a_finished_value_is_checked_as_another_program_checks_it(
    data: Any, pair: tuple[Any, Any]
) -> None:
    schema, value = pair
    for candidate in (value, data.draw(neighbours(value))):
        assert (fault(json.dumps(schema), candidate) == "") == valid(schema, candidate)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [1], [1, 2]),
        ({"type": "number", "multipleOf": 0.1}, 0.3, 0.25),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, {"a": None}, {"b": None}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
        ({"examples": "not a list", "type": "integer"}, 1, "1"),
        ({"enum": [2**53 + 1]}, 2**53 + 1, 2**53),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_schemas_of_every_draft_and_of_other_programs_are_checked(
    schema: Any, right: Any, wrong: Any
) -> None:
    assert fault(json.dumps(schema), right) == ""
    assert fault(json.dumps(schema), wrong)


def test_a_pattern_that_only_llguidance_reads_is_left_to_its_grammar() -> None:
    assert fault('{"type": "string", "pattern": "^\\\\p{L}+$"}', "é") == ""


def test_nothing_is_fetched_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **options: opened.append(args))
    assert "example.org" in fault('{"$ref": "https://example.org/x.json"}', 1)
    assert opened == []


@pytest.mark.parametrize(
    "schema", [{"type": "thing"}, {"type": "object", "required": 5}, {"pattern": "(a"}]
)
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError) as error:
        refuse_invalid(schema, "add.parameters")
    assert "add.parameters" in str(error.value) and error.value.notes[0].startswith("-> ")
