"""The process of a server ends with whoever started it, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from langchain_specfuse.members.server import supervisor
from langchain_specfuse.members.server.process import ServerProcess, free_port

BEGIN = """
import http.server, os, subprocess, sys
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
others = [subprocess.Popen(sleep).pid]
"""
SERVE = """
with open(sys.argv[2] + ".new", "w") as file:
    print(os.getpid(), *others, file=file)
os.rename(sys.argv[2] + ".new", sys.argv[2])
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
print("listening", flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
SERVER = BEGIN + SERVE
"""A server with a child process, as an engine has. It writes the ids of all into a file."""
SESSIONS = (
    BEGIN
    + """
others.append(subprocess.Popen(sleep, start_new_session=True).pid)
reader, writer = os.pipe()
if os.fork() == 0:
    daemon = subprocess.Popen(sleep, start_new_session=True)
    os.write(writer, str(daemon.pid).encode())
    os._exit(0)
os.wait()
others.append(int(os.read(reader, 20)))
"""
    + SERVE
)
"""A server that has, besides, a child with a session of its own, and a daemon, whose parent has
ended."""
IGNORE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STUBBORN, STUBBORN_SESSIONS = IGNORE + SERVER, IGNORE + SESSIONS
LONG_S = 30.0


@pytest.fixture
def pids_file(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def start(pids_file: Path) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def run(script: str = SERVER) -> ServerProcess:
        port = free_port()
        command = [sys.executable, "-c", script, str(port), str(pids_file)]
        started.append(ServerProcess("org/my model", port, command, os.environ))
        until(lambda: started[-1].is_ready() or not started[-1].is_alive)
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


def test_a_stopped_server_leaves_no_process_and_no_log(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start()
    assert process.is_alive and process.is_ready()
    until(lambda: bool(process.log_lines()))  # another process writes them
    assert process.log_lines()[0] == "listening"
    process.stop()
    assert not process.is_alive and not process.is_ready()
    assert are_gone(pids(pids_file))
    assert not process.log.exists()


def test_a_server_that_ignores_the_signal_is_killed(
    start: Callable[..., ServerProcess],
    pids_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    impatient = tmp_path / "supervisor.py"
    usual = f"TERMINATE_S = {supervisor.TERMINATE_S}"
    impatient.write_text(Path(supervisor.__file__).read_text().replace(usual, "TERMINATE_S = 1.0"))
    monkeypatch.setattr(supervisor, "__file__", str(impatient))
    process = start(STUBBORN)
    began = time.monotonic()
    process.stop()
    assert are_gone(pids(pids_file))
    assert 1.0 <= time.monotonic() - began < supervisor.TERMINATE_S


def test_the_death_of_a_server_is_noticed_and_takes_its_children_along(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start()
    server, child = pids(pids_file)
    os.kill(server, signal.SIGKILL)
    until(lambda: not process.is_alive)
    assert are_gone([child])
    assert "SIGKILL" in process.log_lines()[-1]


def test_the_death_of_the_supervisor_takes_the_server_along(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start()
    server, child = pids(pids_file)
    psutil.Process(server).parent().kill()
    until(lambda: not process.is_alive)
    process.end()
    until(lambda: are_gone([server, child]))


def test_a_command_that_cannot_be_run_is_a_dead_server_whose_log_says_why() -> None:
    process = ServerProcess("x", free_port(), ["/nowhere/python"], os.environ)
    until(lambda: not process.is_alive)
    process.end()
    assert "/nowhere/python" in process.log_lines()[-1]
    process.stop()


def test_output_is_kept_up_to_a_limit_with_its_end() -> None:
    script = f"for number in range({supervisor.LOG_BYTES // 10}): print(f'{{number:040d}}')"
    process = ServerProcess("x", free_port(), [sys.executable, "-c", script], os.environ)
    until(lambda: not process.is_alive)
    process.end()
    logs = list(process.log.parent.glob(f"{process.log.name}*"))
    assert len(logs) == 2
    assert sum(log.stat().st_size for log in logs) <= 2 * supervisor.LOG_BYTES
    assert process.log.parent.stat().st_mode & 0o077 == 0  # others can read none of them
    *_, last, _ = process.log_lines()  # before the line about the end
    assert int(last) == supervisor.LOG_BYTES // 10 - 1
    process.stop()
    assert not any(log.exists() for log in logs)


def test_a_line_without_an_end_is_kept_up_to_the_same_limit() -> None:
    script = f"""
import sys
for _ in range(100):
    sys.stdout.write("x" * {supervisor.LOG_BYTES})
print()
print("the last line")
"""
    process = ServerProcess("x", free_port(), [sys.executable, "-c", script], os.environ)
    until(lambda: not process.is_alive)
    process.end()
    logs = list(process.log.parent.iterdir())
    assert sum(log.stat().st_size for log in logs) <= 2 * supervisor.LOG_BYTES
    assert "the last line" in process.log_lines()
    process.stop()


def test_a_new_file_of_the_log_does_not_hide_what_came_before() -> None:
    # The line about the end begins the second file.
    script = f"""
print(("." * 99 + chr(10)) * {supervisor.LOG_BYTES // 100 - 1})
print("ValueError: the cause".rjust({supervisor.LOG_BYTES % 100 + 90}))
"""
    process = ServerProcess("x", free_port(), [sys.executable, "-c", script], os.environ)
    until(lambda: not process.is_alive)
    process.end()
    assert len(list(process.log.parent.iterdir())) == 2
    *_, cause, _ = process.log_lines()
    assert cause.strip() == "ValueError: the cause"
    process.stop()


def test_the_end_of_a_log_is_plain_and_short() -> None:
    script = "print('\x1b[31mred\x1b[0m', 'a' + chr(7) + 'b'); print('a.' * 30_000)"
    process = ServerProcess("x" * 300, free_port(), [sys.executable, "-c", script], os.environ)
    until(lambda: not process.is_alive)
    red, long, _ = process.log_lines()
    assert red == "red ab" and len(long) < 3000
    process.stop()


# --- however the parent ends ----------------------------------------------------------------------

PARENT = """
import os, sys, time
from langchain_specfuse.members.server.process import ServerProcess, free_port
port = free_port()
command = [sys.executable, "-c", sys.argv[2], str(port), sys.argv[1]]
process = ServerProcess("x", port, command, os.environ)
while not process.is_ready():
    time.sleep(0.05)
"""
ENDS = {
    "at the end of the program": "",
    "after an exception": "1 / 0",
    "kill -9": "os.kill(os.getpid(), 9)",
    "kill -9 while a fork lives": """
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
        os.kill(os.getpid(), 9)
    """,
    "os._exit": "os._exit(3)",
    "SIGTERM": "os.kill(os.getpid(), 15)",
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_no_end_of_the_parent_leaves_a_server(end: str, pids_file: Path) -> None:
    script = PARENT + textwrap.dedent(end)
    server = SESSIONS if sys.platform == "linux" else SERVER
    command = [sys.executable, "-c", script, str(pids_file), server]
    # a group of its own, so that the test can end a fork
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        parent.wait(LONG_S)
        until(lambda: are_gone(pids(pids_file)))
    finally:
        try:
            os.killpg(parent.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems cannot adopt the children of a process"
)


@on_linux
def test_processes_with_their_own_session_end_with_the_server(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start(SESSIONS)
    assert len(set(map(os.getsid, pids(pids_file)))) == 3
    process.stop()
    assert are_gone(pids(pids_file))


@on_linux
def test_processes_with_their_own_session_end_when_the_server_dies(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start(SESSIONS)
    server, *others = pids(pids_file)
    os.kill(server, signal.SIGKILL)
    until(lambda: not process.is_alive)
    assert are_gone(others)


@on_linux
def test_a_process_that_the_server_has_left_becomes_no_zombie(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    process = start(SESSIONS)
    *_, daemon = pids(pids_file)
    os.kill(daemon, signal.SIGKILL)
    until(lambda: not psutil.pid_exists(daemon))
    assert process.is_alive and process.is_ready()


KILLED = [
    ["parent"],
    ["supervisor"],
    ["guard"],
    ["parent", "supervisor"],
    ["supervisor", "parent"],
    ["parent", "guard"],
    ["guard", "parent"],
]
"""Who gets SIGKILL, at once and in this order. The supervisor is the server's parent, and the
guard is the supervisor's."""


@on_linux
@pytest.mark.parametrize("killed", KILLED, ids=" then ".join)
def test_no_death_leaves_an_orphan(killed: list[str], pids_file: Path) -> None:
    check_that_none_is_left(SESSIONS, pids_file, *((name, signal.SIGKILL) for name in killed))


@on_linux
@pytest.mark.slow
@pytest.mark.parametrize("killed", KILLED, ids=" then ".join)
def test_no_death_leaves_an_orphan_that_ignores_signals(killed: list[str], pids_file: Path) -> None:
    signals = [(name, signal.SIGKILL) for name in killed]
    check_that_none_is_left(STUBBORN_SESSIONS, pids_file, *signals)


@on_linux
@pytest.mark.parametrize(
    "names",
    [["parent"], ["supervisor"], ["guard"], ["parent", "guard", "supervisor"]],
    ids=" and ".join,
)
def test_no_polite_end_leaves_an_orphan(names: list[str], pids_file: Path) -> None:
    check_that_none_is_left(SESSIONS, pids_file, *((name, signal.SIGTERM) for name in names))


def check_that_none_is_left(
    script: str, pids_file: Path, *signals: tuple[str, signal.Signals]
) -> None:
    """Start a server from a program of its own, send these signals, and wait for the end of all."""
    command = [sys.executable, "-c", PARENT + "time.sleep(600)", str(pids_file), script]
    parent = subprocess.Popen(command, start_new_session=True)
    server, *others = pids(pids_file)
    try:
        above = [process.pid for process in psutil.Process(server).parents()]
        tree = dict(zip(("supervisor", "guard", "parent"), above, strict=False))
        assert tree["parent"] == parent.pid
        for name, number in signals:
            os.kill(tree[name], number)
        until(lambda: are_gone([server, *others, tree["supervisor"], tree["guard"]]))
    finally:
        parent.kill()
        parent.wait()
        for pid in filter(is_running, [server, *others]):
            os.kill(pid, signal.SIGKILL)


def test_ctrl_c_does_not_reach_the_server(
    start: Callable[..., ServerProcess], pids_file: Path
) -> None:
    start()
    assert all(os.getsid(pid) != os.getsid(0) for pid in pids(pids_file))
