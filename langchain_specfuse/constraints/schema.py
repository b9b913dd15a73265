"""Prepare JSON schemas for llguidance, which enforces them.

What llguidance accepts is enforced as it is, and anything else is refused before a model is asked.
llguidance alone enforces 238 of the 240 schemas of ``tests/constraints/schemas.py``, and refuses
the other two (``docs/development/log.md``). Ordinary schemas need the following changes:

- an object that names its properties is closed unless its schema says otherwise, because small
  models keep inventing keys, and neither pydantic nor LangChain closes objects;
- the tag of a ``discriminator`` is required, because pydantic needs it even if it has a default. As
  the tag tells the alternatives apart, ``oneOf`` becomes ``anyOf``: llguidance refuses recursive
  ``oneOf``;
- a ``format`` that llguidance does not know is left out: it describes the content of a string
  (pydantic's ``Path`` and ``SecretStr``) or the storage of a number;
- an alternative whose pattern looks ahead is left out if others remain: the ``Decimal`` of pydantic
  2.12 and 2.13 is a number, or a text with such a pattern;
- ``uniqueItems: false``, and a ``propertyNames`` that only says that names are texts (zod), are
  left out, because they exclude nothing, and llguidance refuses these keywords.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

from ..errors import UsageError, advised


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


BY_NAME = _set("properties patternProperties $defs definitions")
"""The keywords whose values are schemas by name."""
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
"""The keywords whose schemas apply to the same value as the keywords beside them."""
WITH_SCHEMAS = BY_NAME.union(
    COMBINING, _set("items prefixItems additionalItems additionalProperties")
)
"""The keywords whose values contain schemas."""
_OF_OBJECTS = _set("properties required additionalProperties patternProperties")
FORMATS = _set("date-time time date duration email hostname ipv4 ipv6 uuid uri")
"""The formats that llguidance 1.9 knows."""
MOST_OPTIONAL = 490
"""llguidance 1.9 gives up in the middle of an answer if 500 optional properties may follow."""
MOST_PATTERNS = 100
"""llguidance 1.9 excludes each pattern of keys from all others, which takes 0.1 s for 100, and 12 s
for 300."""
MOST_NESTED = 200
"""llguidance 1.9 overflows its stack, which ends the process, if references lead through 1,000
nested objects."""
OTHER = "use a chat model that has structured output of its own"
SIMPLER = f"use a simpler schema; or {OTHER}"


def prepared(schema: Any, where: str, error_of: Callable[[Any], str]) -> dict[str, Any]:
    """The schema for llguidance. Raises ``UsageError`` if llguidance refuses it.

    ``error_of`` returns llguidance's error for a schema, or "".
    """
    if isinstance(schema, bool):
        schema = {"anyOf": [schema]}
    if not isinstance(schema, dict):
        wrong = UsageError(f"{where} is not a JSON schema: {str(schema)[:200]}")
        raise advised(wrong, 'for example {"type": "string"}')
    _refuse_large(schema, where)
    preparation = _Preparation(schema, error_of)
    if preparation.depth(schema) > MOST_NESTED:
        raise advised(UsageError(f"{where} is nested too deep"), "make the schema flatter")
    ready: dict[str, Any] = preparation.of(schema)
    error = error_of(ready)
    if error:
        raise _refusal(ready, where, error)
    return ready


def _refusal(schema: Any, where: str, error: str) -> UsageError:
    """The exception for llguidance's error, with the place of the keyword that it names."""
    _, is_impossible, reason = error.partition("Unsatisfiable schema: ")
    if is_impossible:
        reason = reason.replace("anyOf is", "enum or anyOf is")
        wrong = UsageError(f"{where} is impossible: {reason:.300}")
        return advised(wrong, "fix the schema: no answer can satisfy it")
    named = re.search(r'Unimplemented keys: \["([^"]*)"', error) or re.match("(oneOf)", error)
    if named is None:
        return advised(UsageError(f"{where} is not supported: {error:.300}"), SIMPLER)
    word = named[1]
    path = next((path for path, words in _schemas(schema, where) if word in words), where)
    message = f"{path}.{word} is not supported: a grammar cannot express it"
    advice = f"write the schema without {word}, and check the value yourself; or {OTHER}"
    return advised(UsageError(message), advice)


def _refuse_large(schema: Any, where: str) -> None:
    """Refuse objects with which llguidance would take minutes, or give up."""
    for path, words in _schemas(schema, where):
        names, patterns = words.get("properties"), words.get("patternProperties")
        if isinstance(patterns, dict) and len(patterns) > MOST_PATTERNS:
            wrong = UsageError(f"{path} has more than {MOST_PATTERNS} patternProperties")
            raise advised(wrong, SIMPLER)
        if not isinstance(names, dict):
            continue
        optional = len(names) - len(names.keys() & set(_texts(words.get("required"))))
        if optional > MOST_OPTIONAL:
            wrong = UsageError(f"{path} has too many optional properties: {optional:,}")
            raise advised(wrong, f"require some of them: up to {MOST_OPTIONAL} may be optional")


class _Preparation:
    """Prepares the parts of one schema."""

    def __init__(self, root: dict[str, Any], error_of: Callable[[Any], str]) -> None:
        self._root = root
        self._error_of = error_of
        self._open: set[int] = set()
        """The schemas that apply beside others to the same value. Their objects stay open, because
        a closed one would forbid what the others require."""
        self._tags: dict[int, str] = {}
        """The tags of the alternatives of unions."""
        self._depths: dict[int, int] = {}
        for _, words in _schemas(root, ""):
            parts = [*_list(words.get("allOf")), *(words.keys() & {"$ref", "anyOf", "oneOf"})]
            if len(parts) + bool(words.keys() & _OF_OBJECTS) > 1:
                self._leave_open(words)
            self._require_tag(words)

    def depth(self, schema: Any) -> int:
        """How deep the schemas are nested at most, also through references."""
        if not isinstance(schema, dict):
            return 0
        if id(schema) not in self._depths:
            self._depths[id(schema)] = 0  # for references that lead back here
            inner = [self._target(schema), *(part for _, part in _parts(schema))]
            self._depths[id(schema)] = 1 + max(map(self.depth, inner))
        return self._depths[id(schema)]

    def _leave_open(self, schema: Any) -> None:
        waiting = [schema]
        while waiting:
            words = waiting.pop()
            if isinstance(words, dict) and id(words) not in self._open:
                self._open.add(id(words))
                waiting.append(self._target(words))
                for word in COMBINING:
                    waiting += _list(words.get(word))

    def _require_tag(self, words: dict[str, Any]) -> None:
        discriminator = words.get("discriminator")
        tag = discriminator.get("propertyName") if isinstance(discriminator, dict) else None
        if isinstance(tag, str):
            for schema in _list(words.get("oneOf")):
                if isinstance(schema, dict):
                    self._tags[id(self._target(schema) or schema)] = tag

    def _target(self, words: dict[str, Any]) -> Any:
        """What the reference of a schema refers to; None if there is none or if it leads nowhere,
        which llguidance reports."""
        reference = words.get("$ref")
        if not isinstance(reference, str) or not re.match(r"#(/|\Z)", reference):
            return None
        schema: Any = self._root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            schema = schema.get(step) if isinstance(schema, dict) else None
        return schema

    def of(self, schema: Any) -> Any:
        """The schema for llguidance."""
        if not isinstance(schema, dict):
            return schema
        words = {word: self._inner(word, value) for word, value in schema.items()}
        if isinstance(words.get("format"), str) and words["format"] not in FORMATS:
            del words["format"]
        if words.get("uniqueItems") is False:
            del words["uniqueItems"]
        if words.get("propertyNames") in ({}, True, {"type": "string"}):
            del words["propertyNames"]
        if words.pop("discriminator", None) and "oneOf" in words and "anyOf" not in words:
            words["anyOf"] = words.pop("oneOf")
        if "anyOf" in words:
            readable = [part for part in _list(words["anyOf"]) if self._is_readable(part)]
            words["anyOf"] = readable or words["anyOf"]
        if id(schema) in self._tags:
            words["required"] = [*_list(words.get("required")), self._tags[id(schema)]]
        if id(schema) not in self._open and _is_unbounded(words):
            words = {"type": "object", **words, "additionalProperties": False}
        return words

    def _inner(self, word: str, value: Any) -> Any:
        if isinstance(value, dict) and word in BY_NAME:
            return {name: self.of(schema) for name, schema in value.items()}
        if word not in WITH_SCHEMAS:
            return value
        return [self.of(part) for part in value] if isinstance(value, list) else self.of(value)

    def _is_readable(self, schema: Any) -> bool:
        pattern = schema.get("pattern") if isinstance(schema, dict) else None
        return not isinstance(pattern, str) or not self._error_of(
            {"type": "string", "pattern": pattern}
        )


def _is_unbounded(words: dict[str, Any]) -> bool:
    """Whether a schema names the properties of an object, and does not say which others may be."""
    names = words.get("properties")
    if not isinstance(names, dict) or not names.keys() >= set(_texts(words.get("required"))):
        return False
    return words.keys().isdisjoint({"additionalProperties", "patternProperties", *COMBINING})


def _schemas(root: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema, the outer ones first, with its path."""
    found = [(where, root)]
    for path, words in found:
        if not isinstance(words, dict):
            continue
        yield path, words
        found += [(path + place, inner) for place, inner in _parts(words)]


def _parts(words: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas directly in a schema, with their places in it."""
    for word, value in words.items():
        if word not in WITH_SCHEMAS:
            continue
        if isinstance(value, list):
            yield from ((f".{word}[{at}]", inner) for at, inner in enumerate(value))
        elif isinstance(value, dict) and word in BY_NAME:
            yield from ((f".{word}.{name}", inner) for name, inner in value.items())
        else:
            yield f".{word}", value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [item for item in _list(value) if isinstance(item, str)]
