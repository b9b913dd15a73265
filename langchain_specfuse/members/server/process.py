"""The process of a model server that this process started and owns.

A small program, :mod:`.supervisor`, runs the server and holds a pipe to this process. When the pipe
closes, it ends the server and everything that the server has started, so no end of this process
leaves a server behind. On Linux, no end of that program does either. Nothing else guarantees that:
``atexit`` does not run after ``kill -9``, and Linux sends its death signal as soon as the *thread*
that started the process ends.
"""

from __future__ import annotations

import atexit
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from . import supervisor

HOST = "127.0.0.1"
STOP_S = supervisor.TERMINATE_S + 4.0
"""How long the supervisor may take to end a server."""
HEALTH_S = 2.0
"""How long the server may take to say whether it is ready."""
TAIL_BYTES = 1 << 16
"""How much of a log's end is read."""
LINE_CHARS = 2000
"""Longer lines of a log are cut."""
_LISTENS = "0A"
"""The state of a socket that listens, in Linux's list."""
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

_RUNNING: set[ServerProcess] = set()
"""Servers that have not ended, or that nobody has waited for."""


class ServerProcess:
    """A server on a port of this machine, from its start to its end."""

    def __init__(
        self, name: str, port: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        """Start the command with this environment. ``name`` is a part of the log's name."""
        self.port = port
        plain = re.sub(r"[^\w.-]+", "-", name)[:80]
        # A folder that only this user can open: another user cannot put a link beside the log.
        self.log = Path(tempfile.mkdtemp(prefix=f"specfuse-{plain}-"), "log.txt")
        self.log.touch()
        self._owner = os.getpid()
        self._is_closed = False
        own = [sys.executable, "-I", "-S", supervisor.__file__, str(self._owner), str(self.log)]
        try:
            self._supervisor = subprocess.Popen(
                [*own, *command],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches this process only
            )
        except BaseException:
            self._remove_log()
            raise
        assert self._supervisor.stdout is not None
        with self._supervisor.stdout as output:
            group = output.readline()
        self._group = int(group) if group.strip() else None
        _RUNNING.add(self)

    @property
    def is_alive(self) -> bool:
        return self._supervisor.poll() is None

    def is_ready(self) -> bool:
        """Whether the server answers at ``/health``."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=HEALTH_S)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def log_size(self) -> int:
        """The bytes of the log. They change with each line."""
        try:
            return self.log.stat().st_size
        except FileNotFoundError:  # it was stopped
            return 0

    def log_lines(self) -> list[str]:
        """The last lines of the server's output, without what would control a terminal."""
        end = _end_of(self.log, TAIL_BYTES)
        if len(end) < TAIL_BYTES:  # the supervisor has begun a new file
            before = self.log.with_name(f"{self.log.name}.1")
            end = _end_of(before, TAIL_BYTES - len(end)) + end
        text = end.decode(errors="replace")
        lines = (_COLOURS.sub("", line)[:LINE_CHARS].rstrip() for line in text.splitlines())
        return ["".join(filter(str.isprintable, line)) for line in lines if line]

    def close(self) -> None:
        """Let the supervisor end the server, and do not wait for it."""
        if os.getpid() == self._owner and self._supervisor.stdin is not None:
            self._is_closed = True
            with suppress(OSError):
                self._supervisor.stdin.close()

    def end(self) -> None:
        """End the server and all that it has started. Its log remains."""
        if os.getpid() != self._owner:  # a fork does not own it
            return
        self.close()
        try:
            status = self._supervisor.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            status = self._supervisor.wait()
        _RUNNING.discard(self)
        group, self._group = self._group, None  # a later process may get the same number
        if status < 0 and group is not None:  # a signal has ended the supervisor
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and remove its log."""
        if os.getpid() == self._owner:
            self.end()
            self._remove_log()

    def _remove_log(self) -> None:
        shutil.rmtree(self.log.parent, ignore_errors=True)


def _end_of(path: Path, size: int) -> bytes:
    """The last ``size`` bytes of a file; none if it does not exist, as after a stop."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read()
    except FileNotFoundError:
        return b""


def free_port() -> int:
    """A port of this machine that is free now. Another program may take it before the server
    does."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def is_strangers(port: int) -> bool:
    """Whether a program of another user listens at this port, by Linux's list of sockets. False for
    root's programs, and on other systems.

    The list's addresses are numbers of the machine's byte order, and its users those of
    ``os.geteuid``.
    """
    trusted = {"0", str(os.geteuid())}
    loopback = int.from_bytes(socket.inet_aton(HOST), sys.byteorder)
    mapped = f"{0:016X}{int.from_bytes(bytes([0, 0, 255, 255]), sys.byteorder):08X}"
    addresses = {f"{loopback:08X}", f"{0:08X}", f"{mapped}{loopback:08X}", f"{0:032X}"}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, _, _, _, user, *_ = line.split()
            address, _, number = local.partition(":")
            is_here = address in addresses and int(number, 16) == port
            if is_here and state == _LISTENS and user not in trusted:
                return True
    return False


def wait_for_ends() -> None:
    """Wait for the servers that are being ended: until then, they keep their memory."""
    for process in list(_RUNNING):
        if process._is_closed:
            process.end()


@atexit.register
def _stop_all() -> None:
    """End all servers side by side."""
    running = list(_RUNNING)
    for process in running:
        process.close()
    for process in running:
        process.stop()
