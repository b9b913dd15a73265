"""If a server fails, the member leaves or recovers, the answer goes on, and no text is repeated."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain_core import exceptions as langchain
from langchain_core.messages import AIMessageChunk
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import Method, ServerMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.errors import EnsembleError, MemberError, UsageError
from langchain_specfuse.members.server import client
from langchain_specfuse.members.server.client import Address, Client

from .. import tiny
from ..fake_server import INST_END, FakeServer, later

MADE_WITH = {"chat_template": INST_END}
LONG_S = 30.0
"""A generous limit: anything slower hangs."""


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer("vllm", *tiny.cached("llama", 2, **MADE_WITH))
    yield fake
    fake.stop()


@pytest.fixture
def member_on() -> Iterator[Callable[..., ServerMember]]:
    """Return a function that creates probed members; they are unloaded after the test."""
    members: list[ServerMember] = []

    def make(server: FakeServer, **kwargs: Any) -> ServerMember:
        members.append(ServerMember(server.url, "tiny", **({"name": "served"} | kwargs)))
        members[-1].probe()
        return members[-1]

    yield make
    for member in members:
        member.unload()


@pytest.fixture
def served(server: FakeServer, member_on: Callable[..., ServerMember]) -> ServerMember:
    return member_on(server, tokenizer=server.tokenizer, timeout=2.0)


@pytest.fixture
def llm(served: ServerMember) -> SpecFuseChatModel:
    """Return a chat model with a local member that the server's faults must not disturb."""
    here = tiny.member("llama", 1, name="here")
    return SpecFuseChatModel(
        members=[served, here], max_tokens=24, method=Method(exit="never", segment_tokens=4)
    )


def asked(llm: SpecFuseChatModel) -> tuple[str, dict[str, Any]]:
    """Return the answer and its metadata."""
    whole: AIMessageChunk | None = None
    for chunk in llm.stream("Why is the sky blue?"):
        whole = chunk if whole is None else whole + chunk  # type: ignore[assignment]
    assert whole is not None
    return str(whole.text), whole.response_metadata["specfuse"]


def job(text: str = "Why is the sky blue?", id: str = "q") -> DraftJob:
    return DraftJob(tiny.query(text, id=id), (), 5, 9, Sampling())


# --- a server that fails leaves the answer --------------------------------------------------------


def _aborted(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply of vLLM with the finish reason "abort"; the rest looks complete."""
    none: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": []}
    return reply | {
        "choices": [
            choice | {"finish_reason": "abort", "logprobs": none} for choice in reply["choices"]
        ]
    }


def _numbers(
    change: Callable[[list[Any]], list[Any]],
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def changed(reply: dict[str, Any]) -> dict[str, Any]:
        for choice in reply["choices"]:
            choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])
        return reply

    return changed


FAULTS: dict[str, tuple[Any, str, str]] = {
    "refuses with 429": (429, "error", "answered 429: not now"),
    "fails with 500": (500, "error", "answered 500: not now"),
    "does not know the path": (404, "not_found", "answered 404"),
    "cuts the reply": ("cut", "error", "broke off"),
    "hangs": ("hang", "timeout", "within 2 s"),
    "sends something that is not JSON": (
        b"<html>Bad gateway</html>",
        "error",
        "not JSON: '<html>Bad gateway",
    ),
    "sends JSON of another kind": (b'{"choices": 7}', "error", "unexpected reply"),
    "sends no choices": (
        lambda reply: reply | {"choices": []},
        "error",
        "returned 0 choices (expected",
    ),
    "sends NaN": (_numbers(lambda row: [float("nan") for _ in row]), "nan", "nan as a log-prob"),
    "sends too few numbers": (_numbers(lambda row: row[:-1]), "error", "log-probabilities for"),
    "sends null": (_numbers(lambda row: [None for _ in row]), "nan", "None as a log-prob"),
    "breaks off": (_aborted, "error", "broke off (abort)"),
    "serves another model": (
        lambda reply: reply | {"model": "other"},
        "not_found",
        "now serves 'other'",
    ),
    "is gone": (None, "error", "cannot be reached"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_member_whose_server_fails_leaves_and_the_answer_goes_on(
    llm: SpecFuseChatModel, server: FakeServer, fault: str
) -> None:
    """The trace records the failure, no text is repeated, and the member is back for the next
    question."""
    effect, kind, reason = FAULTS[fault]
    tracer, rounds, left = RunCollectorCallbackHandler(), [], []
    listener = SpecFuseCallbackHandler(on_round=rounds.append, on_exit=left.append)
    server.fault = later(3, effect, "completions")
    if fault == "is gone":
        server.stop()
    pieces = [str(chunk.text) for chunk in llm.stream("Why?", {"callbacks": [tracer, listener]})]
    assert [event.number for event in rounds] == list(range(1, len(rounds) + 1))
    assert "".join(pieces) == "".join(event.text for event in rounds) != ""
    (departure,) = left
    assert (departure.member, departure.kind) == ("served", kind) and reason in departure.reason
    (run,) = tracer.traced_runs
    (failed,) = [child for round in run.child_runs for child in round.child_runs if child.error]
    assert failed.name == "served"
    assert f"{kind}: " in failed.error and reason in failed.error
    assert failed.extra["metadata"]["specfuse_round"] == departure.round
    expected = [{"member": "served", "kind": kind, "round": departure.round}]
    assert run.error is None and run.extra["metadata"]["specfuse_exits"] == expected
    server.fault = None
    server.go.set()
    if fault == "is gone":
        server.start()
    assert asked(llm)[1]["exits"] == []


@pytest.mark.parametrize("effect", [429, 500, "cut"])
def test_a_momentary_fault_goes_unnoticed(
    llm: SpecFuseChatModel, server: FakeServer, effect: Any
) -> None:
    well = asked(llm)
    server.fault = later(1, effect, "completions", times=2)
    assert asked(llm)[0] == well[0]
    assert asked(llm)[1]["exits"] == []


# --- time limits ----------------------------------------------------------------------------------


def _trickle(connection: socket.socket, way: str) -> None:
    """Send a reply that never ends, byte by byte in its head or body."""
    head, piece = b"HTTP/1.1 200 OK\r\n", b"X-a: b\r\n"
    try:
        connection.recv(65536)
        if way != "head":
            head += b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            piece = b"1\r\n \r\n"
        connection.sendall(head)
        while True:
            connection.sendall(piece)
            time.sleep(0.05)
    except OSError:
        connection.close()


@pytest.mark.parametrize("way", ["head", "body"])
def test_a_reply_that_never_ends_is_given_up(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as asking:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        made = Client(Address(url, timeout_s=0.5), "m")
        threading.Thread(target=lambda: _trickle(listening.accept()[0], way), daemon=True).start()
        with pytest.raises(MemberError, match=r"within 0.5 s") as raised:
            asking.submit(made.get, "/v1/models").result(LONG_S)
        assert raised.value.kind == "timeout"
        made.close()


def test_unloading_ends_requests_under_way(served: ServerMember, server: FakeServer) -> None:
    served.unload()
    served.address = replace(served.address, timeout_s=600.0)
    served.probe()
    arrived = threading.Event()
    server.fault = lambda path, before: arrived.set() or "hang" if "completions" in path else None
    with ThreadPoolExecutor(1) as asking:
        replies = asking.submit(served.draft, [job()])
        assert arrived.wait(LONG_S)
        served.unload()
        assert isinstance(replies.result(LONG_S)[0], Failure)


def test_a_program_exits_even_if_a_server_hangs(server: FakeServer) -> None:
    code = f"""
        import threading, time
        from langchain_specfuse import ServerMember
        from langchain_specfuse.core.values import DraftJob, Query, Sampling, Turn
        member = ServerMember({server.url!r}, "tiny", timeout=600.0)
        member.probe()
        job = DraftJob(Query("q", (Turn("user", "Something new?"),)), (), 5, 9, Sampling())
        threading.Thread(target=member.draft, args=([job],), daemon=True).start()
        input()
    """
    arrived = threading.Event()

    def fault(path: str, before: int) -> Any:
        return arrived.set() or "hang" if "Something new" in str(server.asked[before][1]) else None

    server.fault = fault
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, text=True
    ) as process:
        assert arrived.wait(2 * LONG_S)
        process.communicate("\n", timeout=LONG_S)
    assert process.returncode == 0


# --- restarts -------------------------------------------------------------------------------------


def test_an_answer_survives_a_restart_of_the_server(
    served: ServerMember, server: FakeServer
) -> None:
    """Its caches are lost, but a job contains everything needed, so the answer is the same."""
    settings = Settings(method=Method(segment_tokens=4), max_tokens=24)
    whole = tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings))
    rounds = 0

    def restart(*_: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            server.stop()
            server.go.clear()
            server.start()

    assert (
        tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings, after=restart)) == whole
    )
    assert rounds > 2


def test_a_server_that_comes_back_with_another_model_is_refused(
    served: ServerMember, server: FakeServer
) -> None:
    server.stop()
    (reply,) = served.draft([job()])
    assert (
        isinstance(reply, Failure) and reply.kind == "error" and str(server.port) in reply.message
    )
    server.name = "other"
    server.start()
    (reply,) = served.draft([job()])
    assert isinstance(reply, Failure) and reply.kind == "not_found"
    assert re.search(r"serves other.*tiny", reply.message)
    server.name = "tiny"
    assert not isinstance(served.draft([job()])[0], Failure)


# --- addresses ------------------------------------------------------------------------------------

THROUGH = "asked through the proxy 127.0.0.1:9 (from %s), cannot be"


@pytest.mark.parametrize(
    ("environment", "address", "message", "advice"),
    [
        (
            {"HTTP_PROXY": "me:secret@127.0.0.1:9"},
            "http://h.invalid",
            THROUGH % "HTTP_PROXY",
            "NO_PROXY=h.invalid",
        ),
        (
            {"ALL_PROXY": "http://me:secret@127.0.0.1:9"},
            "https://h.invalid",
            THROUGH % "ALL_PROXY",
            "NO_PROXY=h",
        ),
        (
            {"ALL_PROXY": "gopher://me:secret@127.0.0.1:9"},
            "http://h.invalid",
            THROUGH % "ALL_PROXY",
            "unset",
        ),
        (
            {"HTTP_PROXY": "127.0.0.1:9", "NO_PROXY": "invalid"},
            "http://h.invalid",
            "(/v1/models) cannot be",
            "start",
        ),
        (
            {"HTTPS_PROXY": "127.0.0.1:9"},
            "http://h.invalid:11434/v1",
            "(/v1/models) cannot be",
            "`ollama serve`",
        ),
    ],
)
def test_an_unreachable_server_is_reported_with_the_proxy_and_advice(
    environment: dict[str, str],
    address: str,
    message: str,
    advice: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((MemberError, UsageError)) as caught:
        ServerMember(address, timeout=5.0).probe()
    (note,) = caught.value.notes
    assert message in str(caught.value) and advice in note
    assert "secret" not in f"{caught.value}{note}"


def test_a_response_of_the_proxy_is_reported_with_the_proxy(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", server.url)
    server.fault = lambda path, before: 503
    with pytest.raises(MemberError, match=r"proxy.*HTTP_PROXY.*503"):
        ServerMember("http://here.invalid", tokenizer=server.tokenizer).probe()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_an_unknown_certificate_is_refused_unless_its_authority_is_named(
    server: FakeServer, tmp_path: Path
) -> None:
    pem = str(tmp_path / "own.pem")
    make = (
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=h -keyout {pem} -out "
        f"{pem}.crt"
    )
    subprocess.run(
        [*make.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True
    )
    with open(pem, "a") as both:
        both.write(Path(f"{pem}.crt").read_text())
    secure = FakeServer("vllm", server.model, server.tokenizer, tls=pem)
    try:
        with pytest.raises(MemberError, match="CERTIFICATE_VERIFY_FAILED"):
            ServerMember(secure.url, tokenizer=server.tokenizer).probe()
        trusting = ServerMember(secure.url, tokenizer=server.tokenizer, verify=pem)
        assert trusting.probe().scores
        trusting.unload()
    finally:
        secure.stop()


@pytest.mark.parametrize(
    ("fault", "known"),
    [
        (429, langchain.ModelRateLimitError),
        (401, langchain.ModelAuthenticationError),
        (400, langchain.ModelInvalidRequestError),
        (503, langchain.ModelAPIError),
        ("cut", langchain.ModelConnectionError),
    ],
    ids=str,
)
def test_a_server_that_fails_during_an_answer_raises_langchains_class(
    server: FakeServer, served: ServerMember, fault: Any, known: type[langchain.ModelError]
) -> None:
    server.fault = lambda path, before: fault
    with pytest.raises(EnsembleError) as raised:
        SpecFuseChatModel(members=[served]).invoke("Why?")
    assert isinstance(raised.value, known)
