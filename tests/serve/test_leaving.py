"""If a client leaves or does not read, its answer is cancelled and the members forget it."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Draft, Effort
from langchain_specfuse.serve import Limits, answers, requests

from .conftest import PATH, QUESTION, ensemble, until

LONG = " ".join(f"word{number}" for number in range(2000))
HEAD = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode()


class Paced(ScriptedMember):
    """Drafts when the test allows it, and counts how often a draft has begun."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.turns = threading.Semaphore(0)
        self.begun = 0

    def draft(self, jobs):
        self.begun += 1
        assert self.turns.acquire(timeout=30)
        return super().draft(jobs)


@pytest.fixture
def paced(serve):
    member = Paced(LONG, name="paced")
    yield serve(ensemble(member, max_tokens=2000, max_concurrency=1)), member
    for _ in range(1000):
        member.turns.release()


def sent(endpoint, **options):
    """Send a question over a new connection and read nothing."""
    content = json.dumps({"model": "specfuse", "messages": QUESTION, **options}).encode()
    connection = socket.create_connection(endpoint.address, timeout=30)
    connection.sendall(HEAD + f"content-length: {len(content)}\r\n\r\n".encode() + content)
    return connection


def test_closing_a_stream_cancels_the_answer_within_a_round(paced):
    endpoint, member = paced
    member.turns.release()
    with endpoint.client().chat.completions.create(
        model="specfuse", messages=QUESTION, stream=True
    ) as stream:
        next(iter(stream))
        assert (
            until(lambda: member.begun == 2) and endpoint.metric("specfuse_answers_in_flight") == 1
        )
    assert endpoint.counted("specfuse_answers_total", 1, outcome="gone")
    assert endpoint.metric("specfuse_answers_in_flight") == 0, (
        "before the round that was under way is over"
    )
    member.turns.release()
    assert endpoint.idle() and member.begun == 2


def test_disconnecting_cancels_an_answer_that_waits_or_is_not_streamed(paced):
    """Nothing is written to these clients, so no write can fail."""
    endpoint, member = paced
    answered = sent(endpoint)
    assert until(lambda: member.begun == 1)
    waiting = sent(endpoint)
    assert endpoint.counted("specfuse_answers_waiting", 1)
    waiting.close()
    assert endpoint.counted("specfuse_answers_waiting", 0)
    assert endpoint.metric("specfuse_answers_in_flight") == 1
    answered.close()
    assert endpoint.counted("specfuse_answers_total", 2, outcome="gone")
    member.turns.release()
    assert endpoint.idle() and member.begun == 1


class Flood(ScriptedMember):
    """Writes far more than the buffers between two sockets hold."""

    def draft(self, jobs):
        self.draft_calls += 1
        text = f"{self.draft_calls} " + "x" * 500_000 + " "
        return [Draft(text, False, (1,), (-0.1,), Effort(read=1, prompt=1)) for _ in jobs]


def test_an_answer_that_the_client_does_not_read_ends_at_its_timeout(serve, monkeypatch):
    monkeypatch.setattr(answers, "GRACE_S", 0.2)
    endpoint = serve(ensemble(Flood("", name="flood"), max_tokens=60), limits=Limits(timeout=1))
    with sent(endpoint, stream=True):
        assert endpoint.counted("specfuse_answers_total", 1, outcome="timeout")
        assert endpoint.idle()


def test_a_request_body_that_stalls_is_abandoned(serve, monkeypatch):
    endpoint = serve()
    with socket.create_connection(endpoint.address) as connection:
        connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
    assert endpoint.counted("specfuse_refused_total", 1, code="gone")
    monkeypatch.setattr(requests, "BODY_TIMEOUT_S", 0.2)
    with socket.create_connection(endpoint.address, timeout=30) as connection:
        connection.sendall(HEAD + b"content-length: 1000\r\n\r\n{")
        assert connection.recv(1000).startswith(b"HTTP/1.1 408")
