"""Connections that ask nothing, or ever so slowly."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from langchain_specfuse.door import app_of, port
from langchain_specfuse.door.limits import Limits
from langchain_specfuse.door.lines import bounded

from .conftest import ensemble, until

SHORT = Limits(headers_s=1)


def dialled(here: Any) -> socket.socket:
    host, port = here.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=10)


def hung_up(line: socket.socket) -> bool:
    """Whether the other side has closed it, within the socket's own limit of time."""
    try:
        while line.recv(1000):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True


def test_who_says_nothing_is_hung_up_on(door):
    with dialled(door(limits=SHORT)) as line:
        assert hung_up(line)


def test_headers_that_come_one_by_one_are_not_waited_for(door):
    with dialled(door(limits=SHORT)) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        began, sent = time.monotonic(), 0
        try:
            while time.monotonic() - began < 8:
                line.sendall(b"x-slow: %d\r\n" % sent)
                sent += 1
                time.sleep(0.1)
        except OSError:
            pass
        assert 0.5 < time.monotonic() - began < 6


def test_the_headers_of_a_second_request_have_no_more_time(door):
    with dialled(door(limits=SHORT)) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert line.recv(4000).startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /hea")
        assert hung_up(line)


def test_an_answer_may_take_longer_than_asking(door):
    here = door(limits=Limits(headers_s=1, body_s=20))
    with dialled(here) as line:
        line.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n")
        line.sendall(b"content-length: 2\r\n\r\n")
        time.sleep(1.5)  # the body has a limit of its own
        line.sendall(b"{}")
        assert line.recv(4000).startswith(b"HTTP/1.1 400")


def test_there_are_only_so_many_connections(door):
    here = door(limits=Limits(most_lines=3))
    with ExitStack() as lines:
        for _ in range(3):
            lines.enter_context(dialled(here))
        time.sleep(0.2)
        assert hung_up(lines.enter_context(dialled(here)))
    assert until(lambda: _answers(here))


def test_a_uvicorn_of_ones_own_keeps_them_too():
    """As the docs say."""
    app = app_of(ensemble(), limits=SHORT)
    server = uvicorn.Server(uvicorn.Config(app, http=bounded(H11Protocol, SHORT), log_config=None))
    with port.opened("127.0.0.1", 0) as here:
        serving = threading.Thread(target=server.run, args=([here],))
        serving.start()
        with socket.create_connection(here.getsockname(), timeout=10) as line:
            assert hung_up(line)
        server.should_exit = True
        serving.join(10)


def _answers(here: Any) -> bool:
    with dialled(here) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        try:
            return line.recv(4000).startswith(b"HTTP/1.1 200")
        except ConnectionResetError:
            return False
