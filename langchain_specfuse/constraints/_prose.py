"""Free text, and free text in which a call may begin: a state that watches for the beginning of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._rules import Mask
from ._states import State

if TYPE_CHECKING:
    from ._grammar import Leaf
    from ._tokens import Tokens

_ANY = bytes(range(256))


class Prose(State):
    """Everything is allowed. With a call's grammar, until a call begins: from there on that grammar rules.

    A token may cross the place where the call begins; then it must go on as the grammar says.
    """

    def __init__(self, tokens: Tokens, call: tuple[bytes, Leaf] | None = None) -> None:
        super().__init__(tokens)
        self._call = call
        self._seen = 0
        """How many bytes of what begins a call the text ends with."""
        self._state: State | None = None
        """The call's, once it has begun."""

    def _forked(self) -> Prose:
        other = Prose(self._tokens, self._call)
        other._seen = self._seen
        other._state = self._state.fork() if self._state else None
        return other

    def put(self, token: int) -> bool:
        if self._state is None and not self._tokens.stops(token) and 0 <= token < len(self._tokens.words):
            data = self._tokens.words[token]
            if not data:  # a special token: no text, and nobody forbids it here
                return not self._ended
        return super().put(token)

    def fits(self, data: bytes) -> int:
        if self._state:
            return self._state.fits(data)
        at = self._crossing(data)[0]
        return len(data) if at is None else at + self._begun().fits(data[at:])

    def _eat(self, data: bytes) -> int:
        if self._state:
            return self._state._eat(data)
        at, seen = self._crossing(data)
        if at is None:
            self._seen = seen
            return len(data)
        self._state = self._begun()
        return at + self._state._eat(data[at:])

    def _crossing(self, data: bytes) -> tuple[int | None, int]:
        """Where in the data a call has begun (None: nowhere), and how much of a beginning it ends with."""
        if self._call is None:
            return None, 0
        begin = self._call[0]
        text = begin[: self._seen] + data
        at = text.find(begin)
        if at >= 0:
            return at + len(begin) - self._seen, 0
        return None, next((n for n in range(min(len(begin) - 1, len(text)), 0, -1) if text.endswith(begin[:n])), 0)

    def _begun(self) -> State:
        assert self._call is not None
        begin, leaf = self._call
        state = leaf.start()
        state._eat(begin)
        return state

    def _mask(self) -> Mask | None:
        if self._state:
            return self._state._mask()
        if self._call is None:
            return None
        begin = self._call[0]
        wrong = [
            token
            for token in self._tokens.crossing(begin, self._seen)
            if self.fits(self._tokens.words[token]) < len(self._tokens.words[token])
        ]
        return self._tokens.all_but(wrong) if wrong else None

    def _forced(self) -> bytes:
        return self._state._forced() if self._state else b""

    def _whole(self) -> bool:
        return self._state._whole() if self._state else True

    def follows(self) -> bytes:
        if self._state:
            return self._state.follows()
        return _ANY

    @property
    def in_call(self) -> bool:
        return self._state is not None and self._state.in_call
