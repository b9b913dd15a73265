"""Strands: texts that a model has read, with the model's state after them.

:class:`Prefixes` keeps the strands of finished queries for queries that begin alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Logits: TypeAlias = NDArray[np.float32]

KEPT_LOGITS = 3
"""A strand keeps the logits of this many places."""
KEPT_ENDS = 4
"""A strand keeps the logits at the ends of this many prompts. A row is as long as the
vocabulary."""
SHORTEST = 64
"""Shorter prefixes are read again. Unrelated questions share only the header of a chat template:
sharing it would save little, and the last bits of one answer would depend on another."""
MOST = 256
"""At most this many prefixes are kept, because each new query is compared with all of them."""
REPLACED = 8
"""A new prefix replaces an old one if it shares all but an eighth of it: then it is a later turn of
the same conversation."""


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Names a sequence: a query as one member reads it."""

    query_id: str
    member: str = ""


@dataclass(eq=False)
class Strand:
    """Tokens that were read one after the other, and the state after them."""

    state: Any = None
    """Keys, values or recurrent states, in the form that the engine uses."""
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    ends: dict[int, Logits] = field(default_factory=dict)
    """The same where prompts ended. A prompt that is asked again is not read at all, so its answer
    is the same to the bit."""
    bytes: int = 0
    """The size of a kept prefix."""

    def begin_as(self, other: Strand) -> None:
        """Take over the tokens and logits of a strand whose state was copied."""
        self.ids = list(other.ids)
        self.logits = {**other.ends, **other.logits}
        self.ends = dict(other.ends)

    def cut(self, size: int) -> None:
        """Discard everything after the first ``size`` tokens."""
        del self.ids[size:]
        self.logits = {n: row for n, row in self.logits.items() if n <= size}
        self.ends = {n: row for n, row in self.ends.items() if n <= size}

    def keep_logits(self, length: int, row: Logits) -> None:
        """Keep the logits after the first ``length`` tokens."""
        _keep(self.logits, length, row, KEPT_LOGITS)

    def keep_end(self, length: int) -> None:
        """A prompt ends after ``length`` tokens: keep its logits longer than others."""
        _keep(self.ends, length, self.logits[length], KEPT_ENDS)

    @property
    def rows(self) -> list[Logits]:
        """All logits that it keeps."""
        return [*self.logits.values(), *self.ends.values()]


def _keep(known: dict[int, Logits], length: int, row: Logits, most: int) -> None:
    known.pop(length, None)
    known[length] = row
    while len(known) > most:
        del known[next(iter(known))]


class Extension(NamedTuple):
    """Tokens to append to a strand."""

    strand: Strand
    tokens: Sequence[int]
    rows: int
    """Return the logits after this many of the last tokens."""


class Branches(NamedTuple):
    """Continuations of ``ids``. Each branch is a whole list of tokens that shares nearly all of
    them with ``ids``."""

    key: SequenceKey
    ids: list[int]
    branches: list[list[int]]


# --- comparing ------------------------------------------------------------------------------------


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists share at the beginning.

    >>> common_prefix([1, 2, 3, 4], [1, 2, 4]), common_prefix([1], [1, 2]), common_prefix([], [1])
    (2, 1, 0)
    """
    same, size = 0, min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    while size - same > 1:  # [:same] is equal, [:size] is not
        half = (same + size) // 2
        if one[same:half] == other[same:half]:
            same = half
        else:
            size = half
    return same


def closest(strands: Iterable[Strand], ids: list[int]) -> tuple[Strand | None, int]:
    """The strand that shares most tokens with ``ids``, and how many it shares. Among equals, one
    with the logits after all of ``ids`` wins, then the last.

    >>> found, shared = closest([Strand(ids=[1, 2, 3]), Strand(ids=[1, 5])], [1, 2, 9])
    >>> found.ids, shared
    ([1, 2, 3], 2)
    """
    best, best_rank = None, (1, False)
    for strand in strands:
        shared = common_prefix(strand.ids, ids)
        rank = (shared, shared == len(ids) and shared in strand.ends)
        if rank >= best_rank:
            best, best_rank = strand, rank
    return best, best_rank[0] if best else 0


# --- prefixes -------------------------------------------------------------------------------------


class Prefixes:
    """The kept strands of finished queries, least recently used first.

    Methods return the strands that they drop; the cache frees these.

    ``limit``: at most this many bytes. ``most``: at most this many strands. ``whole``: the strands
    cannot be cut, so a longer one does not replace a shorter one.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.whole = False
        self.shortest = SHORTEST
        self.most = MOST
        self.kept: list[Strand] = []

    @property
    def bytes(self) -> int:
        return sum(strand.bytes for strand in self.kept)

    def add(self, new: Strand) -> list[Strand]:
        """Keep one more strand if it is long enough and fits; otherwise it is dropped."""
        if len(new.ids) < self.shortest or new.bytes > self.limit or self._has(new):
            return [new]
        dropped = [old for old in self.kept if self._replaces(new, old)]
        self.kept = [old for old in self.kept if old not in dropped]
        dropped += self.shrink(self.limit - new.bytes, self.most - 1)
        self.kept.append(new)
        return dropped

    def touch(self, strand: Strand) -> None:
        """Mark a strand as the most recently used, if it is one of these."""
        if strand in self.kept:
            self.kept.remove(strand)
            self.kept.append(strand)

    def shrink(self, room: int, most: int | None = None) -> list[Strand]:
        """Drop the least recently used until the rest fits into ``room`` bytes."""
        if most is None:
            most = self.most
        dropped = []
        size = self.bytes
        while self.kept and (size > room or len(self.kept) > most):
            dropped.append(self.kept.pop(0))
            size -= dropped[-1].bytes
        return dropped

    def clear(self) -> list[Strand]:
        """Drop all."""
        dropped, self.kept = self.kept, []
        return dropped

    def _has(self, new: Strand) -> bool:
        for old in self.kept:
            known = old.ids if self.whole else old.ids[: len(new.ids)]
            if new.ids == known:
                self.touch(old)
                return True
        return False

    def _replaces(self, new: Strand, old: Strand) -> bool:
        if self.whole:
            return False
        lost = len(old.ids) - common_prefix(old.ids, new.ids)
        # A prompt that is asked again must be found where it ended.
        end = max(old.ends, default=0)
        return lost * REPLACED < len(old.ids) and (not end or end in new.ends)
