"""A program that runs a model server, and ends it when the process that started the program ends.

    python supervisor.py PARENT LOG COMMAND ...

``PARENT`` is the id of the process that starts this program and holds the other end of its standard
input. The command's output goes into ``LOG``, of which at most two files of :data:`LOG_BYTES` are
kept. The first line on standard output is the id of the command's process group.

The command ends when the input closes, which happens however the parent ends, even by ``kill -9``.
A fork of the parent holds the input open as well, so the parent's id is compared too.

What the command has started is killed with it. Its process group is enough for most programs, and
is all that other systems than Linux offer. On Linux, processes that have left the group are found
too: this program adopts those whose parents have ended, so all are below it. If this program were
killed itself, they would have no parent left that ends them. So it runs twice there: the guard
starts the supervisor, which starts the command. If one of the two is killed, the other one kills
the rest::

    parent - -guard - -supervisor - -command - -...

SIGTERM, which a scheduler or a service manager sends to all processes of a job at once, ends the
command in the same way as the parent's end. If both are killed by SIGKILL at once, Linux still
sends the command SIGTERM, and what is outside of its group may live on.

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
PIECE_CHARS = 10_000
"""Longer lines of the output are copied in pieces: a line may have no end."""
LOOKS_S = 0.1
"""How often it looks whether the command and the parent are alive."""
TERMINATE_S = 10.0
"""The command may take this long to end before it is killed."""
KILL_S = 1.0
"""Killed processes may take this long to disappear. One that waits for a device takes longer."""
_signals: list[int] = []
"""The SIGTERMs that have come. A handler may interrupt itself, so it takes no lock."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def main(parent: int, log: str, command: list[str]) -> int:
    """Run the command, on Linux with a guard. Returns the exit status."""
    if sys.platform != "linux":
        return _supervise(parent, log, command)
    guard = os.getpid()
    reader, writer = os.pipe()
    supervisor = os.fork()
    if supervisor == 0:
        os.setsid()  # a signal to the guard's group must not reach both
        os.close(writer)
        os.dup2(reader, sys.stdin.fileno())
        os.close(reader)
        _adopt_orphans()
        return _supervise(guard, log, command)
    os.close(reader)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # only the supervisor writes there
    _adopt_orphans()
    return _guard(supervisor, parent, log, writer)


def _guard(supervisor: int, parent: int, log: str, writer: int) -> int:
    """Close the supervisor's input when the parent's end closes. When the supervisor has ended,
    kill what it has left."""
    ended = result = 0
    while not ended:
        if _must_end(parent):
            os.close(writer)
            ended, result = os.waitpid(supervisor, 0)
        else:
            ended, result = os.waitpid(supervisor, os.WNOHANG)
    _kill_descendants()
    status = os.waitstatus_to_exitcode(result)
    if status < 0:
        _Log(log).write(f"(the supervisor ended with {signal.Signals(-status).name})\n")
    return int(status != 0)


def _supervise(parent: int, log: str, command: list[str]) -> int:
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
        _reap_orphans(server.pid)
        if _must_end(parent):
            _terminate(server)
    _kill(server)  # what it has left behind
    copying.join(1.0)
    status = server.returncode
    end = f"status {status}" if status >= 0 else signal.Signals(-status).name
    _Log(log).write(f"(the server ended with {end})\n")
    return int(status != 0)


def _must_end(parent: int) -> bool:
    """Whether the parent has closed the input or has ended, or SIGTERM has come. Waits a moment for
    it."""
    readable, _, _ = select.select([sys.stdin], [], [], LOOKS_S)
    return bool(readable) or os.getppid() != parent or bool(_signals)


def _terminate(server: subprocess.Popen[str]) -> None:
    """End the command and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGTERM)
    deadline = time.monotonic() + TERMINATE_S
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(LOOKS_S)
    _kill(server)


def _kill(server: subprocess.Popen[str]) -> None:
    """Kill the command and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    if sys.platform == "linux":
        _kill_descendants()


def _end_with_this() -> None:
    """In the command's process: ask Linux for SIGTERM when the supervisor dies. Other systems have
    no such call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


# --- what has left the group, on Linux ------------------------------------------------------------


def _adopt_orphans() -> None:
    """Ask Linux to make this process the parent of all processes below it whose parents end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _reap_orphans(server: int | None = None) -> None:
    """Let adopted processes that have ended disappear. The command's end is left to its owner."""
    if sys.platform != "linux":
        return
    with suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == server:
                return
            os.waitpid(ended.si_pid, 0)


def _kill_descendants() -> None:
    """Kill all processes below this one. Those that start meanwhile are found by looking again."""
    deadline = time.monotonic() + KILL_S
    while (found := _descendants()) and time.monotonic() < deadline:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.01)
        _reap_orphans()


def _descendants() -> list[int]:
    """The processes below this one, by ``/proc``. Empty without it."""
    children: dict[int, list[int]] = {}
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    for name in filter(str.isdecimal, names):
        with suppress(OSError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # pid (name) state parent ...; the name may contain anything
            parent = int(file.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


class _Log(logging.handlers.RotatingFileHandler):
    """Two files of a limited size, filled line by line."""

    terminator = ""

    def __init__(self, path: str) -> None:
        super().__init__(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")

    def write(self, line: str) -> None:
        self.emit(logging.makeLogRecord({"msg": line}))


def _copy(server: subprocess.Popen[str], path: str) -> None:
    """Copy the command's output into the log."""
    log = _Log(path)
    assert server.stdout is not None
    while line := server.stdout.readline(PIECE_CHARS):
        log.write(line)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: _signals.append(number))
    _parent, _log, *_command = sys.argv[1:]
    sys.exit(main(int(_parent), _log, _command))
