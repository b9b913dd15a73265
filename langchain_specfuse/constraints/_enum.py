"""The values of an enum that fit what stands beside it."""

from __future__ import annotations

import re
from typing import Any

from ..errors import UsageError, advised
from ._keywords import OF_TYPE
from ._merge import same

_UNWRITTEN = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON has no letter for."""


class Impossible(Exception):
    """Nothing satisfies a schema; the message says where and why."""


def enumerated(schema: dict[str, Any], path: str) -> Any:
    values = schema.pop("enum")
    if not isinstance(values, list):
        raise UsageError(f"{path}.enum wants a list, got {str(values)[:200]}")
    kinds = schema.pop("type", None)
    if kinds:
        kinds = [kinds] if isinstance(kinds, str) else kinds
        values = [value for value in values if any(_is(value, kind) for kind in kinds)]
    values = [value for value in values if all(_holds(word, told, value, path) for word, told in schema.items())]
    values = _each_once(values)
    if not values:
        raise Impossible(f"{path}.enum has no value that fits")
    if inexact := [value for value in values if not _exact(value)]:
        told = UsageError(f"{path}.enum holds {inexact[0]!r:.80}, which cannot be kept: no grammar writes it as it is")
        raise advised(told, "numbers beyond 2**53 may be texts; leave control characters out")
    return {"enum": values}


def _exact(value: Any) -> bool:
    """Whether the libraries can keep it: they read every number as a float, drop control characters, and would allow
    another value."""
    if isinstance(value, dict | list):
        return all(map(_exact, [*value, *value.values()] if isinstance(value, dict) else value))
    if isinstance(value, str):
        return _UNWRITTEN.search(value) is None
    return not isinstance(value, int | float) or abs(value) <= 2**53


def _each_once(values: list[Any]) -> list[Any]:
    """Texts by their hash: an enum may be long."""
    texts = dict.fromkeys(value for value in values if isinstance(value, str))
    others = [value for value in values if not isinstance(value, str)]
    others = [value for at, value in enumerate(others) if not any(same(value, one) for one in others[:at])]
    return [*texts, *others]


def _is(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (kind == "number" or float(value).is_integer())
    if kind == "null":
        return value is None
    return isinstance(value, {"object": dict, "array": list, "string": str, "boolean": bool}[kind])


def _holds(word: str, told: Any, value: Any, path: str) -> bool:
    """Whether one value of an enum satisfies what stands beside the enum."""
    if word in OF_TYPE["number"] and _is(value, "number"):
        tells: dict[str, Any] = {
            "minimum": lambda: value >= told,
            "maximum": lambda: value <= told,
            "exclusiveMinimum": lambda: value > told,
            "exclusiveMaximum": lambda: value < told,
            "multipleOf": lambda: value % told == 0,
        }
        return bool(tells[word]())
    if word in ("minLength", "maxLength", "pattern") and isinstance(value, str):
        if word == "pattern":
            patterns = told if isinstance(told, list) else [told]
            return all(re.search(one, value) is not None for one in patterns)
        return bool(len(value) >= told if word == "minLength" else len(value) <= told)
    if word in ("minItems", "maxItems") and isinstance(value, list):
        return bool(len(value) >= told if word == "minItems" else len(value) <= told)
    if word == "required" and isinstance(value, dict):
        return all(name in value for name in told)
    if word == "format" or not any(word in words and _is(value, kind) for kind, words in OF_TYPE.items()):
        return True
    raise advised(UsageError(f"{path}.{word} beside an enum cannot be kept"), "leave out of the enum what it forbids")
