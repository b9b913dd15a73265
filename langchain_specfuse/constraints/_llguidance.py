"""Rules read by llguidance: no dependencies, and masks whose cost hardly depends on the schema. Knows no tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import gbnf_to_lark

from ._rules import Calls, Choice, Ebnf, Json, Mask, Pattern, Rules

_BYTES = [bytes([byte]) for byte in range(256)]
_WRITTEN = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    # Not "u": the library would take a control character's number and nothing else behind it.
    "json_allowed_escapes": 'nrbtf\\"',
}
"""How JSON is written: one way, so that what is not said is forced, and equal strings are equal text."""


class LLGuidance:
    """The library."""

    name = "llguidance"

    def __init__(self) -> None:
        self._bytes = Table(())

    def matcher(self, rules: Rules) -> LLBytes:
        return LLBytes(_started(self._bytes, lark(rules)))

    def table(self, words: Sequence[bytes]) -> Table:
        return Table(words)

    def masker(self, rules: Rules, table: Table) -> LLTokens:
        # Unforced: else it would allow only what its own tokenizing makes of forced text.
        return LLTokens(_started(table, '%llguidance {"no_forcing": true}\n' + lark(rules)), table)


class Table:
    """A vocabulary with all 256 bytes behind it, as tokens of ours, so that every text can be walked over."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self.size = len(words)
        self.tokens = [*words, *_BYTES, b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]
        self.tokenizer = LLTokenizer(TokenizerWrapper(self))
        self.tokens = []

    def __call__(self, text: bytes | str) -> list[int]:
        data = text if isinstance(text, bytes) else text.encode()
        return [self.size + byte for byte in data]


def _started(table: Table, grammar: str) -> Any:
    found = LLMatcher(table.tokenizer, grammar)
    if found.is_error():
        raise ValueError(found.get_error())
    return found


class LLBytes:
    """A matcher. Tokens are bytes here."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fork(self) -> LLBytes:
        return LLBytes(self._matcher.deep_copy())

    def fits(self, data: bytes) -> int:
        return int(self._matcher.validate_tokens(list(data))) if data else 0

    def eat(self, data: bytes) -> int:
        return int(self._matcher.try_consume_tokens(list(data))) if data else 0

    def forced(self) -> bytes:
        if self._matcher.is_accepting():
            return b""
        return bytes(self._matcher.compute_ff_bytes())

    def whole(self) -> bool:
        return bool(self._matcher.is_accepting())

    def follows(self) -> bytes:
        if forced := self.forced():
            return forced[:1]
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        return bytes(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256]).astype(np.uint8))


class LLTokens:
    """A masker."""

    def __init__(self, matcher: Any, table: Table) -> None:
        self._matcher = matcher
        self._table = table

    def fork(self) -> LLTokens:
        return LLTokens(self._matcher.deep_copy(), self._table)

    def move(self, data: bytes) -> None:
        moved = self._matcher.try_consume_tokens(self._table(data))
        if moved != len(data):
            raise RuntimeError(f"the mask lost its text after {moved} of {data!r}: {self._matcher.get_error()}")

    def mask(self) -> Mask:
        size = self._table.size
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)[: -(-size // 32)].copy()
        if self._matcher.is_error():
            raise RuntimeError(f"no mask could be made: {self._matcher.get_error()}")
        if size % 32:
            words[-1] &= np.int32((1 << size % 32) - 1)
        return words


# --- rules in the library's language ----------------------------------------------------------------------------


def lark(rules: Rules) -> str:
    """The rules as a Lark grammar.

    >>> lark(Choice(("yes", "no")))
    'start: /(?:yes|no)/'
    """
    if isinstance(rules, Json):
        return "start: " + _json(rules.schema)
    if isinstance(rules, Pattern):
        return f"start: {_regex(rules.pattern)}"
    if isinstance(rules, Choice):
        return "start: " + _regex("|".join(map(_escaped, rules.texts)))
    if isinstance(rules, Ebnf):
        try:
            return str(gbnf_to_lark(rules.text))
        except Exception as error:  # of no class of its own
            raise ValueError(str(error)) from error
    return _calls(rules)


def _calls(rules: Calls) -> str:
    form = rules.format
    bodies = []
    for name, schema in rules.tools:
        head = f"{{{_text(form.name_key)}: {_text(name)}, {_text(form.arguments_key)}: "
        bodies.append(f"{_text(head)} {_json(schema)} {_text('}')}")
    more = [_text(form.between), "call"] if form.between else ["call"]
    parts = [_text(form.begin) if form.begin else "", "body", _text(form.end) if form.end else ""]
    return (
        ("start: call (" + " ".join(more) + ")*" if rules.parallel else "start: call")
        + "\ncall: "
        + " ".join(filter(None, parts))
        + "\nbody: "
        + "\n    | ".join(bodies)
    )


def _json(schema: Any) -> str:
    return "%json " + json.dumps({**schema, "x-guidance": _WRITTEN}, ensure_ascii=False)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.sub(r"([^\w\s]|\s)", lambda found: f"\\x{{{ord(found[0]):x}}}", text)


def _regex(pattern: str) -> str:
    # A slash ends it, and one that is escaped already must not leave its backslash to the escape put there.
    slashless = re.sub(r"\\(.)|/", lambda found: r"\x2f" if found[1] in (None, "/") else found[0], pattern, flags=re.S)
    return f"/(?:{slashless})/"
