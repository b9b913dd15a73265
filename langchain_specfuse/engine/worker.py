"""A worker: the queue and the thread of one device. Members on one device take turns here.

:meth:`JobQueue.take` forms a batch from the oldest job in the queue and every other job of the same
kind for the same member, or for members that share a cache. The worker does not wait for a batch to
fill: the jobs that arrive while one batch runs form the next. The member decides how many jobs of a
batch go into one forward pass. Between batches, long prompts are read in chunks
(:class:`PrefillQueue`).

A worker knows no time limits: whoever waits for a reply enforces them (``engine.drive``), and drops
a reply that comes too late. Replies are checked here, once (:mod:`.core.replies`), and delivered
from the worker's thread. Members that wait for others have no worker (``engine.calls``).
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
from functools import partial
from typing import Any

from ..core.replies import checked_reply
from ..core.values import Draft, DraftJob, Effort, Failure, PrefillPending, Scored, ScoreJob
from ..errors import UsageError, advised, amount, emptied
from .calls import Task, calls_of, waits

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A worker without work ends its thread after this long; the next job starts a new one."""
PREFILL_SHARE = 0.5
"""Reading long prompts takes at most this share of the time that other work takes meanwhile."""


def _ignore(reply: Any) -> None:
    """The receiver of a reply that nobody needs."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
    """A job of one member in a worker's queue.

    ``deliver`` is called once, from a thread of the worker, if the job is still needed.
    """

    member: Any
    work: str
    """The member's method that takes a list of jobs, ``draft`` or ``score``; or ``call``, if the
    job is a plain function."""
    job: Any
    deliver: Callable[[Any], None]
    is_needed: Callable[[], bool] = lambda: True
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
        group = getattr(self.member, "batch_group", None)
        object.__setattr__(self, "executor", self.member if group is None else group)

    @property
    def request(self) -> Any:
        """What the member is sent."""
        if isinstance(self.job, DraftJob | ScoreJob):
            return replace(self.job, prefill_chunks=self.prefill_chunks)
        return self.job


# --- who shares a batch ---------------------------------------------------------------------------


class JobQueue:
    """Jobs in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedJob] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, jobs: Iterable[QueuedJob]) -> None:
        self._waiting.extend(jobs)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self) -> list[QueuedJob]:
        """The next batch: the oldest job that is still needed, and all that can share a batch with
        it. Empty if no job is needed."""
        # The queue is emptied first, because a finalizer that runs here may put something in.
        jobs = [self._waiting.popleft() for _ in range(len(self._waiting))]
        jobs = [queued for queued in jobs if queued.is_needed()]
        if not jobs:
            return []
        first = jobs[0]
        batch, others = [], []
        for queued in jobs:
            if queued is first or can_share_batch(queued, first):
                batch.append(queued)
            else:
                others.append(queued)
        self._waiting.extendleft(reversed(others))
        return batch


def can_share_batch(job: QueuedJob, other: QueuedJob) -> bool:
    """Whether two jobs can be in one batch."""
    return job.work == other.work != "call" and job.executor is other.executor


class PrefillQueue:
    """Jobs with a long context to read, one chunk at a time between other work. The first of them
    is read to its end before the next begins."""

    def __init__(self) -> None:
        self._waiting: deque[QueuedJob] = deque()
        self._owed_s = 0.0
        """Seconds of other work before the next chunk."""

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, *, others: bool) -> QueuedJob | None:
        """The job whose chunk is read next; None while other work (``others``) comes first."""
        if others and self._owed_s > 0:
            return None
        while self._waiting:
            queued = self._waiting.popleft()
            if queued.is_needed():
                return queued
        return None

    def record(self, seconds: float, *, reading: bool) -> None:
        """Count the time that a chunk, or other work, has taken."""
        if reading:
            self._owed_s += seconds / PREFILL_SHARE
        else:
            self._owed_s = max(self._owed_s - seconds, 0.0)

    def put(self, queued: QueuedJob, pending: PrefillPending) -> QueuedJob | None:
        """Queue the job for its next chunk, or return it if it can run like any other."""
        spent, left = queued.spent + pending.effort, pending.left
        if not left:
            return replace(queued, prefill_chunks=0, left=None, spent=spent)
        if queued.left is not None and left >= queued.left:
            # The cache has dropped earlier chunks to make room for other queries. In chunks, the
            # prompt might never be complete: the job reads everything at once.
            return replace(queued, prefill_chunks=None, left=None, spent=spent)
        next_chunk = replace(queued, prefill_chunks=1, left=left, spent=spent)
        if queued.left is None:
            self._waiting.append(next_chunk)
        else:
            self._waiting.appendleft(next_chunk)
        return None


# --- the worker -----------------------------------------------------------------------------------


class Worker:
    """The queue and thread of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._queue = JobQueue()
        self._prefill = PrefillQueue()
        # Re-entrant, because the garbage collector closes the streams that nobody reads any more
        # in any thread, even here.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, *jobs: QueuedJob) -> None:
        """Queue jobs."""
        with self._lock:
            self._queue.put(jobs)
            self._wake()

    def call(
        self, member: Any, function: Callable[[], Any], deliver: Callable[[Any], None] = _ignore
    ) -> None:
        """Call a function on this worker's thread while the member is not at work. An error is
        logged, and ``deliver`` gets a :class:`.Failure`."""
        self.put(QueuedJob(member, "call", function, deliver))

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop all queued and later jobs, and wait for the batch under way."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._prefill.clear()
            thread, self._thread = self._thread, None
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    # - the thread

    def _wake(self) -> None:
        """Let a thread look for work. The caller holds the lock."""
        if self._closed or not self._has_work():
            return
        if self._thread is None or not self._thread.is_alive():
            self._start()
        self._news.notify()

    def _has_work(self) -> bool:
        return bool(self._queue or self._prefill)

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"specfuse-{self.device}", daemon=True)
        thread.start()
        self._thread = thread

    def _is_current(self) -> bool:
        """Whether the calling thread is still the one that takes batches."""
        return self._thread is threading.current_thread()

    def _work(self) -> None:
        while batch := self._next_batch():
            try:
                self._run(batch)
            except Exception as error:
                # a failed batch must not end the thread that computes the others
                self._fail(batch, error)
            del batch  # its members may be unloaded, which frees nothing while it is kept

    def _next_batch(self) -> list[QueuedJob]:
        """Wait for the next batch; empty when this thread should end."""
        with self._lock:
            while self._is_current():
                batch = self._choose_batch()
                if batch:
                    return batch
                notified = self._news.wait(IDLE_S)
                if not notified and not self._has_work() and self._is_current():
                    self._thread = None
        return []

    def _choose_batch(self) -> list[QueuedJob]:
        """One chunk of a long prompt if its turn has come, else a batch from the queue."""
        chunk = self._prefill.take(others=bool(self._queue))
        if chunk is not None:
            return [chunk]
        batch = self._queue.take()
        if batch:
            return batch
        # No queued job was still needed, so nothing comes before the next chunk.
        chunk = self._prefill.take(others=False)
        return [] if chunk is None else [chunk]

    # - one batch

    def _run(self, batch: list[QueuedJob]) -> None:
        since = time.perf_counter()
        replies = run_batch(batch)
        seconds = time.perf_counter() - since
        pairs = [
            (queued, with_cost(queued, reply, seconds))
            for queued, reply in zip(batch, replies, strict=True)
        ]
        self._hand_out(pairs, seconds)

    def _hand_out(self, pairs: Sequence[tuple[QueuedJob, Any]], seconds: float) -> None:
        """Deliver the replies, and queue the jobs that have a long context to read."""
        done = []
        with self._lock:
            self._prefill.record(seconds, reading=bool(pairs[0][0].prefill_chunks))
            for queued, reply in pairs:
                if not isinstance(reply, PrefillPending):
                    done.append((queued, reply))
                elif not self._closed:
                    ready = self._prefill.put(queued, reply)
                    if ready is not None:
                        self._queue.put([ready])
            self._wake()
        _deliver(done)

    def _fail(self, batch: list[QueuedJob], error: BaseException) -> None:
        """Fail the jobs of a batch that ended with an error which did not come from a member."""
        log.error("%s: a batch failed", threading.current_thread().name, exc_info=error)
        if not self._closed:
            failure = Failure.of(emptied(error))
            _deliver([(queued, failure) for queued in batch])


def _deliver(replies: Sequence[tuple[QueuedJob, Any]]) -> None:
    for queued, reply in replies:
        if not queued.is_needed():
            continue
        try:
            queued.deliver(reply)
        # one receiver's error must not end the thread that others wait for
        except Exception:
            log.exception("a reply could not be delivered")


# --- running a batch ------------------------------------------------------------------------------


def run_batch(batch: list[QueuedJob]) -> list[Any]:
    """The replies to a batch, one for each job, each valid or a failure. If a member raises, all of
    its jobs fail."""
    first = batch[0]
    try:
        return [first.job()] if first.work == "call" else _replies(batch)
    # The error goes to whoever waits for the replies: a library that exits the interpreter would
    # end only this thread, and they would wait forever.
    except BaseException as error:
        if not _is_of_one_member(batch):  # its error must not hurt the others of its group
            return [run_batch([queued])[0] for queued in batch]
        if first.work == "call":  # nobody may wait for its reply, so the error would be lost
            thread, name = threading.current_thread().name, getattr(first.member, "name", "")
            log.exception("%s: a call to %s failed", thread, name)
        return [Failure.of(emptied(error))] * len(batch)


def _replies(batch: list[QueuedJob]) -> list[Any]:
    """What the member, or the batch group, returns for these jobs."""
    first = batch[0]
    if _is_of_one_member(batch):
        work = getattr(first.member, first.work)
        returned = work([queued.request for queued in batch])
    else:
        work = getattr(first.executor, first.work)
        returned = work([(queued.member, queued.request) for queued in batch])
    replies = list(returned)
    if len(replies) != len(batch):
        count = amount(len(replies), "reply")
        raise ValueError(f"{first.work} returned {count} to {amount(len(batch), 'job')}")
    return [_checked(queued, reply) for queued, reply in zip(batch, replies, strict=True)]


def _checked(queued: QueuedJob, reply: Any) -> Any:
    if isinstance(queued.job, DraftJob | ScoreJob):
        return checked_reply(queued.request, reply)
    return reply


def _is_of_one_member(batch: list[QueuedJob]) -> bool:
    return all(queued.member is batch[0].member for queued in batch)


def with_cost(queued: QueuedJob, reply: Any, seconds: float) -> Any:
    """The reply with the time that it took, where the member does not report it, and with the cost
    of the chunks that were read for it before."""
    if not isinstance(reply, Draft | Scored | Failure | PrefillPending):
        return reply
    effort = reply.effort
    if not effort.seconds:
        effort = replace(effort, seconds=seconds)
    if queued.spent != Effort() and not isinstance(reply, PrefillPending):
        effort += queued.spent
    if effort is reply.effort:
        return reply
    return replace(reply, effort=effort)


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


def task_of(queued: QueuedJob) -> Task:
    """The work on this job, for a member that waits for others."""

    def work() -> Any:
        since = time.perf_counter()
        (reply,) = run_batch([queued])
        return with_cost(queued, reply, time.perf_counter() - since)

    def deliver(reply: Any) -> None:
        if queued.is_needed():
            queued.deliver(reply)

    note_question()
    return Task(work, deliver, queued.job.query.id)


def call(
    member: Any, function: Callable[[], Any], deliver: Callable[[Any], None] = _ignore
) -> None:
    """Call a function while the member is not at work, in a thread that may use the member."""
    if waits(member):
        calls_of(member).begin(Task(function, deliver, is_exclusive=True))
    else:
        worker_for(member.device).call(member, function, deliver)


def forget(member: Any, query_id: str) -> None:
    """Let a member free what it keeps for this query, when it does not work on it any more."""
    if waits(member):
        calls_of(member).forget(query_id, partial(member.forget, query_id))
    else:
        worker_for(member.device).call(member, partial(member.forget, query_id))


def note_question() -> None:
    """Remember that this process has been asked a question."""
    global _OWNER
    refuse_fork()
    _OWNER = os.getpid()


def forked() -> bool:
    """Whether this process was forked from one that had been asked a question."""
    return _OWNER not in (0, os.getpid())


def refuse_fork() -> None:
    """Raise an error in a forked process, where a question would wait forever: its threads are in
    the parent process."""
    if not forked():
        return
    error = UsageError(
        f"process {os.getpid()} was forked from one whose members had been at work; their "
        "threads stayed there"
    )
    advice = (
        "start it with multiprocessing's 'spawn' or 'forkserver', or fork before the first question"
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
