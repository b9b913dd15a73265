"""A desk: the inbox and the thread of one device. Members on one device take turns here instead of fighting for it.

Whatever waits for the same member and the same kind of work becomes one batch: that is continuous batching. The desk
does not know what the work is, who asked, or what comes next; it delivers replies from its own thread.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.values import KINDS, Effort, Failure

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A desk without work lets its thread end after this long; the next task starts a new one."""


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One job for one member. ``deliver`` is called exactly once, from a thread of the desk, unless nobody wants it."""

    member: Any
    work: str
    """The member's method that takes a list of jobs: ``draft`` or ``score``; or ``call`` for a plain function."""
    job: Any
    deliver: Callable[[Any], None]
    wanted: Callable[[], bool] = lambda: True
    timeout_s: float | None = None


class Desk:
    """The inbox and thread of one device."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.batches: deque[tuple[str, str, int]] = deque(maxlen=1000)
        """(member, work, size) of the last batches: for tests and for people who want to see batching happen."""
        self._inbox: deque[Task] = deque()
        # Re-entrant: a finalizer that cancels a run may be called anywhere, also in here.
        self._news = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._running: list[Task] | None = None
        """The batch whose replies are awaited. Who takes it out, the thread or the timer, delivers it."""
        self._hung: dict[int, list[Task]] = {}
        """Members that hang, and the calls that wait for them to come back."""
        self._closed = False

    def put(self, *tasks: Task) -> None:
        """Leave work in the inbox."""
        with self._news:
            self._inbox.extend(tasks)
            self._wake()

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop what waits and what still comes, and wait for the batch under way."""
        with self._news:
            self._closed = True
            self._inbox.clear()
            self._running = None
            thread, self._thread = self._thread, None
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _wake(self) -> None:
        if self._inbox and not self._closed:
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
        """Everything that waits for the member of the oldest task; empty when this thread should end."""
        with self._news:
            while self._thread is threading.current_thread():
                if batch := self._taken():
                    self._running = batch
                    return batch
                if not self._news.wait(IDLE_S) and not self._inbox and self._thread is threading.current_thread():
                    self._thread = None
        return []

    def _taken(self) -> list[Task]:
        """The oldest task that is wanted and all that are like it, taken out by turning the inbox round once."""
        batch: list[Task] = []
        for _ in range(len(self._inbox)):
            task = self._inbox.popleft()
            if not task.wanted():
                continue
            if not batch or _alike(task, batch[0]):
                batch.append(task)
            else:
                self._inbox.append(task)
        return batch

    def _run(self, batch: list[Task]) -> None:
        first = batch[0]
        if self._waits(batch):
            return
        timer = None
        if first.timeout_s is not None:
            timer = threading.Timer(first.timeout_s, self._give_up, [batch])
            timer.daemon = True
            timer.start()
        began, since = time.time(), time.perf_counter()
        replies = _timed(_replies(batch), began, since)
        if timer:
            timer.cancel()
        if self._in_time(batch):
            self.batches.append((getattr(first.member, "name", ""), first.work, len(batch)))
            _deliver(batch, replies)

    def _waits(self, batch: list[Task]) -> bool:
        """Whether the member hangs in an earlier call: then calls wait until it is back, other work fails."""
        with self._news:
            waiting = self._hung.get(id(batch[0].member))
            if waiting is not None and batch[0].work == "call":
                waiting += batch
                return True
        if waiting is not None:
            _deliver(batch, [Failure("timeout", "still busy with a call that hung before")] * len(batch))
        return waiting is not None

    def _give_up(self, batch: list[Task]) -> None:
        """The member hangs: leave it to its thread, go on with a new one."""
        with self._news:
            if self._running is not batch:
                return
            self._running = None
            self._hung[id(batch[0].member)] = []
            self._start()
        failure = Failure("timeout", f"did not answer within member_timeout={batch[0].timeout_s:g} s")
        _deliver(batch, [failure] * len(batch))

    def _in_time(self, batch: list[Task]) -> bool:
        """False: the batch was given up. Its member is back now, so the calls that waited for it go first."""
        with self._news:
            if self._running is batch:
                self._running = None
                return True
            self._inbox.extendleft(reversed(self._hung.pop(id(batch[0].member), [])))
            self._wake()
            return False


def _alike(one: Task, other: Task) -> bool:
    """Whether two tasks can be one batch."""
    return (
        one.member is other.member
        and one.work == other.work != "call"
        and one.timeout_s == other.timeout_s  # a batch has one limit: nobody fails at somebody else's
    )


def _replies(batch: list[Task]) -> Sequence[Any]:
    """The member's replies; whatever it raises becomes a failure of the whole batch."""
    first = batch[0]
    try:
        if first.work == "call":
            return [first.job()]
        replies: Sequence[Any] = getattr(first.member, first.work)([task.job for task in batch])
        if len(replies) != len(batch):
            raise ValueError(f"{first.work} returned {len(replies)} replies to {len(batch)} jobs")
        return replies
    except BaseException as error:  # a member may raise anything, SystemExit too; it leaves, the desk stays
        if first.work == "call":  # nobody waits for its reply: it must not fail unheard
            log.exception("%s: a call to %s failed", threading.current_thread().name, first.member)
        kind = getattr(error, "kind", "error")
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return [Failure(kind if kind in KINDS else "error", message, error)] * len(batch)


def _timed(replies: Sequence[Any], began: float, since: float) -> Sequence[Any]:
    """The same replies, saying when their work began and how long it took, where the member does not say it itself."""
    seconds = time.perf_counter() - since
    return [_dated(reply, began, seconds) for reply in replies]


def _dated(reply: Any, began: float, seconds: float) -> Any:
    effort = getattr(reply, "effort", None)
    if not isinstance(effort, Effort) or effort.began:
        return reply
    return replace(reply, effort=replace(effort, began=began, seconds=effort.seconds or seconds))


def _deliver(batch: list[Task], replies: Sequence[Any]) -> None:
    for task, reply in zip(batch, replies, strict=True):
        if task.wanted():
            try:
                task.deliver(reply)
            except BaseException:  # one receiver's trouble must not end the thread that the others wait for
                logging.getLogger(__name__).exception("a reply could not be delivered")


_DESKS: dict[str, Desk] = {}
_OPENING = threading.RLock()


def desk_for(device: str) -> Desk:
    """The one desk of this device in this process."""
    with _OPENING:
        if device not in _DESKS:
            _DESKS[device] = Desk(device)
        return _DESKS[device]


@atexit.register
def _close() -> None:
    """Let running batches end before the interpreter goes: a thread found inside C++ would abort the process."""
    for desk in list(_DESKS.values()):
        desk.close()
