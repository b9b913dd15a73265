"""Work laid aside because there is much to read before it: read piece by piece, between the others' batches.

Whoever is in the middle of an answer goes on meanwhile, and who comes new need not wait for a long text of somebody
else's. Knows tasks, seconds, and how much is left to read; nothing of threads, members or texts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from ..core.values import Unread
from .task import Task

SHARE = 0.5
"""Reading takes at most this part of the time that other work takes meanwhile: the others go on at two thirds of their
speed."""


class Aside:
    """Tasks with much to read, in the order in which they came; the first is read to its end."""

    def __init__(self) -> None:
        self._waiting: deque[Task] = deque()
        self._owed_s = 0.0
        """So long others may work before the next piece."""

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, *, others: bool) -> Task | None:
        """Whose piece is next; None if it is not the time while there are ``others`` to work for."""
        if others and self._owed_s > 0:
            return None
        while self._waiting:
            task = self._waiting.popleft()
            if task.wanted():
                return task
        return None

    def took(self, seconds: float, *, reading: bool) -> None:
        """Something was done for so long: a piece, or other work."""
        self._owed_s = self._owed_s + seconds / SHARE if reading else max(self._owed_s - seconds, 0.0)

    def put(self, task: Task, unread: Unread) -> Task | None:
        """Lay it aside, or on; what can be worked on as ever comes back."""
        spent, left = task.spent + unread.effort, unread.left
        if not left:
            return replace(task, pieces=0, left=None, spent=spent)
        if task.left is not None and left >= task.left:
            # Others needed the room of what had been read. It would go on like this for ever: now in one go.
            return replace(task, pieces=None, left=None, spent=spent)
        told = replace(task, pieces=1, left=left, spent=spent)
        self._waiting.append(told) if task.left is None else self._waiting.appendleft(told)
        return None
