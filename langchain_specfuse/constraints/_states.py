"""Where one text stands under one grammar, for one vocabulary: the state that members advance, fork and mask with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ._calls import Position
from ._rules import Mask, Masker, Matcher

if TYPE_CHECKING:
    from ._grammar import Leaf
    from ._tokens import Tokens


class State(ABC):
    """Where one text stands. Mutable; forks are independent of where they come from."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._ended = False

    # What a state must say about bytes; ``ended`` is dealt with below.
    @abstractmethod
    def _forked(self) -> State: ...

    @abstractmethod
    def fits(self, data: bytes) -> int:
        """How many of these bytes may follow. Does not move."""

    @abstractmethod
    def _eat(self, data: bytes) -> int: ...

    @abstractmethod
    def _mask(self) -> Mask | None: ...

    @abstractmethod
    def _forced(self) -> bytes: ...

    @abstractmethod
    def _whole(self) -> bool: ...

    @abstractmethod
    def follows(self) -> bytes:
        """Every byte that may come next."""

    @property
    @abstractmethod
    def in_call(self) -> bool:
        """Inside a tool call, from its begin until its end."""

    def fork(self) -> State:
        other = self._forked()
        other._ended = self._ended
        return other

    def advance(self, text: str | bytes) -> int:
        """Moves over the longest legal beginning of the text; how many bytes that is."""
        data = text.encode() if isinstance(text, str) else text
        return 0 if self._ended else self._eat(data)

    def put(self, token: int) -> bool:
        """Moves over one token of the vocabulary; False, and nothing has moved, if it may not come here."""
        if self._tokens.stops(token):
            if not self._whole():
                return False
            self._ended = True
            return True
        data = self._tokens.words[token] if 0 <= token < len(self._tokens.words) else b""
        if self._ended or not data or self.fits(data) < len(data):
            return False
        self._eat(data)
        return True

    def mask(self) -> Mask | None:
        """One bit per token that may come next, 32 to a word; None: every token. Ends only where the text may end."""
        if self._ended:
            return self._tokens.stop_mask.copy()
        mask = self._mask()
        if mask is not None and self._whole():
            mask |= self._tokens.stop_mask
        return mask

    def forced(self) -> bytes:
        """What must come next: everything up to the next choice, or to where the text may end."""
        return b"" if self._ended else self._forced()

    def may_end(self) -> bool:
        return self._ended or self._whole()

    def must_end(self) -> bool:
        """Whether the text may end and nothing may follow."""
        return self._ended or (self._whole() and not self.follows())


class Ruled(State):
    """Under one compiled grammar."""

    def __init__(self, tokens: Tokens, leaf: Leaf, matcher: Matcher, position: Position | None) -> None:
        super().__init__(tokens)
        self._leaf = leaf
        self._matcher = matcher
        self._position = position
        self._masker: Masker | None = None
        self._behind = bytearray()
        """What the masker has not read yet: it is needed only where somebody draws a token."""

    def _forked(self) -> Ruled:
        position = self._position.fork() if self._position else None
        other = Ruled(self._tokens, self._leaf, self._matcher.fork(), position)
        other._masker = self._masker.fork() if self._masker else None
        other._behind = bytearray(self._behind)
        return other

    def fits(self, data: bytes) -> int:
        return self._matcher.fits(data)

    def _eat(self, data: bytes) -> int:
        count = self._matcher.eat(data)
        self._behind += data[:count]
        if self._position:
            self._position.move(data[:count])
        return count

    def _mask(self) -> Mask:
        if self._masker is None:
            self._masker = self._leaf.masker()
        if self._behind:
            self._masker.move(bytes(self._behind))
            self._behind.clear()
        return self._masker.mask()

    def _forced(self) -> bytes:
        ahead, found = self._matcher, bytearray()
        while True:
            more = ahead.forced()
            if not more and (ahead.whole() or len(more := ahead.follows()) != 1):
                return bytes(found)
            found += more
            ahead = ahead.fork()
            ahead.eat(more)

    def _whole(self) -> bool:
        return self._matcher.whole()

    def follows(self) -> bytes:
        return self._matcher.follows()

    @property
    def in_call(self) -> bool:
        return self._position is not None and self._position.inside


class AnyOf(State):
    """Under several at once: whatever one of them allows. Those that a text has left behind are dropped."""

    def __init__(self, tokens: Tokens, states: Sequence[State]) -> None:
        super().__init__(tokens)
        self._states = list(states)

    def _forked(self) -> AnyOf:
        return AnyOf(self._tokens, [state.fork() for state in self._states])

    def fits(self, data: bytes) -> int:
        return max(state.fits(data) for state in self._states)

    def _eat(self, data: bytes) -> int:
        fits = [state.fits(data) for state in self._states]
        count = max(fits)
        self._states = [state for state, fit in zip(self._states, fits, strict=True) if fit == count]
        for state in self._states:
            state._eat(data[:count])
        return count

    def _mask(self) -> Mask:
        # A prose among several is another class: all of these have masks.
        masks = [mask for state in self._states if (mask := state._mask()) is not None]
        for mask in masks[1:]:
            masks[0] |= mask
        return masks[0]

    def _forced(self) -> bytes:
        if self._whole():
            return b""
        # One that is at its end was whole; all others go on, and only what they share is forced.
        found = [state._forced() for state in self._states]
        return _shared(found)

    def _whole(self) -> bool:
        return any(state._whole() for state in self._states)

    def follows(self) -> bytes:
        return bytes(sorted({byte for state in self._states for byte in state.follows()}))

    @property
    def in_call(self) -> bool:
        return any(state.in_call for state in self._states)


def _shared(texts: Sequence[bytes]) -> bytes:
    first, last = min(texts), max(texts)
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[:same]
