"""Whose connections are used, when they are closed, and what is sent on them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from langchain_specfuse import ServerMember, SpecFuseChatModel
from langchain_specfuse.core.call import Call
from langchain_specfuse.core.values import Draft, DraftJob, Failure
from langchain_specfuse.engine.calls import calls_of
from langchain_specfuse.engine.worker import QueuedJob, forget, task_of
from langchain_specfuse.members.server import client

from .. import tiny
from ..contract import draft_job
from ..fake_chat_server import FakeChatServer
from ..fake_server import INST_END, FakeServer
from ..test_chat_model import STORY, talker

LONG_S = 30.0


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer("vllm", *tiny.cached("llama", 2, chat_template=INST_END))
    yield fake
    fake.stop()


@pytest.fixture
def served(server: FakeServer) -> Iterator[ServerMember]:
    member = ServerMember(server.url, "tiny", name="served")
    member.probe()
    yield member
    member.unload()


def reply_of(member: ServerMember, job: DraftJob) -> Any:
    return member.draft([job])[0]


# --- unloaded meanwhile ---------------------------------------------------------------------------


class SlowToConnect(FakeChatServer):
    """Keeps a client that connects waiting for the last thing that it asks."""

    def __init__(self) -> None:
        self.arrived, self.go = threading.Event(), threading.Event()
        super().__init__("lmstudio", talker())

    def listed(self, path: str) -> Any:
        if path == "/api/version":
            self.arrived.set()
            self.go.wait(LONG_S)
        return super().listed(path)


@pytest.mark.parametrize("unload", ["the member", "the chat model"])
def test_a_member_that_was_unloaded_while_it_connected_connects_again(unload: str) -> None:
    server = SlowToConnect()
    member = ServerMember(server.url, name="chat")
    llm = SpecFuseChatModel(members=[member])
    with ThreadPoolExecutor(1) as asking:
        answer = asking.submit(llm.invoke, "Why is the sky blue?")
        assert server.arrived.wait(LONG_S)
        (member if unload == "the member" else llm).unload()
        server.go.set()
        assert answer.result(LONG_S).text == STORY
    assert llm.invoke("Why is the sky blue?").text == STORY
    member.unload()
    server.stop()


def test_nothing_more_is_sent_after_unload(
    server: FakeServer, served: ServerMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member waits between two attempts."""
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.5)
    arrived, sent = threading.Event(), []
    server.fault = lambda path, _: sent.append(path) or arrived.set() or 503
    with ThreadPoolExecutor(1) as asking:
        reply = asking.submit(reply_of, served, draft_job())
        assert arrived.wait(LONG_S)
        served.unload()
        failure = reply.result(LONG_S)
    assert isinstance(failure, Failure) and "closed meanwhile" in failure.message
    assert len(sent) == 1


def test_a_request_that_was_given_up_is_not_sent_again(
    server: FakeServer, served: ServerMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.5)
    arrived, sent = threading.Event(), []
    server.fault = lambda path, _: sent.append(path) or arrived.set() or 503
    call = Call()

    def ask() -> Any:
        with call.in_this_thread():
            return reply_of(served, draft_job())

    with ThreadPoolExecutor(1) as asking:
        reply = asking.submit(ask)
        assert arrived.wait(LONG_S)
        call.close()
        failure = reply.result(LONG_S)
    assert isinstance(failure, Failure) and failure.kind == "timeout"
    assert len(sent) == 1


@pytest.mark.parametrize("request_number", [0, 6, 10])
def test_a_job_whose_answer_ends_while_it_connects_again_spoils_nothing(
    server: FakeServer,
    served: ServerMember,
    monkeypatch: pytest.MonkeyPatch,
    request_number: int,
) -> None:
    """Neither the jobs that wait for the same connection, nor what the trial finds out."""
    monkeypatch.setattr(client, "RETRIES", 0)
    found = served.probe()
    server.stop()
    assert isinstance(reply_of(served, draft_job(id="lost")), Failure)
    server.go.clear()
    server.start()
    arrived = threading.Event()
    first = len(server.asked)

    def fault(_: str, before: int) -> Any:
        return arrived.set() or "hang" if before == first + request_number else None

    server.fault = fault
    dropped: list[Any] = []
    replies: list[Any] = []
    connecting, waiting = draft_job(id="connecting"), draft_job(id="waiting")
    calls_of(served).begin(task_of(QueuedJob(served, "draft", connecting, dropped.append)))
    assert arrived.wait(LONG_S)
    calls_of(served).begin(task_of(QueuedJob(served, "draft", waiting, replies.append)))
    forget(served, "connecting")
    end = time.monotonic() + LONG_S
    while not replies and time.monotonic() < end:
        time.sleep(0.01)
    assert isinstance(replies[0], Draft) and not dropped
    assert served.probe() == found
