"""A terminal for tests: a pseudo-terminal, and an emulator that keeps what scrolls away."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import struct
import termios
import threading
import time

import pytest

pyte = pytest.importorskip("pyte")

END = "the end of the output"


class Terminal:
    """A terminal of this size."""

    def __init__(self, columns: int, rows: int) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._master = master
        self.out = os.fdopen(slave, "w", encoding="utf-8")
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        """Read until the mark of the end: when a terminal hangs up, output that has not been read may be lost."""
        while self.screen.title != END:
            try:
                data = os.read(self._master, 65536)
                with self._lock:
                    self._stream.feed(data)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                time.sleep(0.01)  # no process writes now, but one will

    def waits_for(self, text: str) -> bool:
        """Whether this text appears on the screen."""
        for _ in range(3000):
            with self._lock:
                if text in "".join(self.screen.display):
                    return True
            time.sleep(0.01)
        return False

    def closed(self) -> list[str]:
        """All lines, those that scrolled away first."""
        print(f"\x1b]2;{END}\x07", end="", file=self.out, flush=True)
        self._thread.join(120)
        assert not self._thread.is_alive(), "the output was not read within two minutes"
        self.out.close()
        os.close(self._master)
        above = ["".join(line[at].data for at in range(self.screen.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in (*above, *self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines
