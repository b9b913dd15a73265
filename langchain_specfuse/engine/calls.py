"""The work of members that wait for others: servers, chat models. Each job has a thread of its own,
and its reply is delivered as soon as it arrives.

There are no time limits here: whoever waits for a job closes it (:mod:`.core.call`). A closed job
makes room for the next one at once; its thread is free when what it waits for has been interrupted,
and what it returns is dropped.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from ..core.call import Call, current
from ..core.values import Failure
from ..errors import emptied

log = logging.getLogger("langchain_specfuse")


IDLE_S = 10.0
"""A thread without work ends after this long. Until then it takes the next work: whoever starts a
new thread waits until it runs, which takes long while others run."""
_IDLE: deque[_Thread] = deque()
"""The threads without work, without a lock: each method of a deque is atomic."""


class _Thread(threading.Thread):
    """Does one thing after another. It is a daemon, because the threads of ``concurrent.futures``
    keep a program from ending while a server hangs."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.work: queue.SimpleQueue[tuple[str, Callable[[], object]]] = queue.SimpleQueue()
        """What to do next, with the thread's name meanwhile."""

    def run(self) -> None:
        while (work := self._next()) is not None:
            self.name, function = work
            contextvars.Context().run(function)  # an empty context, as in a new thread
            del work, function  # they may hold an answer
            self.name = "specfuse-idle"
            _IDLE.append(self)

    def _next(self) -> tuple[str, Callable[[], object]] | None:
        try:
            return self.work.get(timeout=IDLE_S)
        except queue.Empty:
            pass
        try:
            _IDLE.remove(self)
        except ValueError:  # it was chosen just now
            return self.work.get()
        return None


def start(function: Callable[[], object], name: str = "call") -> None:
    """Call the function in a thread that does nothing else meanwhile."""
    try:
        thread = _IDLE.pop()
        while not thread.is_alive():  # this process was forked: its threads are in its parent
            thread = _IDLE.pop()
    except IndexError:
        thread = _Thread()
        thread.start()
    thread.work.put((f"specfuse-{name}", function))


def waits(member: Any) -> bool:
    """Whether the member's replies come from elsewhere, so that it works on several jobs at the
    same time."""
    return bool(getattr(member, "waits", False))


class Task(Call):
    """A piece of work for one query."""

    def __init__(
        self,
        work: Callable[[], object],
        deliver: Callable[[Any], object],
        query_id: str = "",
        *,
        is_exclusive: bool = False,
    ) -> None:
        """``work`` returns what is delivered. ``is_exclusive``: it begins when no other work of the
        member is under way, and later work waits for it."""
        super().__init__()
        self.work = work
        self.deliver = deliver
        self.query_id = query_id
        self.is_exclusive = is_exclusive
        self.has_begun = False
        self.is_paused = False
        """Whether it waits for its own caller. It takes no room then."""

    def run(self) -> None:
        try:
            with self.in_this_thread():
                reply = self.work()
        except BaseException as error:  # somebody waits for the reply
            reply = Failure.of(emptied(error))
        if self.is_closed:
            return
        try:
            self.deliver(reply)
        except Exception:  # one receiver's error must not end what others wait for
            log.exception("a reply could not be delivered")


class Calls:
    """The tasks of one member that are under way, and those that wait for their turn."""

    def __init__(
        self, name: str, limit: Callable[[], int | None], *, in_new_threads: bool = False
    ) -> None:
        """``limit``: how many tasks may be under way; None: any number. ``in_new_threads``: each
        task has a thread that ends with it."""
        self._name = name
        self._limit = limit
        self._in_new_threads = in_new_threads
        # Re-entrant, because the garbage collector may close an abandoned stream in any thread.
        self._lock = threading.RLock()
        self._waiting: deque[Task] = deque()
        self._under_way: set[Task] = set()
        self._closed: set[Task] = set()
        """Closed tasks whose threads have not ended."""
        self._forgets: dict[str, Callable[[], object]] = {}
        """Query id -> what to do when its last task has ended."""

    def begin(self, task: Task) -> None:
        """Do the work, now or as soon as there is room."""
        with self._lock:
            self._waiting.append(task)
        self._begin_waiting()

    def close(self, task: Task) -> None:
        """End this work: nobody needs it any more."""
        with self._lock:
            if task in self._waiting:
                self._waiting.remove(task)
            if task in self._under_way and current() is not task:  # else it is about to end
                self._under_way.remove(task)
                self._closed.add(task)
        task.close()
        self._begin_waiting()

    def pause(self, task: Task) -> None:
        """Note that this work waits for its own caller: others may begin meanwhile."""
        task.is_paused = True
        self._begin_waiting()

    def forget(self, query_id: str, act: Callable[[], object]) -> None:
        """Close all work for this query, and call ``act`` when it has ended."""
        with self._lock:
            tasks = [task for task in self._tasks() if task.query_id == query_id]
            under_way = [task for task in tasks if task.has_begun]
            self._waiting = deque(task for task in self._waiting if task not in tasks)
            if under_way:
                self._forgets[query_id] = act
        for task in tasks:
            self.close(task)
        if not under_way:
            start(act, self._name)  # an event loop must not wait for it

    def _tasks(self) -> list[Task]:
        return [*self._waiting, *self._under_way, *self._closed]

    def _begin_waiting(self) -> None:
        while True:
            with self._lock:
                task = self._next()
                if task is None:
                    return
                self._waiting.remove(task)
                task.has_begun = True
                self._under_way.add(task)
            try:
                if self._in_new_threads:
                    name = f"specfuse-{self._name}"
                    threading.Thread(target=self._run, args=(task,), name=name, daemon=True).start()
                else:
                    start(partial(self._run, task), self._name)
            except RuntimeError as error:  # the system cannot start a thread
                self._end(task)
                task.deliver(Failure.of(error))

    def _next(self) -> Task | None:
        """The task that may begin now: the first one, unless that waits for paused work."""
        if any(task.is_exclusive for task in self._under_way):
            return None
        paused = sum(task.is_paused for task in self._under_way)
        limit = self._limit()
        for task in self._waiting:
            if not task.is_exclusive:
                has_room = limit is None or len(self._under_way) - paused < limit
                return task if has_room else None
            if not self._under_way:
                return task
            if not paused:
                return None
        return None

    def _run(self, task: Task) -> None:
        task.run()
        self._end(task)
        self._begin_waiting()

    def _end(self, task: Task) -> None:
        forget = None
        with self._lock:
            self._under_way.discard(task)
            self._closed.discard(task)
            if all(other.query_id != task.query_id for other in self._tasks()):
                forget = self._forgets.pop(task.query_id, None)
        if forget is not None:
            try:
                forget()
            except Exception:
                log.exception("%s cannot forget an answer that is over", self._name)


def _limit_of(member: Any) -> Callable[[], int | None]:
    """How many tasks of this member may be under way. It may be changed at any time."""
    reference = weakref.ref(member)
    return lambda: getattr(reference(), "max_concurrency", None)


_CALLS: weakref.WeakKeyDictionary[Any, Calls] = weakref.WeakKeyDictionary()
_OPENING = threading.RLock()


def calls_of(member: Any) -> Calls:
    """The one queue of this member's work."""
    with _OPENING:
        calls = _CALLS.get(member)
        if calls is None:
            name = getattr(member, "name", "call")
            calls = _CALLS[member] = Calls(name, _limit_of(member))
        return calls
