"""Detects members that give no sign of life while they work.

A member reports its last sign of life in an attribute ``last_sign`` (:mod:`.core.member`): a token
that arrived, a forward pass that ended. One thread checks all calls under way, and adds up how long
their members have been silent (:mod:`.core.silence`). Time in a queue does not count, because a
call is watched only while it runs. Jobs, and what happens to a member that is late, are in
``engine.worker``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..core.silence import Silence

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""The thread ends after this long without a call; the next call starts a new one."""


def sign_of(worker: Any) -> float | None:
    """The last sign of life of a member or a batch group, as ``time.monotonic()``. None if it does
    not report any."""
    sign = getattr(worker, "last_sign", None)
    return sign if isinstance(sign, int | float) else None


class WatchedCall:
    """A call of a member, and how long the member has been silent."""

    def __init__(self, member: Any, limit_s: float, on_silence: Callable[[], None]) -> None:
        """``on_silence`` is called once, from another thread, after ``limit_s`` of silence."""
        self.on_silence = on_silence
        self._member = member
        self._silence = Silence(limit_s, time.monotonic(), sign_of(member))
        self.pause_s = self._silence.pause_s

    def is_silent(self, now: float) -> bool:
        """Check for a sign, and return whether there has been none for too long."""
        return self._silence.is_too_long(now, sign_of(self._member))


class Watch:
    """Watches all calls under way, from one thread."""

    def __init__(self) -> None:
        # Re-entrant, because the garbage collector closes streams in any thread.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._calls: dict[WatchedCall, None] = {}
        self._pause_s = 0.0
        """The pause before the next check."""
        self._thread: threading.Thread | None = None

    def add(self, call: WatchedCall) -> None:
        with self._lock:
            self._calls[call] = None
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._work, name="specfuse-limits", daemon=True)
                thread.start()
                self._thread = thread
            elif call.pause_s < self._pause_s:
                self._news.notify()

    def remove(self, call: WatchedCall) -> None:
        with self._lock:
            self._calls.pop(call, None)

    def _work(self) -> None:
        while (silent := self._next()) is not None:
            for call in silent:
                try:
                    call.on_silence()
                except Exception:
                    log.exception("could not give up a member without a sign of life")
            del silent
            call = None  # type: ignore[assignment]

    def _next(self) -> list[WatchedCall] | None:
        """Wait for the next check. Returns the silent calls, or None when the thread should end."""
        with self._lock:
            is_used = bool(self._calls)
            pauses = [call.pause_s for call in self._calls.copy()]
            self._pause_s = min(pauses, default=IDLE_S)
            is_notified = self._news.wait(self._pause_s)
            if not is_used and not self._calls and not is_notified:
                self._thread = None
                return None
            now = time.monotonic()
            silent = [call for call in self._calls.copy() if call.is_silent(now)]
            for call in silent:
                self._calls.pop(call, None)
            return silent


WATCH = Watch()
"""Watches the calls of all workers."""
