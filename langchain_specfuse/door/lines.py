"""Connections that say nothing, or read nothing: they are hung up on in time, and there are only so many at once.

Knows uvicorn's protocols; nothing of what is asked, nor of answers under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .limits import Limits

UNREAD_S = 10.0
"""Who has not taken the rest of what was said so long after its line was closed gets no more of it."""
PAUSED_S = 60.0
"""An answer ends in its time whether it is read or not; what else is said is bounded by as much and this."""


def bounded(protocol: Any, limits: Limits) -> Any:
    """The same protocol of HTTP, for a door with these limits."""

    class Line(protocol):  # type: ignore[misc]
        """One connection."""

        _clock: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.transport = _Closing(transport, self._part)
            if len(self.connections) > limits.most_lines:
                transport.abort()
            else:
                self._wind()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is before and self._idle:
                self._wind()  # its next request has begun, and may take as long as the first
            else:
                self._stop()

        def eof_received(self) -> None:
            super().eof_received()
            self._part()  # asyncio closes it now, and tells nobody

        def connection_lost(self, error: Exception | None) -> None:
            self._stop()
            self._read()
            super().connection_lost(error)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._wait_for_reader(limits.timeout_s + PAUSED_S)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._read()
            if self.transport.is_closing():
                self._part()

        @property
        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _wind(self) -> None:
            if self._clock is None:
                self._clock = self.loop.call_later(limits.headers_s, self.transport.close)

        def _stop(self) -> None:
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

        def _part(self) -> None:
            """It was closed: what is unsent keeps it open until it is read."""
            self._wait_for_reader(UNREAD_S)

        def _wait_for_reader(self, most_s: float) -> None:
            self._read()
            self._unread = self.loop.call_later(most_s, self.transport.abort)

        def _read(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

    return Line


class _Closing:
    """A transport that tells when it is closed. uvicorn closes it in a dozen places."""

    def __init__(self, transport: Any, told: Callable[[], None]) -> None:
        self._transport = transport
        self._told = told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.close()
            self._told()
