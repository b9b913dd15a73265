"""What waits for a worker: tasks, which of them form a batch, and long prompts that are read in
chunks between batches.

Threads and time limits are in ``worker``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..core.member import batch_group_of
from ..core.replies import failure_of, is_late, pending_failure
from ..core.values import Draft, DraftJob, Effort, Failure, PrefillPending, Scored, ScoreJob
from ..errors import amount, emptied

log = logging.getLogger("langchain_specfuse")

PREFILL_SHARE = 0.5
"""Reading long prompts takes at most this share of the time that other work takes meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One job for one member. ``deliver`` is called once, from a worker's thread, while the task is
    still wanted.

    With ``keep_waiting`` a job that exceeds its time limit is not given up: ``deliver`` is called
    with a ``late`` failure, and again with the reply when it comes, if it is still wanted.
    """

    member: Any
    work: str
    """The member's method that takes a list of jobs, ``draft`` or ``score``; or ``call`` for a
    plain function."""
    job: Any
    deliver: Callable[[Any], None]
    wanted: Callable[[], bool] = lambda: True
    timeout_s: float | None = None
    keep_waiting: bool = False
    prefill_chunks: int | None = 0
    """As in :class:`.DraftJob`: 0 asks the member to report a long context, 1 to read a chunk, None
    to read it all."""
    left: int | None = None
    """Tokens left to read after the last chunk; None: not read in chunks."""
    spent: Effort = field(default_factory=Effort)
    """The cost of the chunks so far."""
    executor: Any = field(init=False)
    """What does the work: the member, or its batch group. Fixed here, because a member may join a
    group meanwhile."""

    def __post_init__(self) -> None:
        try:
            group = batch_group_of(self.member)
        except BaseException:  # a member may be anyone's code, and this may run in any thread
            group = None
        object.__setattr__(self, "executor", self.member if group is None else group)


class TaskQueue:
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, tasks: Iterable[Task]) -> None:
        self._waiting.extend(tasks)

    def put_first(self, tasks: Sequence[Task]) -> None:
        """Before all others: these have waited elsewhere."""
        self._waiting.extendleft(reversed(tasks))

    def clear(self) -> None:
        self._waiting.clear()

    def take(self) -> list[Task]:
        """The first wanted task and all that can be in one batch with it; empty if there is
        none."""
        # Emptied first: a finalizer that runs here may put something in.
        here = [self._waiting.popleft() for _ in range(len(self._waiting))]
        wanted = [task for task in here if task.wanted()]
        if not wanted:
            return []
        first = wanted[0]
        batch = [task for task in wanted if task is first or _alike(task, first)]
        taken = set(map(id, batch))
        self._waiting.extendleft(reversed([task for task in wanted if id(task) not in taken]))
        return batch


class PrefillQueue:
    """Tasks with a long context to read, one chunk at a time between other work; the first is read
    to its end."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._owed_s = 0.0
        """Seconds of other work before the next chunk."""

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, *, others: bool) -> Task | None:
        """The task whose chunk is next; None while other work (``others``) comes first."""
        if others and self._owed_s > 0:
            return None
        while self._waiting:
            task = self._waiting.popleft()
            if task.wanted():
                return task
        return None

    def record(self, seconds: float, *, reading: bool) -> None:
        """A chunk or other work took this long."""
        self._owed_s = (
            self._owed_s + seconds / PREFILL_SHARE if reading else max(self._owed_s - seconds, 0.0)
        )

    def put(self, task: Task, pending: PrefillPending) -> Task | None:
        """Queue the task for its next chunk; return it once it can run normally."""
        spent, left = task.spent + pending.effort, pending.left
        if not left:
            return replace(task, prefill_chunks=0, left=None, spent=spent)
        if task.left is not None and left >= task.left:
            # Other queries needed the room of what had been read. To end this, read everything at
            # once.
            return replace(task, prefill_chunks=None, left=None, spent=spent)
        again = replace(task, prefill_chunks=1, left=left, spent=spent)
        self._waiting.append(again) if task.left is None else self._waiting.appendleft(again)
        return None


def _alike(one: Task, other: Task) -> bool:
    """Whether two tasks can be in one batch."""
    return (
        one.executor is other.executor
        and one.work == other.work != "call"
        and one.timeout_s == other.timeout_s  # a batch has one limit: no task fails at another's
        and one.keep_waiting == other.keep_waiting
    )


# --- running a batch ------------------------------------------------------------------------------


def run_batch(batch: list[Task]) -> Sequence[Any]:
    """The replies to a batch. If a member raises, its own part of the batch fails."""
    first = batch[0]
    try:
        if first.work == "call":
            return [first.job()]
        # Copied, and bounded in length: the member's list may be endless, or change later.
        replies = list(islice(_replies(batch), len(batch) + 1))
        if len(replies) != len(batch):
            more = "more than " if len(replies) > len(batch) else ""
            raise ValueError(
                f"{first.work} returned {more}{amount(min(len(replies), len(batch)), 'reply')} to "
                f"{amount(len(batch), 'job')}"
            )
        return replies
    # a member may raise anything, even SystemExit; the worker continues
    except BaseException as error:
        parts = _by_member(batch)
        if len(parts) > 1:  # one member's error must not hurt the others of its group
            found = {
                id(task): reply
                for part in parts
                for task, reply in zip(part, run_batch(part), strict=True)
            }
            return [found[id(task)] for task in batch]
        if first.work == "call":  # nothing waits for its reply, so the error would be lost
            log.exception("%s: a call to %s failed", threading.current_thread().name, names(batch))
        return [Failure.of(emptied(error))] * len(batch)


def _replies(batch: list[Task]) -> Sequence[Any]:
    first, parts = batch[0], _by_member(batch)
    replies: Sequence[Any]
    if len(parts) == 1:
        replies = getattr(first.member, first.work)([_job(task) for task in batch])
    else:
        replies = getattr(first.executor, first.work)([(task.member, _job(task)) for task in batch])
    return replies


def _job(task: Task) -> Any:
    job = task.job
    return (
        replace(job, prefill_chunks=task.prefill_chunks)
        if isinstance(job, DraftJob | ScoreJob)
        else job
    )


def _by_member(batch: list[Task]) -> list[list[Task]]:
    parts: dict[int, list[Task]] = {}
    for task in batch:
        parts.setdefault(id(task.member), []).append(task)
    return list(parts.values())


def names(batch: list[Task]) -> str:
    """The members of a batch, for people."""
    return "+".join(getattr(part[0].member, "name", "") for part in _by_member(batch))


def timed(batch: list[Task], replies: Sequence[Any], began: float, seconds: float) -> list[Any]:
    """The replies with the time that they took, where the member does not report it, and the cost
    of their chunks."""
    return [
        _timed(task, _checked(task, reply), began, seconds)
        for task, reply in zip(batch, replies, strict=True)
    ]


def _checked(task: Task, reply: Any) -> Any:
    """The reply if it is valid for this job, otherwise a failure. A member cannot report itself
    late: only a time limit decides that."""
    job = task.job
    if not isinstance(job, DraftJob | ScoreJob):
        return reply
    if issubclass(type(reply), PrefillPending):
        return _pending_failure(task, reply) or reply
    failure = failure_of(job, reply)
    if failure is None:
        return reply
    if is_late(failure):
        return Failure("error", f"reported itself late: {failure.message}", failure.cause)
    return failure


def _pending_failure(task: Task, pending: PrefillPending) -> Failure | None:
    if task.prefill_chunks is None:
        return Failure("error", "did not reply although it was asked to read everything")
    failure = pending_failure(pending)
    if failure is None and pending.left < 0:
        return Failure("error", f"has {pending.left} tokens left to read")
    return failure


def _timed(task: Task, reply: Any, began: float, seconds: float) -> Any:
    if not isinstance(reply, Draft | Scored | Failure | PrefillPending):
        return reply
    effort = reply.effort
    if effort.began and not task.spent.began:
        return reply
    if not effort.began:
        effort = replace(effort, began=began, seconds=effort.seconds or seconds)
    return replace(
        reply, effort=effort if isinstance(reply, PrefillPending) else effort + task.spent
    )
