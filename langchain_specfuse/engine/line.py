"""The line before an ensemble: so many answers under way at once, the others wait for their turn, and whoever would
have too many before it is told when to come again, so that nothing grows without end.

Each call says for itself how much company it wants and how long a line it joins. Knows numbers and the order of turns;
nothing of what is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..errors import BusyError, advised, amount

PASSED = 32
"""So many turns may go to others while the first in line waits for less company than they do; then it is waited for."""
LONGEST_HINT_S = 60.0
SHORTEST_HINT_S = 0.1


@dataclass(frozen=True, slots=True)
class Turn:
    """What one call wants of the line."""

    at_once: int | None = None
    """It begins when fewer answers than this are under way. None: at once, whoever waits."""
    max_waiting: int | None = None
    """It is refused if it must wait, and so many would wait before it. None: it joins any line."""
    priority: int = 0
    """It goes before those with less, up to so many turns as the difference."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Somebody in the line."""

    who: Hashable
    turn: Turn
    rank: int
    go: Callable[[], object]


class Line:
    """The answers under way, and those that wait."""

    def __init__(self) -> None:
        # Re-entrant: a finalizer that cancels an answer may be called anywhere, also in here.
        self._lock = threading.RLock()
        self._began: dict[Hashable, float] = {}
        """When each answer under way began."""
        self._waiting: list[_Place] = []
        self._turns = 0
        self._mean_s = 1.0
        """How long an answer has taken lately."""
        self._opening = False

    @property
    def under_way(self) -> int:
        return len(self._began)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, who: Hashable, turn: Turn, go: Callable[[], object]) -> None:
        """``go`` is called once, now or when it is their turn; :class:`.BusyError` if too many wait before them."""
        with self._lock:
            place = _Place(who, turn, self._turns - turn.priority, go)
            before = sum(other.rank <= place.rank for other in self._waiting[:])
            fits = place in self._fitting([*self._waiting, place])
            if not fits and turn.max_waiting is not None and before >= turn.max_waiting:
                raise self._busy(turn, before)
            self._waiting.append(place)
        self._open()

    def leave(self, who: Hashable) -> None:
        """Their answer is over, or they do not want it any more."""
        with self._lock:
            for place in self._waiting[:]:
                if place.who == who and place in self._waiting:
                    self._waiting.remove(place)
            began = self._began.pop(who, None)
            if began is not None:
                self._mean_s += 0.1 * (time.monotonic() - began - self._mean_s)
        self._open()

    def _open(self) -> None:
        """Let in whose turn it is. One does it for all: an answer that ends as it begins lets in another."""
        while True:
            with self._lock:
                place = None if self._opening else self._next()
                if place is None:
                    return
                self._opening = True
            try:
                place.go()
            finally:
                self._opening = False

    def _next(self) -> _Place | None:
        fitting = self._fitting(self._waiting[:])
        if not fitting:
            return None
        place = min(fitting, key=lambda one: one.rank)
        self._waiting.remove(place)
        self._began[place.who] = time.monotonic()
        self._turns += 1
        return place

    def _fitting(self, waiting: list[_Place]) -> list[_Place]:
        """Who may begin now. Once the first in line has been passed often enough, nobody who counts company may but it:
        so the line gets empty enough for it, and nobody waits for ever."""
        first = min(waiting, key=lambda one: one.rank, default=None)
        waited_for = first is not None and self._turns - first.rank >= PASSED
        fitting = [place for place in waiting if self._fits(place.turn)]
        return [place for place in fitting if place is first or place.turn.at_once is None or not waited_for]

    def _fits(self, turn: Turn) -> bool:
        return turn.at_once is None or len(self._began) < turn.at_once

    def _busy(self, turn: Turn, before: int) -> BusyError:
        at_once = turn.at_once or 1
        ahead = len(self._began) + before
        hint = min(max(ahead / at_once * self._mean_s / 2, SHORTEST_HINT_S), LONGEST_HINT_S)
        under_way = f"{amount(len(self._began), 'answer')} {'is' if len(self._began) == 1 else 'are'} under way"
        told = f"{under_way} (at_once={at_once}) and {before} {'waits' if before == 1 else 'wait'} before this one"
        error = BusyError(f"{told}, no more than max_waiting={turn.max_waiting} may", retry_after_s=hint)
        return advised(error, f"ask again in about {hint:.1f} s, or allow a longer line with max_waiting=")
