"""What waits at a desk, and who is next: the order of turns, and what can be one batch with whoever is.

Knows tasks and their priorities; nothing of threads, members or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .task import Task, alike


class Inbox:
    """Tasks in their turn. One task goes before another that came at most so many turns earlier as its priority is
    higher: so whoever is first for good reason is, and nobody waits for ever."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Task]] = deque()
        self._turns = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, tasks: Iterable[Task]) -> None:
        """Behind all that are as urgent."""
        self._waiting.extend([(self._turns - task.priority, task) for task in tasks])

    def put_first(self, tasks: Iterable[Task]) -> None:
        """Before all that are as urgent, in their order: they have waited elsewhere."""
        self._waiting.extendleft(reversed([(self._turns - task.priority, task) for task in tasks]))

    def clear(self) -> None:
        self._waiting.clear()

    def take(self) -> list[Task]:
        """The next task that is wanted, with all that are like it; empty if there is none.

        Also those that are less urgent: they make a batch hardly longer, and batches without them cost everybody more
        (``benchmarks/load.py``). What nobody wants any more is thrown away.
        """
        # Out with it first: a finalizer that runs in here may put something in.
        here = [self._waiting.popleft() for _ in range(len(self._waiting))]
        wanted = [told for told in here if told[1].wanted()]
        if not wanted:
            return []
        _, first = min(wanted, key=lambda told: told[0])
        batch = [task for _, task in wanted if alike(task, first)]
        taken = set(map(id, batch)) | {id(first)}
        self._waiting.extendleft(reversed([told for told in wanted if id(told[1]) not in taken]))
        self._turns += 1
        return batch or [first]  # calls are like nothing, themselves included
