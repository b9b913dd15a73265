"""What was read for queries that are over, kept for those that begin alike; the least recently used goes first.

Knows token ids, bytes, and the logits where a prompt ended; nothing of how a store holds keys, values or states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

LEAST = 64
"""Fewer tokens than this are read again. A chat template's header is all that unrelated questions share: to spare that
would save little, and have the last bits of one answer hang on another."""
MOST = 256
"""So many prefixes are looked through for each new query."""
ALIKE = 8
"""A prefix goes when one comes that has where its prompt ended, and all of it but an eighth: it was an earlier
turn of the same conversation."""
ENDS = 4
"""At so many ends of prompts the logits are kept: they are as long as the vocabulary."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists share from the beginning.

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
    """Tokens that were read, and what a store goes on from."""

    ids: list[int]
    memory: Any = None
    """Whatever the store that made it wants."""
    bytes: int = 0
    ends: dict[int, Tensor] = field(default_factory=dict)
    """Next-token logits after the first n tokens, where a prompt ended: asked again, it is not read again, and its
    answer is the same to the bit."""
    mark: int = 0
    """The adapter that it was read with (0: none). It is of use to no other."""


def closest(prefixes: Iterable[Prefix], ids: list[int]) -> tuple[Prefix | None, int]:
    """Who shares most with these tokens, and how many. Of equals one that knows what follows them all, and the last.

    >>> found, shared = closest([Prefix([1, 2, 3]), Prefix([1, 5])], [1, 2, 9])
    >>> found.ids, shared
    ([1, 2, 3], 2)
    """
    best, rank = None, (1, False)
    for prefix in prefixes:
        shared = common_prefix(prefix.ids, ids)
        mine = (shared, shared == len(ids) and shared in prefix.ends)
        if mine >= rank:
            best, rank = prefix, mine
    return best, rank[0] if best else 0


def longest_whole(prefixes: Iterable[Prefix], ids: list[int]) -> Prefix | None:
    """The longest of which these tokens begin with every one: for a state that cannot be cut."""
    fitting = [prefix for prefix in prefixes if prefix.ids == ids[: len(prefix.ids)]]
    return max(fitting, key=lambda prefix: len(prefix.ids), default=None)


class Prefixes:
    """The prefixes of one member, least recently used first.

    ``limit``: at most so many bytes; ``whole``: they cannot be cut, so that one does not make a shorter one needless.
    """

    def __init__(self, limit: int = 0, *, whole: bool = False) -> None:
        self.limit = limit
        self.whole = whole
        self.least = LEAST
        self.kept: list[Prefix] = []

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return sum(prefix.bytes for prefix in self.kept)

    def keep(self, made: Prefix, memory: Callable[[], Any], room: int, others: Iterable[Prefix] = ()) -> None:
        """One more, if ``room`` bytes are enough for it; ``memory`` is only called for one that is wanted.

        ``others``: what members of the same model keep, so that nothing is kept twice.
        """
        room = min(room, self.limit)
        if len(made.ids) < self.least or made.bytes > room or self._covered(made, others):
            return
        self.kept = [prefix for prefix in self.kept if not self._needless(prefix, made)]
        self.shrink(room - made.bytes, MOST - 1)
        made.memory = memory()
        self.kept.append(made)

    def use(self, prefix: Prefix) -> None:
        """Now the most recently used, if it is one of these."""
        if prefix in self.kept:
            self.kept.remove(prefix)
            self.kept.append(prefix)

    def shrink(self, room: int, most: int = MOST) -> None:
        """Let go of as many as must be for the rest to take no more than ``room`` bytes."""
        held = self.bytes
        while self.kept and (held > room or len(self.kept) > most):
            held -= self.kept.pop(0).bytes

    def clear(self) -> None:
        self.kept.clear()

    def drop(self, mark: int) -> None:
        """All that was read with this adapter (0: with none)."""
        self.kept = [prefix for prefix in self.kept if prefix.mark != mark]

    def _covered(self, made: Prefix, others: Iterable[Prefix]) -> bool:
        for prefix in [*self.kept, *others]:
            alike = prefix.mark == made.mark and made.ids == (prefix.ids if self.whole else prefix.ids[: len(made.ids)])
            if alike:
                self.use(prefix)
                return True
        return False

    def _needless(self, old: Prefix, new: Prefix) -> bool:
        if old.mark != new.mark:
            return False
        own = len(old.ids) - common_prefix(old.ids, new.ids)
        asked = max(old.ends, default=0)  # where its prompt ended: asked again, it must be found
        return not self.whole and own * ALIKE < len(old.ids) and (not asked or asked in new.ends)
