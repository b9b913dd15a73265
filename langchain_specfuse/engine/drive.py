"""Drives the loop: a :class:`Run` advances it from the workers' threads; ``drive`` and ``adrive``
read its rounds.

The thread that delivers the last reply to an ``Ask`` advances that query, so its next jobs are
queued before the worker forms its next batch: queries stay in step. The caller's thread only reads
a queue. Closing the iterator, for any reason, cancels the run and frees its caches within one
round.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from ..core.member import Member
from ..core.round import Round
from ..core.rounds import Loop
from ..core.values import Ask, DraftJob, Replies, Reply
from ..errors import BusyError, advised, amount
from .worker import QueuedJob, forked, refuse_fork, worker_for

log = logging.getLogger("langchain_specfuse")

_MISSING = object()
HINT_S = 1.0
"""The wait that a refused call is advised per answer ahead of it: a fixed guess, as answers differ
in length."""

Sink = Callable[[Round | BaseException | None], None]
"""Takes the rounds, then None; or an error instead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How many answers one call allows."""

    max_concurrency: int | None = None
    """It begins when fewer answers than this are under way. None: no limit."""
    max_waiting: int | None = None
    """It is refused if it must wait and this many are waiting already. None: never refused."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    who: Hashable
    limits: Limits
    start: Callable[[], object]


class Admission:
    """The answers under way, and those that wait for their turn, first come first served."""

    def __init__(self) -> None:
        # Re-entrant, because a finalizer that cancels an answer may be called anywhere, also in
        # here.
        self._lock = threading.RLock()
        self._under_way: set[Hashable] = set()
        self._waiting: list[_Waiting] = []
        self._admitted: list[_Waiting] = []
        """Counted as running, but not started yet: others may arrive while one is started."""
        self._starting = False

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, who: Hashable, limits: Limits, start: Callable[[], object]) -> None:
        """Call ``start`` once, now or when it is their turn. :class:`.BusyError` if too many are
        waiting."""
        with self._lock:
            before = len(self._waiting)
            must_wait = before > 0 or not self._fits(limits)
            if must_wait and limits.max_waiting is not None and before >= limits.max_waiting:
                raise self._busy(limits, before)
            self._waiting.append(_Waiting(who, limits, start))
            self._admit()
        self._start_admitted()

    def leave(self, who: Hashable) -> None:
        """Their answer is over, or no longer wanted."""
        with self._lock:
            self._waiting = [one for one in self._waiting if one.who != who]
            self._admitted = [one for one in self._admitted if one.who != who]
            self._under_way.discard(who)
            self._admit()
        self._start_admitted()

    def _admit(self) -> None:
        """Admit all answers whose turn it is: from now on they count as running."""
        while self._waiting and self._fits(self._waiting[0].limits):
            first = self._waiting.pop(0)
            self._under_way.add(first.who)
            self._admitted.append(first)

    def _start_admitted(self) -> None:
        """Start all admitted answers. One loop does this for all threads, because an answer that
        ends immediately makes room for another."""
        while True:
            mine = False
            try:  # begins before the flag is set, so that an interrupt anywhere takes it back
                with self._lock:
                    if self._starting or not self._admitted:
                        return
                    mine = self._starting = True
                    first = self._admitted.pop(0)
                first.start()
            finally:
                if mine:
                    self._starting = False

    def _fits(self, limits: Limits) -> bool:
        return limits.max_concurrency is None or len(self._under_way) < limits.max_concurrency

    def _busy(self, limits: Limits, before: int) -> BusyError:
        hint = HINT_S * (1 + before / (limits.max_concurrency or 1))
        state = (
            f"{amount(len(self._under_way), 'answer')} under way "
            f"(max_concurrency={limits.max_concurrency})"
        )
        error = BusyError(
            f"{state} and {before} waiting (max_waiting={limits.max_waiting})", retry_after_s=hint
        )
        return advised(error, f"ask again in about {hint:.1f} s, or raise max_waiting=")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Time limits of one answer, and when it may begin."""

    timeout: float | None = None
    """Seconds for the whole answer, after which TimeoutError is raised."""
    member_timeout: float | None = None
    """Seconds for one reply of one member, which leaves the answer if it exceeds them."""
    limits: Limits = Limits()
    admission: Admission = field(default_factory=Admission)


class Run:
    """One answer under way."""

    def __init__(
        self,
        loop: Loop,
        query_id: str,
        members: Mapping[str, Member],
        schedule: Schedule,
        sink: Sink,
    ) -> None:
        self._loop = loop
        self._query_id = query_id
        self._members = members
        self._schedule = schedule
        self._sink = sink
        self._over = False
        self._asked: dict[tuple[str, str], None] = {}
        """(member, query id) of all jobs: what the members may keep something for."""

    def start(self) -> None:
        """Begin, now or when it is this answer's turn."""
        self._schedule.admission.enter(self, self._schedule.limits, self._begin)

    def cancel(self) -> None:
        """Drop all later replies and free every member's caches. Harmless when the run is over."""
        if not self._over:
            self._over = True
            if forked():
                return  # it continues in the parent process
            try:
                self._forget(self._members)
            finally:  # or the others would wait for this answer
                self._schedule.admission.leave(self)

    def _begin(self) -> None:
        if not self._over:
            self._advance(None)

    def _advance(self, replies: Replies | None) -> None:
        """Move the loop to its next ``Ask``, handing out the rounds on the way."""
        try:
            item = self._loop.send(replies)
            while not isinstance(item, Ask):
                if self._over:
                    return
                self._forget([departure.member for departure in item.left])
                self._sink(item)
                item = next(self._loop)
            self._ask(item)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # whatever it is belongs to the caller, not to the worker
            self._end(error)

    def _ask(self, ask: Ask) -> None:
        """Queue the jobs of an ``Ask``; the thread that delivers the last reply goes on."""
        replies = ReplyCollector(ask)

        def deliver(name: str, reply: Reply) -> None:
            complete = replies.add(name, reply)
            if complete is not None and not self._over:
                self._advance(complete)

        by_device: dict[str, list[QueuedJob]] = {}
        for name, job in ask.jobs.items():
            member = self._members[name]
            self._asked.setdefault((name, job.query.id))
            queued = QueuedJob(
                member,
                "draft" if isinstance(job, DraftJob) else "score",
                job,
                partial(deliver, name),
                wanted=lambda: not self._over,
                timeout_s=self._schedule.member_timeout,
            )
            by_device.setdefault(member.device, []).append(queued)
        for device, jobs in by_device.items():
            # together, or the first would be taken alone, without its batch group
            worker_for(device).put(*jobs)

    def _end(self, last: BaseException | None) -> None:
        try:
            self.cancel()
        finally:
            self._sink(last)

    def _forget(self, names: Collection[str]) -> None:
        """Let these members free what they keep for this answer: everything for every query that
        they were asked."""
        for key in self._asked.copy():
            name, query_id = key
            if name not in names or self._asked.pop(key, _MISSING) is _MISSING:
                continue
            member = self._members[name]
            try:
                # Through the queue, or it would race with the batch that is running.
                worker_for(member.device).call(member, partial(member.forget, query_id))
            except Exception:  # a member is code of others; the others forget all the same
                log.exception("%s cannot forget an answer that is over", name)


class ReplyCollector:
    """The replies to one ``Ask``, which arrive on several threads."""

    def __init__(self, ask: Ask) -> None:
        self._names = list(ask.jobs)
        self._replies: dict[str, Reply] = {}
        self._lock = threading.Lock()

    def add(self, name: str, reply: Reply) -> Replies | None:
        """Add a reply. Returns all replies, in the order of the jobs, once the last has come."""
        with self._lock:
            if name in self._replies:
                return None
            self._replies[name] = reply
            if len(self._replies) < len(self._names):
                return None
            return {name: self._replies[name] for name in self._names}


class AnswerLate(TimeoutError):
    """The answer took too long. ``text`` is what had been agreed until then."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class _Deadline:
    """The time limit of the whole answer."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self.agreed = ""

    def left_s(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def error(self) -> TimeoutError:
        return AnswerLate(
            f"the answer was not complete within timeout={self._timeout:g} s", self.agreed
        )


def drive(
    loop: Loop, query_id: str, members: Mapping[str, Member], schedule: Schedule | None = None
) -> Iterator[Round]:
    """The rounds of one answer, as they are agreed."""
    schedule = schedule or Schedule()
    news: queue.SimpleQueue[Round | BaseException | None] = queue.SimpleQueue()
    deadline = _Deadline(schedule.timeout)

    def next_item() -> Round | BaseException | None:
        refuse_fork()  # a forked child has no worker that would put anything in
        try:
            return news.get(timeout=deadline.left_s())
        except queue.Empty:
            raise deadline.error() from None

    run = Run(loop, query_id, members, schedule, news.put)
    try:
        run.start()
        while (item := next_item()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()


async def adrive(
    loop: Loop, query_id: str, members: Mapping[str, Member], schedule: Schedule | None = None
) -> AsyncGenerator[Round, None]:
    """``drive`` for asyncio."""
    schedule = schedule or Schedule()
    news: asyncio.Queue[Round | BaseException | None] = asyncio.Queue()
    event_loop = asyncio.get_running_loop()
    deadline = _Deadline(schedule.timeout)

    def post(item: Round | BaseException | None) -> None:
        try:
            event_loop.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:  # the event loop was closed: there is no reader any more
            run.cancel()

    async def next_item() -> Round | BaseException | None:
        try:
            return await asyncio.wait_for(news.get(), deadline.left_s())
        except TimeoutError:
            raise deadline.error() from None

    run = Run(loop, query_id, members, schedule, post)
    try:
        run.start()
        while (item := await next_item()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()
