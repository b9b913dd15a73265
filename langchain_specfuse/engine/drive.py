"""Drives one answer: :class:`Admission` decides when it may begin, a :class:`Run` advances its loop
from the workers' threads, and ``drive`` and ``adrive`` hand its rounds to the caller.

The thread that delivers the last reply to an ``Ask`` advances that answer, so its next jobs are
queued before the worker forms its next batch: answers stay in step. The caller's thread only reads
a queue. Closing the iterator, for any reason, cancels the run and frees its caches within one
round.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ..core.checks import CheckAsk, Verdicts
from ..core.member import Member
from ..core.options import Settings
from ..core.round import Round
from ..core.rounds import Loop
from ..core.values import Ask, DraftJob, Failure, Panelist, Replies, Reply, Wake
from ..errors import BusyError, advised, amount
from .worker import QueuedJob, forked, refuse_fork, worker_for

if TYPE_CHECKING:
    from .checker import Checker

log = logging.getLogger("langchain_specfuse")

HINT_S = 1.0
"""How long a refused call is advised to wait for each answer ahead of it. This is a fixed guess,
because answers differ in length."""
SILENCE_S, FIRST_SILENCE_S = 30.0, 120.0
"""How long a lead with a reserve may be silent: in a later job of an answer, and in its first one,
because the first token takes longer from a cold provider, or after a long prompt."""


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
    ) -> None:
        self._loop = loop
        self._members = members
        self._settings = settings
        self._admission = admission
        self._sink = sink
        self._checker = checker
        self._wake_member = wake
        self._over = False
        self._asked: dict[tuple[str, str], None] = {}
        """(member, query id) of every job: the queries for which members may keep something."""

    def start(self) -> None:
        """Begin, now or when it is this answer's turn."""
        self._admission.enter(self, self._settings, self._begin)

    def cancel(self) -> None:
        """Drop all later replies and free every member's caches. Has no effect if the run is
        over."""
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

    def _begin(self) -> None:
        if not self._over:
            self._advance(None)

    def _advance(self, replies: Replies | Panelist | Failure | Verdicts | None) -> None:
        """Move the loop to its next question to members or checks, handing out the rounds on the
        way."""
        try:
            item = self._loop.send(replies)
            while isinstance(item, Round):
                if self._over:
                    return
                self._forget([departure.member for departure in item.left])
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
        """Queue the jobs of an ``Ask``. The thread that delivers the last reply advances the
        loop."""
        replies = _Replies(ask)

        def deliver(name: str, reply: Reply) -> None:
            complete = replies.add(name, reply)
            if complete is not None and not self._over:
                self._advance(complete)

        by_device: dict[str, list[QueuedJob]] = {}
        for name, job in ask.jobs.items():
            member = self._members[name]
            is_first = (name, job.query.id) not in self._asked
            silence_s = self._silence_s(is_first) if ask.replaceable else None
            # Noted before the job is queued: a cancel in between drops the job.
            self._asked[name, job.query.id] = None
            queued = QueuedJob(
                member,
                "draft" if isinstance(job, DraftJob) else "score",
                job,
                partial(deliver, name),
                is_needed=lambda: not self._over,
                timeout_s=self._settings.member_timeout,
                silence_s=silence_s,
            )
            by_device.setdefault(member.device, []).append(queued)
        for device, jobs in by_device.items():
            # together, or the first would be taken alone, without its batch group
            worker_for(device).put(*jobs)

    def _silence_s(self, is_first: bool) -> float | None:
        """How long a lead with a reserve may be silent: at most half of the time limit of the
        answer, so that the reserve has some time left."""
        if self._settings.member_timeout is not None:
            return None
        silence_s = FIRST_SILENCE_S if is_first else SILENCE_S
        timeout = self._settings.timeout
        return silence_s if timeout is None else min(silence_s, timeout / 2)

    def _wake(self, wake: Wake) -> None:
        """Load a member that was in reserve. The thread that loads it advances the loop."""

        def deliver(loading: Future[Panelist]) -> None:
            if self._over:
                return
            error = loading.exception()
            self._advance(loading.result() if error is None else Failure.of(error, str(error)))

        assert self._wake_member is not None
        self._wake_member(wake.member).add_done_callback(deliver)

    def _check(self, ask: CheckAsk) -> None:
        """Run the user's checks. The thread that delivers the last verdict advances the loop."""

        def deliver(verdicts: Verdicts) -> None:
            if not self._over:
                self._advance(verdicts)

        assert self._checker is not None
        self._checker.ask(ask.jobs, deliver)

    def _end(self, last: BaseException | None) -> None:
        try:
            self.cancel()
        finally:
            self._sink(last)

    def _forget(self, names: Collection[str]) -> None:
        """Let these members free what they keep for this answer, whichever queries it asked."""
        if not names:
            return
        # A copy, because another thread may cancel the run or ask on meanwhile.
        for key in self._asked.copy():
            name, query_id = key
            if name not in names or self._asked.pop(key, _ABSENT) is _ABSENT:
                continue
            member = self._members[name]
            # Through the queue, or it would race with the batch that is running.
            worker_for(member.device).forget(member, query_id)


class _Replies:
    """The replies to one ``Ask``, which arrive on several threads."""

    def __init__(self, ask: Ask) -> None:
        self._names = list(ask.jobs)
        self._replies: dict[str, Reply] = {}
        self._lock = threading.Lock()

    def add(self, name: str, reply: Reply) -> Replies | None:
        """Add a reply. Returns all replies, in the order of the jobs, with the last one."""
        with self._lock:
            if name in self._replies:
                return None
            self._replies[name] = reply
            if len(self._replies) < len(self._names):
                return None
            return {name: self._replies[name] for name in self._names}


# --- for the caller -------------------------------------------------------------------------------


class AnswerLate(TimeoutError):
    """The answer took too long. ``text`` is what had been agreed until then."""

    def __init__(self, timeout: float, text: str) -> None:
        super().__init__(f"the answer was not complete within timeout={timeout:g} s")
        self.text = text


class _Deadline:
    """The time limit of the whole answer, and the text that has been agreed so far."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self.agreed = ""

    def left_s(self) -> float | None:
        if self._end is None:
            return None
        return max(self._end - time.monotonic(), 0.0)

    def error(self) -> AnswerLate:
        assert self._timeout is not None
        return AnswerLate(self._timeout, self.agreed)


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
    news: queue.SimpleQueue[Round | BaseException | None] = queue.SimpleQueue()
    deadline = _Deadline(settings.timeout)

    def next_item() -> Round | BaseException | None:
        refuse_fork()  # a forked child has no worker that would put anything in
        try:
            return news.get(timeout=deadline.left_s())
        except queue.Empty:
            raise deadline.error() from None

    run = Run(loop, members, settings, admission, news.put, checker, wake)
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
    news: asyncio.Queue[Round | BaseException | None] = asyncio.Queue()
    event_loop = asyncio.get_running_loop()
    deadline = _Deadline(settings.timeout)

    def post(item: Round | BaseException | None) -> None:
        try:
            event_loop.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:  # the event loop was closed: there is no reader any more
            run.cancel()

    async def next_item() -> Round | BaseException | None:
        try:
            return await asyncio.wait_for(news.get(), deadline.left_s())
        except TimeoutError:
            if news.empty():
                raise deadline.error() from None
            return news.get_nowait()  # it was there in time: its reader comes late

    run = Run(loop, members, settings, admission, post, checker, wake)
    try:
        run.start()
        while (item := await next_item()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()
