"""Whether two plain schemas have no value in common, as ``oneOf`` wants it. When in doubt: no."""

from __future__ import annotations

from typing import Any

from ._merge import same


def apart(one: Any, other: Any, defs: dict[str, Any]) -> bool:
    """
    >>> apart({"type": "string"}, {"enum": [1, None]}, {})
    True
    >>> apart({"type": "number"}, {"type": "integer"}, {})
    False
    """
    one, other = resolved(one, defs), resolved(other, defs)
    if one is False or other is False:
        return True
    for left, right in ((one, other), (other, one)):
        if "anyOf" in left:
            return all(apart(part, right, defs) for part in left["anyOf"])
    if not one or not other or "$ref" in one or "$ref" in other:
        return False
    if "enum" in one and "enum" in other:
        return not any(same(a, b) for a in one["enum"] for b in other["enum"])
    for left, right in ((one, other), (other, one)):
        if "enum" in left:
            return not any(_kind(value) == _family(right) for value in left["enum"])
    if _family(one) != _family(other):
        return True
    return one["type"] == "object" and (_told(one, other, defs) or _closed(one, other) or _closed(other, one))


def resolved(schema: Any, defs: dict[str, Any]) -> Any:
    """What a reference stands for; a reference that only goes round in circles stays one."""
    seen = set()
    while schema is not False and "$ref" in schema and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        schema = defs[schema["$ref"].removeprefix("#/$defs/")]
    return schema


def _told(one: Any, other: Any, defs: dict[str, Any]) -> bool:
    """A property that both require tells them apart."""
    return any(
        apart(one["properties"].get(name, {}), other["properties"].get(name, {}), defs)
        for name in one["required"]
        if name in other["required"]
    )


def _closed(one: Any, other: Any) -> bool:
    """One requires what the other does not have."""
    closed = other["additionalProperties"] is False and "patternProperties" not in other
    return closed and any(name not in other["properties"] for name in one["required"])


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}[type(value)]


def _family(schema: Any) -> str:
    kind: str = schema["type"]
    return "number" if kind == "integer" else kind
