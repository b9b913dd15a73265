"""A key is sent to its server and shown to nobody: whatever goes wrong, it stands in no text of ours."""

from __future__ import annotations

import base64
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

pytest.importorskip("httpx")

from face.recording import recorded
from langchain_core.load import dumps
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from pydantic import SecretStr

from langchain_specfuse import MemberError, SpecFuseChatModel, SpecFuseError, UsageError
from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.members import _http
from langchain_specfuse.members.server import ServerMember
from langchain_specfuse.show.page import page
from langchain_specfuse.show.trace import Trace

from . import tiny
from .fake_server import INST_END, FakeServer

KEY = "sk-canary-7f3e9d"
BASIC = base64.b64encode(b"me:canary-pass").decode()
QUESTION = "Why is the sky blue?"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(_http, "LONGEST_PAUSE_S", 0.02)


@pytest.fixture
def server() -> Iterator[FakeServer]:
    made = FakeServer("vllm", *tiny.cached("llama", 2, chat_template=INST_END), key=KEY)
    yield made
    made.stop()


def member(server: FakeServer, url: str | None = None) -> ServerMember:
    return ServerMember(url or server.url, "tiny", name="served", tokenizer=server.tokenizer, timeout=60.0, retries=1)


def told_by(error: BaseException) -> str:
    """All that is told of an error: its causes, notes and failures too."""
    known: list[BaseException] = [error]
    for one in known:
        more = [one.__cause__, one.__context__, *getattr(one, "failures", ())]
        known += [next_one for next_one in more if next_one is not None and next_one not in known]
    return "\n".join(f"{one} {one!r} {one.args} {getattr(one, '__notes__', ())}" for one in known)


ECHO = f"Incorrect API key provided: {KEY}".encode()
FAULTS: dict[str, Any] = {
    "none": None,
    "an echo as text": ECHO,
    "an echo as JSON": lambda told: {"error": {"message": ECHO.decode()}},
    "no such path": 404,
    "too busy": 429,
    "broken": 500,
    "cut": "cut",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_key_is_nowhere_but_in_the_header(server, fault, monkeypatch, caplog):
    monkeypatch.setenv("SPECFUSE_API_KEY", KEY)
    caplog.set_level(logging.DEBUG, "langchain_specfuse")
    served, here = member(server), tiny.member("llama", 1, name="here")
    served.probe()
    ill = FAULTS[fault]
    server.fault = lambda path, before: ill
    collected = RunCollectorCallbackHandler()
    llm = SpecFuseChatModel(members=[served, here], segment_tokens=4, max_tokens=12, exit="never", trace="members")
    answer = llm.invoke(QUESTION, {"callbacks": [collected]})
    runs = [json.dumps(run.model_dump(), default=repr) for run in collected.traced_runs]
    try:
        (reply,) = served.draft([DraftJob(tiny.query(), (), 4, 8, Sampling())])
    except MemberError as error:  # it was looked at again, as if it were new
        reply = Failure("error", str(error), error)
    told = [repr(served), json.dumps(served.spec), served.device, repr(served.address), repr(llm), str(llm), dumps(llm)]
    told += [repr(answer), answer.model_dump_json(), caplog.text, *runs, repr(reply), repr(vars(served))]
    cause = getattr(reply, "cause", None)
    told += [told_by(cause)] if cause else []
    served.unload()
    told += [repr(pickle.dumps(served))]
    assert not any(KEY in one for one in told)
    assert fault == "none" or cause is not None
    assert fault != "an echo as text" or "***" in reply.message


@pytest.mark.parametrize("fault", FAULTS)
def test_a_key_is_in_nothing_that_is_posted_to_langsmith(server, fault, monkeypatch):
    monkeypatch.setenv("OTHER_KEY", KEY)
    server.key = KEY
    ill = FAULTS[fault]
    served = ServerMember(
        server.url, "tiny", name="served", tokenizer=server.tokenizer, timeout=60.0, retries=1, api_key_env="OTHER_KEY"
    )
    served.probe()
    server.fault = lambda path, before: ill
    with recorded() as (tracer, endpoint):
        for others in ([], [tiny.member("llama", 1, name="here")]):  # alone it takes the answer with it if it fails
            llm = SpecFuseChatModel(
                members=[served, *others], max_tokens=12, exit="never", trace="members", api_key=SecretStr(KEY)
            )
            for way in (llm.invoke, lambda question, config, llm=llm: list(llm.stream(question, config))):
                with suppress(SpecFuseError):
                    way(QUESTION, {"callbacks": [tracer]})
    served.unload()
    assert "served" in endpoint.told and QUESTION in endpoint.told
    assert KEY not in endpoint.told


@pytest.mark.parametrize("name", ["api_key", "API_KEY", "token", "hf_token", "password", "headers", "Authorization"])
def test_a_key_that_was_put_where_none_belongs_is_refused_before_anybody_sees_it(name):
    """The arguments of a member that is named are posted with every question."""
    wrong = {"model": "http://127.0.0.1:9/v1#tiny", name: KEY}
    with recorded() as (tracer, endpoint):
        made = SpecFuseChatModel(members=["http://127.0.0.1:9/v1#tiny"])
        for attempt in (
            lambda: SpecFuseChatModel(members=[wrong]),
            lambda: made.model_copy(update={"verifiers": [wrong]}).invoke(QUESTION, {"callbacks": [tracer]}),
            lambda: made.with_config(callbacks=[tracer]).invoke(QUESTION, members=[wrong]),
        ):
            with pytest.raises(UsageError, match=f"must not hold {name!r}") as caught:
                attempt()
            assert KEY not in told_by(caught.value) and "SPECFUSE_API_KEY" in told_by(caught.value)
    assert KEY not in endpoint.told


def test_a_server_that_refuses_the_key_does_not_make_us_tell_it(server, monkeypatch):
    monkeypatch.setenv("SPECFUSE_API_KEY", KEY[:-1])
    with pytest.raises(MemberError) as caught:
        SpecFuseChatModel(members=[member(server)]).invoke(QUESTION)
    assert KEY[:-1] not in told_by(caught.value) and "SPECFUSE_API_KEY" in told_by(caught.value)


def test_a_key_from_a_file_may_end_with_a_line(server, monkeypatch):
    monkeypatch.setenv("SPECFUSE_API_KEY", f"{KEY}\n")
    served = member(server)
    assert served.probe().scores
    served.unload()


@pytest.mark.parametrize("key", [f"{KEY}\nHost: elsewhere", f"{KEY}é", f"{KEY} and more", f"{KEY}\x7f"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(server, key, monkeypatch):
    monkeypatch.setenv("SPECFUSE_API_KEY", key)
    with pytest.raises(UsageError, match="SPECFUSE_API_KEY") as caught:
        member(server).probe()
    assert KEY not in told_by(caught.value)


def test_a_value_with_its_own_scheme_is_sent_as_it_is(monkeypatch):
    for value in (f"Basic {BASIC}", f"Bearer {KEY}", KEY):
        sent = value if " " in value else f"Bearer {KEY}"
        monkeypatch.setenv("SPECFUSE_API_KEY", value)
        wire = _http.Wire(_http.Address("http://localhost:1"), "x", 1)
        assert wire._client.headers["authorization"] == sent
        wire.close()


SECRET_ADDRESSES = (
    "http://me:canary-pass@localhost:8000/v1",
    "https://canary-pass@localhost:8000/v1#m",
    "http://localhost:8000/v1?api_key=canary-pass#m",
    "http://me:canary-pass@/v1",
)


@pytest.mark.parametrize("address", SECRET_ADDRESSES)
def test_an_address_with_a_secret_in_it_is_refused_and_not_shown(address):
    def made_of(given: Any) -> Any:
        return lambda: SpecFuseChatModel(members=[given])

    llm = SpecFuseChatModel(members=["http://localhost:8000/v1#m"])
    ways = (
        lambda: ServerMember(address, "m"),
        made_of(address),
        made_of({"model": address}),
        lambda: SpecFuseChatModel(members=["http://localhost:8000/v1#m"], verifiers=[address]),
        lambda: llm.invoke(QUESTION, members=[address]),
    )
    for way in ways:
        with pytest.raises(UsageError) as caught:
            way()
        assert "canary" not in told_by(caught.value), told_by(caught.value)


def test_a_page_of_a_run_holds_no_key(server, monkeypatch):
    monkeypatch.setenv("SPECFUSE_API_KEY", KEY)
    served, here = member(server), tiny.member("llama", 1, name="here")
    served.probe()
    server.fault = lambda path, before: ECHO
    rounds = tiny.answered([here, served], tiny.query())
    assert KEY not in page(Trace(rounds, question=QUESTION).as_dict())
    assert KEY not in json.dumps([round.as_dict() for round in rounds])
    served.unload()
