"""Two schemas as one: what satisfies both (``allOf``, and what stands beside ``$ref``, ``anyOf`` and ``oneOf``)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ._keywords import TYPES

_HIGHEST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LOWEST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")

MOST_PAIRS = 4096
"""Alternatives times alternatives that are put together; a few lists of them in one ``allOf`` would take for ever."""

Resolve = Callable[[str], Any]


class Contradiction(Exception):
    """Nothing satisfies both."""


class Unsayable(Exception):
    """Two values of one word that have no common one."""


def merged(one: Any, other: Any, resolve: Resolve) -> Any:
    """A schema for what satisfies both. ``Contradiction`` if nothing does, ``Unsayable`` if no schema says it."""
    if one is True or one == {}:
        return other
    if other is True or other == {}:
        return one
    if one is False or other is False:
        raise Contradiction
    if "$ref" in one and one == other:
        return one
    one, other = _opened(one, resolve), _opened(other, resolve)
    found = dict(one)
    for key, value in other.items():
        if key in ("properties", "required", "additionalProperties"):
            continue
        found[key] = value if key not in one else _both(key, one[key], value, resolve)
    _join_objects(found, one, other, resolve)
    return found


def _opened(schema: Any, resolve: Resolve) -> Any:
    """Without a reference, and with a constant as an enum."""
    seen: set[str] = set()
    while "$ref" in schema:
        if schema["$ref"] in seen:  # round in a circle: no value could ever end it
            raise Contradiction
        seen.add(schema["$ref"])
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        target = resolve(schema["$ref"])
        schema = merged(target, rest, resolve) if rest else target
        if isinstance(schema, bool):
            if not schema:
                raise Contradiction
            return {}
    if "const" in schema:
        rest = {key: value for key, value in schema.items() if key != "const"}
        return merged(rest, {"enum": [schema["const"]]}, resolve)
    return schema


def _both(key: str, one: Any, other: Any, resolve: Resolve) -> Any:
    if one == other or other is None:
        return one
    if one is None:
        return other
    if key in _HIGHEST:
        return max(one, other)
    if key in _LOWEST:
        return min(one, other)
    if key == "type":
        return _types(one, other)
    if key == "enum":
        found = [value for value in one if any(same(value, also) for also in other)]
        if not found:
            raise Contradiction
        return found
    if key in ("anyOf", "oneOf"):
        return _pairs(key, one, other, resolve)
    if key == "allOf":
        return [*one, *other]
    if key == "items":
        return merged(one, other, resolve)
    if key == "uniqueItems":
        return one or other
    if key == "nullable":
        return one and other
    if key == "multipleOf" and all(isinstance(value, int) for value in (one, other)):
        return math.lcm(one, other)
    if key == "pattern":
        return [*(one if isinstance(one, list) else [one]), *(other if isinstance(other, list) else [other])]
    if key in ("title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs", "definitions"):
        return other
    raise Unsayable(key)


def _types(one: Any, other: Any) -> Any:
    left, right = ([kind] if isinstance(kind, str) else list(kind) for kind in (one, other))
    found = [kind for kind in TYPES if _has(left, kind) and _has(right, kind)]
    found = [kind for kind in found if not (kind == "integer" and "number" in found)]
    if not found:
        raise Contradiction
    return found[0] if len(found) == 1 else found


def _has(kinds: list[str], kind: str) -> bool:
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _pairs(key: str, one: list[Any], other: list[Any], resolve: Resolve) -> list[Any]:
    if len(one) * len(other) > MOST_PAIRS:
        raise Unsayable(key)
    found = []
    for left in one:
        for right in other:
            try:
                found.append(merged(left, right, resolve))
            except Contradiction:
                continue
    if not found:
        raise Contradiction
    return found


def _join_objects(found: dict[str, Any], one: Any, other: Any, resolve: Resolve) -> None:
    if "required" in one or "required" in other:
        found["required"] = list(dict.fromkeys([*one.get("required", ()), *other.get("required", ())]))
    first, second = one.get("properties", {}), other.get("properties", {})
    if first or second:
        found["properties"] = {name: _property(name, one, other, resolve) for name in dict.fromkeys([*first, *second])}
    if "additionalProperties" in one and "additionalProperties" in other:
        found["additionalProperties"] = _or_false(one["additionalProperties"], other["additionalProperties"], resolve)
    elif "additionalProperties" in other:
        found["additionalProperties"] = other["additionalProperties"]


def _property(name: str, one: Any, other: Any, resolve: Resolve) -> Any:
    """A schema may say something about a property that only the other names."""
    left, right = (
        side.get("properties", {}).get(name, side.get("additionalProperties", True)) for side in (one, other)
    )
    return _or_false(left, right, resolve)


def _or_false(one: Any, other: Any, resolve: Resolve) -> Any:
    try:
        return merged(one, other, resolve)
    except Contradiction:
        return False


def same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but not true."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)
