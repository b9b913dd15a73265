"""How many threads compute a short pass, found by measuring while answers are written.

The threads of llama.cpp wait for each other after every operation. On a machine that has other work
to do, one of them is always kept waiting, and two threads on two cores are slower than one. So a
few passes are computed with fewer threads now and then, and the faster number stays.

It takes sizes and times, and calls no clock: timing decides nothing but how fast an answer comes.
"""

from __future__ import annotations

from collections import deque
from statistics import median

TRIED = 3
"""Passes that are computed with another number before it is judged. Their median counts: a pass may
be held up by anything."""
SOONEST = 8
"""After so many passes with one number another one is tried."""
RARER = 16
"""A try that was of no use is repeated after this many times as many passes."""
LONGEST, LONGEST_REDUCED = 512, 64
"""But after at most this many; with fewer threads than there are cores after at most the second
number, because the other work on the machine may have ended."""
FASTER = 0.95
"""Another number must take at most this part of the time."""
SLOWER = 1.2
"""Passes that take this many times as long as when the number was chosen mean that something has
changed."""
SIZES = 16
"""Passes over more tokens are computed with all threads: there each has long work of its own."""


def steps(most: int) -> list[int]:
    """The numbers of threads that are tried, one after the other.

    >>> steps(16), steps(2), steps(1)
    ([16, 15, 12, 9, 7, 6, 5, 4, 3, 2, 1], [2, 1], [1])
    """
    found = [most]
    while found[-1] > 1:
        last = found[-1]
        found.append(last - max(1, last // 4 if last < most else 1))
    return found


class Threads:
    """The number of threads for each pass: ``number``, unless ``most`` is to be held to.

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
        """By the number of tokens in a pass."""

    def number(self, size: int) -> int:
        """How many threads compute the next pass over this many tokens."""
        if size > SIZES or self.most == 1:
            return self.most
        return self._pace(size).number

    def took(self, size: int, seconds: float) -> None:
        """The last pass over this many tokens, with as many threads as :meth:`number` said, took
        this long."""
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
        """The place of the number that is in use."""
        self.tried: int | None = None
        """The place of the one that is being tried."""
        self.times: deque[float] = deque(maxlen=SOONEST)
        self.tries: list[float] = []
        self.usual: float | None = None
        """How long a pass took when the number in use was last compared."""
        self.since = 0
        """Passes since then."""
        self.wait = SOONEST
        self.turn = 0
        """The place that was tried last; the others follow in turn."""

    @property
    def number(self) -> int:
        return self.numbers[self.at if self.tried is None else self.tried]

    def took(self, seconds: float) -> None:
        if self.tried is not None:
            self.tries.append(seconds)
            if len(self.tries) == TRIED:
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
        """Try another number. A neighbour may be slower, and one further away faster."""
        self.turn = (self.turn + 1) % len(self.numbers)
        if self.turn == self.at:
            self.turn = (self.turn + 1) % len(self.numbers)
        self.tried, self.tries = self.turn, []

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
