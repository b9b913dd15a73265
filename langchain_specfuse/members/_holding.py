"""What one member holds on its device, as an allowance sees it: weights on a shelf, and a store of caches.

Knows bytes; nothing of who else is on the device, or of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from ._prefixes import ENDS
from ._shelf import Shelf
from ._stores import Store

LEAST_TOKENS = 512
"""A cache is of use when one question of about this length fits."""
LOGITS = ENDS + 4
"""About so many rows of logits are kept with each question."""


@dataclass(eq=False)
class Holding:
    """One member's weights and caches. ``prefix_share``: the part of the cache that prefixes may take."""

    name: str
    mark: str
    shelf: Shelf
    store: Store
    cache_bytes: int | None
    """The member's own bound, if it has one: an allowance makes it smaller, never larger."""
    prefix_bytes: int | None
    """At most so much for prefixes; None: a third of the cache."""
    logits: int
    """Bytes of one row of logits."""

    @property
    def size(self) -> int:
        return self.shelf.size

    @property
    def movable(self) -> bool:
        return self.shelf.movable

    @property
    def here(self) -> bool:
        return self.shelf.here

    @property
    def least(self) -> int:
        return self.store.alone(LEAST_TOKENS) + LOGITS * self.logits

    @property
    def cached(self) -> int:
        return self.store.held

    def put_away(self) -> bool:
        return self.shelf.put_away()

    def allot(self, cache: int) -> None:
        # Logits are kept beside keys and values, and are not counted by the store's own budget.
        pure = cache * self.store.alone(LEAST_TOKENS) // max(self.least, 1)
        bound = min(pure, self.cache_bytes or pure)
        third = bound // 3
        self.store.fit(bound, third if self.prefix_bytes is None else min(self.prefix_bytes, bound))
