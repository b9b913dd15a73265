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
from collections.abc import Callable
from typing import Any

from ..core.values import LATE, Failure, PrefillPending
from ..errors import UsageError, advised, emptied
from .queue import PrefillQueue, Task, TaskQueue, names, run_batch, timed

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A worker without work ends its thread after this long; the next task starts a new one."""


class Overdue:
    """A member that exceeded its time limit: since when it has been working, and the tasks that
    wait for its return."""

    def __init__(self, since: float) -> None:
        self._since = since
        self.waiting: list[Task] = []

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
        self._queue = TaskQueue()
        self._prefill = PrefillQueue()
        # Re-entrant, because a finalizer that cancels a run may be called anywhere, also here. A
        # separate lock, because an interrupt while a condition is left would never give that lock
        # back.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._running: list[Task] | None = None
        """The batch under way. The thread or the timer takes it out, and whichever does delivers
        it."""
        self._overdue: dict[int, Overdue] = {}
        """Members that exceeded their time limit and are still working."""
        self._closed = False

    def put(self, *tasks: Task) -> None:
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

    def _next_batch(self) -> list[Task]:
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

    def _take(self) -> list[Task]:
        """A chunk of a long prompt if it is time for one, else whatever waits."""
        chunk = self._prefill.take(others=bool(self._queue))
        batch = [chunk] if chunk else self._queue.take()
        if batch or not (chunk := self._prefill.take(others=False)):
            return batch
        return [chunk]  # the queued tasks were not wanted any more

    def _run(self, batch: list[Task]) -> None:
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

    def _broke_off(self, batch: list[Task], error: BaseException) -> None:
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

    def _finish(self, batch: list[Task], replies: list[Any], seconds: float) -> None:
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

    def _must_wait(self, batch: list[Task]) -> bool:
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

    def _still_overdue(self, batch: list[Task]) -> None:
        """The member has not returned in time for this batch either."""
        first = batch[0]
        with self._lock:
            overdue = self._overdue.get(id(first.executor))
            still_waiting = [task for task in batch if overdue and task in overdue.waiting]
            if overdue and not first.keep_waiting:
                overdue.waiting = [task for task in overdue.waiting if task not in batch]
        failure = _timeout(first, "still busy with an earlier call that took too long")
        _deliver([(task, failure) for task in still_waiting])

    def _give_up(self, batch: list[Task], since: float) -> None:
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

    def _in_time(self, batch: list[Task]) -> bool:
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


def _timeout(task: Task, message: str) -> Failure:
    return Failure(LATE if task.keep_waiting else "timeout", message)


def _deliver(replies: list[tuple[Task, Any]]) -> None:
    for task, reply in replies:
        if task.wanted():
            try:
                task.deliver(reply)
            # one receiver's error must not end the thread that others wait for
            except BaseException:
                log.exception("a reply could not be delivered")


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
