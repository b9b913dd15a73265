"""How far a run is, and how long it will take: a bar on a terminal, a line now and then elsewhere. On standard error.

Knows counts and clocks only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from ..errors import amount
from .running import Seen
from .systems import System

EVERY_S = 30.0
"""Between two lines where there is no terminal."""


@contextmanager
def progress(total: int, stream: TextIO, *, quiet: bool = False) -> Iterator[Seen | None]:
    """Hand what this gives to ``run(seen=...)``. ``total`` counts the results of all systems."""
    if quiet or not total:
        yield None
        return
    shown = _bar(total, stream) if stream.isatty() else _Lines(total, stream)
    try:
        yield _Counted(shown)
    finally:
        shown.close()


class _Counted:
    """From "this many of this system" to "this many in all"; what was there before counts as done, not as fast."""

    def __init__(self, shown: Any) -> None:
        self._shown = shown
        self._done: dict[str, int] = {}

    def __call__(self, system: System, done: int, of: int) -> None:
        before = self._done.get(system.name)
        self._done[system.name] = done
        if before is None:
            self._shown.initial += done
            self._shown.n += done
            self._shown.unpause()  # loading and checking took time that answers do not take
            self._shown.set_description(system.name)
        else:
            self._shown.update(done - before)


def _bar(total: int, stream: TextIO) -> Any:
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return _Lines(total, stream)
    return tqdm(total=total, file=stream, unit="answer", dynamic_ncols=True, disable=False)


class _Lines:
    """The same without a terminal, or without tqdm: a line at most every half minute, and one at the end."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total, self.n, self.initial = total, 0, 0
        self._stream, self._name = stream, ""
        self._since = self._shown = time.monotonic()

    def set_description(self, name: str) -> None:
        self._name = name

    def unpause(self) -> None:
        if self.n == self.initial:
            self._since = time.monotonic()

    def update(self, count: int) -> None:
        self.n += count
        if time.monotonic() - self._shown >= EVERY_S:
            self._shown = time.monotonic()
            self._say()

    def close(self) -> None:
        self._say()

    def _say(self) -> None:
        done, spent, open = self.n - self.initial, time.monotonic() - self._since, self.total - self.n
        left = f", about {_clock(spent / done * open)} left" if done and open else ""
        print(
            f"specfuse: {self.n} of {amount(self.total, 'answer')} ({self._name}){left}", file=self._stream, flush=True
        )


def _clock(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds.

    >>> _clock(75), _clock(3700)
    ('1 min 15 s', '1 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
