"""The replies to one ask: which are there, whose are late, and whether they are enough to go on.

Knows an ask and what may come back; nothing of desks, clocks or what comes next.
"""

from __future__ import annotations

import threading

from ..core.rounds import failure_of, is_late
from ..core.values import Ask, Replies, Reply


class Gathering:
    """What has come of one ask. Belongs to that ask alone, so a late reply can never be taken for a later job's."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._replies: dict[str, Reply] = {}
        self._turn = threading.Lock()
        self.over = False

    def take(self, name: str, reply: Reply) -> Replies | None:
        """One more reply, or word that it is late. All replies, if they are enough now: that is told exactly once."""
        with self._turn:
            if self.over or (is_late(reply) and name in self._replies):  # word of lateness may come after the reply
                return None
            self._replies[name] = reply
            self.over = len(self._replies) == len(self._ask.jobs) and self._enough()
            return {name: self._replies[name] for name in self._ask.jobs} if self.over else None

    def _enough(self) -> bool:
        """Who is late is waited for as long as nobody has answered and there are no others to ask."""
        if self._ask.spare or not any(is_late(reply) for reply in self._replies.values()):
            return True
        return any(failure_of(self._ask.jobs[name], reply) is None for name, reply in self._replies.items())
