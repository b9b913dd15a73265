"""The connections of one client: no read waits longer than its question may, and all can be cut from another thread.

httpx limits each read by itself, so a reply that trickles would never end; and a thread that waits for a reply is woken
by nothing but its socket. Knows sockets and clocks; nothing of HTTP, of what is asked, or of members.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import httpcore


class Lines(httpcore.NetworkBackend):
    """What opens connections for a client's pools."""

    def __init__(self) -> None:
        self._backend = httpcore.SyncBackend()
        self._open: WeakSet[Line] = WeakSet()
        self._lock = threading.Lock()
        self._mine = threading.local()

    def serve(self, client: Any) -> None:
        """Open the connections of this client of httpx from now on, those through a proxy too."""
        # httpx has no door for this. Where another version keeps it elsewhere, each read has its own limit as before.
        for transport in (client._transport, *client._mounts.values()):
            pool: Any = getattr(transport, "_pool", None)
            if hasattr(pool, "_network_backend"):
                pool._network_backend = self

    @contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """What this thread reads and writes meanwhile ends by then (``time.monotonic()``)."""
        self._mine.deadline = deadline
        try:
            yield
        finally:
            del self._mine.deadline

    def left(self, timeout: float | None) -> float | None:
        deadline = getattr(self._mine, "deadline", None)
        if deadline is None:
            return timeout
        left = deadline - time.monotonic()
        if left <= 0:  # what comes without a pause is never waited for, and would not end
            raise httpcore.ReadTimeout("the time is over")
        return left if timeout is None else min(timeout, left)

    def cut(self) -> None:
        """Whoever waits for something on them is told that they ended."""
        with self._lock:
            lines = list(self._open)
        for line in lines:
            line.cut()

    def taken(self, stream: httpcore.NetworkStream) -> Line:
        line = Line(stream, self)
        with self._lock:
            self._open.add(line)
        return line

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *more: Any, **how: Any) -> Line:
        return self.taken(self._backend.connect_tcp(host, port, self.left(timeout), *more, **how))

    def connect_unix_socket(self, path: str, timeout: float | None = None, *more: Any, **how: Any) -> Line:
        return self.taken(self._backend.connect_unix_socket(path, self.left(timeout), *more, **how))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class Line(httpcore.NetworkStream):
    """One connection."""

    def __init__(self, stream: httpcore.NetworkStream, lines: Lines) -> None:
        self._stream, self._lines = stream, lines

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._lines.left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._lines.left(timeout))

    def close(self) -> None:
        self._stream.close()

    def cut(self) -> None:
        try:
            self._stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
        except OSError:  # it has ended by itself
            pass

    def start_tls(self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None) -> Line:
        return self._lines.taken(self._stream.start_tls(ssl_context, server_hostname, self._lines.left(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def within(pieces: Iterable[bytes], most: int) -> bytes | None:
    """All of them together; None where they are more bytes than that.

    >>> within([b"a", b"b"], 2), within([b"a", b"bc"], 2)
    (b'ab', None)
    """
    told = bytearray()
    for piece in pieces:
        told += piece
        if len(told) > most:
            return None
    return bytes(told)
