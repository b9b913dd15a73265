"""A lead's whole answer by one request: what arrives is handed on at once, and closing ends it."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from langchain_specfuse import ServerMember
from langchain_specfuse.core import call
from langchain_specfuse.core.call import Call
from langchain_specfuse.core.values import Constraint, Draft, DraftJob, Failure, Query
from langchain_specfuse.members.server import client
from langchain_specfuse.members.server.client import Address, Client
from langchain_specfuse.members.text.templates import PLAIN_END
from tests.late import three_tries

from .. import tiny
from ..contract import draft_job, drafted, streamed
from ..fake_server import INST_END, FakeServer, later
from ..remote import until

LONG_S = 30.0
PATHS = {"vllm": "/v1/completions", "llama.cpp": "/completion"}


@pytest.fixture(params=PATHS)
def server(request: pytest.FixtureRequest) -> Iterator[FakeServer]:
    model, tokenizer = tiny.cached("gpt2", 2, chat_template=INST_END, tokenizer="unigram")
    fake = FakeServer(request.param, model, tokenizer)
    yield fake
    fake.stop()


@pytest.fixture
def served(server: FakeServer) -> Iterator[ServerMember]:
    member = ServerMember(server.url, name="served", tokenizer=server.tokenizer)
    member.probe()
    yield member
    member.unload()


@pytest.fixture
def hasty(server: FakeServer, served: ServerMember) -> Iterator[ServerMember]:
    """A member with a limit of 1 s. Its trial is quick, because the server has replied to it
    before."""
    member = ServerMember(server.url, name="hasty", tokenizer=server.tokenizer, timeout=1.0)
    member.probe()
    streamed(member, leading())
    yield member
    member.unload()


def leading(**how: Any) -> DraftJob:
    return replace(draft_job(max_tokens=30), leads=True, **how)


def parts(member: ServerMember, job: DraftJob) -> tuple[list[Draft], Failure | None]:
    """The drafts of a stream, and the failure that ended it."""
    *drafts, last = member.stream(job)
    if isinstance(last, Failure):
        return drafts, last
    return [*drafts, last], None


def test_an_answer_takes_one_request(server: FakeServer, served: ServerMember) -> None:
    before = len(server.asked)
    pieces = streamed(served, leading())
    ((path, body),) = server.asked[before:]
    assert path == PATHS[server.engine] and body["stream"]
    assert sum(draft.effort.read for draft in pieces) >= sum(len(draft.tokens) for draft in pieces)
    assert max(draft.effort.prompt for draft in pieces) > 0


def test_the_connection_is_used_again(server: FakeServer, served: ServerMember) -> None:
    opened = len(server._server._open)
    for _ in range(3):
        streamed(served, leading())
    assert len(server._server._open) <= opened + 1


def test_each_part_is_there_as_soon_as_it_has_arrived(
    server: FakeServer, served: ServerMember
) -> None:
    """The server sends the next part when this one has been read."""
    steps = threading.Semaphore(1)
    server.pace = lambda _: steps.acquire(timeout=LONG_S)
    for draft in served.stream(leading()):
        assert isinstance(draft, Draft)
        steps.release(2)
    assert not server.hung_up


@three_tries
def test_the_more_streams_are_read_the_more_a_part_carries(
    server: FakeServer, served: ServerMember, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part for each token took two thirds of the processor time of eight answers at once."""
    monkeypatch.setattr(call, "REST_S", 0.5)
    monkeypatch.setattr(call, "LONGEST_REST_S", 0.5)
    server.pace = lambda _: time.sleep(0.01)
    alone = streamed(served, leading())
    other = served.stream(leading())
    next(other)
    beside = streamed(served, leading())
    other.close()
    assert len(beside) < len(alone) / 3
    assert "".join(draft.text for draft in beside) == "".join(draft.text for draft in alone)


def test_closing_ends_the_request(server: FakeServer, served: ServerMember) -> None:
    server.pace = lambda _: time.sleep(0.05)
    stream = served.stream(leading())
    next(stream)
    stream.close()
    assert until(lambda: server.hung_up)


def test_a_stream_that_waits_is_interrupted(server: FakeServer, served: ServerMember) -> None:
    go = threading.Event()
    server.pace = lambda number: go.wait(LONG_S) if number == 3 else None
    call, first = Call(), threading.Event()

    def read() -> list[Any]:
        replies = []
        with call.in_this_thread():
            for reply in served.stream(leading()):
                replies.append(reply)
                first.set()
        return replies

    with ThreadPoolExecutor(1) as reading:
        replies = reading.submit(read)
        assert first.wait(LONG_S)
        time.sleep(0.1)
        call.close()
        assert isinstance(replies.result(LONG_S / 2)[-1], Failure)
    go.set()


@three_tries
def test_nothing_limits_a_pause_within_a_stream(server: FakeServer, hasty: ServerMember) -> None:
    """Whoever waits for it enforces the limits."""
    server.pace = lambda number: time.sleep(1.5) if number == 2 else None
    _, failure = parts(hasty, leading())
    assert failure is None


@three_tries
def test_a_reply_that_does_not_begin_is_late(server: FakeServer, hasty: ServerMember) -> None:
    """llama-server begins when it has read the prompt, and may work on others before that."""
    server.fault = lambda path, _: time.sleep(2.0) if path == PATHS[server.engine] else None
    _, failure = parts(hasty, leading())
    if server.engine == "vllm":
        assert failure is not None and failure.kind == "timeout"
    else:
        assert failure is None


@pytest.mark.parametrize("effect", [503, 429])
def test_a_request_that_has_not_begun_is_sent_again(
    server: FakeServer, served: ServerMember, effect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.01)
    whole = streamed(served, leading())
    server.fault = later(0, effect, "completion", times=2)
    assert "".join(draft.text for draft in streamed(served, leading())) == "".join(
        draft.text for draft in whole
    )


def aborted(event: dict[str, Any]) -> dict[str, Any]:
    """vLLM reports an abort in the finish reason alone."""
    if event.get("choices"):
        event["choices"][0]["finish_reason"] = "abort"
    return event


def failing(event: dict[str, Any]) -> dict[str, Any]:
    """What both engines send for an error in the middle of a stream."""
    return {"error": {"message": "the model ran out of memory", "code": 500}}


BREAKS: dict[str, tuple[Any, str]] = {
    "cut": ("cut", "broke off"),
    "an error": (failing, r"broke off \(the model ran out of memory\)"),
    "abort": (aborted, r"broke off \(abort\)"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_stream_that_breaks_off_is_a_failure(
    server: FakeServer, served: ServerMember, how: str
) -> None:
    """It is not sent again: what had arrived may have been shown."""
    if how == "abort" and server.engine != "vllm":
        pytest.skip("llama-server has no such reason")
    effect, message = BREAKS[how]
    before = len(server.asked)
    server.fault = later(0, effect, "completion")
    drafts, failure = parts(served, leading())
    assert failure is not None and failure.kind == "error"
    assert re.search(message, failure.message)
    assert len(server.asked) == before + 1
    assert bool(drafts) == (how == "cut")


def test_log_probabilities_come_if_they_are_asked_for(
    server: FakeServer, served: ServerMember
) -> None:
    assert all(draft.logprobs is None for draft in streamed(served, leading()))
    pieces = streamed(served, leading(logprobs=True))
    whole = drafted(served, leading(segment_tokens=30))
    assert whole.logprobs is not None
    joined = [value for draft in pieces for value in draft.logprobs or ()]
    assert joined == pytest.approx(list(whole.logprobs), abs=1e-4)


def test_a_constraint_holds_for_the_whole_answer(server: FakeServer, served: ServerMember) -> None:
    if server.engine != "vllm":
        pytest.skip("the fake llama-server knows only grammars of tokens")
    words = json.dumps(["blue whale", "grey whale"])
    query = Query("q", draft_job().query.turns, constraint=Constraint("choice", words))
    pieces = streamed(served, leading(query=query))
    text = "".join(draft.text for draft in pieces)
    assert text.strip() in json.loads(words) and pieces[-1].ended


def texts(*written: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Replace the texts of the events by these."""
    left = iter(written)

    def changed(event: dict[str, Any]) -> dict[str, Any]:
        holder, key = event, "content"
        if "choices" in event:
            if not event["choices"]:
                return event
            holder, key = event["choices"][0], "text"
        holder[key] = next(left, "")
        return event

    return changed


def test_an_object_gets_the_spaces_that_its_grammar_demands(
    server: FakeServer, served: ServerMember
) -> None:
    """A code fence before it is removed, wherever it is divided."""
    query = Query("q", draft_job().query.turns, constraint=Constraint("json"))
    server.reply = _unguided(server.reply)  # type: ignore[method-assign]
    server.fault = lambda path, _: texts("``", "`json\n", '{"a"', ":\n 1,", '"b" :', " 2}")
    pieces = streamed(served, leading(query=query))
    assert "".join(draft.text for draft in pieces) == '{"a": 1, "b": 2}'
    for draft in pieces:
        assert draft.ends is not None and len(draft.ends) == len(draft.tokens)
        if ": " in draft.text:  # it has other tokens than the server's
            assert server.tokenizer.decode(draft.tokens).strip() == draft.text.strip()
            assert draft.ends[-1] == len(draft.text)


def test_an_escape_in_an_object_is_the_character_that_it_means(
    server: FakeServer, served: ServerMember
) -> None:
    """vLLM's guided decoding allows all escapes of JSON."""
    query = Query("q", draft_job().query.turns, constraint=Constraint("json"))
    server.reply = _unguided(server.reply)  # type: ignore[method-assign]
    server.fault = lambda path, _: texts('{"a": "Z', "\\u0", "0f6", "ri\\ud83d", "\\ude00", '\\/"}')
    pieces = streamed(served, leading(query=query))
    assert "".join(draft.text for draft in pieces) == '{"a": "Zöri😀/"}'


def _unguided(reply: Callable[..., Any]) -> Callable[..., Any]:
    guided = ("structured_outputs", "json_schema")
    return lambda path, body: reply(
        path, {key: value for key, value in (body or {}).items() if key not in guided}
    )


def test_a_text_that_ends_the_turn_is_never_shown() -> None:
    """A model without a template ends its turn with a text, which may begin within a token."""
    model, tokenizer = tiny.cached("gpt2", 1)
    server = FakeServer("vllm", model, tokenizer)
    member = ServerMember(server.url, tokenizer=tokenizer)
    written = (
        "So.",
        " It is",
        PLAIN_END[:1],
        " no end." + PLAIN_END[:1],
        PLAIN_END[1:] + " B",
        "?",
    )
    server.fault = lambda path, _: texts(*written) if "completions" in path else None
    pieces = streamed(member, leading())
    assert "".join(draft.text for draft in pieces) == f"So. It is{PLAIN_END[:1]} no end."
    assert pieces[-1].ended and not any(draft.ended for draft in pieces[:-1])
    for draft in pieces:
        assert draft.ends is not None and draft.ends[-1] == len(draft.text)
    member.unload()
    server.stop()


def test_what_arrives_together_is_one_draft() -> None:
    """Under load, a part carries all that has arrived."""
    events = [json.dumps({"number": number}) for number in range(6)]
    packets = [events[:1], events[1:4], events[4:]]
    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as serving:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        client = Client(Address(url, timeout_s=LONG_S), "m")
        steps = threading.Semaphore(0)

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for packet in packets:
                sent = [f"data: {event}\n\n".encode() for event in packet]
                connection.sendall(b"".join(b"%x\r\n%b\r\n" % (len(s), s) for s in sent))
                steps.acquire(timeout=LONG_S)
            connection.sendall(b"0\r\n\r\n")
            connection.close()

        serving.submit(serve)
        arrived = []
        for together in client.stream("/v1/completions", {}):
            arrived.append([event["number"] for event in together])
            steps.release()
        client.close()
    assert arrived == [[0], [1, 2, 3], [4, 5]]
