"""Who may come in: so many answers at once, so many waiting, everybody else is told when to come again.

Knows numbers and the order of arrival; nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from .faults import Fault
from .limits import Limits

LONGEST_HINT_S = 60


class Gate:
    """The seats of one door, and the bench before them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._seats = asyncio.Semaphore(limits.at_once)
        self._mean_s = 1.0
        self.inside = 0
        """Everybody: those whose body is being read, those who wait, those who are answered."""
        self.answering = 0

    @property
    def waiting(self) -> int:
        return self.inside - self.answering

    @property
    def retry_after_s(self) -> int:
        """When a seat of the bench may be free: whoever is inside is answered first."""
        turns = self.inside / self._limits.at_once
        return max(1, min(math.ceil(turns * self._mean_s / 2), LONGEST_HINT_S))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A place inside, from before the body is read: what is refused costs no memory."""
        if self.inside >= self._limits.at_once + self._limits.waiting:
            raise self._full("every seat is taken, and so is the bench")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """A seat, when it is one's turn."""
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                await self._seats.acquire()
        except TimeoutError:
            raise self._full(f"no seat became free within {self._limits.timeout_s:g} s") from None
        began = time.monotonic()
        self.answering += 1
        try:
            yield
        finally:
            self.answering -= 1
            self._mean_s += 0.1 * (time.monotonic() - began - self._mean_s)
            self._seats.release()

    def _full(self, why: str) -> Fault:
        hint = self.retry_after_s
        return Fault(429, f"{why}\n-> try again in about {hint} s", code="rate_limit_exceeded", retry_after_s=hint)
