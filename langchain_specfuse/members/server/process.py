"""The process of a model server that this process started and owns.

The server has a session of its own: Ctrl-C in a terminal does not reach it, and one signal to its
process group reaches all that it has started. It ends with :meth:`ServerProcess.stop` and at the
end of the program. If the program is killed, Linux sends the server SIGTERM; other systems have no
such call.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

log = logging.getLogger("langchain_specfuse")

HOST = "127.0.0.1"
TERMINATE_S = 10.0
"""A server may take this long to end before it is killed."""
KEPT_LINES, LINE_CHARS = 400, 2000
"""How many of the last lines of the output are kept. Longer lines are divided."""
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() == int(sys.argv[1]):  # otherwise it has ended already
    try:
        os.execvp(sys.argv[2], sys.argv[2:])
    except OSError as error:
        sys.exit(f"{sys.argv[2]}: {error}")
"""
"""A program that asks Linux for SIGTERM when the thread that started it ends, and then becomes the
server's command. Python code could not ask safely between fork and exec of a threaded process."""
_RUNNING: set[ServerProcess] = set()


class ServerProcess:
    """A server, from its start to its end."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.ended = threading.Event()
        """Set when the server has ended."""
        self.line_count = 0
        """How many lines it has written."""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._owner = os.getpid()
        self._group = 0
        started = threading.Event()
        threading.Thread(
            target=self._run,
            args=(started, command, environment),
            name=f"specfuse-{name}-process",
            daemon=True,
        ).start()
        started.wait()

    @property
    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def log_lines(self) -> list[str]:
        """The last lines of the server's output, without what would control a terminal."""
        return list(self._lines.copy())

    def terminate(self) -> None:
        """Ask the server to end, and do not wait for it."""
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """End the server and all that it has started."""
        if os.getpid() != self._owner:  # a fork does not own it
            return
        self.terminate()
        if not self.ended.wait(TERMINATE_S):
            self._signal(signal.SIGKILL)
            self.ended.wait()

    def _run(
        self, started: threading.Event, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start the server and wait for its end in one thread: Linux counts the end of the thread
        that started a process as the end of its parent."""
        if sys.platform == "linux":
            tied = [sys.executable, "-I", "-S", "-c", _TIED, str(self._owner)]
            command = [*tied, *command]
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
                errors="replace",
            )
        except (OSError, ValueError) as error:  # a ValueError: of a NUL in the command
            self._keep(f"{type(error).__name__}: {error}")
            self.ended.set()
            return
        else:
            self._group = process.pid
            _RUNNING.add(self)
        finally:
            started.set()
        reading = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
        reading.start()
        status = process.wait()
        self._signal(signal.SIGKILL)  # what it has left behind
        reading.join(1.0)
        end = f"status {status}" if status >= 0 else signal.Signals(-status).name
        self._keep(f"(the server ended with {end})")
        _RUNNING.discard(self)
        self.ended.set()

    def _read(self, output: IO[str]) -> None:
        with output:
            while line := output.readline(LINE_CHARS):
                self._keep(line)

    def _keep(self, line: str) -> None:
        self.line_count += 1
        plain = "".join(filter(str.isprintable, _COLOURS.sub("", line).rstrip()))
        if plain:
            self._lines.append(plain)
            log.debug("%s: %s", self.name, plain)

    def _signal(self, number: signal.Signals) -> None:
        if os.getpid() == self._owner and self._group and self.is_alive:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)


def free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


@atexit.register
def _stop_all() -> None:
    """End all servers side by side."""
    running = list(_RUNNING)
    for process in running:
        process.terminate()
    for process in running:
        process.stop()
