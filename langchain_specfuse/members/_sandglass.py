"""A limit of time for a stranger's program that runs in this thread: a chat template is one, and may never end.

Whoever takes longer gets an exception in the middle of what it does, at its next step. One step that takes long by
itself (a huge power) cannot be broken into. Knows threads and clocks, nothing of templates.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from types import FrameType


class Overlong(Exception):
    """It took longer than it may."""


class Sandglass:
    """Around what may take so many seconds.

    >>> with Sandglass(5.0):
    ...     sum(range(10))
    45
    """

    def __init__(self, limit_s: float) -> None:
        self._timer = threading.Timer(limit_s, self._strike)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._thread = 0
        self._inside: FrameType | None = None
        """Who entered, as long as it has not left."""

    def __enter__(self) -> Sandglass:
        self._thread, self._inside = threading.get_ident(), sys._getframe(1)
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside = None
        self._timer.cancel()  # a call: an exception that is on its way arrives here at the latest

    def _strike(self) -> None:
        with self._lock:
            if self._still_there():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Overlong))

    def _still_there(self) -> bool:
        """Whether that frame is under way: an interrupt may have taken it without a word."""
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not self._inside:
            frame = frame.f_back
        return frame is not None
