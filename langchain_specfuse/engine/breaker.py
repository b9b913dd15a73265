"""Remembers which members have failed recently, so that the next answers do not wait for them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

PAUSE_S = 10.0
"""How long a member pauses after a failure, if another one can take its place. Another try
costs little if it fails fast, and a member that works again is soon back in use."""
LONGEST_PAUSE_S = 300.0
"""The pause doubles with each further time-out, up to this: an answer waits for each of them."""
FAILURES = frozenset({"error", "timeout", "nan", "denied", "not_found"})
"""The kinds of failures that concern the member and not just one answer."""


@dataclass(slots=True)
class _Pause:
    """The pause of a member."""

    seconds: float
    until: float
    """When the pause ends, in seconds of ``time.monotonic()``."""
    is_tried: bool = False
    """Whether an answer has tried the member again since it last failed."""
    works: bool = False
    """Whether the member has replied in that answer, which is not complete yet."""


class Breaker:
    """A circuit breaker for each member of an ensemble.

    A member that fails pauses. After its pause, one answer tries it again; if the member works, all
    answers use it again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pauses: dict[str, _Pause] = {}

    def is_paused(self, member: str) -> bool:
        pause = self._pauses.get(member)
        return pause is not None and time.monotonic() < pause.until

    def try_again(self, member: str) -> None:
        """Note that an answer tries this member after its pause; the others wait for the result."""
        with self._lock:
            pause = self._pauses.get(member)
            if pause is not None and not pause.works:
                pause.until = time.monotonic() + pause.seconds
                pause.is_tried = True

    def failed(self, member: str, kind: str) -> None:
        """Note a failure."""
        if kind not in FAILURES:
            return
        with self._lock:
            pause = self._pauses.get(member)
            seconds = PAUSE_S
            if pause is not None and kind == "timeout":
                # If it was not tried again, this is the same failure.
                seconds = min(pause.seconds * (2 if pause.is_tried else 1), LONGEST_PAUSE_S)
            self._pauses[member] = _Pause(seconds, time.monotonic() + seconds)

    def worked(self, member: str, *, is_done: bool = True) -> None:
        """Note a reply, which ends the member's pause. ``is_done``: the answer is complete. Until
        then, the length of the pause is kept, so that a member that falls silent in the middle of
        every answer pauses longer each time."""
        if member not in self._pauses:
            return
        with self._lock:
            pause = self._pauses.get(member)
            if is_done:
                self._pauses.pop(member, None)
            elif pause is not None and pause.is_tried:
                pause.until = time.monotonic()
                pause.works = True
