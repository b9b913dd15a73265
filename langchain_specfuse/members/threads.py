"""Works on several jobs of one member at the same time, for members that wait for a server or a
chat model.

Each job has a thread and signs of life of its own. A job that is silent for too long, or exceeds
its time limit, fails alone: its thread is left to it, and what it returns later is dropped. The
member is free for the next jobs.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from ..core.silence import Silence, late, silent
from ..core.values import DraftJob, Failure, ScoreJob
from ..errors import MemberError, UsageError, amount
from ..secret_values import masked

SHOWN = 300
"""At most this many characters of another program's error message are passed on."""

Job = DraftJob | ScoreJob
Work = Callable[[Any], Any]

_THREAD = threading.local()
_LATE: weakref.WeakKeyDictionary[Concurrent, int] = weakref.WeakKeyDictionary()
"""member -> how many of its calls were given up and have not returned. Names are not the keys,
because members of different ensembles may have the same name."""
_LATE_LOCK = threading.Lock()


class Concurrent(Protocol):
    """A member that works on several jobs at the same time."""

    name: str
    max_concurrency: int

    def forget(self, query_id: str) -> None: ...

    def note_sign(self) -> None: ...


def each(member: Concurrent, jobs: Sequence[Any], work: Work) -> list[Any]:
    """The replies to all jobs, in order. A job that fails, is silent for longer than its
    ``silence_s``, or is not done after its ``timeout_s``, does not affect the others.

    The threads are daemons, because those of ``concurrent.futures`` keep a program from ending
    while a server hangs.
    """
    if len(jobs) == 1 and not _is_limited(jobs[0]):
        return [_reply(jobs[0], work)]
    return _Calls(member, jobs, work).replies()


def note_sign(ahead_s: float = 0.0) -> None:
    """Note a sign of life of the job that this thread works on. ``ahead_s``: no other can come for
    so long.

    Raises if the job was given up, so that nothing more is read for it.
    """
    refuse_late()
    call: _Call | None = getattr(_THREAD, "call", None)
    if call is not None:
        call.sign = time.monotonic() + ahead_s


def refuse_late() -> None:
    """Raise if the job that this thread works on was given up."""
    call: _Call | None = getattr(_THREAD, "call", None)
    if call is not None and call.is_late:
        raise MemberError(
            "the request was given up before this part of its reply arrived", kind="timeout"
        )


@contextmanager
def interrupted_by(interrupt: Callable[[], None]) -> Iterator[None]:
    """If the job that this thread works on is given up meanwhile, call ``interrupt`` from another
    thread."""
    call: _Call | None = getattr(_THREAD, "call", None)
    if call is None:
        yield
        return
    call.set_interrupt(interrupt)
    try:
        refuse_late()  # it may have been given up before the interrupt was set
        yield
    finally:
        call.set_interrupt(None)


class _Call:
    """A job under way."""

    def __init__(self, at: int, job: Job) -> None:
        self.at = at
        self.job = job
        self.sign = time.monotonic()
        self.is_late = False
        """Whether it was given up."""
        limit_s = job.silence_s
        self.silence = None if limit_s is None else Silence(limit_s, self.sign, self.sign)
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def set_interrupt(self, interrupt: Callable[[], None] | None) -> None:
        with self._lock:
            self._interrupt = interrupt

    def give_up(self) -> None:
        self.is_late = True
        with self._lock:  # so that nothing is interrupted after it has ended
            if self._interrupt is not None:
                self._interrupt()


class _Calls:
    """The calls for the jobs of one batch."""

    def __init__(self, member: Concurrent, jobs: Sequence[Job], work: Work) -> None:
        self._member = member
        self._work = work
        self._waiting = deque(enumerate(jobs))
        self._under_way: dict[_Call, None] = {}
        self._replies: list[Any] = [None] * len(jobs)
        self._news = threading.Condition()
        # The worker puts jobs with different time limits into different batches.
        self._timeout_s = jobs[0].timeout_s if jobs else None
        self._began = time.monotonic()

    def replies(self) -> list[Any]:
        """Work on all jobs, at most ``max_concurrency`` at a time."""
        with self._news:
            while self._waiting or self._under_way:
                while self._waiting and len(self._under_way) < self._member.max_concurrency:
                    self._begin(*self._waiting.popleft())
                if self._under_way:
                    self._news.wait(self._pause_s())
                    self._give_up_silent()
                    self._give_up_late()
        return self._replies

    def _pause_s(self) -> float | None:
        """The time until the next check of the limits; None: there are none."""
        pauses = [call.silence.pause_s for call in self._under_way if call.silence]
        if self._timeout_s is not None:
            pauses.append(max(self._left_s(self._timeout_s), 0.0))
        return min(pauses, default=None)

    def _left_s(self, timeout_s: float) -> float:
        return self._began + timeout_s - time.monotonic()

    def _begin(self, at: int, job: Job) -> None:
        name = self._member.name
        hung = _LATE.get(self._member, 0)
        if _is_limited(job) and hung >= self._member.max_concurrency:
            message = f"still waiting for {amount(hung, 'earlier request')} without a reply"
            self._replies[at] = Failure("timeout", message)
            return
        call = _Call(at, job)
        self._under_way[call] = None
        thread = threading.Thread(
            target=self._run, args=(call,), name=f"specfuse-{name}_{at}", daemon=True
        )
        thread.start()

    def _run(self, call: _Call) -> None:
        _THREAD.call = call
        reply = _reply(call.job, self._work)
        with self._news:
            if not call.is_late:
                self._replies[call.at] = reply
                del self._under_way[call]
                self._news.notify()
                return
        try:
            # If the answer is over, nothing else frees what this call has kept.
            self._member.forget(call.job.query.id)
        finally:
            self._count_late(-1)

    def _give_up_silent(self) -> None:
        self._member.note_sign()  # the worker need not watch, because this thread does
        now = time.monotonic()
        for call in list(self._under_way):
            if call.silence is not None and call.silence.is_too_long(now, call.sign):
                self._give_up(call, silent(call.silence.limit_s))

    def _give_up_late(self) -> None:
        """When the time is over, fail all jobs that are not done."""
        if self._timeout_s is None or self._left_s(self._timeout_s) > 0:
            return
        failure = late(self._timeout_s)
        for call in list(self._under_way):
            self._give_up(call, failure)
        while self._waiting:
            at, _ = self._waiting.popleft()
            self._replies[at] = failure

    def _give_up(self, call: _Call, failure: Failure) -> None:
        del self._under_way[call]
        self._replies[call.at] = failure
        self._count_late(1)
        call.give_up()

    def _count_late(self, change: int) -> None:
        with _LATE_LOCK:
            _LATE[self._member] = _LATE.get(self._member, 0) + change


def _is_limited(job: Job) -> bool:
    return job.silence_s is not None or job.timeout_s is not None


def _reply(job: Job, work: Work) -> Any:
    try:
        return work(job)
    except (MemberError, UsageError) as error:
        return Failure.of(error, str(error))
    except Exception as error:  # another program may send anything
        return Failure("error", f"unexpected reply: {shown(error)}", error)
    except BaseException as error:  # any other exception: the other jobs continue
        return Failure.of(error)


def shown(error: Exception) -> str:
    """An error as text for a message. It may quote what another program sent, which may be long or
    hold characters that cannot be encoded."""
    # Masked before it is cut: half a key would not be found.
    text = masked(f"{type(error).__name__}: {error}")
    return text.encode(errors="backslashreplace").decode()[:SHOWN]
