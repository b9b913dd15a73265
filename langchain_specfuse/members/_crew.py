"""A few threads that do many pieces of work, and that no program waits for when it ends.

Those of ``concurrent.futures`` are joined when the interpreter ends, so a server that hangs would hold it for a whole
timeout. Knows nothing of what the work is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_In = TypeVar("_In")
_Out = TypeVar("_Out")
Task = tuple[Future[Any], Callable[[Any], Any], Any]


class Crew:
    """At most so many threads, begun when they are needed.

    >>> Crew(2, "squares").map(lambda number: number * number, [1, 2, 3])
    [1, 4, 9]
    """

    def __init__(self, most: int, name: str) -> None:
        self.most, self.name = most, name
        self._inbox: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0

    def map(self, work: Callable[[_In], _Out], given: Iterable[_In]) -> list[_Out]:
        """The work on each of these, in their order; what it raises first is raised."""
        futures: list[Future[_Out]] = []
        for one in given:
            future: Future[_Out] = Future()
            futures.append(future)
            self._inbox.put((future, work, one))
        self._staffed(len(futures))
        return [future.result() for future in futures]

    def close(self) -> None:
        """No more work: threads end after what they are at."""
        with self._lock:
            for _ in range(self._threads):
                self._inbox.put(None)
            self._threads = 0

    def _staffed(self, wanted: int) -> None:
        with self._lock:
            for number in range(self._threads, min(wanted, self.most)):
                name = f"{self.name}_{number}"
                threading.Thread(target=_work, args=(self._inbox,), name=name, daemon=True).start()
                self._threads += 1

    __del__ = close
    """Who forgets a crew leaves no thread behind: they know its inbox, not the crew."""


def _work(inbox: SimpleQueue[Task | None]) -> None:
    while (task := inbox.get()) is not None:
        future, work, one = task
        try:
            future.set_result(work(one))
        except BaseException as error:  # it belongs to whoever asked
            future.set_exception(error)
        del task, future, work, one  # what was done is not held until more comes
