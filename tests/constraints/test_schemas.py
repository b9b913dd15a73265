"""Every answer that ends satisfies its JSON schema; schemas that cannot be enforced are refused."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import json
import random
import uuid
from typing import Any, Literal

import pytest
from pydantic import AnyUrl, BaseModel, Field, HttpUrl, TypeAdapter

from langchain_specfuse.constraints import check, referee_for
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError

from .schemas import schemas
from .walks import BYTES, assert_satisfies, json_schema, walk

MANY = schemas(240, seed=1)
REFUSED = 42
"""At most no properties, or one of them: llguidance counts the properties only where all of them
are required."""


def through(schema: Any, text: str) -> bool:
    """Return whether the referee accepts this text as a whole answer."""
    referee = referee_for(json_schema(schema))
    return referee.legal("", text) == len(text) and referee.may_end(text)


@pytest.mark.parametrize("part", range(6))
def test_every_answer_that_ends_satisfies_its_schema(part: int) -> None:
    for number in range(part, len(MANY), 6):
        if number == REFUSED:
            with pytest.raises(UsageError, match="min/maxProperties"):
                check(json_schema(MANY[number]))
            continue
        check(json_schema(MANY[number]))
        dice, grammar = random.Random(number), BYTES.grammar(json_schema(MANY[number]))
        referee = referee_for(json_schema(MANY[number]))
        for most in (5, 30, 150):
            data, whole = walk(grammar.start(), dice, most)
            text = data.decode("utf-8", "ignore")
            assert referee.legal("", text) == len(text)
            if whole:
                assert_satisfies(text, MANY[number])
                assert referee.may_end(text)


def test_forced_text_is_the_only_way_on() -> None:
    for number in range(0, len(MANY), 5):
        dice, state = random.Random(number), BYTES.grammar(json_schema(MANY[number])).start()
        walk(state, dice, most=dice.randint(0, 9))
        follows, forced = state.follows(), state.forced()
        on = state.fork()
        for byte in forced:
            assert on.follows() == bytes([byte])
            assert not on.may_end()
            assert on.advance(bytes([byte])) == 1
        assert on.may_end() or len(on.follows()) > 1
        for byte in range(256):
            assert state.fits(bytes([byte])) == (byte in follows)


# --- refusals -------------------------------------------------------------------------------------

BASE = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
ENDLESS = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
CIRCLE = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
REPEATED = {
    f"A{n}": {
        "anyOf": [{"allOf": [{"$ref": f"#/$defs/A{n - 1}"}] * 2}, {"$ref": f"#/$defs/A{n - 1}"}]
    }
    for n in range(1, 11)
}
"""Ten definitions, each with more than the square of the alternatives of the one before."""
WRONG: list[tuple[Any, str]] = [
    # nothing satisfies it
    (False, "schema is false"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, r"schema is impossible: minimum \(3\)"),
    ({"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 2}}, "required": ["a"]},
     r"schema.properties.a is impossible: minLength"),
    ({"type": "string", "pattern": "^a", "format": "date"}, "Regex is empty"),
    ({"enum": []}, "enum"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a' is unsatisfiable"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
    (ENDLESS, "without end"),
    ({"type": "array", "items": ENDLESS, "minItems": 1}, "without end"),
    ({"$ref": "#/$defs/A", "$defs": CIRCLE}, "without end"),
    ({"anyOf": [{"$ref": "#/$defs/E"}, {"type": "null"}], "$defs": {"E": ENDLESS | {"properties": {
        "n": {"$ref": "#/$defs/E"}}}}}, "E is impossible: it refers to itself without end"),
    ({"type": "object", "allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/A"}}}, "A is impossible: .* without end"),
    # no grammar enforces it
    ({"not": {"type": "null"}}, "schema.not"),
    ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}, r"schema\.properties\.a\.if"),
    ({"type": "integer", "minimun": 3}, r"schema\.minimun"),
    ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, r"schema\.items\.uniqueItems"),
    ({"type": "string", "format": "isbn"}, "format 'isbn'"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"items": {"type": "string", "pattern": "(?=a)b"}}}},
     r"(?s)#/\$defs/A.items .*look-around"),
    ({"anyOf": [{"type": "string", "pattern": "(?=a)b"}]}, "look-around"),
    ({"type": "string", "pattern": "(a"}, "unclosed group"),
    ({"type": "integer", "minimum": 10**20}, "minimum 1000.* is beyond"),
    ({"type": "number", "exclusiveMaximum": -1e300}, "exclusiveMaximum .* is beyond"),
    ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf .* two of its alternatives"),
    ({"oneOf": [BASE, {"properties": {"c": {}}}]}, "oneOf .* two of its alternatives"),
    ({"type": "object", "minProperties": 2}, "minProperties 2 .* written twice"),
    ({"type": "object", "propertyNames": {"minLength": 2}}, "propertyNames"),
    ({"const": 2**53 + 1}, "a different value would be written"),
    ({"enum": [{"a": ["\x1f"]}]}, "a different value would be written"),
    ({"allOf": [{"anyOf": [{"minimum": n + m} for n in range(70)]} for m in range(6)]}, "too many alternatives"),
    ({"$ref": "#/$defs/A10", "$defs": REPEATED | {"A0": {"type": "string"}}}, "too many alternatives"),
    ({"anyOf": [{"type": "object", "properties": {f"a{n}": {}}, "required": [f"a{n}"]} for n in range(2100)]}, "2,100"),
    ({"properties": {f"a{n}": {} for n in range(1500)}, "allOf": [{"required": ["a0"]}]}, "optional properties"),
    ({"patternProperties": {f"^a{n}$": {} for n in range(300)}}, "more than 100 patternProperties"),
    # not a schema
    ([1], "not a JSON schema"),
    ({"type": "thing"}, "Invalid type: thing"),
    ({"type": "object", "required": 5}, "required"),
    ({"type": "array", "minItems": "3"}, "minItems"),
    ({"anyOf": [{"type": "null"}, {"items": 3}]}, r"schema\.anyOf\[1\]"),
    ({"$ref": "#/$defs/Nowhere"}, "Nowhere"),
    ({"$ref": "https://example.org/schema.json"}, "not in this schema"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_a_schema_that_cannot_be_enforced_is_refused_with_its_path(
    schema: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        check(json_schema(schema))
    assert error.value.__notes__[0].startswith("-> ")


def test_each_level_of_a_nested_schema_is_read_once() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    check(json_schema(schema))  # reading each level twice would take hours


# --- keywords that llguidance ignores -------------------------------------------------------------


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def tagged(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": kind, "default": kind}, **more}}


UNION = {"oneOf": [ref("A"), ref("B")], "discriminator": {"propertyName": "k"}}
UNIONS = {"A": tagged("a", n={"anyOf": [ref("U"), {"type": "null"}]}), "B": tagged("b"), "U": UNION}
COLOR = {"enum": ["red", "blue"], "title": "Color", "type": "string"}
KEPT: list[tuple[str, Any, str, str]] = [
    ("closed", {"type": "object", "properties": {"a": {}}}, '{"a": 1}', '{"a": 1, "b": 2}'),
    ("open", {"type": "object", "properties": {"a": {}}, "additionalProperties": True}, '{"a": 1, "b": 2}', "{,"),
    ("required, not described", {"type": "object", "properties": {}, "required": ["a"]}, '{"a": 1}', "{}"),
    ("both of allOf", {"allOf": [ref("Base"), {"properties": {"c": {"type": "null"}}}], "$defs": {"Base": BASE}},
     '{"b": 1, "c": null}', '{"b": 1, "d": 1}'),
    ("one of two", {"properties": {"x": {}, "y": {}}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
     '{"y": 1}', "{}"),
    ("unevaluated", {"allOf": [BASE], "properties": {"c": {}}, "unevaluatedProperties": False},
     '{"c": 1, "b": 1}', '{"b": 1, "d": 1}'),
    ("untyped", {"properties": {"a": {"minimum": 3}}}, '{"a": 3}', '"a"'),
    ("null instead of an endless object", {**ENDLESS, "type": ["object", "null"]}, '{"n": {"n": null}}', "{}"),
    ("nullable", {"type": "integer", "nullable": True}, "null", "true"),
    ("names of an enum", {"type": "object", "propertyNames": ref("C"), "additionalProperties": {"type": "integer"},
                          "$defs": {"C": COLOR}}, '{"red": 1}', '{"green": 1}'),
    ("names of a pattern", {"type": "object", "propertyNames": {"pattern": "^x"}}, '{"x1": 1}', '{"y": 1}'),
    ("names of a format", {"type": "object", "propertyNames": {"format": "date"}}, '{"2024-02-29": 1}',
     '{"2023-02-29": 1}'),
    ("union of references", {"oneOf": [ref("A"), ref("N")], "$defs": {"A": {"type": "string"}, "N": {"type": "null"}}},
     '"a"', "1"),
    ("tags with defaults", {**UNION, "$defs": UNIONS}, '{"k": "a", "n": {"k": "b"}}', "{}"),
    ("a tree of tags", {**UNION, "$defs": {"A": tagged("a", n={"type": "array", "items": UNION}), "B": tagged("b")}},
     '{"k": "a", "n": [{"k": "b"}, {"k": "a"}]}', '{"k": "a", "n": [{"k": "c"}]}'),
    ("one key or another", {"oneOf": [BASE, {"properties": {"c": {}}, "required": ["c"]}]}, '{"b": 1}', '{"b": 1, "c"'),
    ("decimal", {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[0-9]*$"}]}, "1.5", '"1'),
    ("64 bits", {"type": "integer", "minimum": -(2**63), "maximum": 2**64 - 1}, str(2**62), "5.5"),
    ("all floats", {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308}, "-0.25", "1e999"),
    ("beyond floats", {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 20}, str(2**53 + 2), str(2**53)),
    ("a subject", {"type": "string", "format": "path"}, '"anything"', "1"),
    ("a set of one", {"type": "array", "uniqueItems": True, "maxItems": 1}, "[1]", "[1, 2]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "schema", "right", "wrong"), KEPT, ids=lambda value: str(value)[:30]
)
def test_keywords_that_llguidance_ignores_are_enforced(
    name: str, schema: Any, right: str, wrong: str
) -> None:
    check(json_schema(schema))
    assert through(schema, right) and not through(schema, wrong)
    dice, grammar = random.Random(1), BYTES.grammar(json_schema(schema))
    for _ in range(10):
        data, whole = walk(grammar.start(), dice, 20)
        if whole and name not in ("nullable",):
            assert_satisfies(data.decode(), schema)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    friends: list[Dog] = Field(default_factory=list)


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    chases: Cat | None = None


class Node(BaseModel):
    name: str = Field(max_length=3)
    next: Node | None = None


DECLARED: list[Any] = [
    datetime.date, datetime.time, datetime.datetime, datetime.timedelta, uuid.UUID, ipaddress.IPv4Address,
    ipaddress.IPv6Address, AnyUrl, HttpUrl, Color, dict[Color, int], dict[datetime.date, bool],
    tuple[int, str], list[Literal["a", 1, None]], Node, Dog | Cat,
]  # fmt: skip


@pytest.mark.parametrize("kind", DECLARED, ids=str)
def test_pydantic_validates_every_answer_written_for_its_schemas(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    dice, grammar = random.Random(3), BYTES.grammar(json_schema(adapter.json_schema()))
    for _ in range(40):
        data, whole = walk(grammar.start(), dice, 30, eager=0.3)
        if whole:
            adapter.validate_json(data)


# --- other constraints ----------------------------------------------------------------------------

BROKEN = {"name": "book", "parameters": {"type": "object", "properties": {"n": {"type": "x"}}}}
OTHERS = [
    (Constraint("poem"), "no constraint is of kind 'poem'"),
    (Constraint("regex", "(a"), "unclosed group"),
    (Constraint("regex", ""), "empty"),
    (Constraint("grammar", "root ::= nothing"), "nothing"),
    (Constraint("grammar", 'root ::= ("a"'), "grammar"),
    (Constraint("grammar", 'root ::= "a" root'), "no answer ends"),
    (
        Constraint("calls", json.dumps({"tools": [BROKEN]})),
        r"book\.parameters\.properties\.n .*Invalid type",
    ),
]


@pytest.mark.parametrize(("constraint", "message"), OTHERS)
def test_an_invalid_constraint_is_refused(constraint: Constraint, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(constraint)
