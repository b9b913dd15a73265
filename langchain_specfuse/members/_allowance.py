"""One device's share of a budget: who is at work, and who gives way to whom.

It sees to it that what lies on the device is within the budget while a member works. Knows bytes and who is at work;
what a weight or a cache is, and how it is moved, is known by those who hold it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import ref

from ..errors import MemberError, UsageError, advised
from ._plan import Need, Plan, Short, planned
from ._sizes import shown

log = logging.getLogger("langchain_specfuse")

LOOK_S = 0.05
PATIENCE_S = 60.0
"""So long is waited for a member that hangs in its work before another's weights are given up as not to be had."""


class Holding(Protocol):
    """What a member holds on its device, and how it gives way. All but ``name`` may change while it is not at work."""

    name: str
    mark: str
    """Tells its weights from others; members with the same weights have the same mark."""

    @property
    def size(self) -> int:
        """Bytes of the weights."""

    @property
    def movable(self) -> bool:
        """Whether the weights can be elsewhere while the member is idle."""

    @property
    def here(self) -> bool:
        """Whether the weights are on the device now."""

    @property
    def least(self) -> int:
        """The least cache that is of use."""

    @property
    def cached(self) -> int:
        """Bytes of the caches now."""

    def put_away(self) -> bool:
        """Move the weights off the device. False: they are in use."""

    def allot(self, cache: int) -> None:
        """So much for caches from now on; what is over goes at once."""


class Allowance:
    """One device's memory, and the members that share it. Whoever nobody holds any more leaves by itself."""

    def __init__(self, device: str, total: int) -> None:
        self.device = device
        self.total = total
        self.moves = 0
        """How often weights were put away."""
        self._known: list[ref[Holding]] = []
        self._plan = Plan(frozenset(), {})
        self._planned_for: list[int] = []
        self._at_work: set[Holding] = set()
        self._loading = 0
        self._news = threading.Condition(threading.RLock())

    @property
    def held(self) -> tuple[int, int]:
        """Bytes of weights and of caches on the device now."""
        with self._news:
            return self._here(None), self._cached(None)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Nobody's caches are taken from it meanwhile."""
        with self._news:
            yield

    # --- who belongs here ---------------------------------------------------------------------------------------

    @contextmanager
    def loading(self, name: str, mark: str | None, size: int) -> Iterator[None]:
        """Room for weights of this size, before they are there; others wait until they are."""
        with self._news:
            if mark in self._weights() and self._weights()[mark].here:
                size = 0
            self._refuse(name, size + sum(one.size for one in self._weights().values() if not one.movable))
            self._until(lambda: self._made(size, keep=None), name)
            self._loading += size
        try:
            yield
        finally:
            with self._news:
                self._loading -= size
                self._news.notify_all()

    def join(self, holding: Holding) -> None:
        """One more member, loaded; every cache is measured anew."""
        with self._news:
            self._known.append(ref(holding))
            try:
                self._replan()
            except Short as short:
                self.leave(holding)
                self._refuse(short.member, short.needed)

    def leave(self, holding: Holding) -> None:
        """A member that was unloaded."""
        with self._news:
            self._known = [one for one in self._known if one() not in (None, holding)]
            self._replan()
            self._news.notify_all()

    def _refuse(self, name: str, needed: int) -> None:
        if needed > self.total:
            error = UsageError(
                f"{name} needs {shown(needed)} on {self.device} for its weights and the smallest cache, "
                f"and memory_budget gives {shown(self.total)}"
            )
            raise advised(error, "give more, load it with a smaller dtype, or leave this member out")

    def _replan(self) -> None:
        everyone, weights = self._everyone(), self._weights()
        sizes = {mark: one.size for mark, one in weights.items()}
        fixed = frozenset(mark for mark, one in weights.items() if not one.movable)
        needs = {id(one): Need(one.name, one.mark, one.least) for one in everyone}
        before, self._plan = self._plan, planned(self.total, sizes, needs, fixed)
        self._planned_for = list(needs)
        moving = [one.name for one in everyone if one.mark not in self._plan.stay]
        if moving and self._plan.stay != before.stay:
            told = "memory_budget: %s of %s do not hold all weights: those of %s come for their turn"
            log.info(told, shown(self.total), self.device, ", ".join(moving))
        for one in everyone:
            if one not in self._at_work:
                one.allot(self._plan.caches[id(one)])

    def _everyone(self) -> list[Holding]:
        return [one for known in self._known if (one := known()) is not None]

    def _weights(self) -> dict[str, Holding]:
        """One holding for each of the weights."""
        return {one.mark: one for one in self._everyone()}

    # --- whose turn it is ---------------------------------------------------------------------------------------

    @contextmanager
    def turn(self, mine: Holding) -> Iterator[None]:
        """This member works now: its weights have room, and what others hold is within the budget."""
        with self._news:
            if self._planned_for != [id(one) for one in self._everyone()]:  # somebody was let go of
                self._replan()
            self._until(lambda: self._room_for(mine), mine.name)
            self._at_work.add(mine)
        try:
            yield
        finally:
            with self._news:
                self._at_work.discard(mine)
                if id(mine) in self._plan.caches:
                    mine.allot(self._plan.caches[id(mine)])
                self._news.notify_all()

    def lend(self, mine: Holding, needed: int) -> str:
        """For the rest of this turn, all that others can give up for one text that is longer than the cache's share.

        What is wrong, if that is not enough; else nothing.
        """
        with self._news:
            others = [one for mark, one in self._weights().items() if mark != mine.mark]
            most = self.total - mine.size - sum(one.size for one in others if not one.movable)
            if needed > most:
                given = f"memory_budget={shown(self.total)} leaves {shown(most)} beside the weights"
                return f"a cache of {shown(needed)} is needed, and {given}"
            if not self._made(mine.size + needed, keep=mine):
                return "another member hangs, and holds the memory that is needed"
            log.info("memory_budget: %s borrows %s for one long text", mine.name, shown(needed))
            mine.allot(self.total - self._here(mine) - self._cached(mine) - self._loading - mine.size)
            return ""

    def _room_for(self, mine: Holding) -> bool:
        if not self._plan.kept:
            self._free_caches(mine)
        return self._cleared(mine.size + self._cached(mine) + self._plan.caches[id(mine)], mine)

    def _made(self, size: int, keep: Holding | None) -> bool:
        """Whether there are so many bytes now that others have given up their caches, and weights that may move."""
        if self._here(keep) + self._cached(keep) + self._loading + size <= self.total:
            return True
        self._free_caches(keep)
        return self._cleared(size + self._cached(keep), keep)

    def _cleared(self, size: int, keep: Holding | None) -> bool:
        """Put others' weights away until there are so many bytes; those that should stay go last."""
        for one in sorted(self._weights().values(), key=lambda one: one.mark in self._plan.stay):
            if self._here(keep) + self._loading + size <= self.total:
                break
            if one.here and one.movable and (keep is None or one.mark != keep.mark) and one.put_away():
                self.moves += 1
                log.debug("memory_budget: the weights of %s left %s (%s)", one.name, self.device, shown(one.size))
        return self._here(keep) + self._loading + size <= self.total

    def _here(self, but: Holding | None) -> int:
        """Bytes of the weights that are on the device, or on their way: of members at work."""
        working = {one.mark for one in self._at_work}
        here = [one for one in self._weights().values() if one.here or one.mark in working]
        return sum(one.size for one in here if but is None or one.mark != but.mark)

    def _cached(self, but: Holding | None) -> int:
        return sum(one.cached for one in self._everyone() if one is not but)

    def _free_caches(self, but: Holding | None) -> None:
        for one in self._everyone():
            if one is not but and one not in self._at_work and one.cached:
                log.debug("memory_budget: %s gave up its cache (%s)", one.name, shown(one.cached))
                one.allot(0)
                one.allot(self._plan.caches.get(id(one), 0))

    def _until(self, ready: Callable[[], bool], name: str) -> None:
        """Wait for those at work to come to an end, and look now and then: who holds the same weights under no budget,
        or another, tells nobody here. Nobody is at work on this device for long but who hangs, or who loads."""
        last = time.monotonic()
        while not ready():
            if self._news.wait(LOOK_S) or self._loading:
                last = time.monotonic()
            elif time.monotonic() - last >= PATIENCE_S:
                busy = ", ".join(sorted(one.name for one in self._at_work)) or "nobody"
                error = MemberError(f"{name} waited {PATIENCE_S:g} s for memory that {busy} holds", member=name)
                raise advised(error, "a member that hangs keeps its weights: give a larger memory_budget")
