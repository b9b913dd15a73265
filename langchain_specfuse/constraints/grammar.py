"""Constraints compiled for one tokenizer's vocabulary, and the states that members advance, fork
and mask with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, AnyStr
from weakref import WeakKeyDictionary

from ..core.values import CallFormat, Constraint
from ..errors import UsageError, advised
from .calls import CallReader, search, trigger
from .rules import Rule, grammars_of, reason
from .vocabulary import Mask, Tokens, llguidance, words_of

LONGEST_FORCED = 20_000
"""How far forced text is followed, because a grammar without an end would force text forever."""
KEPT = 64
"""So many grammars are kept for each vocabulary."""
_BYTES = Tokens(())


class State:
    """Where one text stands under a constraint, for one vocabulary. Mutable; forks are independent
    of each other."""

    def __init__(self, tokens: Tokens, parts: Sequence[_Ruled | _Free]) -> None:
        self._tokens = tokens
        self._parts = list(parts)
        """One for each grammar that the text still fits; what one of them allows is allowed."""

    def fork(self) -> State:
        return State(self._tokens, [part.fork() for part in self._parts])

    def fits(self, data: bytes) -> int:
        """How many of these bytes may follow. Does not move."""
        return max(part.fits(data) for part in self._parts)

    def advance(self, text: str | bytes) -> int:
        """Move over the longest legal beginning of the text. Returns its length in bytes."""
        data = text.encode() if isinstance(text, str) else text
        if len(self._parts) > 1:
            fits = [part.fits(data) for part in self._parts]
            data = data[: max(fits)]
            self._parts = [
                part for part, fit in zip(self._parts, fits, strict=True) if fit == len(data)
            ]
        moved = [part.eat(data) for part in self._parts]
        self._parts = [part for part, _ in moved]
        return moved[0][1]

    def put(self, token: int) -> bool:
        """Move over one token of the vocabulary. False, and nothing has moved, if it may not come
        here."""
        if self._tokens.stops(token):
            return self.may_end()
        if not 0 <= token < len(self._tokens.words):
            return False
        data = self._tokens.words[token]
        if not data:  # a special token has no text, and nothing forbids it in free text
            return any(isinstance(part, _Free) for part in self._parts)
        if self.fits(data) < len(data):
            return False
        self.advance(data)
        return True

    def mask(self) -> Mask | None:
        """One bit per token that may come next, 32 to a word; None: every token. Ends only where
        the text may end."""
        mask: Mask | None = None
        for part in self._parts:
            more = part.mask()
            if more is None:
                return None
            mask = more if mask is None else mask | more
        assert mask is not None
        return mask | self._tokens.stop_mask if self.may_end() else mask

    def forced(self) -> bytes:
        """What must come next: everything up to the next choice, or to where the text may end."""
        return b"" if self.may_end() else shared_start([part.forced() for part in self._parts])

    def may_end(self) -> bool:
        return any(part.may_end() for part in self._parts)

    def must_end(self) -> bool:
        """Whether the text may end and nothing may follow."""
        return self.may_end() and not self.follows()

    def follows(self) -> bytes:
        """Every byte that may come next."""
        return bytes(sorted({byte for part in self._parts for byte in part.follows()}))

    @property
    def in_call(self) -> bool:
        """Inside a tool call, from its beginning to its end."""
        return any(part.in_call for part in self._parts)


def shared_start(texts: Sequence[AnyStr]) -> AnyStr:
    """What all texts begin with."""
    first, last = min(texts), max(texts)
    size = next(
        (at for at in range(min(len(first), len(last))) if first[at] != last[at]),
        min(len(first), len(last)),
    )
    return first[:size]


# --- one grammar ----------------------------------------------------------------------------------


@lru_cache(maxsize=KEPT)
def _byte_matcher(lark: str) -> Any:
    return llguidance().LLMatcher(_BYTES.tokenizer, lark)


class _Compiled:
    """One grammar for one vocabulary.

    Two matchers of llguidance: one over bytes answers everything but masks, since no tokenizer's
    habits matter to it; one over tokens makes masks. That one runs without forcing: otherwise it
    would allow, of forced text, only what its own way of tokenizing makes of it.
    """

    def __init__(self, rule: Rule, tokens: Tokens) -> None:
        self.rule = rule
        self.tokens = tokens
        self._bytes = _byte_matcher(rule.lark)
        if self._bytes.is_error():
            error = UsageError(
                f"the constraint cannot be read: {reason(self._bytes.get_error()):.600}"
            )
            raise advised(error, "correct it, or use a simpler one")
        self._masker: Any = None
        self._lock = threading.Lock()

    def start(self) -> _Ruled:
        form = self.rule.calls
        with self._lock:
            return _Ruled(
                self,
                self._bytes.deep_copy(),
                CallReader(_bytewise(form), anywhere=False) if form else None,
            )

    def masker(self) -> Any:
        with self._lock:
            if self._masker is None:
                lark = '%llguidance {"no_forcing": true}\n' + self.rule.lark
                self._masker = llguidance().LLMatcher(self.tokens.tokenizer, lark)
            return self._masker.deep_copy()


def _bytewise(form: CallFormat) -> CallFormat:
    """The format with a character for each of its bytes, for a reader of texts that tokens cut
    inside characters."""
    return CallFormat(
        *(
            getattr(form, name).encode().decode("latin-1")
            for name in CallFormat.__dataclass_fields__
        )
    )


class _Ruled:
    """A text under one grammar."""

    def __init__(self, grammar: _Compiled, matcher: Any, reader: CallReader | None) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._reader = reader
        self._masker: Any = None
        self._unread = b""
        """What the masker has not read yet: it is needed only where a token is drawn."""

    def fork(self) -> _Ruled:
        other = _Ruled(
            self._grammar, self._matcher.deep_copy(), self._reader.fork() if self._reader else None
        )
        other._masker = self._masker.deep_copy() if self._masker else None
        other._unread = self._unread
        return other

    def fits(self, data: bytes) -> int:
        return int(self._matcher.validate_tokens(list(data))) if data else 0

    def eat(self, data: bytes) -> tuple[_Ruled, int]:
        count = int(self._matcher.try_consume_tokens(list(data))) if data else 0
        self._unread += data[:count]
        if self._reader:
            self._reader.feed(data[:count].decode("latin-1"))
        return self, count

    def mask(self) -> Mask:
        import numpy as np

        size = len(self._grammar.tokens.words)
        masker = self._masker = self._masker or self._grammar.masker()
        moved = masker.try_consume_tokens([size + byte for byte in self._unread])
        if moved != len(self._unread):
            raise RuntimeError(
                f"the mask lost its text after {moved} of {self._unread!r}: {masker.get_error()}"
            )
        self._unread = b""
        words: Mask = np.frombuffer(masker.compute_bitmask(), dtype=np.int32)[
            : -(-size // 32)
        ].copy()
        if masker.is_error():
            raise RuntimeError(f"no mask could be made: {masker.get_error()}")
        if size % 32:
            words[-1] &= np.int32((1 << size % 32) - 1)
        return words

    def forced(self) -> bytes:
        ahead, found = self._matcher, b""
        while len(found) < LONGEST_FORCED and (more := _forced_bytes(ahead)):
            found += more
            ahead = ahead.deep_copy()
            ahead.try_consume_tokens(list(more))
        return found

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def follows(self) -> bytes:
        return _forced_bytes(self._matcher)[:1] or _following(self._matcher)

    @property
    def in_call(self) -> bool:
        return self._reader is not None and self._reader.inside


def _forced_bytes(matcher: Any) -> bytes:
    """What must come next, maybe not all of it."""
    if matcher.is_accepting():
        return b""
    forced = bytes(matcher.compute_ff_bytes())
    return forced or (following if len(following := _following(matcher)) == 1 else b"")


def _following(matcher: Any) -> bytes:
    import numpy as np

    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return bytes(np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256]).astype(np.uint8))


class _Free:
    """Free text, which may hold calls: from where one begins, the calls' grammar decides.

    A token may cross the place where a call begins; then it must continue as the grammar says.
    """

    in_call = False

    def __init__(
        self, tokens: Tokens, begin: bytes = b"", calls: _Compiled | None = None, seen: int = 0
    ) -> None:
        self._tokens = tokens
        self._begin = begin
        self._calls = calls
        self._seen = seen
        """How many bytes of ``begin`` the text ends with."""

    def fork(self) -> _Free:
        return _Free(self._tokens, self._begin, self._calls, self._seen)

    def fits(self, data: bytes) -> int:
        at, _ = self._search(data)
        return len(data) if at is None else at + self._begun().fits(data[at:])

    def eat(self, data: bytes) -> tuple[_Ruled | _Free, int]:
        at, self._seen = self._search(data)
        if at is None:
            return self, len(data)
        call, count = self._begun().eat(data[at:])
        return call, at + count

    def _search(self, data: bytes) -> tuple[int | None, int]:
        """Where in the data a call has begun (None: nowhere), and how much of a beginning it ends
        with."""
        if self._calls is None:
            return None, 0
        at, seen = search(self._begin[: self._seen] + data, self._begin)
        return None if at is None else at + len(self._begin) - self._seen, seen

    def _begun(self) -> _Ruled:
        assert self._calls is not None
        return self._calls.start().eat(self._begin)[0]

    def mask(self) -> Mask | None:
        words, crossing = (
            self._tokens.words,
            self._tokens.crossing(self._begin, self._seen) if self._calls else [],
        )
        wrong = [token for token in crossing if self.fits(words[token]) < len(words[token])]
        return self._tokens.all_but(wrong) if wrong else None

    def forced(self) -> bytes:
        return b""

    def may_end(self) -> bool:
        return True

    def follows(self) -> bytes:
        return bytes(range(256))


# --- what is compiled -----------------------------------------------------------------------------


class Grammar:
    """One constraint, compiled for one vocabulary."""

    def __init__(self, tokens: Tokens, constraint: Constraint) -> None:
        grammars = grammars_of(constraint)
        self._tokens = tokens
        self._prose = grammars.prose
        self._compiled = [_Compiled(rule, tokens) for rule in grammars.rules]

    def start(self) -> State:
        """The state at the beginning of a text."""
        if not self._prose:
            return State(self._tokens, [one.start() for one in self._compiled])
        calls = [
            (trigger(one.rule.calls).encode(), one) for one in self._compiled if one.rule.calls
        ]
        return State(
            self._tokens, [_Free(self._tokens, *calls[0]) if calls else _Free(self._tokens)]
        )


class Vocabulary:
    """One tokenizer's tokens, ready for masks."""

    def __init__(self, words: Sequence[bytes], stop_ids: Sequence[int] = ()) -> None:
        self.tokens = Tokens(words, stop_ids)
        self.grammar: Callable[[Constraint], Grammar] = lru_cache(maxsize=KEPT)(
            partial(Grammar, self.tokens)
        )


_VOCABULARIES: WeakKeyDictionary[Any, dict[Any, Vocabulary]] = WeakKeyDictionary()
_LOCK = threading.Lock()


def vocabulary(tokenizer: Any, size: int, stop_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a member's tokenizer. ``size``: how many logits its model has. Made once
    per tokenizer."""
    key = (size, tuple(sorted(stop_ids)))
    with _LOCK:
        try:
            found = _VOCABULARIES.setdefault(tokenizer, {})
        except TypeError:  # it cannot be remembered
            found = {}
        if key not in found:
            found[key] = Vocabulary(words_of(tokenizer, size, stop_ids), stop_ids)
        return found[key]
