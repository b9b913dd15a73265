"""A desk: the inbox and the thread of one device. Members on one device take turns here instead of fighting for it.

Whatever waits for the same member, or for members that share what does their work (their *kin*), and is the same kind
of work becomes one batch: that is continuous batching. What has much to read first is laid aside and read piece by
piece between the others' batches. The desk does not know what the work is, who asked, or what comes next; it delivers
replies from its own thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..core.values import LATE, Failure, Unread
from ..errors import UsageError, advised
from .aside import Aside
from .inbox import Inbox
from .task import Task, answered, names, timed

log = logging.getLogger("langchain_specfuse")

clock = time.perf_counter

IDLE_S = 2.0
"""A desk without work lets its thread end after this long; the next task starts a new one."""


class Absence:
    """A member that took longer than it may: since when it has been working, and what waits until it is back."""

    def __init__(self, since: float) -> None:
        self._since = since
        self.waiting: list[Task] = []

    def left_s(self, timeout_s: float | None) -> float | None:
        """How much longer somebody with this limit is ready to wait."""
        return None if timeout_s is None else self._since + timeout_s - time.monotonic()


class Desk:
    """The inbox and thread of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.batches: deque[tuple[str, str, int]] = deque(maxlen=1000)
        """(members, work, size) of the last batches: for tests and for people who want to see batching happen."""
        self._inbox = Inbox()
        self._aside = Aside()
        # Re-entrant: a finalizer that cancels a run may be called anywhere, also in here. Taken by itself: an interrupt
        # can break into leaving a condition, and the lock would never be given back.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._running: list[Task] | None = None
        """The batch whose replies are awaited. Who takes it out, the thread or the timer, delivers it."""
        self._hung: dict[int, Absence] = {}
        """Members that took too long and are not back yet."""
        self._closed = False

    def put(self, *tasks: Task) -> None:
        """Leave work in the inbox."""
        refuse_fork()
        with self._lock:
            self._inbox.put(tasks)
            self._wake()

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop what waits and what still comes, and wait for the batch under way."""
        with self._lock:
            self._closed = True
            self._inbox.clear()
            self._aside.clear()
            self._running = None
            thread, self._thread = self._thread, None
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    @property
    def _waiting(self) -> bool:
        return bool(self._inbox or self._aside)

    def _wake(self) -> None:
        if self._waiting and not self._closed:
            if self._thread is None:
                self._start()
            self._news.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=f"specfuse-{self.device}", daemon=True)
        thread.start()
        self._thread = thread

    def _work(self) -> None:
        while batch := self._next_batch():
            self._run(batch)

    def _next_batch(self) -> list[Task]:
        """Everything that waits for the member whose turn it is; empty when this thread should end."""
        with self._lock:
            while self._thread is threading.current_thread():
                if batch := self._taken():
                    self._running = batch
                    return batch
                if not self._news.wait(IDLE_S) and not self._waiting and self._thread is threading.current_thread():
                    self._thread = None
        return []

    def _taken(self) -> list[Task]:
        """A piece of a long text if it is the time for one, or whatever else waits."""
        piece = self._aside.take(others=bool(self._inbox))
        batch = [piece] if piece else self._inbox.take()
        if batch or not (piece := self._aside.take(others=False)):
            return batch
        return [piece]  # nobody wants what else there was

    def _run(self, batch: list[Task]) -> None:
        first = batch[0]
        if self._waits(batch):
            return
        timer = _alarm(first.timeout_s, self._give_up, batch, time.monotonic())
        began, since = time.time(), clock()
        replies = answered(batch)
        seconds = clock() - since
        if timer:
            timer.cancel()
        if self._in_time(batch) or (first.stays and not self._closed):
            self.batches.append((names(batch), "read" if first.pieces else first.work, len(batch)))
            self._deliver(batch, timed(batch, replies, began, seconds), seconds)

    def _deliver(self, batch: list[Task], replies: list[Any], seconds: float) -> None:
        """Each its reply; whoever has much to read first is laid aside."""
        told = [(task, reply) for task, reply in zip(batch, replies, strict=True) if not isinstance(reply, Unread)]
        with self._lock:
            self._aside.took(seconds, reading=bool(batch[0].pieces))
            for task, reply in zip(batch, replies, strict=True):
                if isinstance(reply, Unread) and not self._closed and (ready := self._aside.put(task, reply)):
                    self._inbox.put([ready])
            self._wake()
        _deliver([task for task, _ in told], [reply for _, reply in told])

    def _waits(self, batch: list[Task]) -> bool:
        """Whether the member is still in a call that took too long: work waits for it while its own limit allows.

        So nobody fails at somebody else's limit, and nobody waits twice for the same call.
        """
        first = batch[0]
        with self._lock:
            absence = self._hung.get(id(first.who))
            if absence is None:
                return False
            left_s = absence.left_s(first.timeout_s)
            absence.waiting = [task for task in absence.waiting if task.wanted()] + batch
        if left_s is not None and left_s <= 0:
            self._still_out(batch)
        else:
            _alarm(left_s, self._still_out, batch)
        return True

    def _still_out(self, batch: list[Task]) -> None:
        """The member is not back in time for this batch either."""
        first = batch[0]
        with self._lock:
            absence = self._hung.get(id(first.who))
            if absence is None or first not in absence.waiting:
                return
            if not first.stays:
                absence.waiting = [task for task in absence.waiting if task not in batch]
        _deliver(batch, [_overdue(first, "still busy with a call that took too long before")] * len(batch))

    def _give_up(self, batch: list[Task], since: float) -> None:
        """The member takes too long: leave it to its thread, go on with a new one."""
        first = batch[0]
        with self._lock:
            if self._running is not batch:
                return
            self._running = None
            self._hung[id(first.who)] = Absence(since)
            self._start()
        _deliver(batch, [_overdue(first, f"did not answer within member_timeout={first.timeout_s:g} s")] * len(batch))

    def _in_time(self, batch: list[Task]) -> bool:
        """False: the batch was given up. Its member is back now, so what waited for it goes first."""
        with self._lock:
            if self._running is batch:
                self._running = None
                return True
            absence = self._hung.pop(id(batch[0].who), None)
            self._inbox.put_first(absence.waiting if absence else [])
            self._wake()
            return False


def _alarm(after_s: float | None, what: Callable[..., None], *about: Any) -> threading.Timer | None:
    """Does it when the time is up; None where there is no limit."""
    if after_s is None:
        return None
    timer = threading.Timer(after_s, what, about)
    timer.daemon = True
    timer.start()
    return timer


def _overdue(task: Task, told: str) -> Failure:
    return Failure(LATE if task.stays else "timeout", told)


def _deliver(batch: list[Task], replies: Sequence[Any]) -> None:
    for task, reply in zip(batch, replies, strict=True):
        if task.wanted():
            try:
                task.deliver(reply)
            except BaseException:  # one receiver's trouble must not end the thread that the others wait for
                logging.getLogger(__name__).exception("a reply could not be delivered")


_DESKS: dict[str, Desk] = {}
_OPENING = threading.RLock()
_SETTLED = False
"""Whether a question has been asked in this process."""
_FORKED = False


def forked() -> bool:
    """Whether this process is a child of one that had been asked."""
    return _FORKED


def settle_here() -> None:
    """A question comes: from now on a fork would leave threads behind, and find locks of imports taken for ever."""
    global _SETTLED
    refuse_fork()
    _SETTLED = True


def refuse_fork() -> None:
    """A fork takes along no thread but its own: whatever is asked there would be waited for without end."""
    if _FORKED:
        error = UsageError(
            f"process {os.getpid()} was forked from one whose members had been at work; they stayed there"
        )
        advice = "start it with multiprocessing's 'spawn' or 'forkserver', or fork before the first question"
        raise advised(error, advice)


def _forked() -> None:
    """In a child: locks may be held by threads that are not here, so nothing of the parent's is touched."""
    global _FORKED, _OPENING
    _FORKED = _FORKED or _SETTLED
    _OPENING = threading.RLock()
    _DESKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def desk_for(device: str) -> Desk:
    """The one desk of this device in this process."""
    settle_here()
    with _OPENING:
        if device not in _DESKS:
            _DESKS[device] = Desk(device)
        return _DESKS[device]


@atexit.register
def _close() -> None:
    """Let running batches end before the interpreter goes: a thread found inside C++ would abort the process."""
    for desk in list(_DESKS.values()):
        desk.close()
