"""A task: one job for one member, which tasks can be one batch, and what a batch is told by those who do the work.

Whatever a member raises becomes a failure of its own part of the batch. Knows members; nothing of threads, inboxes or
time limits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.member import kin_of
from ..core.values import KINDS, DraftJob, Effort, Failure, ScoreJob, Unread
from ..errors import amount, emptied

log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One job for one member. ``deliver`` is called exactly once, from a thread of the desk, unless nobody wants it.

    With ``stays`` a job whose time is up is not given up: ``deliver`` is told that it is late, and gets the reply when
    it is there, if somebody still wants it.
    """

    member: Any
    work: str
    """The member's method that takes a list of jobs: ``draft`` or ``score``; or ``call`` for a plain function."""
    job: Any
    deliver: Callable[[Any], None]
    wanted: Callable[[], bool] = lambda: True
    timeout_s: float | None = None
    stays: bool = False
    priority: int = 0
    """Goes before those with less, up to so many turns as the difference."""
    pieces: int | None = 0
    """What the job says of long texts (see :class:`.DraftJob`): they are told, read piece by piece, or read whole."""
    left: int | None = None
    """How much was left to read after the last piece; None: it is not read piece by piece."""
    spent: Effort = field(default_factory=Effort)
    """What its pieces cost."""
    who: Any = field(init=False)
    """Who does the work: the member alone, or its kin. Fixed here: a member may come by its kin while it works."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "who", kin_of(self.member) or self.member)


def alike(one: Task, other: Task) -> bool:
    """Whether two tasks can be one batch."""
    return (
        one.who is other.who
        and one.work == other.work != "call"
        and one.timeout_s == other.timeout_s  # a batch has one limit: nobody fails at somebody else's
        and one.stays == other.stays
    )


def answered(batch: list[Task]) -> Sequence[Any]:
    """The member's replies; whatever it raises becomes a failure of the whole batch, or of its own part of it."""
    first = batch[0]
    try:
        if first.work == "call":
            return [first.job()]
        replies = _asked(batch)
        if len(replies) != len(batch):
            raise ValueError(f"{first.work} returned {amount(len(replies), 'reply')} to {amount(len(batch), 'job')}")
        return replies
    except BaseException as error:  # a member may raise anything, SystemExit too; it leaves, the desk stays
        parts = _by_member(batch)
        if len(parts) > 1:  # whoever it was must not take its kin along
            found = {id(task): reply for part in parts for task, reply in zip(part, answered(part), strict=True)}
            return [found[id(task)] for task in batch]
        if first.work == "call":  # nobody waits for its reply: it must not fail unheard
            log.exception("%s: a call to %s failed", threading.current_thread().name, first.member)
        kind = getattr(error, "kind", "error")
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return [Failure(kind if kind in KINDS else "error", message, emptied(error))] * len(batch)


def _asked(batch: list[Task]) -> Sequence[Any]:
    first, parts = batch[0], _by_member(batch)
    told: Sequence[Any]
    if len(parts) == 1:
        told = getattr(first.member, first.work)([_job(task) for task in batch])
    else:
        told = getattr(first.who, first.work)([(task.member, _job(task)) for task in batch])
    return told


def _job(task: Task) -> Any:
    """The task's job, which says how much of a long text may be read now."""
    job = task.job
    return replace(job, pieces=task.pieces) if isinstance(job, DraftJob | ScoreJob) else job


def _by_member(batch: list[Task]) -> list[list[Task]]:
    """Each member's own part of a batch."""
    parts: dict[int, list[Task]] = {}
    for task in batch:
        parts.setdefault(id(task.member), []).append(task)
    return list(parts.values())


def names(batch: list[Task]) -> str:
    return "+".join(getattr(part[0].member, "name", "") for part in _by_member(batch))


def timed(batch: list[Task], replies: Sequence[Any], began: float, seconds: float) -> list[Any]:
    """The same replies, saying when their work began and how long it took, where the member does not say it itself;
    with what was spent on reading piece by piece."""
    return [_dated(task, reply, began, seconds) for task, reply in zip(batch, replies, strict=True)]


def _dated(task: Task, reply: Any, began: float, seconds: float) -> Any:
    effort = getattr(reply, "effort", None)
    if not isinstance(effort, Effort) or (effort.began and not task.spent.began):
        return reply
    if not effort.began:
        effort = replace(effort, began=began, seconds=effort.seconds or seconds)
    return replace(reply, effort=effort if isinstance(reply, Unread) else effort + task.spent)
