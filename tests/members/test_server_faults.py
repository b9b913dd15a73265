"""Servers fail in many ways. The member leaves or recovers, the answer goes on, nothing is streamed twice."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx")

from langchain_core.messages import AIMessageChunk

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.core.values import DraftJob, Failure, Sampling, Settings
from langchain_specfuse.errors import MemberError
from langchain_specfuse.members import _http
from langchain_specfuse.members._http import Address
from langchain_specfuse.members.server import ServerMember

from . import tiny
from .fake_server import INST_END, FakeServer, later

MADE_WITH = {"chat_template": INST_END}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses as in life, but shorter."""
    monkeypatch.setattr(_http, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(_http, "LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer("vllm", *tiny.cached("llama", 2, **MADE_WITH))
    yield made
    made.stop()


@pytest.fixture
def served(server: FakeServer) -> Iterator[ServerMember]:
    member = ServerMember(server.url, "tiny", name="served", tokenizer=server.tokenizer, timeout=2.0, retries=2)
    member.probe()
    yield member
    member.unload()


@pytest.fixture
def llm(served: ServerMember) -> SpecFuseChatModel:
    """With a member in this process that others' faults must not touch."""
    here = tiny.member("llama", 1, name="here")
    return SpecFuseChatModel(members=[served, here], segment_tokens=4, max_tokens=24, exit="never")


def asked(llm: SpecFuseChatModel) -> tuple[str, dict[str, Any], list[str]]:
    """(text, what is told of the answer, the pieces as they were streamed)."""
    whole: AIMessageChunk | None = None
    pieces = []
    for chunk in llm.stream("Why is the sky blue?"):
        pieces.append(str(chunk.text))
        whole = chunk if whole is None else whole + chunk  # type: ignore[assignment]
    assert whole is not None
    return str(whole.text), whole.response_metadata["specfuse"], pieces


FOR_EVER: dict[str, tuple[Any, str, str]] = {
    "refuses with 429": (429, "error", "answered 429: not now"),
    "fails with 500": (500, "error", "answered 500: not now"),
    "does not know the path": (404, "not_found", "answered 404"),
    "cuts the answer": ("cut", "error", "broke off"),
    "sends what is no JSON": (b"<html>Bad gateway</html>", "error", "no JSON: '<html>Bad gateway"),
    "sends JSON of another kind": (b'{"choices": 7}', "error", "not what it should be"),
    "sends no choices": (lambda told: told | {"choices": []}, "error", "told 0 choices (wanted"),
    "sends NaN": (lambda told: _numbers(told, lambda row: [float("nan") for _ in row]), "nan", "nan as a log-prob"),
    "sends too few numbers": (lambda told: _numbers(told, lambda row: row[:-1]), "error", "log-probabilities for"),
    "sends null": (lambda told: _numbers(told, lambda row: [None for _ in row]), "error", "None as a log-prob"),
    "serves another model": (lambda told: told | {"model": "other"}, "not_found", "now serves 'other'"),
}


def _numbers(told: dict[str, Any], change: Any) -> dict[str, Any]:
    for choice in told["choices"]:
        choice["logprobs"]["token_logprobs"] = change(choice["logprobs"]["token_logprobs"])
    return told


@pytest.mark.parametrize("fault", FOR_EVER)
@pytest.mark.parametrize("after", [0, 3], ids=["at once", "in the middle"])
def test_a_member_whose_server_fails_for_good_leaves_and_the_answer_goes_on(
    llm: SpecFuseChatModel, server: FakeServer, fault: str, after: int
) -> None:
    ill, kind, reason = FOR_EVER[fault]
    server.fault = later(after, ill, "completions")
    text, told, pieces = asked(llm)
    assert text and "".join(pieces) == text
    (gone,) = told["exits"]
    assert (gone["member"], gone["kind"]) == ("served", kind) and reason in gone["reason"], gone
    server.fault = None
    assert asked(llm)[1]["exits"] == []  # it is back for the next question


@pytest.mark.parametrize("ill", [429, 500, 503, "cut"])
def test_what_is_over_in_a_moment_is_not_noticed(llm: SpecFuseChatModel, server: FakeServer, ill: Any) -> None:
    well = asked(llm)
    server.fault = later(1, ill, "completions", times=2)
    assert asked(llm)[0] == well[0]
    assert asked(llm)[1]["exits"] == []


def test_a_server_that_hangs_is_left_alone_in_time(llm: SpecFuseChatModel, server: FakeServer) -> None:
    server.fault = later(1, "hang", "completions")
    since = time.monotonic()
    text, told, _ = asked(llm)
    assert text and told["exits"][0]["kind"] == "timeout" and "within 2 s" in told["exits"][0]["reason"]
    assert time.monotonic() - since < 20
    hanging = [path for path, _ in server.asked].count("/v1/completions")
    server.go.set()
    assert hanging == len([1 for path, _ in server.asked if path == "/v1/completions"])  # nobody asks again


def test_a_server_that_is_gone_is_told_with_its_address(llm: SpecFuseChatModel, server: FakeServer) -> None:
    server.stop()
    text, told, _ = asked(llm)
    assert text
    assert "cannot be reached" in told["exits"][0]["reason"] and str(server.port) in told["exits"][0]["reason"]


def test_a_server_that_restarts_in_the_middle_is_met_again(served: ServerMember, server: FakeServer) -> None:
    """Its caches are gone, but a job carries all that is needed: the answer is the same."""
    settings = Settings(segment_tokens=4, max_tokens=24)
    whole = tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings))
    rounds = 0

    def restart(*_: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 2:
            server.stop()
            server.go.clear()
            server.start()

    assert tiny.text_of(tiny.answered([served], tiny.query(id="q"), settings, after=restart)) == whole
    assert rounds > 2


def test_a_server_that_comes_back_with_another_model_is_not_asked(served: ServerMember, server: FakeServer) -> None:
    server.stop()
    job = DraftJob(tiny.query(id="q"), (), 5, 9, Sampling())
    (gone,) = served.draft([job])
    assert isinstance(gone, Failure) and gone.kind == "error"
    server.name = "other"
    server.start()
    with pytest.raises(MemberError, match="serves other; wanted tiny"):
        served.draft([job])
    server.name = "tiny"
    assert not isinstance(served.draft([job])[0], Failure)


def test_one_ill_question_takes_no_other_along(served: ServerMember, server: FakeServer) -> None:
    jobs = [DraftJob(tiny.query(f"Question {k}?", id=f"q{k}"), (), 4, 4, Sampling()) for k in range(4)]
    well = served.draft(jobs)
    server.fault = later(2, 400, "completions", times=1)
    ill = served.draft(jobs)
    assert sum(isinstance(one, Failure) for one in ill) == 1
    assert all(isinstance(b, Failure) or a.text == b.text for a, b in zip(well, ill, strict=True))


def test_jobs_are_asked_at_once(server: FakeServer) -> None:
    """The engine can only make a batch of what it has."""
    server_side, most, lock = 0, 0, threading.Lock()
    plain = server.reply

    def counting(path: str, body: Any) -> Any:
        nonlocal server_side, most
        with lock:
            server_side += 1
            most = max(most, server_side)
        try:
            time.sleep(0.02)
            return plain(path, body)
        finally:
            with lock:
                server_side -= 1

    member = ServerMember(server.url, tokenizer=server.tokenizer, parallel=4)
    member.probe()
    server.reply = counting  # type: ignore[method-assign]
    member.draft([DraftJob(tiny.query(id=f"q{k}"), (), 4, 4, Sampling()) for k in range(8)])
    member.unload()
    assert 2 <= most <= 4


@pytest.mark.skipif(shutil.which("openssl") is None, reason="nothing makes a certificate here: no openssl")
def test_a_certificate_that_nobody_vouches_for_is_refused(server: FakeServer, tmp_path: Path) -> None:
    pem = str(tmp_path / "own.pem")
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=h -keyout {pem} -out {pem}.crt"
    subprocess.run([*make.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    with open(pem, "a") as both:
        both.write(Path(f"{pem}.crt").read_text())
    secure = FakeServer("vllm", server.model, server.tokenizer, tls=pem)
    try:
        with pytest.raises(MemberError, match="CERTIFICATE_VERIFY_FAILED"):
            ServerMember(secure.url, tokenizer=server.tokenizer, retries=0).probe()
        trusting = ServerMember(secure.url, tokenizer=server.tokenizer, verify=pem)
        assert trusting.probe().scores
        trusting.unload()
    finally:
        secure.stop()


@pytest.mark.parametrize(
    ("url", "api", "root"),
    [
        ("http://h:8000", "http://h:8000/v1", "http://h:8000"),
        ("http://h:8000/v1/", "http://h:8000/v1", "http://h:8000"),
        ("https://h/gate/v1", "https://h/gate/v1", "https://h/gate"),
        ("https://h/openai", "https://h/openai", "https://h/openai"),
    ],
)
def test_an_address_is_taken_as_it_is_meant(url: str, api: str, root: str) -> None:
    assert (Address(url).api, Address(url).root) == (api, root)
