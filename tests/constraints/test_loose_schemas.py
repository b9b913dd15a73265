"""Schemas that no grammar expresses fully: the grammar enforces a part, ``validation`` checks
everything."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import left_out
from langchain_specfuse.constraints.validation import Validator
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError

from .test_any_schema import neighbours, pairs, spoiled, through, valid, written
from .walks import BYTES, json_schema, walk

PART = {"type": "object", "properties": {"n": {"type": "integer"}}}
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


@given(loose())
def test_the_grammar_allows_what_the_whole_schema_allows(pair: tuple[Any, Any]) -> None:
    schema, value = pair
    if not valid(schema, value):
        return
    try:
        left_out(json_schema(schema))
    except UsageError:
        return
    assert through(json_schema(schema), written(value))


@given(st.data(), loose())
def test_a_finished_value_is_checked_as_another_program_checks_it(
    data: Any, pair: tuple[Any, Any]
) -> None:
    schema, value = pair
    for candidate in (value, data.draw(neighbours(value))):
        assert (Validator(schema, "schema").fault(candidate) == "") == valid(schema, candidate)


def refused(constraint: Constraint, schema: Any) -> str:
    """Return the reason why the schema cannot be used, or ""."""
    try:
        left_out(constraint)
        Validator(schema, "schema")
    except UsageError as raised:
        error = raised
    else:
        return ""
    assert error.__notes__[0].startswith("-> ")
    return str(error)


@given(spoiled(), st.integers(0, 10**6))
def test_any_schema_has_a_grammar_or_is_refused_with_a_reason(schema: Any, seed: int) -> None:
    constraint = json_schema(schema)
    if refused(constraint, schema):
        return
    text, whole = walk(BYTES.grammar(constraint).start(), random.Random(seed), most=40)
    if whole:
        Validator(schema, "schema").fault(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "parts"),
    [
        ({"type": "array", "uniqueItems": True}, ["schema.uniqueItems"]),
        ({"type": "array", "contains": {}, "maxContains": 2}, ["schema.contains", "schema.maxContains"]),
        ({"type": "integer", "not": {"const": 3}, "minimum": 10**20}, ["schema.not", "schema.minimum"]),
        ({"type": "string", "pattern": "(?=a)b", "maxLength": 5}, ["schema.pattern"]),
        ({"type": "number", "multipleOf": 0.1}, []),
        ({"type": "object", "properties": {"a": {}}, "maxProperties": 0}, ["schema.maxProperties"]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ["schema.oneOf"]),
        ({"type": "object", "properties": {"x": {"type": "object", "minProperties": 3}}},
         ["schema.properties.x.minProperties"]),
        ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {
            "sub": {"type": "array", "items": {"$ref": "#/$defs/T"}}, "name": {"pattern": "^(?!x)"}}}}},
         ["#/$defs/T.properties.name.pattern"]),
        ({"enum": [2**60, "a"]}, ["schema"]),
        ({"type": "string", "format": "isbn"}, ["schema.format"]),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_only_keywords_that_a_grammar_cannot_express_are_left_out(
    schema: Any, parts: list[str]
) -> None:
    assert [part.path for part in left_out(json_schema(schema))] == parts


def test_all_other_keywords_are_enforced() -> None:
    schema = {
        "type": "object",
        "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "maxItems": 2},
            "code": {"type": "string", "pattern": "^(?!x)[a-z]+$", "maxLength": 3},
        },
        "required": ["tags"],
        "if": {"required": ["code"]},
        "then": {"required": ["why"], "properties": {"why": {"type": "string"}}},
    }  # fmt: skip
    legal = ['{"tags": ["a", "a"]}', '{"tags": [], "code": "X1"}', '{"tags": [], "why": "so"}']
    illegal = ['{"tags": [1]}', '{"tags": ["a", "b", "c"]}', '{"tags": [], "code": "long"}']
    illegal += ['{"code": "a"}', '{"tags": [], "other": 1}']
    assert all(through(json_schema(schema), text) for text in legal)
    assert not any(through(json_schema(schema), text) for text in illegal)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, 4, 3),
        ({"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, [1], [1, 2]),
        ({"type": "string", "nullable": True, "pattern": "^(?!x)a"}, None, "xa"),
        ({"type": "string", "pattern": r"^\p{L}+$"}, "é", "1"),
        ({"type": "number", "multipleOf": 0.1}, 0.3, 0.25),
        ({"patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False}, {"a": None}, {"b": None}),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "dependencies": {"a": ["b"]}}, {"a": 1, "b": 1}, {"a": 1}),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_schemas_of_every_draft_and_of_other_programs_are_checked(
    schema: Any, right: Any, wrong: Any
) -> None:
    validator = Validator(schema, "schema")
    assert validator.fault(right) == ""
    assert validator.fault(wrong)


def test_a_pattern_that_a_grammar_reads_is_checked_in_linear_time() -> None:
    """``re`` would need years for this pattern."""
    fault = Validator({"type": "string", "pattern": "^(a+)+$"}, "schema").fault("a" * 60 + "!")
    assert "does not match" in fault


def test_nothing_is_fetched_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **options: opened.append(args))
    assert "example.org" in Validator({"$ref": "https://example.org/x.json"}, "schema").fault(1)
    assert opened == []


@pytest.mark.parametrize(
    "schema", [{"type": "thing"}, {"type": "object", "required": 5}, {"pattern": "(a"}]
)
def test_an_invalid_schema_is_refused(schema: Any) -> None:
    with pytest.raises(UsageError) as error:
        Validator(schema, "add.parameters")
    assert "add.parameters" in str(error.value) and error.value.__notes__[0].startswith("-> ")
