"""Rules read by xgrammar. It imports torch and transformers, so nobody loads it who has not chosen it.

It reads less than llguidance, and drops silently what it does not read: what it is not known to keep is refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import xgrammar

from ._rules import Calls, Choice, Ebnf, Json, Mask, Pattern, Rules

_KEPT = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems", "enum"}
    | {"anyOf", "$ref", "$defs", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern"}
)
"""Not lengths of strings: it lets control characters into them, which JSON forbids."""
_GARBLED = re.compile("[\x80-\xff][0-9A-Fa-f]")
"""It reads such a pair as one escape."""


class XGrammar:
    """The library."""

    name = "xgrammar"

    def __init__(self) -> None:
        self._bytes = self.table([bytes([byte]) for byte in range(256)])

    def matcher(self, rules: Rules) -> XGBytes:
        return XGBytes(_started(self._bytes, rules))

    def table(self, words: Sequence[bytes]) -> Table:
        return Table(words)

    def masker(self, rules: Rules, table: Table) -> XGTokens:
        return XGTokens(_started(table, rules), table)


class Table:
    """A vocabulary; the last token, which ends a text, is ours."""

    def __init__(self, words: Sequence[bytes]) -> None:
        self.size = len(words)
        silent = [at for at, word in enumerate(words) if not word]
        info = xgrammar.TokenizerInfo([*words, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[self.size])
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.silent = np.asarray(silent, dtype=np.int64)


def _started(table: Table, rules: Rules) -> Any:
    try:
        return xgrammar.GrammarMatcher(table.compiler.compile_grammar(_grammar(rules)))
    except RuntimeError as error:
        raise ValueError(str(error)) from error


class XGBytes:
    """A matcher."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fork(self) -> XGBytes:
        return XGBytes(self._matcher.fork())

    def fits(self, data: bytes) -> int:
        return _eaten(self._matcher.fork(), data)

    def eat(self, data: bytes) -> int:
        return _eaten(self._matcher, data)

    def forced(self) -> bytes:
        # Its own jump-forward string may hold what is not forced where a text may end.
        follows = b"" if self.whole() else self.follows()
        return follows if len(follows) == 1 else b""

    def whole(self) -> bool:
        return bool(self._matcher.is_completed())

    def follows(self) -> bytes:
        return bytes(np.flatnonzero(_bits(self._matcher, 257)[:256]).astype(np.uint8))


class XGTokens:
    """A masker."""

    def __init__(self, matcher: Any, table: Table) -> None:
        self._matcher = matcher
        self._table = table

    def fork(self) -> XGTokens:
        return XGTokens(self._matcher.fork(), self._table)

    def move(self, data: bytes) -> None:
        if not self._matcher.accept_string(data):
            raise RuntimeError(f"the mask lost its text at {data!r}")

    def mask(self) -> Mask:
        size = self._table.size
        bits = _bits(self._matcher, size + 1)[: -(-size // 32) * 32]
        bits[size:] = 0
        bits[self._table.silent] = 0
        return np.packbits(bits, bitorder="little").view(np.int32)


def _eaten(matcher: Any, data: bytes) -> int:
    """It takes texts whole or not at all."""
    if not data or matcher.accept_string(data):
        return len(data)
    for at in range(len(data)):
        if not matcher.accept_string(data[at : at + 1]):
            return at
    return len(data)


def _bits(matcher: Any, size: int) -> Any:
    words = xgrammar.allocate_token_bitmask(1, size)
    matcher.fill_next_token_bitmask(words)
    return np.unpackbits(words.numpy().view(np.uint8)[0], bitorder="little")


# --- rules in the library's language ----------------------------------------------------------------------------


def _grammar(rules: Rules) -> Any:
    if isinstance(rules, Json):
        return _json(rules.schema)
    if isinstance(rules, Pattern):
        return xgrammar.Grammar.from_regex(rules.pattern)
    if isinstance(rules, Choice):
        return xgrammar.Grammar.from_ebnf("root ::= " + " | ".join(map(_text, rules.texts)))
    if isinstance(rules, Ebnf):
        return xgrammar.Grammar.from_ebnf(rules.text)
    return _calls(rules)


def _json(schema: Any) -> Any:
    _refuse_dropped(schema)
    text = json.dumps(schema, ensure_ascii=False)
    if found := _GARBLED.search(text):
        raise ValueError(f"xgrammar does not keep the text {found[0]!r}: choose llguidance")
    return xgrammar.Grammar.from_json_schema(text, any_whitespace=False, separators=(", ", ": "), strict_mode=True)


def _refuse_dropped(schema: Any) -> None:
    if isinstance(schema, dict):
        for word, value in schema.items():
            if word not in _KEPT:
                raise ValueError(f"xgrammar does not keep {word!r}: choose llguidance")
            if word in ("properties", "$defs"):
                for one in value.values():
                    _refuse_dropped(one)
            elif word != "enum":
                _refuse_dropped(value)
    elif isinstance(schema, list):
        for one in schema:
            _refuse_dropped(one)


def _calls(rules: Calls) -> Any:
    form = rules.format
    if rules.parallel:
        raise ValueError("xgrammar is used for single calls only: choose llguidance")
    bodies = []
    for name, schema in rules.tools:
        head = f"{form.begin}{{{_text(form.name_key)}: {_text(name)}, {_text(form.arguments_key)}: "
        parts = [_literal(head), _json(schema), _literal("}" + form.end)]
        bodies.append(xgrammar.Grammar.concat(*parts))
    return xgrammar.Grammar.union(*bodies) if len(bodies) > 1 else bodies[0]


def _literal(text: str) -> Any:
    return xgrammar.Grammar.from_ebnf("root ::= " + _text(text))


def _text(text: str) -> str:
    return re.sub(r"\\/", "/", json.dumps(text, ensure_ascii=False))
