"""Generate any number of schemas, reproducibly, in the style of pydantic, dataclasses, TypedDicts
and tools."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]
WORDS = [
    "name",
    "age",
    "city",
    "tags",
    "price",
    "größe",
    "名前",
    'a"b',
    "back\\slash",
    "with space",
    "x",
    "id",
    "ok",
]
TEXTS = [
    "red",
    "green",
    "blue",
    "",
    "Zürich",
    "日本",
    'say "hi"',
    "a\\b",
    "two\nlines",
    "red wine",
    "😀",
]
PATTERNS = [
    "^[a-z]{2,5}$",
    "^\\d{3}-\\d{4}$",
    "^(foo|bar)+$",
    "b+",
    "^[A-Z][a-z]*( [A-Z][a-z]*)?$",
    "^[^@]+@x\\.org$",
]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "duration"]

NODE = {
    "type": "object",
    "properties": {"value": {"type": "integer"}, "next": {"$ref": "#/$defs/Node"}},
}
TREE = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    },
    "required": ["label", "children"],
}
LINK = {
    "type": "object",
    "properties": {
        "value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#/$defs/Link"}, {"type": "null"}]},
    },
    "required": ["value", "next"],
}


def tagged(kind: str, **more: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"kind": {"const": kind}, **more},
        "required": ["kind", *more],
    }


BY_HAND: list[Schema] = [
    {},
    {"type": "object"},
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {}},
        "required": ["b"],
    },
    {
        "type": "object",
        "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}},
    },
    {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}, "required": ["n"]},
    {
        "type": "object",
        "properties": {"n": {"type": "string", "nullable": True}},
        "required": ["n"],
    },
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "integer"},
    },
    {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a", "b"],
        "additionalProperties": True,
    },
    {
        "type": "object",
        "propertyNames": {"enum": ["x", "y"]},
        "additionalProperties": {"type": "boolean"},
    },
    {
        "type": "object",
        "patternProperties": {"^[a-c]+$": {"type": "integer"}},
        "additionalProperties": False,
    },
    {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
    {"$ref": "#/$defs/Link", "$defs": {"Link": LINK}},
    {
        "type": "object",
        "properties": {"self": {"$ref": "#"}, "n": {"type": "integer"}},
        "required": ["n"],
    },
    {
        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
        "discriminator": {"propertyName": "kind"},
    }
    | {
        "$defs": {
            "Cat": tagged("cat", lives={"type": "integer"}),
            "Dog": tagged("dog", tricks={"type": "array"}),
        }
    },
    {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
    {"anyOf": [{"type": "integer", "minimum": 1000}, {"type": "string", "minLength": 3}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}]},
    {
        "allOf": [
            {"$ref": "#/$defs/Base"},
            {"type": "object", "properties": {"b": {"type": "null"}}},
        ],
        "$defs": {
            "Base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        },
    },
    {"type": "integer", "minimum": 1000},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": 20, "maximum": 400},
    {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.75},
    {"type": "number", "maximum": -3},
    {"type": "string", "minLength": 5, "maxLength": 8},
    {"type": "string", "pattern": "^a+$", "minLength": 30},
    {"type": "string", "pattern": "^20", "format": "date"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 5},
    {
        "type": "array",
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 2},
        "minItems": 2,
    },
    {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    },
    {
        "type": "array",
        "prefixItems": [{"type": "null"}],
        "items": {"type": "boolean"},
        "minItems": 2,
    },
    {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
    {"type": "array", "maxItems": 0},
    {"enum": ["a", "ab", "abc", 1, 1.5, None, True, [1, {"k": "v"}], {"b": [], "a": {}}]},
    {"enum": [100, 1000, 10]},
    {"const": {"a": [1, 2, {"b": None}]}},
    {"type": "string", "enum": ["a/b", 'q"', "\\", "é", "\u2028", "\t"]},
    {
        "type": "object",
        "properties": {"": {"type": "string"}, "$ref": {"type": "integer"}},
        "required": ["", "$ref"],
    },
    {
        "type": "object",
        "properties": {"enum": {"$ref": "#/$defs/E"}},
        "$defs": {"E": {"enum": ["x"]}},
    },
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"maxProperties": 0}],
    },
]


def schemas(count: int = 200, seed: int = 0) -> list[Schema]:
    """Return the schemas written by hand, then generated ones."""
    dice = random.Random(seed)
    return (BY_HAND + [random_object(dice) for _ in range(count - len(BY_HAND))])[:count]


def random_object(dice: random.Random) -> Schema:
    """Return an object schema with its definitions, in pydantic's style."""
    names = [f"Model{n}" for n in range(dice.randint(0, 2))]
    schema = an_object(dice, 3, names)
    return schema | (
        {"$defs": {name: an_object(dice, 2, names) for name in names}} if names else {}
    )


def an_object(dice: random.Random, depth: int, names: list[str]) -> Schema:
    keys = dice.sample(WORDS, dice.randint(1, 4))
    values = {}
    for key in keys:
        values[key] = value(dice, depth - 1, names)
        if dice.random() < 0.3:
            values[key] = {"title": key.title(), "description": "Some words.", **values[key]}
    # A reference may be recursive, but a required one must not be.
    free = [key for key in keys if "$ref" not in str(values[key])]
    schema: Schema = {"type": "object", "properties": values}
    if required := [key for key in free if dice.random() < 0.6]:
        schema["required"] = required
    if dice.random() < 0.2:
        schema["additionalProperties"] = dice.choice(
            [False, True, {"type": "integer"}, {"type": "null"}]
        )
    return schema


def value(dice: random.Random, depth: int, names: list[str]) -> Schema:
    kinds = [number, text, choice, plain]
    if depth > 0:
        kinds += [
            array,
            union,
            optional,
            table,
            lambda dice, depth, names: an_object(dice, depth, names),
        ]
    if names and dice.random() < 0.2:
        return {"$ref": f"#/$defs/{dice.choice(names)}"}
    return dice.choice(kinds)(dice, depth, names)


def plain(dice: random.Random, depth: int, names: list[str]) -> Schema:
    return dice.choice(
        [{"type": kind} for kind in ("string", "integer", "number", "boolean", "null")] + [{}]
    )


def number(dice: random.Random, depth: int, names: list[str]) -> Schema:
    kind = dice.choice(["integer", "number"])
    low = dice.choice([-1000, -5, 0, 1, 17, 1000])
    schema: Schema = {"type": kind}
    if dice.random() < 0.7:
        schema[dice.choice(["minimum", "exclusiveMinimum"])] = (
            low if kind == "integer" else low + dice.choice([0, 0.5])
        )
    if dice.random() < 0.5:
        schema[dice.choice(["maximum", "exclusiveMaximum"])] = low + dice.choice([2, 10, 12345])
    return schema


def text(dice: random.Random, depth: int, names: list[str]) -> Schema:
    kind = dice.randrange(4)
    if kind == 0:
        return {"type": "string", "pattern": dice.choice(PATTERNS)}
    if kind == 1:
        return {"type": "string", "format": dice.choice(FORMATS)}
    if kind == 2:
        low = dice.randint(0, 6)
        return {"type": "string", "minLength": low, "maxLength": low + dice.randint(0, 9)}
    return {"type": "string"}


def choice(dice: random.Random, depth: int, names: list[str]) -> Schema:
    kind = dice.randrange(3)
    if kind == 0:
        return {"enum": dice.sample([*TEXTS, 1, 2.5, None, True], dice.randint(1, 4))}
    if kind == 1:
        return {"const": dice.choice([*TEXTS, 7, False, None])}
    return {"type": "string", "enum": dice.sample(TEXTS, dice.randint(1, 5))}


def array(dice: random.Random, depth: int, names: list[str]) -> Schema:
    schema: Schema = {"type": "array", "items": value(dice, depth - 1, [])}
    if dice.random() < 0.5:
        schema["minItems"] = dice.randint(0, 3)
    if dice.random() < 0.5:
        schema["maxItems"] = schema.get("minItems", 0) + dice.randint(0, 3)
    if dice.random() < 0.2:
        schema["prefixItems"] = [value(dice, depth - 1, []) for _ in range(dice.randint(1, 2))]
    return schema


def union(dice: random.Random, depth: int, names: list[str]) -> Schema:
    if dice.random() < 0.3:
        kinds = dice.sample("abcd", 2)
        return {"oneOf": [tagged(kind, data=value(dice, depth - 1, [])) for kind in kinds]}
    return {"anyOf": [value(dice, depth - 1, names) for _ in range(dice.randint(2, 3))]}


def optional(dice: random.Random, depth: int, names: list[str]) -> Schema:
    return {"anyOf": [value(dice, depth - 1, names), {"type": "null"}], "default": None}


def table(dice: random.Random, depth: int, names: list[str]) -> Schema:
    return {"type": "object", "additionalProperties": value(dice, depth - 1, [])}
