"""Drives one answer: :class:`Admission` decides when it may begin, a :class:`Run` advances its loop
from the threads of workers, calls and streams, and ``drive`` and ``adrive`` hand its rounds to the
caller.

The thread that delivers the last reply to an ``Ask`` advances that answer, so its next jobs are
queued before the worker forms its next batch: answers stay in step. The caller's thread reads a
queue and enforces the time limits: a reply that is late is replaced by a failure, and the answer
goes on. Closing the iterator, for any reason, cancels the run, ends its requests and frees
its caches.
"""

from __future__ import annotations

import asyncio
import logging
import math
import queue
import threading
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Generator,
    Hashable,
    Mapping,
)
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ..core.checks import CheckAsk
from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..core.rounds import Loop
from ..core.values import Ask, DraftJob, Effort, Failure, Panelist, Wake
from ..errors import BusyError, advised, amount, message_of
from .calls import Task, calls_of, waits
from .leading import LeadStream
from .limits import Limit, SilenceLimit, Waiting, of_checks, of_load, of_member
from .worker import QueuedJob, forget, forked, refuse_fork, task_of, worker_for

if TYPE_CHECKING:
    from .checker import Checker

log = logging.getLogger("langchain_specfuse")

AHEAD = 2
"""A stream is not read while the caller has this many rounds still to take."""
HINT_S = 1.0
"""How long a refused call is advised to wait for each answer ahead of it. This is a fixed guess,
because answers differ in length."""


# --- when an answer may begin ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    """An answer that asks to begin."""

    key: Hashable
    max_concurrency: int
    start: Callable[[], object]


class Admission:
    """The answers under way on one ensemble, and those that wait for their turn, first come first
    served."""

    def __init__(self) -> None:
        # Re-entrant, because the garbage collector closes the streams that nobody reads any more
        # in any thread, even while this lock is held.
        self._lock = threading.RLock()
        self._under_way: set[Hashable] = set()
        self._waiting: list[_Entry] = []
        self._admitted: list[_Entry] = []
        """Answers that count as under way but have not been started: several may arrive while one
        is being started."""
        self._starting = False

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, key: Hashable, settings: Settings, start: Callable[[], object]) -> None:
        """Call ``start`` once, now or as soon as fewer than ``max_concurrency`` answers are under
        way.

        Raises :class:`.BusyError` if the answer would have to wait while ``max_waiting`` others
        wait already.
        """
        entry = _Entry(key, settings.max_concurrency, start)
        with self._lock:
            before = len(self._waiting)
            must_wait = before > 0 or not self._fits(entry)
            if must_wait and settings.max_waiting is not None and before >= settings.max_waiting:
                raise self._busy(settings, before)
            self._waiting.append(entry)
            self._admit()
        self._start_admitted()

    def leave(self, key: Hashable) -> None:
        """Note that an answer is over, or that its caller no longer waits for it."""
        with self._lock:
            self._waiting = [entry for entry in self._waiting if entry.key != key]
            self._admitted = [entry for entry in self._admitted if entry.key != key]
            self._under_way.discard(key)
            self._admit()
        self._start_admitted()

    def _admit(self) -> None:
        """Admit all answers whose turn it is: from now on they count as under way."""
        while self._waiting and self._fits(self._waiting[0]):
            first = self._waiting.pop(0)
            self._under_way.add(first.key)
            self._admitted.append(first)

    def _start_admitted(self) -> None:
        """Start all admitted answers. One thread does this for all others, because an answer that
        ends immediately makes room for another."""
        while True:
            with self._lock:
                if self._starting or not self._admitted:
                    return
                self._starting = True
                first = self._admitted.pop(0)
            try:
                first.start()
            finally:
                self._starting = False

    def _fits(self, entry: _Entry) -> bool:
        return len(self._under_way) < entry.max_concurrency

    def _busy(self, settings: Settings, before: int) -> BusyError:
        hint = HINT_S * (1 + before / settings.max_concurrency)
        under_way = amount(len(self._under_way), "answer")
        error = BusyError(
            f"{under_way} under way (max_concurrency={settings.max_concurrency}) and {before} "
            f"waiting (max_waiting={settings.max_waiting})",
            retry_after_s=hint,
        )
        return advised(error, f"ask again in about {hint:.1f} s, or raise max_waiting=")


# --- one answer under way -------------------------------------------------------------------------

Sink = Callable[[Round | BaseException | None], None]
"""Takes the rounds, then None; or an error instead."""
WakeMember = Callable[[str], "Future[Panelist]"]
"""Loads a member in reserve."""
_ABSENT = object()


class Run:
    """One answer under way."""

    def __init__(
        self,
        loop: Loop,
        members: Mapping[str, Member],
        settings: Settings,
        admission: Admission,
        sink: Sink,
        checker: Checker | None = None,
        wake: WakeMember | None = None,
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """``look`` is called from any thread when the time limits have changed. Whoever waits for
        the rounds enforces them: it calls :meth:`expire` when :meth:`left_s` is over."""
        self._loop = loop
        self._members = members
        self._settings = settings
        self._admission = admission
        self._sink = sink
        self._checker = checker
        self._wake_member = wake
        self._look = look
        self._handed_out = 0
        """How many rounds have been handed out, and how many of them the caller has taken."""
        self._taken = 0
        self._ahead_since: float | None = None
        """Since when the caller has not taken what came last."""
        self.held_s = 0.0
        """How long streams were not read for that reason."""
        self._looks_at = math.inf
        """When :meth:`expire` will be called if nothing changes."""
        self._over = False
        self._waiting = Waiting(())
        self._streams: dict[str, LeadStream] = {}
        """member -> its open stream."""
        self._led: set[str] = set()
        """The members that have had a stream."""
        self._asked: dict[tuple[str, str], None] = {}
        """(member, query id) of every job: the queries for which members may keep something."""

    def start(self) -> None:
        """Begin, now or when it is this answer's turn."""
        self._admission.enter(self, self._settings, self._begin)

    def cancel(self) -> None:
        """Drop all later replies, end all requests, and free every member's caches. Has no effect
        if the run is over."""
        if self._over:
            return
        self._over = True
        if forked():
            return  # it continues in the parent process
        try:
            if self._checker is not None:
                self._checker.close()
            self._forget(self._members)
        finally:  # otherwise the other answers would wait for this one
            self._admission.leave(self)

    # --- the caller -------------------------------------------------------------------------------

    def take(self) -> None:
        """Note that the caller has taken a round."""
        self._taken += 1
        if self._handed_out - self._taken == AHEAD - 1:
            if self._ahead_since is not None:
                self.held_s += time.monotonic() - self._ahead_since
                self._ahead_since = None
            self._waiting.begin_anew()
            for stream in list(self._streams.values()):
                stream.go_on()

    def _is_ahead(self) -> bool:
        """Whether streams should not be read, because the caller has not taken the last rounds.
        What arrives meanwhile becomes one chunk."""
        return self._handed_out - self._taken >= AHEAD

    # --- time limits ------------------------------------------------------------------------------

    def left_s(self) -> float | None:
        """The time until the next time limit; None if there is none."""
        self._looks_at = math.inf  # first: a limit that is set meanwhile calls `look`
        left_s = self._waiting.left_s()
        if left_s is not None:
            self._looks_at = time.monotonic() + left_s
        return left_s

    def expire(self) -> None:
        """Replace late replies by failures, and close their requests: the answer goes on."""
        waiting = self._waiting
        for name, limit in waiting.late():
            waiting.deliver(name, limit.late, partial(self._give_up, name, limit))

    def _give_up(self, name: str, limit: Limit | SilenceLimit) -> None:
        """End the work that is late. (In a member that leaves, ``_forget`` ends what is left.)"""
        self._close_stream(name)
        if isinstance(limit, SilenceLimit):
            calls_of(self._members[name]).close(limit.task)

    def _wait_for(self, waiting: Waiting) -> None:
        self._waiting = waiting
        left_s = waiting.left_s() if waiting.limits else None
        if left_s is not None and time.monotonic() + left_s < self._looks_at:
            self._look()

    # --- the loop ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._over:
            self._advance(None)

    def _advance(self, replies: Any) -> None:
        """Move the loop to its next question to members or checks, handing out the rounds on the
        way."""
        try:
            if self._over:
                return
            item = self._loop.send(replies)
            while isinstance(item, Round):
                if item.left:
                    self._forget([departure.member for departure in item.left])
                self._handed_out += 1
                if self._handed_out - self._taken == AHEAD:
                    self._ahead_since = time.monotonic()
                self._sink(item)
                item = next(self._loop)
            if isinstance(item, Ask):
                self._ask(item)
            elif isinstance(item, Wake):
                self._wake(item)
            else:
                self._check(item)
        except StopIteration:
            self._end(None)
        # the worker's thread hands the error to the caller, who waits for the next round
        except BaseException as error:
            self._end(error)

    def _ask(self, ask: Ask) -> None:
        """Start the jobs of an ``Ask``. The thread that delivers the last reply advances the
        loop."""
        names = list(ask.jobs)
        waiting = Waiting(
            names, lambda replies: self._advance(dict(zip(names, replies, strict=True)))
        )
        begins: list[Callable[[], object]] = []
        by_device: dict[str, list[QueuedJob]] = {}
        for name, job in ask.jobs.items():
            member = self._members[name]
            # Noted before the job is queued: a cancel in between drops the job.
            self._asked[name, job.query.id] = None
            deliver = partial(waiting.deliver, name)
            task: Task | None = None
            if isinstance(job, DraftJob) and job.leads and hasattr(member, "stream"):
                stream, begin = self._stream(name, job, deliver, in_words=ask.replaceable)
                task = stream.task
                begins.append(begin)
            else:
                self._close_stream(name)
                work = "draft" if isinstance(job, DraftJob) else "score"
                needed = partial(self._needs, waiting, name)
                queued = QueuedJob(member, work, job, deliver, needed)
                if waits(member):
                    task = task_of(queued)
                    begins.append(partial(calls_of(member).begin, task))
                else:
                    by_device.setdefault(member.device, []).append(queued)
            limit = of_member(member, self._settings, task, replaceable=ask.replaceable)
            if limit is not None:
                waiting.limits[name] = limit
        self._wait_for(waiting)
        for begin in begins:
            begin()
        for device, jobs in by_device.items():
            # together, or the first would be taken alone, without its batch group
            worker_for(device).put(*jobs)
        if self._over:  # it was cancelled meanwhile
            self._forget(self._members)

    def _needs(self, waiting: Waiting, name: str) -> bool:
        return not self._over and waiting.is_open(name)

    def _stream(
        self,
        name: str,
        job: DraftJob,
        deliver: Callable[[Any], None],
        *,
        in_words: bool,
        spent: Effort | None = None,
    ) -> tuple[LeadStream, Callable[[], object]]:
        """The member's stream that goes on with this job, and a function that asks it for more."""
        stream = self._streams.get(name)
        if stream is not None and stream.agrees_with(job):
            return stream, partial(stream.ask, job, deliver)
        self._close_stream(name)
        in_words = in_words or self._checker is not None
        stream = LeadStream(
            self._members[name],
            job,
            deliver,
            partial(self._reopen, name, in_words=in_words),
            self._is_ahead,
            in_words=in_words,
            in_thoughts=bool(self._settings.checks),
            is_first=name not in self._led,
            spent=spent,
        )
        self._led.add(name)
        self._streams[name] = stream
        return stream, stream.open

    def _reopen(
        self,
        name: str,
        job: DraftJob,
        deliver: Callable[[Any], None],
        spent: Effort,
        *,
        in_words: bool,
    ) -> None:
        """Go on with another stream, because this one has ended before the answer. ``spent``: what
        it has cost and not reported."""
        stream, begin = self._stream(name, job, deliver, in_words=in_words, spent=spent)
        limit = self._waiting.limits.get(name)
        if isinstance(limit, SilenceLimit):
            self._waiting.limits[name] = replace(limit, task=stream.task)
        begin()
        if self._over:  # it was cancelled meanwhile
            self._close_stream(name)

    def _close_stream(self, name: str) -> None:
        stream = self._streams.pop(name, None)
        if stream is not None:
            stream.close()

    def _wake(self, wake: Wake) -> None:
        """Load a member that was in reserve. The thread that loads it advances the loop."""
        waiting = Waiting([wake.member], lambda replies: self._advance(replies[0]))
        waiting.limits[wake.member] = of_load()

        def deliver(loading: Future[Panelist]) -> None:
            error = loading.exception()
            reply = loading.result() if error is None else Failure.of(error, message_of(error))
            waiting.deliver(wake.member, reply)

        assert self._wake_member is not None
        self._wait_for(waiting)
        self._wake_member(wake.member).add_done_callback(deliver)

    def _check(self, ask: CheckAsk) -> None:
        """Run the user's checks. The thread that delivers the last verdict advances the loop."""
        waiting = Waiting(range(len(ask.jobs)), self._advance)
        waiting.limits.update(of_checks(ask.jobs))
        assert self._checker is not None
        self._wait_for(waiting)
        if any(hasattr(job.check.function, "invoke") for job in ask.jobs):  # a model takes long
            for stream in list(self._streams.values()):
                stream.read_on()
        self._checker.ask(ask.jobs, waiting.deliver)

    def _end(self, last: BaseException | None) -> None:
        try:
            self.cancel()
        finally:
            self._sink(last)

    def _forget(self, names: Collection[str]) -> None:
        """Let these members free what they keep for this answer, whichever queries it asked."""
        for name in names:
            self._close_stream(name)
        # A copy, because another thread may cancel the run or ask on meanwhile.
        for key in self._asked.copy():
            name, query_id = key
            if name not in names or self._asked.pop(key, _ABSENT) is _ABSENT:
                continue
            # Not at once, or it would race with the work that is under way.
            forget(self._members[name], query_id)


# --- for the caller -------------------------------------------------------------------------------


class AnswerLate(TimeoutError):
    """The answer took too long. ``text`` is what had been agreed until then."""

    def __init__(self, timeout: float, text: str) -> None:
        super().__init__(f"the answer was not complete within timeout={timeout:g} s")
        self.text = text


class Look:
    """Put among the rounds, so that their reader looks at the time limits again."""


class _Deadline:
    """The time limit of the whole answer, and the text that has been agreed so far."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end = math.inf if timeout is None else time.monotonic() + timeout
        self.agreed = ""

    def wait_s(self, run: Run) -> float | None:
        """How long to wait for the next round: until this time limit, or that of a reply."""
        limits = [self._end + run.held_s - time.monotonic(), run.left_s()]
        left_s = min(limit for limit in limits if limit is not None)
        return None if left_s == math.inf else max(left_s, 0.0)

    def check(self, run: Run) -> None:
        """Raise if the time is over."""
        if time.monotonic() >= self._end + run.held_s:
            assert self._timeout is not None
            raise AnswerLate(self._timeout, self.agreed)


def drive(
    loop: Loop,
    members: Mapping[str, Member],
    settings: Settings,
    admission: Admission,
    checker: Checker | None = None,
    wake: WakeMember | None = None,
) -> Generator[Round, None, None]:
    """The rounds of one answer, as they are agreed. ``settings`` has its time limits, and how many
    answers may be under way with it. ``wake`` loads members in reserve."""
    news: queue.SimpleQueue[Round | BaseException | Look | None] = queue.SimpleQueue()
    deadline = _Deadline(settings.timeout)

    def next_item() -> Round | BaseException | None:
        while True:
            refuse_fork()  # a forked child has no worker that would put anything in
            try:
                item = news.get(timeout=deadline.wait_s(run))
            except queue.Empty:
                deadline.check(run)
                run.expire()
                continue
            if not isinstance(item, Look):
                run.take()
                return item

    look = partial(news.put, Look())
    run = Run(loop, members, settings, admission, news.put, checker, wake, look)
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
    loop: Loop,
    members: Mapping[str, Member],
    settings: Settings,
    admission: Admission,
    checker: Checker | None = None,
    wake: WakeMember | None = None,
) -> AsyncGenerator[Round, None]:
    """``drive`` for asyncio."""
    news: asyncio.Queue[Round | BaseException | Look | None] = asyncio.Queue()
    event_loop = asyncio.get_running_loop()
    deadline = _Deadline(settings.timeout)

    def post(item: Round | BaseException | Look | None) -> None:
        try:
            event_loop.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:  # the event loop was closed: there is no reader any more
            run.cancel()

    async def next_item() -> Round | BaseException | None:
        while True:
            limit_s = deadline.wait_s(run) if news.empty() else None
            try:
                if limit_s is None:
                    item = await news.get()
                else:
                    async with asyncio.timeout(limit_s):
                        item = await news.get()
            except TimeoutError:
                if news.empty():  # otherwise it arrived in time, and its reader is late
                    deadline.check(run)
                    await asyncio.to_thread(run.expire)  # it may go on with the answer
                continue
            if not isinstance(item, Look):
                run.take()
                return item

    run = Run(loop, members, settings, admission, post, checker, wake, partial(post, Look()))
    try:
        run.start()
        while (item := await next_item()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()
