"""What cannot work is refused before any model runs, in words that say what and where."""

from __future__ import annotations

import json

import pytest

from langchain_specfuse.constraints import _backends, check
from langchain_specfuse.constraints._referee import Ruling
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError

from .walks import json_schema

ENDLESS = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
IMPOSSIBLE = [
    (False, "nothing satisfies"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, "from 3 to 2"),
    ({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}, "no such integer"),
    ({"type": "integer", "minimum": 8, "maximum": 13, "multipleOf": 7}, "no such integer"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
    ({"type": "string", "pattern": "^a", "format": "date"}, "cannot be read"),
    ({"enum": []}, "enum"),
    ({"type": "integer", "enum": ["a"]}, "enum"),
    ({"type": "array", "minItems": 2, "maxItems": 1}, "minItems"),
    ({"type": "array", "prefixItems": [{}], "items": False, "minItems": 2}, "at least 2"),
    ({"type": "object", "properties": {}, "required": ["a"]}, "requires 'a'"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "requires 'a'"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "contradicts"),
    ({"anyOf": [False, {"enum": []}]}, "enum"),
    (ENDLESS, "never be finished"),
    ({"type": "array", "items": ENDLESS | {"$id": "x"}, "minItems": 1, "properties": {}}, "refers|nested|finished"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}}, "never be finished"),
]
UNSAYABLE = [
    ({"not": {"type": "null"}}, "schema.not"),
    ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}, r"schema\.properties\.a\.if"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "string", "format": "isbn"}, "format 'isbn'"),
    ({"type": "string", "pattern": "^(?=a)b"}, r"\(\?="),
    ({"type": "string", "pattern": "(a"}, "cannot be read"),
    ({"type": "thing"}, "no type"),
    ({"type": "integer", "minimum": 10**20, "maximum": 10**21}, "minimum 1000.* no grammar counts"),
    ({"type": "number", "exclusiveMaximum": -1e300}, "exclusiveMaximum .* no grammar counts"),
    ({"$ref": "#/$defs/Nowhere"}, "Nowhere"),
    ({"$ref": "https://example.org/schema.json"}, "not in this schema"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "two of its alternatives"),
    ({"type": "object", "minProperties": 2}, "minProperties"),
    ({"type": "object", "properties": []}, "properties"),
    ([1], "no JSON schema"),
    ({"type": 5}, "type wants the name of a type"),
    ({"type": "object", "required": 5}, "required wants a list of names"),
    ({"type": "array", "minItems": float("inf")}, "minItems wants a count"),
    ({"anyOf": [{"type": "null"}, {"items": 3}]}, r"schema\.anyOf\[1\]\.items wants a schema"),
    ({"type": "object", "allOf": [{"$ref": "#/x"}], "x": 3}, "no JSON schema|cannot be kept"),
    ({"const": 2**53 + 1}, "no grammar writes it"),
    ({"enum": ["a\x00b"]}, "no grammar writes it"),
    ({"enum": [{"a": ["\x1f"]}]}, "no grammar writes it"),
]
CIRCLE = {"type": "object", "allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/A"}}}
MANY = {"allOf": [{"anyOf": [{"minimum": one + turn} for one in range(70)]} for turn in range(6)]}
NEVER_ENDING = [(CIRCLE, "contradicts itself"), (MANY, "two different 'anyOf'")]
CALL = {"name": "f", "parameters": {"type": "object", "properties": {}}}
OTHERS = [
    (Constraint("poem"), "no constraint is of kind 'poem'"),
    (Constraint("json_schema", "{"), "cannot be read as JSON"),
    (Constraint("regex", "(a"), "regex"),
    (Constraint("regex", ""), "empty"),
    (Constraint("choice", "[]"), "choice"),
    (Constraint("choice", "[1]"), "choice"),
    (Constraint("choice", '[""]'), "empty text"),
    (Constraint("grammar", "root ::= nothing"), "nothing"),
    (Constraint("grammar", 'root ::= "a" root'), "no answer was found"),
    (Constraint("calls", '{"tools": []}'), "names no tools"),
    (Constraint("calls", json.dumps({"tools": [{"name": "f"}]})), "'f' has no schema"),
    (Constraint("calls", json.dumps({"tools": [CALL, CALL]})), "two tools are called 'f'"),
    (Constraint("calls", json.dumps({"tools": [{"parameters": {}}]})), "no name"),
    (Constraint("calls", json.dumps({"tools": [CALL], "name_key": "x", "arguments_key": "x"})), "share the key"),
    (Constraint("any_of", "[]"), "any_of"),
    (Constraint("any_of", '[["poem", ""]]'), "poem"),
]


@pytest.mark.parametrize(("schema", "told"), IMPOSSIBLE + UNSAYABLE + NEVER_ENDING)
def test_a_schema_that_cannot_work_is_refused(schema, told):
    with pytest.raises(UsageError, match=told):
        check(json_schema(schema))


@pytest.mark.parametrize(("constraint", "told"), OTHERS)
def test_a_constraint_that_cannot_work_is_refused(constraint, told):
    with pytest.raises(UsageError, match=told):
        check(constraint)


def test_a_tool_with_an_impossible_schema_is_refused_by_name():
    bad = {"name": "book", "parameters": {"type": "object", "properties": {"n": {"enum": []}}}}
    with pytest.raises(UsageError, match=r"book\.parameters\.properties\.n"):
        check(Constraint("calls", json.dumps({"tools": [bad]})))


def test_what_stands_in_another_alternative_may_be_left_out():
    decimal = {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!^[-+.]*$)[0-9]+$"}]}
    check(json_schema(decimal))


def test_without_a_library_the_pip_line_is_told(monkeypatch):
    monkeypatch.setattr(_backends.util, "find_spec", lambda name: None)
    monkeypatch.delenv(_backends.CHOSEN, raising=False)
    with pytest.raises(UsageError, match="llguidance") as caught:
        _backends.backend_named()
    assert 'pip install "langchain-specfuse[structured]"' in caught.value.__notes__[0]


def test_a_library_that_nobody_knows_is_refused(monkeypatch):
    monkeypatch.setenv(_backends.CHOSEN, "outlines")
    with pytest.raises(UsageError, match="outlines"):
        _backends.backend_named()


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"title": "Anything"}, "[1]", "x"),
        ({"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 20}, str(2**53 + 2), str(2**53)),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, "-5", "5.5"),
        ({"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}, "-0.25", "1e999"),
        ({"type": "string", "pattern": r"^\p{Lu}\p{L}+$"}, '"Éa"', '"éa"'),
        ({"type": "string", "format": "ipvanyaddress"}, '"10.0.0.1"', '"ten"'),
        ({"type": "object", "propertyNames": {"format": "date"}, "additionalProperties": {"type": "integer"}},
         '{"2024-02-29": 1}', '{"2023-02-29": 1}'),
    ],
)  # fmt: skip
def test_what_pydantic_often_says_is_kept(schema, right, wrong):
    check(json_schema(schema))
    referee = Ruling(json_schema(schema))
    assert referee.legal("", right) == len(right)
    assert referee.may_end(right)
    assert referee.legal("", wrong) < len(wrong)


def test_a_long_enum_is_read_soon():
    check(json_schema({"enum": [f"value {number}" for number in range(20_000)]}))
