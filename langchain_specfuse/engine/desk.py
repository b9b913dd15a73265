"""A desk: the inbox and the thread of one device. Members on one device take turns here instead of fighting for it.

Whatever waits for the same member and the same kind of work becomes one batch: that is continuous batching. The desk
does not know what the work is, who asked, or what comes next; it delivers replies from its own thread.
"""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.values import Failure

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
        self._news = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stuck: dict[int, list[Task]] = {}
        """Members that hang, and the calls that wait for them to come back."""

    def put(self, *tasks: Task) -> None:
        """Leave work in the inbox."""
        with self._news:
            self._inbox.extend(tasks)
            if self._thread is None:
                self._start()
            self._news.notify()

    def close(self, timeout_s: float = 10.0) -> None:
        """Drop what waits, and wait for the batch under way."""
        with self._news:
            self._inbox.clear()
            thread, self._thread = self._thread, None
            self._news.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=f"specfuse-{self.device}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        me = threading.current_thread()
        while batch := self._next_batch(me):
            self._run(batch, me)

    def _next_batch(self, me: threading.Thread) -> list[Task]:
        """Everything that waits for the member of the oldest task; empty when this thread should end."""
        with self._news:
            while True:
                if self._thread is not me:
                    return []
                self._inbox = deque(task for task in self._inbox if task.wanted())
                if self._inbox:
                    break
                if not self._news.wait(IDLE_S) and not self._inbox:
                    self._thread = None
                    return []
            first = self._inbox[0]
            if first.work == "call":
                return [self._inbox.popleft()]
            batch = [t for t in self._inbox if t.member is first.member and t.work == first.work]
            self._inbox = deque(t for t in self._inbox if t not in batch)
            return batch

    def _run(self, batch: list[Task], me: threading.Thread) -> None:
        first = batch[0]
        with self._news:
            waiting = self._stuck.get(id(first.member))
            if waiting is not None and first.work == "call":
                waiting.append(first)
                return
        if waiting is not None:
            failure = Failure("timeout", "still busy with a call that hung before")
            return _deliver(batch, [failure] * len(batch))
        limits = [task.timeout_s for task in batch if task.timeout_s]
        timer = threading.Timer(min(limits), self._overdue, (batch, me, min(limits))) if limits else None
        if timer:
            timer.daemon = True
            timer.start()
        replies = _replies(batch)
        if timer:
            timer.cancel()
        with self._news:
            late = self._stuck.pop(id(first.member), None) if self._thread is not me else None
        if late is not None:
            for task in late:
                _deliver([task], _replies([task]))
        elif self._thread is me:
            self.batches.append((getattr(first.member, "name", ""), first.work, len(batch)))
            _deliver(batch, replies)

    def _overdue(self, batch: list[Task], stuck: threading.Thread, limit: float) -> None:
        """The member hangs: leave it to its thread, go on with a new one."""
        with self._news:
            if self._thread is not stuck:
                return
            self._stuck[id(batch[0].member)] = []
            self._start()
        failure = Failure("timeout", f"did not answer within member_timeout={limit:g} s")
        _deliver(batch, [failure] * len(batch))


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
    except Exception as error:  # a member may raise anything; it leaves, the desk stays
        kind = getattr(error, "kind", "error")
        failure = Failure(kind, f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, error)
        return [failure] * len(batch)


def _deliver(batch: list[Task], replies: Sequence[Any]) -> None:
    for task, reply in zip(batch, replies, strict=True):
        if task.wanted():
            task.deliver(reply)


_DESKS: dict[str, Desk] = {}
_OPENING = threading.Lock()


def desk_for(device: str) -> Desk:
    """The one desk of this device in this process."""
    with _OPENING:
        if device not in _DESKS:
            _DESKS[device] = Desk(device)
        return _DESKS[device]


@atexit.register
def _close() -> None:
    """Let running batches end before the interpreter goes: a thread that it finds inside C++ would abort the process."""
    for desk in list(_DESKS.values()):
        desk.close()
