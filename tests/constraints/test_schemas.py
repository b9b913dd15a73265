"""Every answer that ends satisfies its JSON schema; schemas that cannot be enforced are refused."""

from __future__ import annotations

import datetime
import enum
import ipaddress
import json
import random
import uuid
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AnyUrl, BaseModel, Field, HttpUrl, SecretStr, TypeAdapter

from langchain_specfuse.constraints import check, referee_for
from langchain_specfuse.constraints.schema import MOST_OPTIONAL
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError

from .schemas import schemas
from .walks import BYTES, assert_satisfies, json_schema, walk

MANY = schemas(240, seed=1)
REFUSED = {11: "propertyNames", 42: "min/maxProperties"}
"""What llguidance refuses, and so do we: names of properties from an enum; and at most no
properties, which it counts only where all of them are required."""


def through(schema: Any, text: str) -> bool:
    """Return whether the referee accepts this text as a whole answer."""
    referee = referee_for(json_schema(schema))
    return referee.legal("", text) == len(text) and referee.may_end(text)


@pytest.mark.parametrize("part", range(6))
def test_every_answer_that_ends_satisfies_its_schema(part: int) -> None:
    for number in range(part, len(MANY), 6):
        if number in REFUSED:
            with pytest.raises(UsageError, match=REFUSED[number]):
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
        assert number not in REFUSED
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
     r"impossible: required property 'a'"),
    ({"type": "string", "pattern": "^a", "format": "date"}, "Regex is empty"),
    ({"enum": []}, "enum"),
    ({"type": "object", "properties": {"a": False}, "required": ["a"]}, "'a' is unsatisfiable"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "incompatible types"),
    (ENDLESS, "no answer ends"),
    ({"type": "array", "items": ENDLESS, "minItems": 1}, "no answer ends"),
    ({"$ref": "#/$defs/A", "$defs": CIRCLE}, "no answer satisfies"),
    # llguidance does not know it
    ({"not": {"type": "null"}}, "schema.not is not supported"),
    ({"type": "object", "properties": {"a": {"if": {}, "then": {}}}}, r"schema\.properties\.a\.if"),
    ({"type": "array", "items": {"type": "array", "uniqueItems": True}}, r"schema\.items\.uniqueItems"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"contains": {}}}}, r"schema\.\$defs\.A\.contains"),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"items": {"type": "string", "pattern": "(?=a)b"}}}}, "look-around"),
    ({"anyOf": [{"type": "string", "pattern": "(?=a)b"}]}, "look-around"),
    ({"type": "string", "pattern": "(a"}, "unclosed group"),
    ({"type": "integer", "minimum": 10**20}, "integer range"),
    ({"type": "number", "exclusiveMaximum": -1e300}, "float range"),
    ({"anyOf": [{"oneOf": [{"type": "number"}, {"type": "integer"}]}]}, r"schema\.anyOf\[0\]\.oneOf"),
    ({"type": "object", "propertyNames": {"minLength": 2}}, "schema.propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "schema.dependentRequired"),
    # too large
    ({"allOf": [{"anyOf": [{"minimum": n + m} for n in range(70)]} for m in range(6)]}, "too large"),
    ({"$ref": "#/$defs/A10", "$defs": REPEATED | {"A0": {"type": "string"}}}, "too large"),
    ({"properties": {f"a{n}": {} for n in range(1500)}, "allOf": [{"required": ["a0"]}]}, "optional properties"),
    ({"patternProperties": {f"^a{n}$": {} for n in range(300)}}, "more than 100 patternProperties"),
    # not a schema
    ([1], "not a JSON schema"),
    ({"type": "thing"}, "Invalid type: thing"),
    ({"type": "object", "required": 5}, "required"),
    ({"type": "array", "minItems": "3"}, "minItems"),
    ({"anyOf": [{"type": "null"}, {"items": 3}]}, "schema must be an object or boolean"),
    ({"$ref": "#/$defs/Nowhere"}, "Nowhere"),
    ({"$ref": "https://example.org/schema.json"}, "example.org"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "message"), WRONG, ids=lambda value: str(value)[:50])
def test_a_schema_that_cannot_be_enforced_is_refused_and_its_keyword_named(
    schema: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as error:
        check(json_schema(schema))
    assert error.value.notes[0].startswith("-> ")


def test_a_panic_of_llguidance_is_a_refusal() -> None:
    """llguidance 1.9.1 panics (parser/src/json/schema.rs, line 75) where it quotes a value of a
    wrong type and cuts it in the middle of a character."""
    with pytest.raises(UsageError, match="wrong type"):
        check(json_schema({"type": "object", "required": "é" * 300}))


def test_references_that_lead_too_deep_are_refused() -> None:
    """llguidance 1.9.1 overflows its stack with 1,000 of them, which ends the process."""
    chain: dict[str, Any] = {
        f"d{n}": {"type": "object", "properties": {"a": ref(f"d{n + 1}")}} for n in range(3000)
    }
    for names in (list(chain), list(reversed(chain))):
        schema = {**ref("d0"), "$defs": {name: chain[name] for name in names} | {"d3000": {}}}
        with pytest.raises(UsageError, match="nested too deep"):
            check(json_schema(schema))
    short = dict(list(chain.items())[2950:])
    check(json_schema({**ref("d2950"), "$defs": {**short, "d3000": {}}}))


def test_the_largest_objects_that_are_accepted_can_be_written() -> None:
    most = {f"a{n}": {} for n in range(MOST_OPTIONAL)}
    for schema in ({"properties": most}, {"properties": most, "additionalProperties": True}):
        check(json_schema(schema))
        assert through(schema, "{}") and through(schema, f'{{"a{MOST_OPTIONAL - 1}": 1}}')


def test_each_level_of_a_nested_schema_is_read_once() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    check(json_schema(schema))  # reading each level twice would take hours


# --- what is changed for llguidance ---------------------------------------------------------------


def ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def tagged(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"k": {"const": kind, "default": kind}, **more}}


UNION = {"oneOf": [ref("A"), ref("B")], "discriminator": {"propertyName": "k"}}
UNIONS = {"A": tagged("a", n={"anyOf": [ref("U"), {"type": "null"}]}), "B": tagged("b"), "U": UNION}
TEXTS = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}  # fmt: skip
KEPT: list[tuple[str, Any, str, str]] = [
    ("closed", {"type": "object", "properties": {"a": {}}}, '{"a": 1}', '{"a": 1, "b": 2}'),
    ("untyped", {"properties": {"a": {"minimum": 3}}}, '{"a": 3}', '"a"'),
    ("open", {"type": "object", "properties": {"a": {}}, "additionalProperties": True}, '{"a": 1, "b": 2}', "{,"),
    ("required, not described", {"type": "object", "properties": {}, "required": ["a"]}, '{"a": 1}', "{}"),
    ("a closed definition", {**ref("Base"), "title": "x", "$defs": {"Base": BASE}}, '{"b": 1}', '{"b": 1, "d": 1}'),
    ("both of allOf", {"allOf": [ref("Base"), {"properties": {"c": {"type": "null"}}, "required": ["c"]}],
                       "$defs": {"Base": BASE}}, '{"b": 1, "c": null}', '{"b": 1}'),
    ("one of two", {"properties": {"x": {}, "y": {}}, "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
     '{"y": 1}', "{}"),
    ("a part through references", {"properties": {"a": {}}, "anyOf": [ref("R")],
                                   "$defs": {"R": ref("Base"), "Base": BASE}}, '{"a": 1, "b": 1}', '{"a": 1}'),
    ("null instead of an endless object", {**ENDLESS, "type": ["object", "null"]}, '{"n": {"n": null}}', "{}"),
    ("tags with defaults", {**UNION, "$defs": UNIONS}, '{"k": "a", "n": {"k": "b"}}', "{}"),
    ("a tree of tags", {**UNION, "$defs": {"A": tagged("a", n={"type": "array", "items": UNION}), "B": tagged("b")}},
     '{"k": "a", "n": [{"k": "b"}, {"k": "a"}]}', '{"k": "a", "n": [{"k": "c"}]}'),
    ("tags in place", {"oneOf": [tagged("a"), tagged("b")], "discriminator": {"propertyName": "k"}}, '{"k": "b"}', "{}"),
    ("one key or another", {"oneOf": [BASE, {"properties": {"c": {}}, "required": ["c"]}]}, '{"b": 1}', '{"b": 1, "c"'),
    ("decimal", {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[0-9]*$"}]}, "1.5", '"1'),
    ("a subject", {"type": "string", "format": "path"}, '"anything"', "1"),
    ("names are texts", TEXTS, '{"a": 1}', '{"a": "1"}'),
    ("a list, not a set", {"type": "array", "uniqueItems": False}, "[1, 1]", "1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "schema", "right", "wrong"), KEPT, ids=lambda value: str(value)[:30]
)
def test_ordinary_schemas_are_changed_so_that_llguidance_enforces_them(
    name: str, schema: Any, right: str, wrong: str
) -> None:
    check(json_schema(schema))
    assert through(schema, right) and not through(schema, wrong)
    dice, grammar = random.Random(1), BYTES.grammar(json_schema(schema))
    for _ in range(10):
        data, whole = walk(grammar.start(), dice, 20)
        if whole:
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


class Paid(BaseModel):
    price: float
    by: Annotated[Card | Cash, Field(discriminator="kind")]


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: SecretStr
    split: list[Paid] = Field(default_factory=list)


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    note: Path | None = None


DECLARED: list[Any] = [
    uuid.UUID, ipaddress.IPv4Address, ipaddress.IPv6Address, AnyUrl, Color, dict[str, int],
    tuple[int, str], list[Literal["a", 1, None]], Node, Dog | Cat, Paid,
]  # fmt: skip
"""Of random dates and times of llguidance, pydantic refuses some (leap seconds), and its addresses
of web pages are no ``HttpUrl``."""
FORMATTED = [datetime.date, datetime.time, datetime.datetime, datetime.timedelta, HttpUrl]


@pytest.mark.parametrize("kind", FORMATTED)
def test_a_format_of_pydantic_is_enforced(kind: Any) -> None:
    schema = TypeAdapter(kind).json_schema()
    check(json_schema(schema))
    examples = (
        '"2024-02-29"',
        '"10:20:30Z"',
        '"2024-02-29T10:20:30Z"',
        '"P1D"',
        '"https://a.org/b"',
    )
    assert [text for text in examples if through(schema, text)] == [examples[FORMATTED.index(kind)]]


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
        r"book\.parameters .*Invalid type",
    ),
]


@pytest.mark.parametrize(("constraint", "message"), OTHERS)
def test_an_invalid_constraint_is_refused(constraint: Constraint, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check(constraint)
