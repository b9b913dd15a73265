"""A program that runs a model server, and ends it when the process that started the program ends.

    python supervisor.py PARENT LOG COMMAND ...

``PARENT`` is the id of the process that starts this program and holds the other end of its standard
input. The command's output goes into ``LOG``, of which at most two files of :data:`LOG_BYTES` are
kept. The first line on standard output is the id of the command's process group.

The command ends when the input closes, which happens however the parent ends, even by ``kill -9``.
A fork of the parent holds the input open as well, so the parent's id is compared too. If this
program is killed itself, Linux sends the command SIGTERM. Whatever the command has started belongs
to its process group, and is killed with it.

This file needs the standard library only, and runs with the interpreter of the parent: vLLM's own
environment does not have this package.
"""

from __future__ import annotations

import ctypes
import logging.handlers
import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

LOG_BYTES = 1 << 20
LOOKS_S = 0.1
"""How often it looks whether the command and the parent are alive."""
TERMINATE_S = 10.0
"""The command may take this long to end before it is killed."""
PR_SET_PDEATHSIG = 1


def main(parent: int, log: str, command: list[str]) -> int:
    try:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_this,
            text=True,
            errors="replace",
        )
    except OSError as error:
        _Log(log).write(f"{type(error).__name__}: {error}\n")
        return 1
    print(server.pid, flush=True)
    copying = threading.Thread(target=_copy, args=(server, log), daemon=True)
    copying.start()
    while server.poll() is None:
        if _is_orphan(parent):
            _terminate(server)
    _kill(server)  # what it has left behind
    copying.join(1.0)
    status = server.returncode
    end = f"status {status}" if status >= 0 else signal.Signals(-status).name
    _Log(log).write(f"(the server ended with {end})\n")
    return int(status != 0)


def _is_orphan(parent: int) -> bool:
    """Whether the parent has closed the input or has ended. Waits a moment for it."""
    readable, _, _ = select.select([sys.stdin], [], [], LOOKS_S)
    return bool(readable) or os.getppid() != parent


def _terminate(server: subprocess.Popen[str]) -> None:
    """End the command and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_S
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(LOOKS_S)
    _kill(server)
    server.wait()


def _kill(server: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)


def _end_with_this() -> None:
    """In the command's process: ask Linux for SIGTERM when the supervisor dies. Other systems have
    no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class _Log(logging.handlers.RotatingFileHandler):
    """Two files of a limited size, line by line."""

    terminator = ""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")

    def write(self, line: str) -> None:
        self.emit(logging.makeLogRecord({"msg": line}))


def _copy(server: subprocess.Popen[str], path: str) -> None:
    """Copy the command's output into the log."""
    log = _Log(path)
    assert server.stdout is not None
    for line in server.stdout:
        log.write(line)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _parent, _log, *_command = sys.argv[1:]
    sys.exit(main(int(_parent), _log, _command))
