"""The key of a server is sent to it and appears nowhere else, whatever fails."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from chat.recording import recorded
from langchain_core.load import dumps
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import (
    MemberError,
    Method,
    ServerMember,
    SpecFuseChatModel,
    SpecFuseError,
    UsageError,
)
from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.evaluation.running import on_worker
from langchain_specfuse.members.server import client
from langchain_specfuse.show.page import page
from langchain_specfuse.show.trace import Trace

from . import tiny
from .fake_server import INST_END, FakeServer

KEY = "sk-canary-7f3e9d"
QUESTION = "Why is the sky blue?"


@pytest.fixture(autouse=True)
def no_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer("vllm", *tiny.cached("llama", 2, chat_template=INST_END), key=KEY)
    yield fake
    fake.stop()


def member(server: FakeServer, **kwargs: Any) -> ServerMember:
    return ServerMember(server.url, "tiny", name="served", tokenizer=server.tokenizer, **kwargs)


def everything_in(error: BaseException | None) -> str:
    """Return everything that an error shows, including its causes, notes and failures."""
    known = [error] if error else []
    for current in known:
        more = [current.__cause__, current.__context__, *getattr(current, "failures", ())]
        known += [next_one for next_one in more if next_one is not None and next_one not in known]
    return "\n".join(f"{current} {current!r} {current.args}" for current in known)


ECHO = f"Incorrect API key provided: {KEY}".encode()
FAULTS: dict[str, Any] = {
    "none": None,
    "an echo as text": ECHO,
    "an echo as JSON": lambda reply: {"error": {"message": ECHO.decode()}},
    "an error": 500,
    "cut": "cut",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_key_appears_only_in_the_header(
    server: FakeServer,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("SPECFUSE_API_KEY", KEY)
    caplog.set_level(logging.DEBUG, "langchain_specfuse")
    served, here = member(server), tiny.member("llama", 1, name="here")
    served.probe()
    server.fault = lambda path, before: FAULTS[fault]
    collected = RunCollectorCallbackHandler()
    llm = SpecFuseChatModel(members=[served, here], method=Method(segment_tokens=4), max_tokens=12)
    answer = llm.invoke(QUESTION, {"callbacks": [collected]})
    # their workers may still be busy, and only one thread may use a member
    for used in (served, here):
        on_worker(used, lambda: None).result()
    rounds = tiny.answered([here, served], tiny.query()) if fault != "cut" else []
    try:
        (reply,) = served.draft([DraftJob(tiny.query(), (), 4, 8, Sampling())])
    except MemberError as error:  # it was probed a second time
        reply = Failure("error", str(error), error)
    shown = [json.dumps(run.model_dump(), default=repr) for run in collected.traced_runs]
    shown += [
        repr(served),
        json.dumps(served.spec),
        served.device,
        repr(served.address),
        repr(vars(served)),
    ]
    shown += [
        repr(llm),
        str(llm),
        dumps(llm),
        repr(answer),
        answer.model_dump_json(),
        caplog.text,
        repr(reply),
    ]
    shown += [everything_in(getattr(reply, "cause", None))]
    shown += [
        json.dumps([round.as_dict() for round in rounds]),
        page(Trace(rounds, question=QUESTION).as_dict()),
    ]
    served.unload()
    shown += [repr(pickle.dumps(served))]
    assert not any(KEY in text for text in shown)
    assert isinstance(reply, Failure) == (fault != "none")
    assert fault != "an echo as text" or "***" in reply.message


@pytest.mark.parametrize("fault", ["none", "an echo as text"])
def test_a_key_is_not_sent_to_langsmith(
    server: FakeServer, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", KEY)
    served = member(server, api_key_env="OTHER_KEY")
    served.probe()
    server.fault = lambda path, before: FAULTS[fault]
    with recorded() as (tracer, endpoint):
        # as the only member, its failure fails the answer
        for others in ([], [tiny.member("llama", 1, name="here")]):
            llm = SpecFuseChatModel(members=[served, *others], max_tokens=12)
            with suppress(SpecFuseError):
                llm.invoke(QUESTION, {"callbacks": [tracer]})
    served.unload()
    assert "served" in endpoint.told and QUESTION in endpoint.told
    assert KEY not in endpoint.told


def test_a_refused_key_is_not_shown(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINY_KEY", KEY[:-1])
    with pytest.raises(MemberError, match="401") as caught:
        SpecFuseChatModel(members=[member(server, api_key_env="TINY_KEY")]).invoke(QUESTION)
    assert KEY[:-1] not in everything_in(caught.value) and "TINY_KEY" in everything_in(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "http://me:canary-pass@localhost:8000/v1",
        "https://canary-pass@localhost:8000/v1#m",
        "http://localhost:8000/v1?api_key=canary-pass#m",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(address: str) -> None:
    llm = SpecFuseChatModel(members=["http://localhost:8000/v1#m"])
    ways = (
        lambda: ServerMember(address, "m"),
        lambda: SpecFuseChatModel(members=[address]),
        lambda: llm.invoke(QUESTION, members=[address]),
    )
    for way in ways:
        with pytest.raises(UsageError) as caught:
            way()
        assert "canary" not in everything_in(caught.value), everything_in(caught.value)
