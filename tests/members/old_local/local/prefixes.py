"""Kept prefixes: what was read for finished queries, reused by queries that begin alike. The least
recently used is dropped first.

A prefix is its token ids, its size in bytes, and the logits where a prompt ended; the store holds
the keys, values or states.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHORTEST = 64
"""Fewer tokens than this are read again. All that unrelated questions share is the header of a chat
template: sharing it would save little, and the last bits of one answer would depend on another."""
MOST = 256
"""At most this many prefixes are kept, because each new query is compared with all of them."""
REPLACED = 8
"""A new prefix replaces an old one that it shares all but an eighth of: it is a later turn of the
same conversation."""
MOST_ENDS = 4
"""Logits are kept for this many ends of prompts: they are as long as the vocabulary."""


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
        same, size = (half, size) if one[same:half] == other[same:half] else (same, half)
    return same


@dataclass(eq=False)
class Prefix:
    """Tokens that were read, and the state after them."""

    ids: list[int]
    data: Any = None
    """Keys, values or states, in whatever form its store uses."""
    bytes: int = 0
    ends: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """Next-token logits after the first n tokens, where a prompt ended. A prompt that is asked
    again is not read at all, and its answer is the same to the bit."""


def closest(prefixes: Iterable[Prefix], ids: list[int]) -> tuple[Prefix | None, int]:
    """The prefix that shares most with these tokens, and how many. Among equals one that has the
    logits after all of them, and the last.

    >>> found, shared = closest([Prefix([1, 2, 3]), Prefix([1, 5])], [1, 2, 9])
    >>> found.ids, shared
    ([1, 2, 3], 2)
    """
    best, rank = None, (1, False)
    for prefix in prefixes:
        shared = common_prefix(prefix.ids, ids)
        own = (shared, shared == len(ids) and shared in prefix.ends)
        if own >= rank:
            best, rank = prefix, own
    return best, rank[0] if best else 0


class Prefixes:
    """The kept prefixes of one store, least recently used first.

    ``limit``: at most this many bytes. ``most``: at most this many prefixes. ``whole``: they cannot
    be cut, so a longer one does not replace a shorter one.
    """

    def __init__(self) -> None:
        self.limit = 0
        self.whole = False
        self.shortest = SHORTEST
        self.most = MOST
        self.kept: list[Prefix] = []

    @property
    def bytes(self) -> int:
        return sum(prefix.bytes for prefix in self.kept)

    def keep(self, new: Prefix) -> bool:
        """Keep one more, if it is long enough and fits."""
        if len(new.ids) < self.shortest or new.bytes > self.limit or self._has(new):
            return False
        self.kept = [prefix for prefix in self.kept if not self._replaces(new, prefix)]
        self.shrink(self.limit - new.bytes, self.most - 1)
        self.kept.append(new)
        return True

    def use(self, prefix: Prefix) -> None:
        """Mark it as the most recently used, if it is one of these."""
        if prefix in self.kept:
            self.kept.remove(prefix)
            self.kept.append(prefix)

    def shrink(self, room: int, most: int | None = None) -> None:
        """Drop the least recently used until the rest fits into ``room`` bytes."""
        held, most = self.bytes, self.most if most is None else most
        while self.kept and (held > room or len(self.kept) > most):
            held -= self.kept.pop(0).bytes

    def clear(self) -> None:
        self.kept.clear()

    def _has(self, new: Prefix) -> bool:
        for old in self.kept:
            if new.ids == (old.ids if self.whole else old.ids[: len(new.ids)]):
                self.use(old)
                return True
        return False

    def _replaces(self, new: Prefix, old: Prefix) -> bool:
        if self.whole:
            return False
        lost = len(old.ids) - common_prefix(old.ids, new.ids)
        # where its prompt ended: a prompt that is asked again must be found
        end = max(old.ends, default=0)
        return lost * REPLACED < len(old.ids) and (not end or end in new.ends)
