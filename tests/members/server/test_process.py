"""The process of a server ends with whoever started it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from langchain_specfuse.members.server import process as processes
from langchain_specfuse.members.server.process import KEPT_LINES, LINE_CHARS, ServerProcess

SERVER = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("listening", flush=True)
with open(sys.argv[1] + ".new", "w") as file:
    print(os.getpid(), child.pid, file=file)
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
"""A server with a child process, as an engine has. It writes the ids of both into a file."""
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVER
POLITE = SERVER.replace(
    "time.sleep(600)\n",
    "signal.signal(signal.SIGTERM, lambda *_: (child.kill(), os._exit(0)))\ntime.sleep(600)\n",
).replace("import os,", "import os, signal,")
"""It ends its child when it is asked to end, as vLLM does."""
LONG_S = 30.0


@pytest.fixture
def pids_file(tmp_path: Path) -> Path:
    return tmp_path / "pids"


Start = Callable[..., ServerProcess]


@pytest.fixture
def start(pids_file: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def run(script: str = SERVER) -> ServerProcess:
        command = [sys.executable, "-c", script, str(pids_file)]
        started.append(ServerProcess("x", command, os.environ))
        pids(pids_file)
        return started[-1]

    yield run
    for process in started:
        process.stop()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pids(file: Path) -> list[int]:
    until(file.exists)
    return [int(pid) for pid in file.read_text().split()]


def are_gone(processes: list[int]) -> bool:
    return not any(is_running(process) for process in processes)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ended(script: str) -> ServerProcess:
    """A server that runs this and ends."""
    process = ServerProcess("x", [sys.executable, "-c", script], os.environ)
    assert process.ended.wait(LONG_S)
    return process


def test_a_stopped_server_leaves_no_process(start: Start, pids_file: Path) -> None:
    process = start()
    until(lambda: process.log_lines() == ["listening"])
    assert process.is_alive
    process.stop()
    assert not process.is_alive
    until(lambda: are_gone(pids(pids_file)))
    process.stop()


def test_a_server_that_ignores_the_signal_is_killed(
    start: Start, pids_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERMINATE_S", 0.5)
    process = start(STUBBORN)
    process.terminate()
    assert not process.ended.wait(0.2)
    process.stop()
    until(lambda: are_gone(pids(pids_file)))


def test_the_death_of_a_server_is_noticed_at_once_and_takes_its_children_along(
    start: Start, pids_file: Path
) -> None:
    process = start()
    server, child = pids(pids_file)
    os.kill(server, signal.SIGKILL)
    assert process.ended.wait(LONG_S)
    until(lambda: are_gone([child]))
    assert process.log_lines()[-1] == "(the server ended with SIGKILL)"


def test_a_command_that_cannot_be_run_is_a_dead_server_whose_log_says_why() -> None:
    process = ServerProcess("x", ["/nowhere/python"], os.environ)
    assert process.ended.wait(LONG_S)
    assert "/nowhere/python" in "\n".join(process.log_lines())
    process.stop()


def test_the_end_of_the_output_is_kept() -> None:
    process = ended(f"for number in range({2 * KEPT_LINES}): print(number)")
    *lines, end = process.log_lines()
    assert lines == [str(number) for number in range(KEPT_LINES + 1, 2 * KEPT_LINES)]
    assert end == "(the server ended with status 0)"
    assert process.line_count == 2 * KEPT_LINES + 1


def test_lines_are_plain_and_not_long() -> None:
    process = ended("print('\x1b[31mred\x1b[0m', 'a' + chr(7) + 'b'); print('a.' * 30_000)")
    red, *long, _ = process.log_lines()
    assert red == "red ab"
    assert len(long) > 20 and max(map(len, long)) == LINE_CHARS


def test_a_server_outlives_the_thread_that_asked_for_it(start: Start, pids_file: Path) -> None:
    """Linux counts the end of the thread that started a process as the end of its parent."""
    asking = threading.Thread(target=start)
    asking.start()
    asking.join()
    time.sleep(0.3)
    assert not are_gone(pids(pids_file)[:1])


def test_ctrl_c_does_not_reach_the_server(start: Start, pids_file: Path) -> None:
    start()
    assert all(os.getsid(pid) != os.getsid(0) for pid in pids(pids_file))


# --- however the parent ends ----------------------------------------------------------------------

PARENT = """
import os, sys, time
from langchain_specfuse.members.server.process import ServerProcess
process = ServerProcess("x", [sys.executable, "-c", sys.argv[2], sys.argv[1]], os.environ)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
USUAL = {
    "at the end of the program": "",
    "after an exception": "1 / 0",
    "at the end, with a fork that has ended": "os.fork() or sys.exit()",
}
KILLED = {
    "kill -9": "os.kill(os.getpid(), 9)",
    "os._exit": "os._exit(3)",
    "SIGTERM": "os.kill(os.getpid(), 15)",
}


def run(end: str, script: str, pids_file: Path) -> None:
    """Run a program that starts this server and ends in this way."""
    code = PARENT + textwrap.dedent(end)
    command = [sys.executable, "-c", code, str(pids_file), script]
    subprocess.run(command, stderr=subprocess.DEVNULL, check=False, timeout=LONG_S)


@pytest.mark.parametrize("end", USUAL.values(), ids=USUAL.keys())
def test_no_end_of_the_program_leaves_a_process(end: str, pids_file: Path) -> None:
    run(end, SERVER, pids_file)
    until(lambda: are_gone(pids(pids_file)))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no parent-death signal")
@pytest.mark.parametrize("end", KILLED.values(), ids=KILLED.keys())
def test_a_killed_program_leaves_no_server(end: str, pids_file: Path) -> None:
    run(end, POLITE, pids_file)
    until(lambda: are_gone(pids(pids_file)))
