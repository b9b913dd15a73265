"""A terminal for tests: a pseudo-terminal, and an emulator that keeps what scrolled away."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
import threading

import pytest

pyte = pytest.importorskip("pyte")


class Terminal:
    """A terminal of this size; ``lines`` are those that have ever stood on it and still do, from the first on."""

    def __init__(self, columns: int, rows: int) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._master = master
        self.out = os.fdopen(slave, "w", encoding="utf-8")
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self.screen)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        try:
            while told := os.read(self._master, 65536):
                self._stream.feed(told)
        except OSError:  # its other end was closed
            pass

    def closed(self) -> list[str]:
        self.out.close()
        self._thread.join(10)
        os.close(self._master)
        above = ["".join(line[at].data for at in range(self.screen.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in (*above, *self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines
