"""``langchain-specfuse serve`` as a process: where it listens, when it is ready, how it stops."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli.main import FAILED, MISUSED, main
from tests.demo_members import replace_demo

from .conftest import BLUE, QUESTION, until

RUN = f"""
import sys, time
from langchain_specfuse import ScriptedMember
from langchain_specfuse.cli import main as cli
from tests.demo_members import replace_demo
class Slow(ScriptedMember):
    def draft(self, jobs):
        time.sleep(0.2)
        return super().draft(jobs)
class Stuck(ScriptedMember):
    def draft(self, jobs):
        if self.draft_calls:
            time.sleep(600)
        return super().draft(jobs)
kind = {{"slow": Slow, "stuck": Stuck}}[sys.argv.pop(1)]
replace_demo([kind({BLUE!r}, name="a")])
cli.command()
"""
"""Runs the console script with a scripted member."""


class Served:
    """The command as a running process."""

    def __init__(self, *argv: str, kind: str, **environment: str) -> None:
        command = [
            sys.executable,
            "-c",
            RUN,
            kind,
            "serve",
            "--port",
            "0",
            "--segment-tokens",
            "1",
            *argv,
        ]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.printed = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with self.process.stderr as lines:
            for line in lines:
                self.printed += line

    def ready(self) -> str:
        """Wait for the line that says it is ready; return its address."""
        assert until(lambda: "ready: " in self.printed, 60), self.printed
        return re.search(r"ready: (\S+)", self.printed)[1]

    def ended(self) -> int:
        code = self.process.wait(60)
        self._reading.join(30)
        return code


@pytest.fixture
def started() -> Iterator[Callable[..., Served]]:
    running: list[Served] = []
    yield lambda *argv, **options: running.append(Served(*argv, **options)) or running[-1]
    for served in running:
        served.process.kill()
        served.ended()


BODY = {"model": "specfuse", "messages": QUESTION}


def ask(url: str, **headers: str) -> httpx2.Response:
    return httpx2.post(f"{url}/chat/completions", json=BODY, timeout=60, headers=headers)


def streaming(url: str, **headers: str) -> Any:
    body = {**BODY, "stream": True}
    return httpx2.stream("POST", f"{url}/chat/completions", json=body, timeout=60, headers=headers)


def refused(url: str) -> bool:
    try:
        return ask(url).status_code == 503
    except httpx2.TransportError:
        return True


def test_a_signal_lets_answers_under_way_end_and_no_new_one_begin(started):
    served, without_page = started(kind="slow"), started("--no-page", kind="slow")
    url = served.ready()
    assert (
        httpx2.get(url.removesuffix("v1")).status_code == 200 and "for browsers" in served.printed
    )
    assert httpx2.get(without_page.ready().removesuffix("v1")).status_code == 404
    assert url.startswith("http://127.0.0.1:") and "warning" not in served.printed
    assert ask(url, host="evil.example").status_code == 403, (
        "without a key only its own names are accepted"
    )
    assert ask(url, host="localhost:1").status_code == 200
    with streaming(url) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGINT)
        assert until(lambda: "stopping" in served.printed)
        assert until(lambda: refused(url))
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert served.ended() == 0


class Unloadable(ScriptedMember):
    def probe(self):
        raise OSError("no such file")


WRONG = {
    "--port 99999": "cannot listen on",
    "--host no.such.host.invalid": "choose another --host",
    "--host 999.1.1.1": "choose another --host",
    "--host 192.0.2.1": "choose another --host",
    "--api-key-env ENDPOINT_KEY_THAT_IS_NOT_SET": "empty or not set",
    "--max-waiting -1": "--max-waiting",
    "--timeout nan": "timeout",
}


@pytest.mark.parametrize("argv", WRONG)
def test_a_mistake_is_reported_before_anything_is_loaded(capsys, monkeypatch, argv):
    replace_demo([Unloadable(BLUE, name="a")], monkeypatch.setattr)
    assert main(["serve", "--port", "0", *argv.split()]) == MISUSED
    printed = capsys.readouterr().err
    assert WRONG[argv] in printed and "-> " in printed and "no such file" not in printed


def test_members_that_cannot_load_or_a_missing_package_end_the_command(monkeypatch, capsys):
    replace_demo([Unloadable(BLUE, name="a")], monkeypatch.setattr)
    assert main(["serve", "--port", "0"]) == FAILED
    printed = capsys.readouterr().err
    assert (
        "OSError: no such file" in printed and "ready" not in printed and "Traceback" not in printed
    )
    monkeypatch.setitem(sys.modules, "langchain_specfuse.cli.serve", None)
    assert main(["serve", "--port", "0"]) == MISUSED
    assert 'pip install "langchain-specfuse[serve]"' in capsys.readouterr().err
