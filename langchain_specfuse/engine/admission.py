"""Admission: how many answers may run at the same time on one ensemble; the others wait in order,
or are refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..errors import BusyError, advised, amount

HINT_S = 1.0
"""The wait that a refused call is advised per answer ahead of it: a fixed guess, as answers differ
in length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many answers one call allows."""

    max_concurrency: int | None = None
    """It begins when fewer answers than this are under way. None: no limit."""
    max_waiting: int | None = None
    """It is refused if it must wait and this many are waiting already. None: never refused."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    who: Hashable
    limits: Limits
    start: Callable[[], object]


class Admission:
    """The answers under way, and those that wait for their turn, first come first served."""

    def __init__(self) -> None:
        # Re-entrant, because a finalizer that cancels an answer may be called anywhere, also in
        # here.
        self._lock = threading.RLock()
        self._under_way: set[Hashable] = set()
        self._waiting: list[_Waiting] = []
        self._admitted: list[_Waiting] = []
        """Counted as running, but not started yet: others may arrive while one is started."""
        self._starting = False

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, who: Hashable, limits: Limits, start: Callable[[], object]) -> None:
        """Call ``start`` once, now or when it is their turn. :class:`.BusyError` if too many are
        waiting."""
        with self._lock:
            before = len(self._waiting)
            must_wait = before > 0 or not self._fits(limits)
            if must_wait and limits.max_waiting is not None and before >= limits.max_waiting:
                raise self._busy(limits, before)
            self._waiting.append(_Waiting(who, limits, start))
            self._admit()
        self._start_admitted()

    def leave(self, who: Hashable) -> None:
        """Their answer is over, or no longer wanted."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.who != who]
            self._admitted = [one for one in self._admitted if one.who != who]
            self._under_way.discard(who)
            self._admit()
        self._start_admitted()

    def _admit(self) -> None:
        """Admit all answers whose turn it is: from now on they count as running."""
        while self._waiting and self._fits(self._waiting[0].limits):
            first = self._waiting.pop(0)
            self._under_way.add(first.who)
            self._admitted.append(first)

    def _start_admitted(self) -> None:
        """Start all admitted answers. One loop does this for all threads, because an answer that
        ends immediately makes room for another."""
        while True:
            mine = False
            try:  # begins before the flag is set, so that an interrupt anywhere takes it back
                with self._lock:
                    if self._starting or not self._admitted:
                        return
                    mine = self._starting = True
                    first = self._admitted.pop(0)
                first.start()
            finally:
                if mine:
                    self._starting = False

    def _fits(self, limits: Limits) -> bool:
        return limits.max_concurrency is None or len(self._under_way) < limits.max_concurrency

    def _busy(self, limits: Limits, before: int) -> BusyError:
        hint = HINT_S * (1 + before / (limits.max_concurrency or 1))
        state = (
            f"{amount(len(self._under_way), 'answer')} under way "
            f"(max_concurrency={limits.max_concurrency})"
        )
        error = BusyError(
            f"{state} and {before} waiting (max_waiting={limits.max_waiting})", retry_after_s=hint
        )
        return advised(error, f"ask again in about {hint:.1f} s, or raise max_waiting=")
