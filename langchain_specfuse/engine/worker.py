"""A worker: the queue and the thread of one device. Members on one device take turns here.

:meth:`JobQueue.take` forms a batch from the oldest job in the queue and every other job that
:func:`can_share_batch` allows with it: jobs of the same kind and with the same time limit, for the
same member or for members that share a cache. The worker does not wait for a batch to fill: the
jobs that arrive while one batch runs form the next. The member decides how many jobs of a batch go
into one forward pass.

A member that works on each job by itself (:meth:`.Member.begin`) has no batches: it is handed each
job at once, and delivers each reply when it is there.

Between batches, long prompts are read in chunks (:class:`PrefillQueue`). A member that exceeds its
time limit, or gives no sign of life for too long (:mod:`.silence`), keeps its thread, and a new
thread serves the other members (:class:`Overdue`). Replies are checked here, once
(:mod:`.core.replies`), and delivered from the worker's thread.
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
from ..core.silence import late, quiet_s, silent
from ..core.values import Draft, DraftJob, Effort, Failure, PrefillPending, Scored, ScoreJob
from ..errors import UsageError, advised, amount, emptied
from .silence import WATCH, WatchedCall, sign_of

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A worker without work ends its thread after this long; the next job starts a new one."""
PREFILL_SHARE = 0.5
"""Reading long prompts takes at most this share of the time that other work takes meanwhile."""
CALLS = ("call", "forget")
"""Work that is no job."""


def _ignore(reply: Any) -> None:
    """The receiver of a reply that nobody needs."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
    """A job of one member in a worker's queue.

    ``deliver`` is called once, from a thread of the worker, if the job is still needed.
    """

    member: Any
    work: str
    """The member's method that takes a list of jobs, ``draft`` or ``score``; ``forget``, if the job
    is a query's id; or ``call``, if it is a plain function."""
    job: Any
    deliver: Callable[[Any], None]
    is_needed: Callable[[], bool] = lambda: True
    timeout_s: float | None = None
    silence_s: float | None = None
    """How long the member may give no sign of life while it works on the job. None: no limit."""
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
            return replace(
                self.job,
                prefill_chunks=self.prefill_chunks,
                silence_s=self.silence_s,
                timeout_s=self.timeout_s,
            )
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

    def put_first(self, jobs: Sequence[QueuedJob]) -> None:
        """Put jobs before all others, because they have waited elsewhere."""
        self._waiting.extendleft(reversed(jobs))

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
        self.put_first(others)
        return batch


def can_share_batch(job: QueuedJob, other: QueuedJob) -> bool:
    """Whether two jobs can be in one batch."""
    if job.work in CALLS:
        return False
    return (
        job.executor is other.executor
        and job.work == other.work
        # A batch has one time limit, so that no job fails at the limit of another. Limits of
        # silence may differ: see `_silence_limit`.
        and job.timeout_s == other.timeout_s
    )


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


class Overdue:
    """A call that exceeded a limit and has not returned: when it began, the jobs that still wait
    for its replies, and the jobs that wait for it to return."""

    def __init__(self, batch: list[QueuedJob], since: float) -> None:
        self.batch = batch
        self._since = since
        self.open = list(batch)
        """The jobs of its own batch that have not failed."""
        self.waiting: list[QueuedJob] = []
        self.watched: list[WatchedCall] = []
        """The waits for it to return that have a limit of silence."""
        self._silent_after: float | None = None
        """The member's last sign of life when it was found silent."""
        self._is_silent = False

    def note_silence(self) -> None:
        """Note that its member gives no sign of life."""
        self._is_silent = True
        self._silent_after = sign_of(signer_of(self.batch))

    def is_silent(self) -> bool:
        """Whether its member was found silent, and has given no sign since."""
        return self._is_silent and self._silent_after == sign_of(signer_of(self.batch))

    def left_s(self, timeout_s: float | None) -> float | None:
        """How much longer a job with this time limit waits for the call to return."""
        if timeout_s is None:
            return None
        return self._since + timeout_s - time.monotonic()


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
        self._running: list[QueuedJob] | None = None
        """The batch under way. Either the thread or the timer takes it out and delivers it."""
        self._overdue: dict[int, Overdue] = {}
        """Calls that exceeded a limit, by the id of the member or batch group."""
        self._begun: dict[int, set[QueuedJob]] = {}
        """The jobs under way of members that work on each by itself, by the member's id."""
        self._held: dict[int, list[QueuedJob]] = {}
        """Work that waits until such a member has no job under way: its calls, and what came after
        them."""
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

    def forget(self, member: Any, query_id: str) -> None:
        """Let a member free what it keeps for this query."""
        self.put(QueuedJob(member, "forget", query_id, _ignore))

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop all queued and later jobs, and wait for the batch under way."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._prefill.clear()
            self._held.clear()
            self._running = None
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
                    self._running = batch
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
        if self._waits_for_overdue(batch) or self._waits_for_begun(batch):
            return
        if batch[0].work not in CALLS and works_apart(batch[0].executor):
            self._begin(batch)
            return
        now = time.monotonic()
        timer = _timer(batch[0].timeout_s, self._give_up, batch, now)
        watched = self._watched(batch, now)
        since = time.perf_counter()
        replies = run_batch(batch)
        seconds = time.perf_counter() - since
        if timer is not None:
            timer.cancel()
        if watched is not None:
            WATCH.remove(watched)
        pairs = [
            (queued, with_cost(queued, reply, seconds))
            for queued, reply in zip(batch, replies, strict=True)
        ]
        still_open = self._end(batch)
        if still_open:
            self._hand_out([pair for pair in pairs if pair[0] in still_open], seconds)
        if batch[0].work == "forget":
            self._release_held(id(batch[0].executor))

    def _end(self, batch: list[QueuedJob]) -> list[QueuedJob]:
        """Note that the batch is no longer under way, and return its jobs that still wait for their
        replies. If it had been given up, the jobs that waited for its member to return go first."""
        with self._lock:
            if self._running is batch:
                self._running = None
                return batch
            overdue = self._overdue.pop(id(batch[0].executor), None)
            if overdue is None:
                return []
            for watched in overdue.watched:
                WATCH.remove(watched)
            if self._closed:
                return []
            self._queue.put_first(overdue.waiting)
            self._wake()
            return overdue.open

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
        still_open = self._end(batch)
        if not self._closed:
            failure = Failure.of(emptied(error))
            _deliver([(queued, failure) for queued in still_open])

    # - members that work on each job by itself

    def _begin(self, batch: list[QueuedJob]) -> None:
        """Hand the jobs to their member, which limits the time of each itself."""
        with self._lock:
            if self._closed:
                return
            self._running = None
            self._begun.setdefault(id(batch[0].executor), set()).update(batch)
        for queued in batch:
            deliver = partial(self._end_begun, queued, time.perf_counter())
            try:
                queued.member.begin(queued.work, queued.request, deliver)
            except Exception as error:  # the other jobs still begin
                deliver(Failure.of(emptied(error)))

    def _end_begun(self, queued: QueuedJob, since: float, reply: Any) -> None:
        """Deliver the first reply to a job that has begun."""
        executor = id(queued.executor)
        with self._lock:
            under_way = self._begun.get(executor, set())
            if self._closed or queued not in under_way:
                return
            under_way.remove(queued)
            if not under_way:
                del self._begun[executor]
        try:
            reply = with_cost(queued, _checked(queued, reply), time.perf_counter() - since)
        except Exception as error:  # somebody waits for the reply
            reply = Failure.of(emptied(error))
        # First what waits for this job, or the next job of its answer would overtake it.
        self._release_held(executor)
        _deliver([(queued, reply)])

    def _waits_for_begun(self, batch: list[QueuedJob]) -> bool:
        """Whether the batch has to wait for jobs that its member has begun: a call does, and so
        does all that comes after it."""
        executor, work = id(batch[0].executor), batch[0].work
        with self._lock:
            if work == "forget" or not self._is_needed(executor):
                return False
            if work != "call" and executor not in self._held:
                return False
            self._held.setdefault(executor, []).extend(batch)
            self._running = None
            return True

    def _is_needed(self, executor: int) -> bool:
        """Whether anybody waits for a job that this member has begun."""
        return any(queued.is_needed() for queued in self._begun.get(executor, ()))

    def _release_held(self, executor: int) -> None:
        """Queue the work that waits for this member, unless a job is still needed."""
        with self._lock:
            if executor in self._held and not self._is_needed(executor):
                self._queue.put_first(self._held.pop(executor))
                self._wake()

    # - members that exceed a limit

    def _give_up(self, batch: list[QueuedJob], since: float) -> None:
        """The call has exceeded its time limit: fail its jobs."""
        with self._lock:
            overdue = self._leave_thread_to(batch, since)
            if overdue is None:
                return
            given_up, overdue.open = overdue.open, []
        failure = late(batch[0].timeout_s or 0.0)
        _deliver([(queued, failure) for queued in given_up])

    def _give_up_silent(self, batch: list[QueuedJob], since: float, failure: Failure) -> None:
        """The member gives no sign of life: fail the jobs that have a limit of silence. The others
        wait for their replies."""
        with self._lock:
            overdue = self._leave_thread_to(batch, since)
            if overdue is None:
                return
            overdue.note_silence()
            given_up, overdue.open = _split(overdue.open)
        _deliver([(queued, failure) for queued in given_up])

    def _leave_thread_to(self, batch: list[QueuedJob], since: float) -> Overdue | None:
        """Leave the thread to this call, and continue with a new one. None: the call has returned.
        The caller holds the lock."""
        executor = id(batch[0].executor)
        if self._running is batch:
            self._running = None
            self._overdue[executor] = Overdue(batch, since)
            self._start()
        overdue = self._overdue.get(executor)
        return overdue if overdue is not None and overdue.batch is batch else None

    def _watched(self, batch: list[QueuedJob], since: float) -> WatchedCall | None:
        """Watch this call for signs of life, if a job has a limit of silence."""
        limit_s = _silence_limit(batch)
        if limit_s is None:
            return None
        signer = signer_of(batch)
        failure = silent(limit_s)
        if sign_of(signer) is None:
            limit_s += _allowance_s(batch)
            failure = Failure("timeout", f"no reply for {limit_s:g} s")
        watched = WatchedCall(signer, limit_s, partial(self._give_up_silent, batch, since, failure))
        WATCH.add(watched)
        return watched

    def _waits_for_overdue(self, batch: list[QueuedJob]) -> bool:
        """Whether the batch has to wait, because its member is still in a call that exceeded a
        limit.

        The time that the call has already taken counts towards the limit of the batch, so no job
        waits twice for the same call, and none fails at the limit of another. The same is true of
        its silence.
        """
        first = batch[0]
        with self._lock:
            overdue = self._overdue.get(id(first.executor))
            if overdue is None:
                return False
            left_s = overdue.left_s(first.timeout_s)
            overdue.waiting = [queued for queued in overdue.waiting if queued.is_needed()] + batch
        if left_s is not None and left_s <= 0:
            self._fail_waiting(batch, overdue)
        else:
            _timer(left_s, self._fail_waiting, batch, overdue)
            self._limit_wait(batch, overdue)
        return True

    def _limit_wait(self, batch: list[QueuedJob], overdue: Overdue) -> None:
        """Fail the jobs with a limit of silence when the overdue call has been silent for that
        long."""
        limit_s = _silence_limit(batch)
        if limit_s is None:
            return
        limited, _ = _split(batch)
        fail = partial(self._fail_waiting, limited, overdue)
        if overdue.is_silent():
            return fail()
        watched = WatchedCall(signer_of(overdue.batch), limit_s, fail)
        with self._lock:
            if self._overdue.get(id(batch[0].executor)) is overdue:
                overdue.watched.append(watched)
                WATCH.add(watched)

    def _fail_waiting(self, batch: list[QueuedJob], overdue: Overdue) -> None:
        """Fail the jobs of this batch that still wait for the overdue call."""
        with self._lock:
            if self._overdue.get(id(batch[0].executor)) is not overdue:
                return  # the call has returned, and the jobs are back in the queue
            waiting = [queued for queued in batch if queued in overdue.waiting]
            overdue.waiting = [queued for queued in overdue.waiting if queued not in batch]
        failure = Failure("timeout", "still busy with an earlier call that took too long")
        _deliver([(queued, failure) for queued in waiting])


def _timer(after_s: float | None, act: Callable[..., None], *args: Any) -> threading.Timer | None:
    """Call ``act`` when the time is over; None where there is no limit."""
    if after_s is None:
        return None
    timer = threading.Timer(after_s, act, args)
    timer.daemon = True
    timer.start()
    return timer


def works_apart(member: Any) -> bool:
    """Whether jobs go to the member's ``begin``. They do not if a subclass overrides ``draft`` or
    ``score`` and not ``begin``."""
    for kind in type(member).__mro__:
        if "begin" in vars(kind):
            return True
        if "draft" in vars(kind) or "score" in vars(kind):
            return False
    return False


def signer_of(batch: list[QueuedJob]) -> Any:
    """What gives the signs of life of a batch: the batch group, or the member."""
    first = batch[0]
    return first.member if sign_of(first.executor) is None else first.executor


def _split(batch: Iterable[QueuedJob]) -> tuple[list[QueuedJob], list[QueuedJob]]:
    """The jobs that have a limit of silence, and the others."""
    limited: list[QueuedJob] = []
    others: list[QueuedJob] = []
    for queued in batch:
        (others if queued.silence_s is None else limited).append(queued)
    return limited, others


def _silence_limit(batch: Iterable[QueuedJob]) -> float | None:
    """How long the member may be silent in this batch: the longest of the limits, because a member
    may give no sign while it reads the prompt of another job."""
    limits = (queued.silence_s for queued in batch)
    return max((limit for limit in limits if limit is not None), default=None)


def _allowance_s(batch: Iterable[QueuedJob]) -> float:
    """How much longer than its limit a member without signs of life may take for a batch."""
    jobs = [queued.job for queued in batch if isinstance(queued.job, DraftJob)]
    tokens = sum(min(job.segment_tokens, job.max_tokens) for job in jobs)
    return quiet_s(tokens)


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
    """The replies to a batch, one for each job, each valid or a failure. If a member raises, its
    part of the batch fails."""
    first = batch[0]
    try:
        if first.work in CALLS:
            return [first.job() if first.work == "call" else first.member.forget(first.job)]
        return _replies(batch)
    # The error goes to whoever waits for the replies: a library that exits the interpreter would
    # end only this thread, and they would wait forever.
    except BaseException as error:
        parts = _by_member(batch)
        if len(parts) > 1:  # one member's error must not hurt the others of its group
            return _run_apart(batch, parts)
        if first.work in CALLS:  # nobody may wait for its reply, so the error would be lost
            thread, name = threading.current_thread().name, getattr(first.member, "name", "")
            log.exception("%s: a call to %s failed", thread, name)
        return [Failure.of(emptied(error))] * len(batch)


def _replies(batch: list[QueuedJob]) -> list[Any]:
    """What the member, or the batch group, returns for these jobs."""
    first = batch[0]
    if len(_by_member(batch)) == 1:
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


def _by_member(batch: list[QueuedJob]) -> list[list[QueuedJob]]:
    parts: dict[int, list[QueuedJob]] = {}
    for queued in batch:
        parts.setdefault(id(queued.member), []).append(queued)
    return list(parts.values())


def _run_apart(batch: list[QueuedJob], parts: list[list[QueuedJob]]) -> list[Any]:
    """The replies to a batch, in its order, where each part is run on its own."""
    replies = {}
    for part in parts:
        for queued, reply in zip(part, run_batch(part), strict=True):
            replies[id(queued)] = reply
    return [replies[id(queued)] for queued in batch]


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
