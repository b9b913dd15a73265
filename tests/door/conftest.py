"""A real port on this machine, with scripted members behind it, and the clients that people use in front of it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.door import app_of, port
from langchain_specfuse.door.faults import Fault

BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
ASKED = [{"role": "user", "content": "Why is the sky blue?"}]


def until(true: Callable[[], object], timeout_s: float = 10.0) -> bool:
    """Wait until it is true."""
    end = time.monotonic() + timeout_s
    while not true() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(true())


def ensemble(*answers: Any, **options: Any) -> SpecFuseChatModel:
    """Two members that differ, unless others are named; it answers BLUE."""
    scripts = answers or (BLUE, WIDE)
    members = [
        one if hasattr(one, "draft") else ScriptedMember(one, name=name)
        for one, name in zip(scripts, "abcdef", strict=False)
    ]
    return SpecFuseChatModel(**{"members": members, "segment_tokens": 4, **options})


@dataclass
class Door:
    """A door that is open."""

    llm: SpecFuseChatModel
    app: Any
    url: str
    closing: ExitStack
    server: Any

    @property
    def hall(self) -> Any:
        return self.app.state.hall

    def client(self, **options: Any) -> OpenAI:
        given = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, "http_client": self.http()}
        return OpenAI(**{**given, **options})

    def http(self) -> httpx.Client:
        return self.closing.enter_context(httpx.Client(timeout=30))

    def aclient(self, **options: Any) -> AsyncOpenAI:
        return AsyncOpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0, **options})

    def post(self, body: Any, path: str = "/v1/chat/completions", **options: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **options.pop("headers", {})}
        return httpx.post(self.url + path, content=content, headers=headers, timeout=30, **options)

    def asked(self, **options: Any) -> httpx.Response:
        """What comes back for a question with these options."""
        return self.post({"model": "specfuse", "messages": ASKED, **options})

    def number(self, name: str, **labels: str) -> float:
        """One number of the metrics, once all answers are booked; 0 if it is not there."""
        assert until(lambda: self.hall.gate.inside == 0)
        from prometheus_client.parser import text_string_to_metric_families

        told = text_string_to_metric_families(httpx.get(self.url + "/metrics").text)
        samples = [one for family in told for one in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


@pytest.fixture
def door() -> Iterator[Callable[..., Door]]:
    """Opens doors; all are closed in the end."""
    with ExitStack() as closing:

        def opened(llm: SpecFuseChatModel | None = None, *, ready: bool = True, **options: Any) -> Door:
            llm = llm or ensemble()
            app = app_of(llm, **options)
            here = closing.enter_context(port.opened("127.0.0.1", 0))
            server = port.server_of(app, port.Certificate(), 1)
            thread = threading.Thread(target=server.run, args=([here],), daemon=True)
            thread.start()
            closing.callback(thread.join, 10)
            closing.callback(setattr, server, "should_exit", True)
            made = Door(llm, app, f"http://127.0.0.1:{here.getsockname()[1]}", closing, server)
            assert until(lambda: server.started and (made.hall.ready or not ready))
            return made

        yield opened


def tried(function: Callable[..., Any], *given: Any) -> tuple[Any, Fault | None]:
    """What it returns, or the fault that it raises."""
    try:
        return function(*given), None
    except Fault as fault:
        return None, fault


def events(response: httpx.Response) -> list[Any]:
    """What a stream told: each event's data, as JSON, and the mark of its end as it is."""
    told = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in told]
