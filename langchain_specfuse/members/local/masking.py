"""Token masks for constrained drafts: how far a draft has advanced in its grammar, and which tokens
may come next.

This module connects grammars (``constraints``: bytes and bit masks) with drafts (tokens and
logits).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...constraints import Grammar, State
from .strands import Logits

FORCED_CHARS = 4
"""If a constraint forces at least this many characters, they are not drafted but agreed without a
vote."""
MOST_REFUSED = 16
"""A mask may allow more than its grammar does. After this many illegal tokens at one place, the
draft ends."""
ANY_BYTE = 256
STRUCTURE = frozenset("{}[],:")
"""A draft may be cut after these where no word ends: JSON has few other places."""


class AnswerState:
    """How far the agreed answer has advanced in the grammar. It is kept per query, and can be made
    again from any answer."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self._text = ""
        self._state: State | None = None

    def after(self, answer: str) -> State:
        """A copy of the state after this answer. It moves by text, whichever member wrote it."""
        if self._state is None or not answer.startswith(self._text):
            self._state, self._text = self.grammar.start(), ""
        state, new = self._state, answer[len(self._text) :]
        self._state = None  # what follows may raise half-way
        if new and state.advance(new) < len(new.encode()):
            raise ValueError("the agreed answer does not fit its constraint")
        self._state, self._text = state, answer
        return state.fork()


@dataclass
class DraftConstraint:
    """How far one draft has advanced in its grammar. It advances token by token."""

    state: State
    begin: str = ""
    """The text that begins a call ("" if there can be none)."""
    forced: bool = False
    """From here on at least ``FORCED_CHARS`` characters have only one continuation."""
    entered: bool = False
    """The last token began a call."""
    left: bool = False
    """The last token ended a call."""
    call_end: int = 0
    """Number of tokens up to the end of a call that need not be the last."""
    refused: int = 0
    """How often the mask has allowed a token at this place that the grammar then refused."""
    _mask: Any = None
    _mask_known: bool = False

    def __post_init__(self) -> None:
        self.forced = bool(self.forced_text())

    @property
    def mask(self) -> Any:
        """The next token's bits; None where any token may follow."""
        if not self._mask_known:
            self._mask, self._mask_known = self.state.mask(), True
        return self._mask

    @property
    def free(self) -> bool:
        """Whether this is prose: anything may follow, and the answer may end (a call may also
        begin)."""
        state = self.state
        return self.mask is None or (
            not state.in_call and state.may_end() and len(state.follows()) == ANY_BYTE
        )

    def take(self, token: int) -> bool:
        """Advance past this token. Returns False if it is illegal."""
        before = self.state.in_call
        if not self.state.put(token):
            return False
        self.entered = self.state.in_call and not before
        self.left = before and not self.state.in_call
        self._mask_known, self.refused = False, 0
        return True

    def exclude(self, token: int) -> bool:
        """Mask this token, too, so that another is picked. Returns False if no token is left, or if
        the mask was wrong too often."""
        if self.mask is None or self.refused >= MOST_REFUSED:
            return False
        self._mask = self._mask.copy()
        self._mask.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        self.refused += 1
        return bool(self._mask.any())

    def forced_text(self) -> str:
        """The only continuation, if it is long enough. White space at its end is left to the next
        word."""
        text = self.state.forced().decode("utf-8", "ignore").rstrip()
        return text if len(text) >= FORCED_CHARS else ""

    def newly_forced(self) -> bool:
        """Whether forced text begins here."""
        before, self.forced = self.forced, bool(self.forced_text())
        return self.forced and not before


def cut_in_structure(text: str, ends: Sequence[int], limit: int) -> int:
    """How many tokens to keep so that the draft ends after a bracket, comma or colon; 0 if there is
    no such place.

    >>> cut_in_structure("[[1],[2", [1, 2, 3, 5, 6, 7], 6)
    5
    >>> cut_in_structure("ab", [1, 2], 2), cut_in_structure('{"a":', [1, 1, 5, 5], 4)
    (0, 3)
    """
    for count in range(min(limit, len(ends)), 0, -1):
        end, before = ends[count - 1], ends[count - 2] if count > 1 else 0
        if end > before and text[end - 1] in STRUCTURE:
            return count
    return 0


def without(row: Logits, excluded: Sequence[int]) -> Logits:
    """The logits with these tokens at minus infinity; unchanged if no other token is legal.

    >>> row = np.array([1.0, 2.0, -np.inf], dtype=np.float32)
    >>> without(row, [1]).tolist(), without(row, [0, 1]).tolist()
    ([1.0, -inf, -inf], [1.0, 2.0, -inf])
    """
    left = row.copy()
    left[[token for token in excluded if 0 <= token < len(row)]] = -np.inf
    return left if (left > -np.inf).any() else row


def masked(rows: Logits, masks: Sequence[Any]) -> Logits:
    """The logits with illegal tokens at minus infinity; rows without a mask are left as they
    are."""
    rows = rows.copy()
    for row, mask in zip(rows, masks, strict=True):
        if mask is not None:
            legal = np.unpackbits(
                np.ascontiguousarray(mask).view(np.uint8), count=len(row), bitorder="little"
            )
            row[legal == 0] = -np.inf
    return rows
