"""Where each value of a JSON text stands in it: every field's path with its first and last character.

Reads what ``json.loads`` reads, and the beginnings of that: a text may end anywhere. Knows nothing of votes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_DEPTH = 64
"""What is nested deeper is one field with all that is in it."""

_TOKEN = re.compile(
    r'[ \t\n\r]*(?:(?P<string>"[^"\\]*(?:\\.[^"\\]*)*(?P<shut>"?))|(?P<mark>[{}\[\],:])|(?P<word>[^\s{}\[\],:"]+))',
    re.S,
)


@dataclass(slots=True)
class Value:
    """A value as it is written: a text, a number, a word, or ``{...}`` and ``[...]`` with what is in them."""

    start: int
    end: int
    whole: bool
    """False: the text ends inside it."""
    children: dict[str | int, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Field:
    """A value with no values in it, and how to get there."""

    path: str
    start: int
    end: int
    whole: bool


def value_at(text: str, start: int = 0) -> Value | None:
    """The JSON value that begins there; None if none does. Where the text is no JSON, the value ends, not whole."""
    reader, at = _Reader(text), start
    while token := _TOKEN.match(text, at):
        at = token.end()
        if not reader.takes(token):
            break
    return reader.root


class _Reader:
    """Where the reading stands: the values that are open, and the key that waits for its value."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.root: Value | None = None
        self._open: list[tuple[Value, bool]] = []
        """The open values, outermost first, and whether each is an object."""
        self._key: str | None = None

    def takes(self, token: re.Match[str]) -> bool:
        """Read one more token. False: here ends what can be read."""
        mark = token["mark"]
        if mark in ("}", "]"):
            return self._close(mark, token.end())
        if mark in (",", ":"):
            self._key = self._key if mark == ":" else None
            return bool(self._open)
        if self._open and self._open[-1][1] and self._key is None:
            self._key = _unquoted(token["string"]) if token["shut"] else None
            return self._key is not None
        return self._put(token, mark)

    def _close(self, mark: str, end: int) -> bool:
        if not self._open or self._open[-1][1] != (mark == "}"):
            return False
        value, _ = self._open.pop()
        value.end, value.whole = end, True
        self._key = None
        return bool(self._open)

    def _put(self, token: re.Match[str], mark: str | None) -> bool:
        value = self._begun(token)
        if self._open:
            inside, is_object = self._open[-1]
            inside.children[self._key if is_object and self._key is not None else len(inside.children)] = value
        else:
            self.root = value
        if mark:
            self._open.append((value, mark == "{"))
            self._key = None
        return bool(self._open) and (value.whole or bool(mark))

    def _begun(self, token: re.Match[str]) -> Value:
        """The value that begins with this token. What is open ends with the text, until it is closed."""
        whole, size = bool(token["shut"]), len(self.text)
        if token["word"]:
            bare = not self._open and not _cut_short(token["word"])
            return Value(token.start("word"), token.end(), token.end() < size or bare)
        start = token.start("mark" if token["mark"] else "string")
        return Value(start, token.end() if whole else size, whole)


def _cut_short(word: str) -> bool:
    """Whether a word at the end of a text cannot be all of it."""
    return any(known != word and known.startswith(word) for known in ("true", "false", "null", "-1"))


def _unquoted(literal: str) -> str:
    try:
        return str(json.loads(literal, strict=False))
    except ValueError:  # an escape that is none
        return literal[1:-1]


def fields_at(text: str, start: int = 0) -> Iterator[Field]:
    """The fields of the JSON value that begins there, in the order of the text.

    >>> text = '{"city": "Rome", "stops": [{"n": 2}, {"n": 3}], "a b": null}'
    >>> [(one.path, text[one.start : one.end]) for one in fields_at(text)]
    [('city', '"Rome"'), ('stops[0].n', '2'), ('stops[1].n', '3'), ('["a b"]', 'null')]
    """
    root = value_at(text, start)
    if root is not None:
        yield from fields_of(root, "")


def fields_of(value: Value, path: str) -> Iterator[Field]:
    """The fields of a value that is found at ``path``."""
    waiting = [(value, path, 0)]
    while waiting:
        value, path, depth = waiting.pop()
        if not value.children or depth == MOST_DEPTH:
            yield Field(path, value.start, value.end, value.whole)
            continue
        inner = [(child, path + _step(key, path), depth + 1) for key, child in value.children.items()]
        waiting += reversed(inner)


def _step(key: str | int, path: str) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{key}" if path else key
    return f"[{json.dumps(key)}]"
