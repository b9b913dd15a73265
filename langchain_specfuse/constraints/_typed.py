"""The words of one type, one after the other, in their plain form."""

from __future__ import annotations

import math
import re
from typing import Any, Protocol

from ..errors import UsageError, advised
from ._enum import Impossible, enumerated
from ._keywords import FORMATS, LOOSE_FORMATS, NUMERIC_FORMATS, OF_TYPE
from ._merge import same
from ._numbers import ADVICE, numeric


class Reads(Protocol):
    """Reads the schemas inside a schema."""

    def node(self, schema: Any, path: str) -> Any: ...


def typed(schema: dict[str, Any], path: str, reading: Reads) -> Any:
    """A schema without references and combinations, in its plain form."""
    if "const" in schema:
        value = schema.pop("const")
        schema["enum"] = [one for one in schema.get("enum", [value]) if same(one, value)]
    if "enum" in schema:
        return enumerated(schema, path)
    kinds = schema.pop("type", None)
    kinds = [kinds] if isinstance(kinds, str) else kinds or _meant(schema)
    found = []
    for kind in kinds:
        words = {word: value for word, value in schema.items() if word in OF_TYPE.get(_number(kind), ())}
        found.append(_READERS[kind](words, path, reading) if words or kind == "object" else {"type": kind})
    return found[0] if len(found) == 1 else {"anyOf": found}


def _number(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _meant(schema: dict[str, Any]) -> list[str]:
    """The types that the words of a schema speak of."""
    return [kind for kind, words in OF_TYPE.items() if not words.isdisjoint(schema)] or ["object"]


# --- strings -------------------------------------------------------------------------------------------------------


def _string(words: dict[str, Any], path: str, reading: Reads) -> Any:
    found: dict[str, Any] = {"type": "string"}
    patterns = words.get("pattern", [])
    patterns = list(patterns) if isinstance(patterns, list) else [patterns]
    for pattern in patterns:
        _refuse_unreadable(pattern, path)
    format = words.get("format", "text")
    if format in FORMATS:
        patterns.append(f"^(?:{FORMATS[format]})$")
    elif format not in LOOSE_FORMATS | NUMERIC_FORMATS:
        raise advised(UsageError(f"{path}.format {format!r} cannot be kept"), f"one of {', '.join(FORMATS)}; or none")
    for word in ("minLength", "maxLength"):
        if word in words:
            found[word] = _count(words[word], f"{path}.{word}")
    if found.get("minLength", 0) > found.get("maxLength", math.inf):
        raise Impossible(f"{path}.minLength is above maxLength")
    if patterns:
        found["pattern"] = patterns[0]
        if patterns[1:]:
            found["allOf"] = [{"type": "string", "pattern": pattern} for pattern in patterns[1:]]
    return found


def _refuse_unreadable(pattern: Any, path: str) -> None:
    if not isinstance(pattern, str):
        raise UsageError(f"{path}.pattern wants a text, got {pattern!r}")
    bare = re.sub(r"\\\\|\\[pP]\{[^}]*\}", "", pattern)
    if bad := re.search(r"\(\?(?:[=!]|<[=!]|P=|>)|\\[1-9bBGAzZ]|[*+?}]\+", bare):
        raise advised(UsageError(f"{path}.pattern {pattern!r}: {bad[0]!r} cannot be kept"), "write it without it")


def _count(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or int(value) != value:
        raise UsageError(f"{path} wants a count, got {value!r}")
    return int(value)


# --- arrays and objects -----------------------------------------------------------------------------------------


def _array(words: dict[str, Any], path: str, reading: Reads) -> Any:
    low = _count(words.get("minItems", 0), f"{path}.minItems")
    high = _count(words["maxItems"], f"{path}.maxItems") if "maxItems" in words else None
    if high is not None and low > high:
        raise Impossible(f"{path}.minItems is above maxItems")
    if words.get("uniqueItems") and (high is None or high > 1):
        told = f"{path}.uniqueItems cannot be kept: no grammar remembers the items before"
        raise advised(UsageError(told), "use a list instead of a set, and remove doubles yourself")
    items, first = words.get("items", True), words.get("prefixItems", [])
    if isinstance(items, list):  # as drafts up to 2019 say it
        items, first = words.get("additionalItems", True), items
    if words.get("unevaluatedItems") is False and "items" not in words:
        items = False
    heads = [reading.node(one, f"{path}.prefixItems[{at}]") for at, one in enumerate(first)]
    rest = reading.node(items, f"{path}.items")
    found: dict[str, Any] = {"type": "array", "items": rest}
    if False in heads:
        heads = heads[: heads.index(False)]
        rest = found["items"] = False
    if rest is False:
        high = len(heads) if high is None else min(high, len(heads))
        if low > high:
            raise Impossible(f"{path} wants at least {low} items, and allows {high}")
    if heads:
        found["prefixItems"] = heads
    return found | ({"minItems": low} if low else {}) | ({} if high is None else {"maxItems": high})


def _object(words: dict[str, Any], path: str, reading: Reads) -> Any:
    told = words.get("properties", {})
    if not isinstance(told, dict):
        raise UsageError(f"{path}.properties wants an object, got {str(told)[:200]}")
    required = list(dict.fromkeys(words.get("required", [])))
    properties = {name: reading.node(one, f"{path}.properties.{name}") for name, one in told.items()}
    patterns = {
        pattern: reading.node(one, f"{path}.patternProperties.{pattern}")
        for pattern, one in words.get("patternProperties", {}).items()
    }
    for pattern in patterns:
        _refuse_unreadable(pattern, f"{path}.patternProperties")
    more = _more(words, path, reading)
    if "propertyNames" in words and (more is not False or properties or patterns):
        more = _named(words["propertyNames"], more, properties, patterns, path)
    for name in required:
        if name not in properties and not patterns:
            properties[name] = more
        if properties.get(name, True) is False:
            raise Impossible(f"{path} requires {name!r} and forbids it")
    if more is False and not patterns:
        properties = {name: one for name, one in properties.items() if one is not False}
    found = {"type": "object", "properties": properties, "required": required, "additionalProperties": more}
    if patterns:
        found["patternProperties"] = patterns
    return _counted(found, words, path)


def _more(words: dict[str, Any], path: str, reading: Reads) -> Any:
    """What other properties may be: none where some are named, unless the schema says so."""
    named = "properties" in words or "patternProperties" in words
    told = words.get("additionalProperties", words.get("unevaluatedProperties"))
    if told is None:
        return False if named else {}
    return reading.node(told, f"{path}.additionalProperties")


def _named(names: Any, more: Any, properties: dict[str, Any], patterns: dict[str, Any], path: str) -> Any:
    """What ``propertyNames`` allows, said as properties; what other properties may still be."""
    if names is True:
        return more
    kinds = [] if names is False else names.get("type", "string")
    if "string" not in ([kinds] if isinstance(kinds, str) else kinds):  # a name is a text: none is allowed then
        names = {"enum": []}
    rest = {word: value for word, value in names.items() if word not in ("type", "title", "description")}
    if not rest:
        return more
    if set(rest) <= {"enum", "const"}:
        allowed = [name for name in rest.get("enum", [rest.get("const")]) if isinstance(name, str)]
        allowed = [name for name in allowed if name == rest.get("const", name)]
        for name in allowed:
            properties.setdefault(name, more)
        for name in [name for name in properties if name not in allowed]:
            properties[name] = False
        return False
    if set(rest) == {"format"} and rest["format"] in FORMATS:
        rest = {"pattern": f"^(?:{FORMATS[rest['format']]})$"}
    if set(rest) == {"pattern"} and not properties and not patterns:
        _refuse_unreadable(rest["pattern"], f"{path}.propertyNames")
        patterns[rest["pattern"]] = more
        return False
    raise advised(UsageError(f"{path}.propertyNames cannot be kept beside the rest"), ADVICE)


def _counted(found: dict[str, Any], words: dict[str, Any], path: str) -> Any:
    """With how many properties there must be: only what a grammar can keep, as a key that comes twice counts once."""
    low = _count(words.get("minProperties", 0), f"{path}.minProperties")
    high = _count(words["maxProperties"], f"{path}.maxProperties") if "maxProperties" in words else None
    required, named = found["required"], found["properties"]
    closed = found["additionalProperties"] is False and "patternProperties" not in found
    if high is not None and high < max(low, len(required)):
        raise Impossible(f"{path}.maxProperties is {high}, and more are required")
    if closed and low > len(named):
        raise Impossible(f"{path}.minProperties is {low}, and only {len(named)} are allowed")
    if high is not None and closed and high == len(required):
        found["properties"] = {name: one for name, one in named.items() if name in required}
    elif high is not None and not (closed and high >= len(named)):
        if len(named) > len(required):
            raise advised(UsageError(f"{path}.maxProperties beside optional properties cannot be kept"), ADVICE)
        found["maxProperties"] = high
    if low <= len(required):
        return found
    if closed and low == len(named):
        return found | {"required": list(named)}
    if closed and low == len(required) + 1:
        return {"anyOf": [found | {"required": [*required, name]} for name in named if name not in required]}
    if low > 1 or len(named) > len(required):
        raise advised(UsageError(f"{path}.minProperties {low} cannot be kept"), ADVICE)
    return found | {"minProperties": low}


def _any(kind: str) -> Any:
    return lambda words, path, reading: {"type": kind}


_READERS = {
    "object": _object,
    "array": _array,
    "string": _string,
    "number": numeric("number"),
    "integer": numeric("integer"),
    "boolean": _any("boolean"),
    "null": _any("null"),
}
