"""Runs a program that a model wrote, in a process of its own, with limits. It is no jail for a clever enemy.

Time, processor seconds, memory, file size and open files are limited; writing outside an empty folder, starting
processes and opening sockets is refused; where the system allows it there is no network at all, and root becomes
nobody. On systems without POSIX limits only time is limited. To run code that is meant to harm, use a virtual machine.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

JAIL = Path(__file__).with_name("_jail.py")
ROOM = threading.BoundedSemaphore(max(1, (os.cpu_count() or 2) // 2))
"""So many programs run at a time: more would take each other's time, and the members'."""


@dataclass(frozen=True, slots=True)
class Limits:
    seconds: float = 10.0
    memory_bytes: int = 1 << 30
    file_bytes: int = 1 << 20
    files: int = 64

    def of_system(self) -> dict[str, int]:
        """In the words of ``setrlimit``. No processes at all: root is not bound by that, so it becomes nobody."""
        return {
            "RLIMIT_CPU": int(self.seconds) + 1,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.files,
            "RLIMIT_NPROC": 0,
            "RLIMIT_CORE": 0,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """``fine`` only if the program ran to its end."""

    fine: bool
    reason: str = ""


def ran(program: str, limits: Limits | None = None) -> Outcome:
    """Whether the program runs to its end within the limits.

    >>> ran("assert 1 + 1 == 2").fine, ran("assert 1 + 1 == 3").reason
    (True, 'AssertionError: ')
    """
    limits = limits or Limits()
    word = secrets.token_hex(16)
    told = json.dumps({"program": program, "word": word, "limits": limits.of_system()}) + "\n"
    with ROOM, tempfile.TemporaryDirectory(prefix="specfuse-", ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", os.fspath(JAIL)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
            start_new_session=True,
            text=True,
            errors="replace",
        )
        try:
            said, _ = process.communicate(told, timeout=limits.seconds)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"not done within {limits.seconds:g} s")
        finally:
            _end(process)
    if said == word:
        return Outcome(True)
    return Outcome(False, said[1:] if said.startswith("!") else f"the process ended early ({process.returncode})")


def _end(process: subprocess.Popen[str]) -> None:
    """The process and whatever it may have started."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    except (ProcessLookupError, PermissionError):
        pass
    process.communicate()
