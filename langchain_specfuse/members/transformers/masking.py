"""Where one draft stands under its query's constraint, and which tokens that leaves it.

Between the grammar (``constraints``: bytes and bit masks) and the drawing of drafts (tokens and logits). Knows nothing
of what a constraint means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ._text import Words

if TYPE_CHECKING:
    from ..constraints import Grammar, State

FORCED_CHARS = 4
"""So much text with only one way on is not drawn: it is agreed without a vote, or read in one pass inside a call."""
REFUSED = 16
"""A mask may say more than its grammar holds to; after so many wrong tokens at one place the draft ends."""
ANY = 256
"""As many bytes as there are."""
STRUCTURE = frozenset("{}[],:")
"""Behind these a draft may be cut where no word ends: JSON has few other places."""


class Standing:
    """How far the agreed answer has moved through the grammar. Kept for a query, and made again from any answer."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.text = ""
        self.state: State | None = None

    def after(self, answer: str) -> State:
        """A state of its own, behind this answer. It moves by the agreed text, whoever wrote that."""
        if self.state is None or not answer.startswith(self.text):
            self.state, self.text = self.grammar.start(), ""
        state, new = self.state, answer[len(self.text) :]
        self.state = None  # what follows may raise half-way
        if new and state.advance(new) < len(new.encode()):
            raise ValueError("the agreed answer does not fit its constraint")
        self.state, self.text = state, answer
        return state.fork()


@dataclass
class Bound:
    """One draft's place in its grammar: moved token by token."""

    state: State
    begin: str = ""
    """The text that begins a call ("" if there can be none)."""
    forced: bool = False
    """Only one way on from here, for ``FORCED_CHARS`` or more."""
    entered: bool = False
    """The last token began a call."""
    left: bool = False
    """The last token ended a call."""
    whole: int = 0
    """Tokens up to the end of a call that need not be the last."""
    read: list[int] = field(default_factory=list)
    """Which of the draft's tokens were not drawn, but read as forced text."""
    refused: int = 0
    """How often the mask has allowed a token at this place that the grammar then refused."""
    _mask: Any = None
    _known: bool = False

    def __post_init__(self) -> None:
        self.forced = bool(self.forced_text())

    @property
    def mask(self) -> Any:
        """The next token's bits, or None where any will do."""
        if not self._known:
            self._mask, self._known = self.state.mask(), True
        return self._mask

    @property
    def free(self) -> bool:
        """Whether this is prose: anything may come, and the answer may end (a call may also begin)."""
        state = self.state
        return self.mask is None or (not state.in_call and state.may_end() and len(state.follows()) == ANY)

    def takes(self, token: int) -> bool:
        """Move over this token; False if it is illegal."""
        before = self.state.in_call
        if not self.state.put(token):
            return False
        self.entered = self.state.in_call and not before
        self.left = before and not self.state.in_call
        self._known, self.refused = False, 0
        return True

    def refuse(self, token: int) -> bool:
        """Mask this token too, so that another is drawn; False if there is no use in it."""
        if self.mask is None or self.refused >= REFUSED:
            return False
        self._mask = self._mask.copy()
        self._mask.view(np.uint32)[token // 32] &= np.uint32(~(1 << token % 32) & 0xFFFFFFFF)
        self.refused += 1
        return bool(self._mask.any())

    def forced_text(self) -> str:
        """What must come next, if it is long enough. White space at its end is left to be drawn with the next word."""
        text = self.state.forced().decode("utf-8", "ignore").rstrip()
        return text if len(text) >= FORCED_CHARS else ""

    def newly_forced(self) -> bool:
        """Whether forced text begins here: inside one that had begun before, there is nothing to stop for."""
        before, self.forced = self.forced, bool(self.forced_text())
        return self.forced and not before

    def run(self, words: Words, ids: Sequence[int], room: int) -> list[int]:
        """The tokens of the forced text, which need not be drawn; none where it is short or the grammar disagrees."""
        text = self.forced_text()
        run = words.after(ids, text)[:room] if text else []
        trial = self.state.fork()
        return run if len(run) > 1 and all(trial.put(token) for token in run) else []


def cut_in_structure(text: str, ends: Sequence[int], limit: int) -> int:
    """How many tokens to keep so that the draft ends behind a bracket, comma or colon; 0 if there is no such place.

    >>> cut_in_structure("[[1],[2", [1, 2, 3, 5, 6, 7], 6)
    5
    """
    for count in range(min(limit, len(ends)), 0, -1):
        if (
            ends[count - 1]
            and (count == 1 or ends[count - 1] > ends[count - 2])
            and text[ends[count - 1] - 1] in STRUCTURE
        ):
            return count
    return 0


def masked(rows: Tensor, masks: Sequence[Any]) -> Tensor:
    """The logits with what is illegal at minus infinity; rows without a mask are left as they are."""
    bound = [at for at, mask in enumerate(masks) if mask is not None]
    if not bound:
        return rows
    illegal = unpacked(~np.stack([masks[at] for at in bound]), rows.shape[-1], beyond=True).to(rows.device)
    if len(bound) == len(masks):
        return rows.masked_fill(illegal, float("-inf"))
    rows = rows.clone()
    rows[bound] = rows[bound].masked_fill(illegal, float("-inf"))
    return rows


def unpacked(words: Any, width: int, beyond: bool = False) -> Tensor:
    """Rows of 32-bit words as rows of ``width`` bools, lowest bit first; what the words do not reach is ``beyond``."""
    bits = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")[:, :width]
    if bits.shape[1] < width:
        bits = np.pad(bits, ((0, 0), (0, width - bits.shape[1])), constant_values=beyond)
    return torch.from_numpy(bits.view(np.bool_))
