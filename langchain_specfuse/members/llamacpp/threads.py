"""Finds the number of threads for short passes, by measuring while answers are written.

The threads of llama.cpp wait for each other after every operation. If the machine has other work to
do, one of them is always delayed, and two threads on two cores are slower than one. So from time to
time a few passes are computed with another number of threads, and the faster number is kept.

The caller measures the times. They affect only the speed of an answer, never its text.
"""

from __future__ import annotations

import os
from collections import deque
from statistics import median

import psutil

TRIED = 3
"""How many passes are computed with another number before it is judged, by their median, because
anything may delay a single pass."""
SOONEST = 8
"""How many passes use one number of threads before another one is tried."""
RARER = 16
"""After an unsuccessful try, the number of passes before the next one is multiplied by this."""
LONGEST, LONGEST_REDUCED = 512, 64
"""The most passes before the next try. The second number applies while fewer threads than possible
are used, because the other work on the machine may have ended."""
FASTER = 0.95
"""Another number is chosen if its passes take at most this fraction of the time."""
SLOWER = 1.2
"""If passes take this many times as long as when the number was chosen, something has changed, and
other numbers are tried again."""
SIZES = 16
"""Passes over more tokens use all threads, because each thread then has enough work."""


def chosen_threads() -> int | None:
    """``$OMP_NUM_THREADS``, if it is set."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) > 0 else None


def most_threads() -> int:
    """The largest number of threads: ``$OMP_NUM_THREADS``, otherwise one for each core that this
    process may use."""
    chosen = chosen_threads()
    if chosen is not None:
        return chosen
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


def steps(most: int) -> list[int]:
    """The numbers of threads to try, in order.

    >>> steps(16), steps(2), steps(1)
    ([16, 15, 12, 9, 7, 6, 5, 4, 3, 2, 1], [2, 1], [1])
    """
    numbers = [most]
    while numbers[-1] > 1:
        last = numbers[-1]
        step = max(1, last // 4) if last < most else 1
        numbers.append(last - step)
    return numbers


class Threads:
    """Chooses the number of threads for each pass, at most ``most``.

    >>> threads = Threads(2)
    >>> threads.number(1)
    2
    >>> for _ in range(16):  # one thread turns out to be faster
    ...     threads.took(1, 0.2 if threads.number(1) == 2 else 0.1)
    >>> threads.number(1)
    1
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._paces: dict[int, _Pace] = {}
        """The number of tokens in a pass -> what is known about such passes."""

    def number(self, size: int) -> int:
        """How many threads compute the next pass over this many tokens."""
        if size > SIZES or self.most == 1:
            return self.most
        return self._pace(size).number

    def took(self, size: int, seconds: float) -> None:
        """Record how long the last pass over this many tokens took, with the number of threads that
        :meth:`number` returned."""
        if size <= SIZES and self.most > 1:
            self._pace(size).took(seconds)

    def _pace(self, size: int) -> _Pace:
        if size not in self._paces:
            self._paces[size] = _Pace(steps(self.most))
        return self._paces[size]


class _Pace:
    """The fastest number of threads for passes of one size."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers
        self.at = 0
        """The index of the number that is in use."""
        self.tried: int | None = None
        """The index of the number that is being tried."""
        self.times: deque[float] = deque(maxlen=SOONEST)
        self.tries: list[float] = []
        self.usual: float | None = None
        """The time of a pass when the number in use was last compared with another."""
        self.since = 0
        """Passes since then."""
        self.wait = SOONEST
        self.turn = 0
        """The index that was tried last; the others follow in turn."""

    @property
    def number(self) -> int:
        return self.numbers[self.at if self.tried is None else self.tried]

    def took(self, seconds: float) -> None:
        if self.tried is not None:
            self.tries.append(seconds)
            if len(self.tries) == TRIED or self._is_slower():
                self._judge(self.tried)
            return
        self.times.append(seconds)
        self.since += 1
        if self.since < SOONEST:
            return
        if self.usual is not None and median(self.times) > SLOWER * self.usual:
            self.wait = SOONEST
        if self.since >= self.wait:
            self._try()

    def _try(self) -> None:
        """Try the next of all numbers: a neighbour may be slower although another one is faster."""
        self.turn = (self.turn + 1) % len(self.numbers)
        if self.turn == self.at:
            self.turn = (self.turn + 1) % len(self.numbers)
        self.tried, self.tries = self.turn, []

    def _is_slower(self) -> bool:
        """Whether most of the passes to try were slower, so that their median will be."""
        bound = FASTER * median(self.times)
        return sum(seconds >= bound for seconds in self.tries) > TRIED // 2

    def _judge(self, tried: int) -> None:
        new, old = median(self.tries), median(self.times)
        self.since, self.tried = 0, None
        if new < FASTER * old:
            self.at, self.usual, self.wait = tried, new, SOONEST
            self.times.clear()
            return
        self.usual = old
        longest = LONGEST_REDUCED if self.at else LONGEST
        self.wait = min(RARER * self.wait, longest)
