"""An endpoint on a real port of this machine, with scripted members behind it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from chat.conftest import BLUE, WIDE, until
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of
from langchain_specfuse.serve.server import listening, server_of

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
PATH = "/v1/chat/completions"


def ensemble(*answers: Any, **options: Any) -> SpecFuseChatModel:
    """Two members that differ, unless others are given; it answers BLUE."""
    scripts = answers or (BLUE, WIDE)
    named = zip(scripts, "abcdef", strict=False)
    members = [
        one if hasattr(one, "draft") else ScriptedMember(one, name=name) for one, name in named
    ]
    return SpecFuseChatModel(**{"members": members, "segment_tokens": 4, **options})


@dataclass
class Endpoint:
    """An endpoint that serves."""

    llm: SpecFuseChatModel
    url: str
    closing: ExitStack

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def http(self) -> httpx2.Client:
        return self.closing.enter_context(httpx2.Client(timeout=60))

    def client(self) -> OpenAI:
        return OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, http_client=self.http()
        )

    def aclient(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def get(self, path: str, **options: Any) -> httpx2.Response:
        return httpx2.get(self.url + path, timeout=60, **options)

    def post(self, body: Any, path: str = PATH, **headers: str | bytes) -> httpx2.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {
            "content-type": "application/json",
            **{name.replace("_", "-"): text for name, text in headers.items()},
        }
        return httpx2.post(self.url + path, content=content, headers=named, timeout=60)

    def ask(self, **options: Any) -> httpx2.Response:
        """The response to a question with these options."""
        return self.post({"model": "specfuse", "messages": QUESTION, **options})

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over these labels; 0 if it is not there."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        samples = [one for family in families for one in family.samples]
        return sum(
            one.value
            for one in samples
            if one.name == name and labels.items() <= one.labels.items()
        )

    def counted(self, name: str, value: float, **labels: str) -> bool:
        """Whether a metric reaches a value: answers are counted just after their last byte."""
        return until(lambda: self.metric(name, **labels) == value)

    def idle(self) -> bool:
        """Whether all answers end, and all members forget them."""
        flying = ("specfuse_answers_in_flight", "specfuse_answers_waiting")
        members = [one for one in self.llm.members if isinstance(one, ScriptedMember)]
        forgotten = until(lambda: not any(member.open_queries for member in members))
        return forgotten and all(self.counted(name, 0) for name in flying)


@contextmanager
def serving() -> Iterator[Callable[..., Endpoint]]:
    """What starts endpoints; all are stopped in the end."""
    with ExitStack() as closing:

        def start(
            llm: SpecFuseChatModel | None = None, *, ready: bool = True, **options: Any
        ) -> Endpoint:
            llm = llm or ensemble()
            listener = closing.enter_context(listening("127.0.0.1", 0))
            server = server_of(app_of(llm, **options), grace_s=1)
            thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
            thread.start()
            closing.callback(thread.join, 30)
            closing.callback(setattr, server, "should_exit", True)
            made = Endpoint(llm, f"http://127.0.0.1:{listener.getsockname()[1]}", closing)
            assert until(lambda: server.started)
            assert not ready or until(lambda: made.get("/ready").status_code == 200)
            return made

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    with serving() as start:
        yield start


def events(response: httpx2.Response) -> list[Any]:
    """The events of a stream: each one's data as JSON, and the mark of its end as it is."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [one if one == "[DONE]" else json.loads(one) for one in data]
