"""A terminal for tests: a pseudo-terminal, and an emulator that keeps what scrolled away."""

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


END = "that was all"


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
        """Until the end is told in so many words: a terminal that hangs up may take along what nobody has read yet."""
        while self.screen.title != END:
            try:
                self._stream.feed(os.read(self._master, 65536))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                time.sleep(0.01)  # its other end is still open: there is more to come

    def closed(self) -> list[str]:
        print(f"\x1b]2;{END}\x07", end="", file=self.out, flush=True)
        self._thread.join(120)
        assert not self._thread.is_alive(), "what was written on the terminal has not been read in two minutes"
        self.out.close()
        os.close(self._master)
        above = ["".join(line[at].data for at in range(self.screen.columns)) for line in self.screen.history.top]
        lines = [line.rstrip() for line in (*above, *self.screen.display)]
        while lines and not lines[-1]:
            lines.pop()
        return lines
