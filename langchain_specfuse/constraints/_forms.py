"""What may stand behind each word of a JSON schema. Whatever reads schemas further in may rely on it.

Knows forms only: what the words mean together is read elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UsageError, advised

Form = tuple[str, Callable[[Any], bool]]
"""What it must be, in words, and whether it is."""


def refuse_malformed(schema: Any, path: str) -> None:
    """``UsageError`` with its place where a word has what it cannot have. Looks into every schema inside."""
    todo = [(schema, path)]
    while todo:
        one, where = todo.pop()
        if isinstance(one, bool):
            continue
        if not isinstance(one, dict):
            told = UsageError(f"{where} is no JSON schema: {str(one)[:200]}")
            raise advised(told, 'a schema is an object, for example {"type": "string"}')
        for word, value in one.items():
            if word in FORMS and not FORMS[word][1](value):
                told = UsageError(f"{where}.{word} wants {FORMS[word][0]}, got {str(value)[:200]}")
                raise advised(told, "mend the schema")
        todo += _inside(one, where)


def _inside(schema: dict[str, Any], path: str) -> Iterator[tuple[Any, str]]:
    """The schemas in a schema, each with its path."""
    for word, value in schema.items():
        if word in _NAMED:
            yield from ((one, f"{path}.{word}.{name}") for name, one in value.items())
        elif word in _LISTED or (word == "items" and isinstance(value, list)):
            yield from ((one, f"{path}.{word}[{at}]") for at, one in enumerate(value))
        elif word in _SINGLE:
            yield value, f"{path}.{word}"


_NAMED = frozenset(["properties", "patternProperties"])
_LISTED = frozenset(["prefixItems", "anyOf", "oneOf", "allOf"])
_UNEVALUATED = frozenset(["unevaluatedProperties", "unevaluatedItems"])
_SINGLE = frozenset(["items", "additionalItems", "additionalProperties", "propertyNames"]) | _UNEVALUATED


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and int(value) == value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_COUNT: Form = ("a count", _is_count)
_BOUND: Form = ("a number", lambda value: value is None or _is_number(value))
_OPEN: Form = ("a number", lambda value: value is None or isinstance(value, bool) or _is_number(value))
"""Drafts 3 and 4 say only whether the bound itself is left out."""
_SCHEMA: Form = ("a schema", lambda value: isinstance(value, dict | bool))
_SCHEMAS: Form = ("a list of schemas", lambda value: isinstance(value, list) and value != [])
_OBJECT: Form = ("an object", lambda value: isinstance(value, dict))
_TEXT: Form = ("a text", _is_text)
FORMS: dict[str, Form] = {
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _COUNT),
    **dict.fromkeys(("minimum", "maximum"), _BOUND),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _OPEN),
    **dict.fromkeys(("anyOf", "oneOf", "allOf"), _SCHEMAS),
    **dict.fromkeys(_SINGLE - {"items"}, _SCHEMA),
    **dict.fromkeys(_NAMED, _OBJECT),
    **dict.fromkeys(("pattern", "format", "$ref"), _TEXT),
    "items": ("a schema", lambda value: isinstance(value, dict | bool | list)),
    "prefixItems": ("a list of schemas", lambda value: isinstance(value, list)),
    "multipleOf": ("a number above 0", lambda value: _is_number(value) and value > 0),
    "uniqueItems": ("true or false", lambda value: isinstance(value, bool)),
    "nullable": ("true or false", lambda value: isinstance(value, bool)),
    "required": ("a list of names", _are_texts),
    "enum": ("a list", lambda value: isinstance(value, list)),
    "type": ("the name of a type, or a list of them", lambda value: _is_text(value) or (_are_texts(value) and value)),
}
