"""How long an answer waits: for members, for checks, and for a member that is being loaded.

The side that waits enforces the time limits. They are set here, and the caller checks them while it
waits for the next round (``engine.drive``). The side that works knows none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.checks import CheckJob, Verdict
from ..core.options import Settings
from ..core.values import Failure
from .calls import Task

SILENCE_S, FIRST_SILENCE_S = 30.0, 120.0
"""How long nothing may arrive from a lead with a reserve, and how long its first token may take,
because a cold server or a long prompt needs more time. A member's own ``silence_s`` replaces
both."""
LOADS_S = 600.0
"""How long an answer waits for a member in reserve that is being loaded."""


class Waiting:
    """What an answer waits for: the replies to one ``Ask`` of its loop, which arrive on several
    threads, and the time limit of each. A reply that comes too late is dropped."""

    def __init__(
        self, names: Sequence[Any], go_on: Callable[[list[Any]], None] = lambda replies: None
    ) -> None:
        """``go_on`` gets all replies, in the order of the names, in the thread of the last one."""
        self._names = names
        self._go_on = go_on
        self._replies: dict[Any, Any] = {}
        self._lock = threading.Lock()
        self.limits: dict[Any, Limit | SilenceLimit] = {}

    def deliver(
        self, name: Any, reply: Any, otherwise: Callable[[], object] = lambda: None
    ) -> None:
        """Take a reply. If it takes the place of another, ``otherwise`` is called first, to end the
        work on that."""
        with self._lock:
            if name in self._replies:
                return
            self._replies[name] = reply
            is_complete = len(self._replies) == len(self._names)
        otherwise()
        if is_complete:
            self._go_on([self._replies[name] for name in self._names])

    def begin_anew(self) -> None:
        """Start the clocks again: until now, nobody has waited."""
        now = time.monotonic()
        for name, limit in self.limits.copy().items():
            if isinstance(limit, Limit):
                self.limits[name] = replace(limit, since=now)

    def is_open(self, name: Any) -> bool:
        return name not in self._replies

    def left_s(self) -> float | None:
        """The time until the next limit; None if there is none."""
        ends = [limit.end() for name, limit in self.limits.copy().items() if self.is_open(name)]
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def late(self) -> list[tuple[Any, Limit | SilenceLimit]]:
        """The names whose time is over, with their limits."""
        now = time.monotonic()
        limits = self.limits.copy().items()
        return [
            (name, limit) for name, limit in limits if self.is_open(name) and limit.end() <= now
        ]


@dataclass(frozen=True, slots=True)
class Limit:
    """How long an answer waits for a reply."""

    seconds: float
    late: Any
    """What takes the place of a reply that is late."""
    since: float
    """When the clock starts."""

    def end(self) -> float:
        return self.since + self.seconds


@dataclass(frozen=True, slots=True)
class SilenceLimit:
    """How long an answer waits if nothing arrives for a piece of work."""

    task: Task
    seconds: float
    first_s: float
    """How long it waits for the first part of the reply."""

    @property
    def late(self) -> Failure:
        return Failure("timeout", f"no token for {self._now_s():g} s")

    def end(self) -> float:
        now = time.monotonic()
        if self.task.last is None:  # it waits for its turn: look again later
            return now + self.seconds
        end = self.task.last + self._now_s()
        if not self.task.has_arrived and end > now:  # once something arrives, less is left
            return min(end, now + self.seconds)
        return end

    def _now_s(self) -> float:
        return self.seconds if self.task.has_arrived else self.first_s


def of_member(
    member: Any, settings: Settings, task: Task | None, *, replaceable: bool
) -> Limit | SilenceLimit | None:
    """How long an answer waits for this member. ``task``: its work, if it waits for others.
    ``replaceable``: another member could take over."""
    seconds = settings.member_timeout
    if seconds is not None:
        message = f"did not answer within member_timeout={seconds:g} s"
        return Limit(seconds, Failure("timeout", message), time.monotonic())
    # If a model in this process or a server of ours ends, that is noticed at once.
    if not replaceable or task is None or getattr(member, "is_owned", False):
        return None
    first_s, seconds = getattr(member, "silence_s", None) or (FIRST_SILENCE_S, SILENCE_S)
    if settings.timeout is not None:  # so that the reserve has some time left
        seconds, first_s = min(seconds, settings.timeout / 2), min(first_s, settings.timeout / 2)
    return SilenceLimit(task, seconds, first_s)


def of_checks(jobs: Sequence[CheckJob]) -> dict[int, Limit]:
    """How long each of these checks may take."""
    now = time.monotonic()
    limits = {}
    for number, job in enumerate(jobs):
        seconds = job.check.timeout_s
        verdict = Verdict(f"took longer than {seconds:g} s", is_broken=True)
        limits[number] = Limit(seconds, verdict, now)
    return limits


def of_load() -> Limit:
    """How long an answer waits for a member in reserve that is being loaded."""
    failure = Failure("timeout", f"it has been loading for more than {LOADS_S:g} s")
    return Limit(LOADS_S, failure, time.monotonic())
