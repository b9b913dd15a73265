"""Compile constraints for a tokenizer's vocabulary, and track the state of a text under them."""

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
from .vocabulary import BYTES, Mask, Tokens, llguidance, words_of

LONGEST_FORCED = 20_000
"""The limit of forced text in bytes, because a grammar without an end would force text forever."""
KEPT = 64
"""How many grammars are cached for each vocabulary."""


class State:
    """The state of one text under a constraint, for one vocabulary.

    It is mutable; a fork is independent of the original.
    """

    def __init__(self, tokens: Tokens, parts: Sequence[_Ruled | _Free]) -> None:
        self._tokens = tokens
        self._parts = list(parts)
        """One for each grammar that the text still matches. Whatever one of them allows is
        allowed."""

    def fork(self) -> State:
        return State(self._tokens, [part.fork() for part in self._parts])

    def fits(self, data: bytes) -> int:
        """How many of these bytes may follow. The state does not change."""
        return max(part.fits(data) for part in self._parts)

    def advance(self, text: str | bytes) -> int:
        """Advance over the longest legal beginning of the text. Returns its length in bytes."""
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
        """Advance over one token of the vocabulary. Returns False, without a change, if the token
        is not allowed here."""
        if self._tokens.stops(token):
            return self.may_end()
        if not 0 <= token < len(self._tokens.words):
            return False
        data = self._tokens.words[token]
        if not data:  # a special token has no text and is allowed in free text only
            return any(isinstance(part, _Free) for part in self._parts)
        if self.fits(data) < len(data):
            return False
        self.advance(data)
        return True

    def mask(self) -> Mask | None:
        """The tokens that may come next, one bit per token, 32 to a word; None if all may.

        Tokens that end the turn are included only where the text may end.
        """
        masks: list[Mask] = []
        for part in self._parts:
            allowed = part.mask()
            if allowed is None:
                return None
            masks.append(allowed)
        if self.may_end():
            masks.append(self._tokens.stop_mask)
        union = masks[0]
        for allowed in masks[1:]:
            union = union | allowed
        return union

    def forced(self) -> bytes:
        """The text that must come next, up to the next choice or to where the text may end."""
        if self.may_end():
            return b""
        return shared_start([part.forced() for part in self._parts])

    def may_end(self) -> bool:
        return any(part.may_end() for part in self._parts)

    def must_end(self) -> bool:
        """Whether the text may end and may not continue."""
        return self.may_end() and not any(part.follows() for part in self._parts)

    def follows(self) -> bytes:
        """Every byte that may come next."""
        return bytes(sorted({byte for part in self._parts for byte in part.follows()}))

    @property
    def in_call(self) -> bool:
        """Whether the text ends inside a tool call."""
        return any(part.in_call for part in self._parts)


def shared_start(texts: Sequence[AnyStr]) -> AnyStr:
    """The longest common beginning of the texts."""
    first = min(texts)
    last = max(texts)
    for position, (left, right) in enumerate(zip(first, last, strict=False)):
        if left != right:
            return first[:position]
    return first


# --- one grammar ----------------------------------------------------------------------------------


@lru_cache(maxsize=KEPT)
def _byte_matcher(lark: str) -> Any:
    return llguidance().LLMatcher(BYTES.tokenizer, lark, log_level=0)


class _Compiled:
    """One grammar for one vocabulary.

    It uses two matchers of llguidance. The one over bytes answers everything but masks, and does
    not depend on how a tokenizer splits text. The one over tokens makes masks; it runs without
    forcing, because otherwise it would allow only its own tokenization of a forced text.
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
        reader = CallReader(_bytewise(form), anywhere=False) if form else None
        with self._lock:
            return _Ruled(self, self._bytes.deep_copy(), reader)

    def masker(self) -> Any:
        with self._lock:
            if self._masker is None:
                lark = '%llguidance {"no_forcing": true}\n' + self.rule.lark
                self._masker = llguidance().LLMatcher(self.tokens.tokenizer, lark)
            return self._masker.deep_copy()


def _bytewise(form: CallFormat) -> CallFormat:
    """The format with one character per byte, for texts that tokens may cut inside a character."""
    names = CallFormat.__dataclass_fields__
    return CallFormat(*(getattr(form, name).encode().decode("latin-1") for name in names))


class _Ruled:
    """A text under one grammar."""

    def __init__(self, grammar: _Compiled, matcher: Any, reader: CallReader | None) -> None:
        self._grammar = grammar
        self._matcher = matcher
        self._reader = reader
        self._masker: Any = None
        self._unread = b""
        """Text that the masker has not read yet. It reads only when a mask is needed."""

    def fork(self) -> _Ruled:
        reader = self._reader.fork() if self._reader else None
        other = _Ruled(self._grammar, self._matcher.deep_copy(), reader)
        if self._masker:
            other._masker = self._masker.deep_copy()
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
        if self._masker is None:
            self._masker = self._grammar.masker()
        masker = self._masker
        moved = masker.try_consume_tokens([size + byte for byte in self._unread])
        if moved != len(self._unread):
            raise RuntimeError(
                f"the mask lost its text after {moved} of {self._unread!r}: {masker.get_error()}"
            )
        self._unread = b""
        bits = np.frombuffer(masker.compute_bitmask(), dtype=np.int32)
        words: Mask = bits[: -(-size // 32)].copy()
        if masker.is_error():
            raise RuntimeError(f"no mask could be made: {masker.get_error()}")
        if size % 32:
            words[-1] &= np.int32((1 << size % 32) - 1)
        return words

    def forced(self) -> bytes:
        matcher = self._matcher
        text = b""
        while len(text) < LONGEST_FORCED:
            forced = _forced_bytes(matcher)
            if not forced:
                break
            text += forced
            matcher = matcher.deep_copy()
            matcher.try_consume_tokens(list(forced))
        return text

    def may_end(self) -> bool:
        return bool(self._matcher.is_accepting())

    def follows(self) -> bytes:
        return _forced_bytes(self._matcher)[:1] or _following(self._matcher)

    @property
    def in_call(self) -> bool:
        return self._reader is not None and self._reader.inside


def _forced_bytes(matcher: Any) -> bytes:
    """A beginning of the text that must come next."""
    if matcher.is_accepting():
        return b""
    forced = bytes(matcher.compute_ff_bytes())
    if forced:
        return forced
    following = _following(matcher)
    return following if len(following) == 1 else b""


def _following(matcher: Any) -> bytes:
    """Every byte that may come next."""
    import numpy as np

    words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    bits = np.unpackbits(words, bitorder="little")[:256]
    return bytes(np.flatnonzero(bits).astype(np.uint8))


_ANY_BYTE = bytes(range(256))


class _Free:
    """Free text that may contain calls. From the beginning of a call, the calls' grammar decides.

    A token may extend over the beginning of a call; the rest of it must match the grammar.
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
        if at is None:
            return len(data)
        return at + self._begun().fits(data[at:])

    def eat(self, data: bytes) -> tuple[_Ruled | _Free, int]:
        at, self._seen = self._search(data)
        if at is None:
            return self, len(data)
        call, count = self._begun().eat(data[at:])
        return call, at + count

    def _search(self, data: bytes) -> tuple[int | None, int]:
        """Where the data continues a call that has begun in it (None: no call begins), and how many
        bytes of a beginning it ends with."""
        if self._calls is None:
            return None, 0
        at, seen = search(self._begin[: self._seen] + data, self._begin)
        if at is None:
            return None, seen
        return at + len(self._begin) - self._seen, seen

    def _begun(self) -> _Ruled:
        assert self._calls is not None
        return self._calls.start().eat(self._begin)[0]

    def mask(self) -> Mask | None:
        if self._calls is None:
            return None
        words = self._tokens.words
        crossing = self._tokens.crossing(self._begin, self._seen)
        wrong = [token for token in crossing if self.fits(words[token]) < len(words[token])]
        return self._tokens.all_but(wrong) if wrong else None

    def forced(self) -> bytes:
        return b""

    def may_end(self) -> bool:
        return True

    def follows(self) -> bytes:
        return _ANY_BYTE


# --- constraints and vocabularies -----------------------------------------------------------------


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
            return State(self._tokens, [grammar.start() for grammar in self._compiled])
        for grammar in self._compiled:
            if grammar.rule.calls:
                begin = trigger(grammar.rule.calls).encode()
                return State(self._tokens, [_Free(self._tokens, begin, grammar)])
        return State(self._tokens, [_Free(self._tokens)])


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
    """The vocabulary of a member's tokenizer, made once per tokenizer. ``size`` is the number of
    logits of its model."""
    key = (size, tuple(sorted(stop_ids)))
    with _LOCK:
        try:
            vocabularies = _VOCABULARIES.setdefault(tokenizer, {})
        except TypeError:  # the tokenizer is not hashable
            vocabularies = {}
        if key not in vocabularies:
            vocabularies[key] = Vocabulary(words_of(tokenizer, size, stop_ids), stop_ids)
        return vocabularies[key]
