"""``specfuse serve`` as a process: it says where it listens, answers when it is ready, and ends in peace."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from langchain_specfuse import UsageError, _command_serve
from langchain_specfuse.cli import MISUSED, main

from .conftest import ASKED, BLUE, until

ROOT = Path(__file__).resolve().parents[2]
RUN = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from langchain_specfuse import ScriptedMember, _registry, cli
class Slow(ScriptedMember):
    def draft(self, jobs):
        time.sleep(0.2)
        return super().draft(jobs)
class Missing(ScriptedMember):
    def probe(self):
        raise OSError("no such file")
class Stuck(ScriptedMember):
    def draft(self, jobs):
        time.sleep(60)
kind = {{"slow": Slow, "missing": Missing, "stuck": Stuck}}.get(sys.argv.pop(1), ScriptedMember)
_registry._made = lambda arguments: kind({BLUE!r}, name=arguments["name"])
cli.command()
"""
"""The console script; what it would load plays a part."""


class Served:
    """The command, running."""

    def __init__(self, *argv: str, kind: str = "quick", **environment: str) -> None:
        command = [sys.executable, "-c", RUN, kind, "serve", "--members", "a", "--port", "0", *argv]
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.told = ""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        for line in self.process.stderr:
            self.told += line.decode()

    def ready(self) -> str:
        """The address, once it says that it is ready."""
        assert until(lambda: "ready: " in self.told, 60), self.told
        return re.search(r"ready: (\S+)", self.told)[1]

    def ended(self) -> int:
        code = self.process.wait(20)
        self._reading.join(5)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reading.join(5)
        self.process.stdout.close()
        self.process.stderr.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as closing:

        def started(*argv: str, **options: Any) -> Served:
            served = Served(*argv, **options)
            closing.callback(served.close)
            return served

        yield started


def asked(url: str, **options: Any) -> httpx.Response:
    return httpx.post(f"{url}/chat/completions", json={"model": "specfuse", "messages": ASKED}, timeout=30, **options)


def test_it_says_where_it_listens_answers_and_stops_in_peace(serve):
    served = serve()
    url = served.ready()
    assert url.startswith("http://127.0.0.1:") and "warning" not in served.told
    assert asked(url).json()["choices"][0]["message"]["content"] == BLUE
    served.process.send_signal(signal.SIGTERM)
    assert served.ended() == 0
    assert served.process.stdout.read() == b""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_an_answer_under_way_may_end_but_no_new_one_begins(serve, sign):
    served = serve("--segment-tokens", "2", kind="slow")
    url = served.ready()
    body = {"model": "specfuse", "messages": ASKED, "stream": True}
    with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.send_signal(sign)
        assert until(lambda: "stopping" in served.told)
        time.sleep(0.3)
        with pytest.raises(httpx.TransportError):
            asked(url)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert served.ended() == 0


def test_an_answer_that_takes_too_long_to_end_is_left(serve):
    """Not even what a member computes is waited for: it may be deep in a matrix product."""
    served = serve("--grace", "1", kind="stuck")
    url = served.ready()
    with ThreadPoolExecutor() as asking:
        answer = asking.submit(asked, url)
        assert until(lambda: "specfuse_answers_in_flight 1.0" in httpx.get(f"{url}/../metrics").text)
        began = time.monotonic()
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0
        assert time.monotonic() - began < 8
        assert answer.result(10).json()["error"]["code"] == "closing"
    assert "Traceback" not in served.told


def test_a_stream_that_takes_too_long_to_end_is_told_so(serve):
    served = serve("--grace", "1", "--segment-tokens", "1", kind="slow")
    body = {"model": "specfuse", "messages": ASKED, "stream": True}
    with httpx.stream("POST", f"{served.ready()}/chat/completions", json=body, timeout=30) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert served.ended() == 0 and "Traceback" not in served.told
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "closing"


def test_its_help_is_told_whole(serve):
    served = serve("--help")
    assert served.ended() == 0
    assert "--most-prompt-tokens" in served.process.stdout.read().decode()


def test_with_a_key_in_the_environment_nobody_gets_in_without(serve):
    served = serve("--api-key-env", "DOOR_KEY", DOOR_KEY="one, two")
    url = served.ready()
    assert asked(url).status_code == 401
    for key in ("one", "two"):
        assert asked(url, headers={"authorization": f"Bearer {key}"}).status_code == 200


def test_a_port_that_others_reach_without_a_key_is_warned_of(serve):
    open_to_all = serve("--host", "0.0.0.0")
    url = open_to_all.ready().replace("0.0.0.0", "127.0.0.1")
    assert "warning: 0.0.0.0 can be reached from other machines, and there is no key" in open_to_all.told
    assert asked(url, headers={"host": "any.example"}).status_code == 200
    locked = serve("--host", "0.0.0.0", "--api-key-env", "DOOR_KEY", DOOR_KEY="one")
    locked.ready()
    assert "warning" not in locked.told


def test_on_this_machine_alone_it_answers_to_its_own_names_only(serve):
    url = serve().ready()
    assert asked(url, headers={"host": "evil.example"}).status_code == 403
    assert asked(url, headers={"host": "localhost:1"}).status_code == 200


def test_members_that_cannot_be_loaded_end_it(serve):
    served = serve(kind="missing")
    assert served.ended() == 1
    assert "OSError" in served.told and "no such file" in served.told and "ready" not in served.told


def test_it_speaks_https(serve, tmp_path):
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("openssl makes the certificate")
    files = [str(tmp_path / name) for name in ("key.pem", "cert.pem")]
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-keyout", files[0], "-out", files[1]]
    named = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([openssl, *made, *named], check=True, capture_output=True)
    url = serve("--tls-cert", files[1], "--tls-key", files[0]).ready()
    assert url.startswith("https://")
    trusted = ssl.create_default_context(cafile=files[1])
    assert asked(url, verify=trusted).json()["choices"][0]["message"]["content"] == BLUE


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--port", "99999"], "cannot be listened on"),
        (["--host", "no.such.host.invalid"], "cannot be listened on"),
        (["--host", "x" * 300], "cannot be listened on"),
        (["--api-key-env", "DOOR_KEY_THAT_IS_NOT_SET"], "empty or not set"),
        (["--most-prompt-tokens", "0"], "most_prompt_tokens must be a whole number of at least 1"),
        (["--at-once", "0"], "at_once must be a whole number of at least 1"),
        (["--timeout", "nan"], "timeout_s must be a number"),
        (["--grace", "-1"], "--grace must be at least 0"),
        (["--max-tokens", "0"], "max_tokens must be"),
        (["--tls-cert", "/no/such/file"], "--tls-cert"),
        (["--tls-key", "/no/such/file"], "--tls-key /no/such/file has no certificate"),
        (["--name", ""], "model must be a name, got ''"),
        (["--name", " "], "model must be a name, got ' '"),
        (["--prior", "/no/such/file"], "cannot be read"),
    ],
)
def test_a_mistake_is_told_before_anything_is_loaded(capsys, argv, told):
    from langchain_specfuse import ScriptedMember

    class Untouched(ScriptedMember):
        def probe(self):
            raise AssertionError("loaded")

    assert main(["serve", "--port", "0", *argv], members=[Untouched(BLUE, name="a")]) == MISUSED
    shown = capsys.readouterr().err
    assert told in shown and "-> " in shown


def test_what_is_missing_is_named_with_the_way_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "langchain_specfuse.door.port", None)
    monkeypatch.delattr("langchain_specfuse.door.port", raising=False)
    with pytest.raises(UsageError, match="not installed") as raised:
        _command_serve.run(["--port", "0"], [], sys.stderr)
    assert 'pip install "langchain-specfuse[serve]"' in raised.value.__notes__[0]


def test_settings_of_the_command_are_those_of_the_chat_model(tmp_path):
    prior = tmp_path / "prior.json"
    prior.write_text(json.dumps({"a": 2.0}))
    argv = ["--preset", "specem", "--max-tokens", "9", "--temperature", "0.5", "--member-timeout", "3"]
    argv += ["--straggler", "leave_out", "--umpire", "--speculate", "on"]
    given = _command_serve.parser().parse_args([*argv, "--prior", str(prior), "--min-members", "1"])
    from langchain_specfuse import ScriptedMember

    llm = _command_serve.chat_model(given, [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE, name="b")])
    assert (llm.preset, llm.max_tokens, llm.temperature, llm.member_timeout) == ("specem", 9, 0.5, 3.0)
    assert llm.straggler == "leave_out"
    assert (llm.umpire, llm.speculate) == (True, True)
    assert (llm.prior, llm.min_members) == ({"a": 2.0}, 1)
