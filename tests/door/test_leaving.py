"""Who goes before the end takes the work along: members are told to forget, and the seat is free."""

from __future__ import annotations

import json
import socket
import threading
import time

import httpx
import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Draft, Effort
from langchain_specfuse.door import Limits

from .conftest import ASKED, BLUE, ensemble, until

LONG = " ".join(f"word{number}" for number in range(2000))


class Slow(ScriptedMember):
    def draft(self, jobs):
        time.sleep(0.02)
        return super().draft(jobs)


@pytest.fixture
def slow(door):
    here = door(ensemble(Slow(LONG, name="slow"), max_tokens=2000), limits=Limits(at_once=1, waiting=4))
    (member,) = here.llm.members
    return here, member


def body(**options):
    return {"model": "specfuse", "messages": ASKED, **options}


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


def sent(here, **options):
    """A connection over which a question has been sent, and nothing read."""
    told = json.dumps(body(**options)).encode()
    host, port = here.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(HEAD + f"content-length: {len(told)}\r\n\r\n".encode() + told)
    return line


def test_closing_a_stream_ends_the_work_and_frees_what_was_held(slow):
    here, member = slow
    with here.client().chat.completions.create(**body(stream=True)) as stream:
        next(iter(stream))
        assert member.open_queries and here.hall.gate.answering == 1
    assert until(lambda: not member.open_queries and here.hall.gate.inside == 0, 2)
    calls = member.draft_calls
    time.sleep(0.2)
    assert member.draft_calls == calls < 100
    assert here.number("specfuse_answers_total", outcome="gone") == 1


def test_who_goes_without_a_word_is_missed_before_anything_was_said(slow):
    here, member = slow
    line = sent(here)  # not streamed: nothing is written until the end, so no write can fail
    assert until(lambda: member.open_queries)
    line.close()
    assert until(lambda: not member.open_queries and here.hall.gate.inside == 0, 2)


def test_who_goes_while_waiting_gives_up_the_place(slow):
    here, member = slow
    with here.client().chat.completions.create(**body(stream=True)) as stream:
        next(iter(stream))
        line = sent(here)
        assert until(lambda: here.hall.gate.waiting == 1)
        line.close()
        assert until(lambda: here.hall.gate.waiting == 0, 2)
        assert here.hall.gate.answering == 1 and len(member.open_queries) == 1
    assert here.number("specfuse_refused_total", code="gone") == 1
    assert here.number("specfuse_answers_total", outcome="gone") == 1  # whose stream was closed


def test_who_goes_in_the_middle_of_the_body_gives_up_the_place(slow):
    here, _ = slow
    host, port = here.url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)))
    line.sendall(HEAD)
    line.sendall(b"content-length: 1000\r\n\r\n{")
    assert until(lambda: here.hall.gate.inside == 1)
    line.close()
    assert until(lambda: here.hall.gate.inside == 0, 2)


def test_a_body_that_does_not_come_is_not_waited_for(door):
    here = door(limits=Limits(body_s=1))
    host, port = here.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as line:
        line.sendall(HEAD)
        line.sendall(b"content-length: 1000\r\n\r\n{")
        assert line.recv(1000).startswith(b"HTTP/1.1 408")
    assert until(lambda: here.hall.gate.inside == 0, 2)


class Flood(ScriptedMember):
    """Says far more than what lies between two sockets takes up."""

    def draft(self, jobs):
        self.draft_calls += 1
        self.open_queries |= {job.query.id: "" for job in jobs}
        text = f"{self.draft_calls} " + "x" * 500_000 + " "
        return [Draft(text, False, (1,), (-0.1,), Effort(read=1, prompt=1)) for _ in jobs]


def test_a_client_that_never_reads_is_let_go(door, monkeypatch):
    from langchain_specfuse.door import answers

    monkeypatch.setattr(answers, "GRACE_S", 0.5)
    flood = Flood("", name="flood")
    here = door(ensemble(flood, max_tokens=4000), limits=Limits(timeout_s=2))
    line = sent(here, stream=True)
    assert until(lambda: here.hall.gate.answering == 1)
    assert until(lambda: here.hall.gate.inside == 0 and not flood.open_queries, 10)
    line.close()


@pytest.mark.parametrize("stream", [True, False])
def test_what_a_client_never_reads_is_dropped_and_its_line_closed(door, monkeypatch, stream):
    from langchain_specfuse.door import answers, lines

    monkeypatch.setattr(answers, "GRACE_S", 0.5)
    monkeypatch.setattr(lines, "UNREAD_S", 1.0)
    here = door(ensemble(Flood("", name="flood"), max_tokens=30), limits=Limits(timeout_s=2))
    with sent(here, stream=stream):
        assert until(lambda: here.hall.gate.answering == 1)
        assert until(lambda: here.hall.gate.inside == 0)
        assert here.server.server_state.connections
        assert until(lambda: not here.server.server_state.connections, 12)


def test_who_says_that_nothing_more_comes_and_never_reads_keeps_no_line(door, monkeypatch):
    from langchain_specfuse.door import lines

    monkeypatch.setattr(lines, "UNREAD_S", 1.0)
    here = door(ensemble(Flood("", name="flood"), max_tokens=30))
    with sent(here, stream=True) as line:
        assert until(lambda: any(one.flow.write_paused for one in here.server.server_state.connections))
        line.shutdown(socket.SHUT_WR)
        assert until(lambda: here.hall.gate.inside == 0 and not here.server.server_state.connections)


def test_who_reads_slowly_gets_all_of_it(door, monkeypatch):
    from langchain_specfuse.door import lines

    monkeypatch.setattr(lines, "UNREAD_S", 1.0)
    here = door(ensemble(Flood("", name="flood"), max_tokens=20))
    with sent(here) as line:
        line.settimeout(10)
        told = line.recv(2000)
        size = int(told.partition(b"content-length: ")[2].partition(b"\r")[0])
        time.sleep(1.5)  # longer than what is left at the end may take
        read = len(told.partition(b"\r\n\r\n")[2])
        while read < size:
            piece = line.recv(1 << 20)
            assert piece, f"{read} bytes of {size}"
            read += len(piece)


def test_answers_that_are_none_are_not_kept_for_who_never_reads_them(door, monkeypatch):
    from langchain_specfuse.door import lines

    monkeypatch.setattr(lines, "PAUSED_S", 0.5)
    here = door(limits=Limits(timeout_s=1))
    host, port = here.url.removeprefix("http://").split(":")
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((host, int(port)))
        line.settimeout(0.5)
        with pytest.raises((TimeoutError, ConnectionError)):
            line.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 1_000_000)
        assert until(lambda: not here.server.server_state.connections, 12)


def test_the_answers_of_others_go_on(slow, door):
    here = door(ensemble(Slow(BLUE, name="other")))
    kept = []
    asking = threading.Thread(target=lambda: kept.append(httpx.post(
        f"{here.url}/v1/chat/completions", json=body(), timeout=30).json()))  # fmt: skip
    asking.start()
    for _ in range(8):
        sent(here, stream=True).close()
    asking.join(10)
    assert kept[0]["choices"][0]["message"]["content"] == BLUE
    assert until(lambda: here.hall.gate.inside == 0, 5)
