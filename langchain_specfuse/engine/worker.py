"""A worker: the queue and the thread of one device. Members on one device take turns here.

Tasks that wait for the same member (or for members that share weights) and the same kind of work
become one batch: that is continuous batching. Long prompts are read in chunks between the others'
batches. The worker does not know what the work is, who asked, or what comes next; it delivers
replies from its own thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ..core.member import batch_group_of
from ..core.replies import failure_of, is_late, pending_failure
from ..core.values import LATE, Draft, DraftJob, Effort, Failure, PrefillPending, Scored, ScoreJob
from ..errors import UsageError, advised, amount, emptied

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A worker without work ends its thread after this long; the next task starts a new one."""
PREFILL_SHARE = 0.5
"""Reading long prompts takes at most this share of the time that other work takes meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
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


class JobQueue:
    """Tasks in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedJob] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, tasks: Iterable[QueuedJob]) -> None:
        self._waiting.extend(tasks)

    def put_first(self, tasks: Sequence[QueuedJob]) -> None:
        """Before all others: these have waited elsewhere."""
        self._waiting.extendleft(reversed(tasks))

    def clear(self) -> None:
        self._waiting.clear()

    def take(self) -> list[QueuedJob]:
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
        self._waiting: deque[QueuedJob] = deque()
        self._owed_s = 0.0
        """Seconds of other work before the next chunk."""

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, *, others: bool) -> QueuedJob | None:
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

    def put(self, task: QueuedJob, pending: PrefillPending) -> QueuedJob | None:
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


def _alike(one: QueuedJob, other: QueuedJob) -> bool:
    """Whether two tasks can be in one batch."""
    return (
        one.executor is other.executor
        and one.work == other.work != "call"
        and one.timeout_s == other.timeout_s  # a batch has one limit: no task fails at another's
        and one.keep_waiting == other.keep_waiting
    )


# --- the worker ---


class Overdue:
    """A member that exceeded its time limit: since when it has been working, and the tasks that
    wait for its return."""

    def __init__(self, since: float) -> None:
        self._since = since
        self.waiting: list[QueuedJob] = []

    def left_s(self, timeout_s: float | None) -> float | None:
        """How much longer a task with this limit waits for the member."""
        return None if timeout_s is None else self._since + timeout_s - time.monotonic()


class Worker:
    """The queue and thread of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.batches: deque[tuple[str, str, int]] = deque(maxlen=1000)
        """(members, work, size) of the last batches, for tests and for those who want to watch
        batching."""
        self._queue = JobQueue()
        self._prefill = PrefillQueue()
        # Re-entrant, because a finalizer that cancels a run may be called anywhere, also here. A
        # separate lock, because an interrupt while a condition is left would never give that lock
        # back.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._running: list[QueuedJob] | None = None
        """The batch under way. The thread or the timer takes it out, and whichever does delivers
        it."""
        self._overdue: dict[int, Overdue] = {}
        """Members that exceeded their time limit and are still working."""
        self._closed = False

    def put(self, *tasks: QueuedJob) -> None:
        """Queue tasks."""
        refuse_fork()
        with self._lock:
            self._queue.put(tasks)
            self._wake()

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop all queued and later tasks, and wait for the batch under way."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._prefill.clear()
            self._running = None
            thread, self._thread = self._thread, None
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    @property
    def _waiting(self) -> bool:
        return bool(self._queue or self._prefill)

    def _wake(self) -> None:
        if self._waiting and not self._closed:
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._news.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"specfuse-{self.device}", daemon=True)
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        try:
            while batch := self._next_batch():
                try:
                    self._run(batch)
                except BaseException as error:  # one batch must not end the thread of the others
                    self._broke_off(batch, error)
        finally:
            self._replace_ended_thread()

    def _next_batch(self) -> list[QueuedJob]:
        """The next batch; empty when this thread should end."""
        with self._lock:
            while self._thread is threading.current_thread():
                if batch := self._take():
                    self._running = batch
                    return batch
                if (
                    not self._news.wait(IDLE_S)
                    and not self._waiting
                    and self._thread is threading.current_thread()
                ):
                    self._thread = None
        return []

    def _take(self) -> list[QueuedJob]:
        """A chunk of a long prompt if it is time for one, else whatever waits."""
        chunk = self._prefill.take(others=bool(self._queue))
        batch = [chunk] if chunk else self._queue.take()
        if batch or not (chunk := self._prefill.take(others=False)):
            return batch
        return [chunk]  # the queued tasks were not wanted any more

    def _run(self, batch: list[QueuedJob]) -> None:
        first = batch[0]
        if self._must_wait(batch):
            return
        timer = _timer(first.timeout_s, self._give_up, batch, time.monotonic())
        began, since = time.time(), time.perf_counter()
        replies = run_batch(batch)
        seconds = time.perf_counter() - since
        if timer:
            timer.cancel()
        if self._in_time(batch) or (first.keep_waiting and not self._closed):
            self.batches.append(
                (names(batch), "read" if first.prefill_chunks else first.work, len(batch))
            )
            self._finish(batch, timed(batch, replies, began, seconds), seconds)

    def _broke_off(self, batch: list[QueuedJob], error: BaseException) -> None:
        """The batch ended with an error that did not come from a member: its tasks fail with it."""
        log.error("%s: a batch failed", threading.current_thread().name, exc_info=error)
        self._in_time(batch)
        if not self._closed:
            failure = Failure.of(emptied(error))
            _deliver([(task, failure) for task in batch])

    def _replace_ended_thread(self) -> None:
        """If something ended this thread from outside, another one takes over its tasks."""
        with self._lock:
            if self._thread is threading.current_thread():
                self._thread = None
                self._queue.put_first(self._running or [])
                self._running = None
                self._wake()

    def _finish(self, batch: list[QueuedJob], replies: list[Any], seconds: float) -> None:
        """Deliver the replies; tasks with a long context to read are queued for that."""
        done = []
        with self._lock:
            self._prefill.record(seconds, reading=bool(batch[0].prefill_chunks))
            for task, reply in zip(batch, replies, strict=True):
                if not isinstance(reply, PrefillPending):
                    done.append((task, reply))
                elif not self._closed and (again := self._prefill.put(task, reply)):
                    self._queue.put([again])
            self._wake()
        _deliver(done)

    def _must_wait(self, batch: list[QueuedJob]) -> bool:
        """Whether the member is still in a call that exceeded its limit: the batch then waits
        within its own limit.

        So no task fails at another's limit, and none waits twice for the same call.
        """
        first = batch[0]
        with self._lock:
            overdue = self._overdue.get(id(first.executor))
            if overdue is None:
                return False
            left_s = overdue.left_s(first.timeout_s)
            overdue.waiting = [task for task in overdue.waiting if task.wanted()] + batch
        if left_s is not None and left_s <= 0:
            self._still_overdue(batch)
        else:
            _timer(left_s, self._still_overdue, batch)
        return True

    def _still_overdue(self, batch: list[QueuedJob]) -> None:
        """The member has not returned in time for this batch either."""
        first = batch[0]
        with self._lock:
            overdue = self._overdue.get(id(first.executor))
            still_waiting = [task for task in batch if overdue and task in overdue.waiting]
            if overdue and not first.keep_waiting:
                overdue.waiting = [task for task in overdue.waiting if task not in batch]
        failure = _timeout(first, "still busy with an earlier call that took too long")
        _deliver([(task, failure) for task in still_waiting])

    def _give_up(self, batch: list[QueuedJob], since: float) -> None:
        """The member exceeded its limit: leave this thread to it and continue with a new one."""
        first = batch[0]
        with self._lock:
            if self._running is not batch:
                return
            self._running = None
            self._overdue[id(first.executor)] = Overdue(since)
            self._start()
        failure = _timeout(first, f"did not answer within member_timeout={first.timeout_s:g} s")
        _deliver([(task, failure) for task in batch])

    def _in_time(self, batch: list[QueuedJob]) -> bool:
        """False: the batch was given up. Its member has returned now, so tasks that waited for it
        go first."""
        with self._lock:
            if self._running is batch:
                self._running = None
                return True
            overdue = self._overdue.pop(id(batch[0].executor), None)
            self._queue.put_first(overdue.waiting if overdue else [])
            self._wake()
            return False


def _timer(after_s: float | None, act: Callable[..., None], *args: Any) -> threading.Timer | None:
    """Call ``act`` when the time is over; None where there is no limit."""
    if after_s is None:
        return None
    timer = threading.Timer(after_s, act, args)
    timer.daemon = True
    timer.start()
    return timer


def _timeout(task: QueuedJob, message: str) -> Failure:
    return Failure(LATE if task.keep_waiting else "timeout", message)


def _deliver(replies: list[tuple[QueuedJob, Any]]) -> None:
    for task, reply in replies:
        if task.wanted():
            try:
                task.deliver(reply)
            # one receiver's error must not end the thread that others wait for
            except BaseException:
                log.exception("a reply could not be delivered")


# --- running a batch ------------------------------------------------------------------------------


def run_batch(batch: list[QueuedJob]) -> Sequence[Any]:
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


def _replies(batch: list[QueuedJob]) -> Sequence[Any]:
    first, parts = batch[0], _by_member(batch)
    replies: Sequence[Any]
    if len(parts) == 1:
        replies = getattr(first.member, first.work)([_job(task) for task in batch])
    else:
        replies = getattr(first.executor, first.work)([(task.member, _job(task)) for task in batch])
    return replies


def _job(task: QueuedJob) -> Any:
    job = task.job
    return (
        replace(job, prefill_chunks=task.prefill_chunks)
        if isinstance(job, DraftJob | ScoreJob)
        else job
    )


def _by_member(batch: list[QueuedJob]) -> list[list[QueuedJob]]:
    parts: dict[int, list[QueuedJob]] = {}
    for task in batch:
        parts.setdefault(id(task.member), []).append(task)
    return list(parts.values())


def names(batch: list[QueuedJob]) -> str:
    """The members of a batch, for people."""
    return "+".join(getattr(part[0].member, "name", "") for part in _by_member(batch))


def timed(
    batch: list[QueuedJob], replies: Sequence[Any], began: float, seconds: float
) -> list[Any]:
    """The replies with the time that they took, where the member does not report it, and the cost
    of their chunks."""
    return [
        _timed(task, _checked(task, reply), began, seconds)
        for task, reply in zip(batch, replies, strict=True)
    ]


def _checked(task: QueuedJob, reply: Any) -> Any:
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


def _pending_failure(task: QueuedJob, pending: PrefillPending) -> Failure | None:
    if task.prefill_chunks is None:
        return Failure("error", "did not reply although it was asked to read everything")
    failure = pending_failure(pending)
    if failure is None and pending.left < 0:
        return Failure("error", f"has {pending.left} tokens left to read")
    return failure


def _timed(task: QueuedJob, reply: Any, began: float, seconds: float) -> Any:
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


# --- one worker per device ------------------------------------------------------------------------

_WORKERS: weakref.WeakValueDictionary[str, Worker] = weakref.WeakValueDictionary()
"""A worker lives while its thread runs, a member is in a call, or something refers to it. So a
device has at most one worker, and none when it is not used."""
_OPENING = threading.RLock()
_CLOSING = False
"""The interpreter is shutting down: no more threads are started."""
_OWNER = 0
"""The process that was asked a question: its threads are not in processes that were forked from it
later."""


def worker_for(device: str) -> Worker:
    """The one worker of this device in this process."""
    note_question()
    with _OPENING:
        worker = _WORKERS.get(device)
        if worker is None:
            worker = _WORKERS[device] = Worker(device)
            if _CLOSING:
                worker.close()
        return worker


def note_question() -> None:
    """This process has been asked a question."""
    global _OWNER
    refuse_fork()
    _OWNER = os.getpid()


def forked() -> bool:
    """Whether this process was forked from one that had been asked a question."""
    return _OWNER not in (0, os.getpid())


def refuse_fork() -> None:
    """Raise if a question would wait forever because its threads are in the parent process."""
    if forked():
        error = UsageError(
            f"process {os.getpid()} was forked from one whose members had been at work; their "
            "threads stayed there"
        )
        advice = (
            "start it with multiprocessing's 'spawn' or 'forkserver', or fork before the "
            "first question"
        )
        raise advised(error, advice)


@atexit.register
def _close() -> None:
    """Let batches end before the interpreter does: a thread inside C++ would abort the process."""
    global _CLOSING
    if forked():
        return
    with _OPENING:
        _CLOSING = True
        workers = list(_WORKERS.values())
    for worker in workers:
        worker.close()
