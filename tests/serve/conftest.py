"""An endpoint on a real port of this machine, with scripted members."""

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
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve import app_of
from langchain_specfuse.serve.server import listening, server_of
from tests.methods import in_method

QUESTION = [{"role": "user", "content": "Why is the sky blue?"}]
PATH = "/v1/chat/completions"


def ensemble(*answers: Any, **options: Any) -> SpecFuseChatModel:
    """Return a chat model of the given members, or of two that differ and answer BLUE."""
    scripts = answers or (BLUE, WIDE)
    named = zip(scripts, "abcdef", strict=False)
    members = [
        member if hasattr(member, "draft") else ScriptedMember(member, name=name)
        for member, name in named
    ]
    return SpecFuseChatModel(**in_method(**{"members": members, "segment_tokens": 4, **options}))


class Thinking(FakeListChatModel):
    """Reasons, and answers."""

    responses: list[str] = ["It is blue."]  # noqa: RUF012

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        thought = {"reasoning_content": "The air."}
        yield ChatGenerationChunk(message=AIMessageChunk("", additional_kwargs=thought))
        yield from super()._stream(*args, **kwargs)


@dataclass
class Endpoint:
    """A running endpoint."""

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
        """Return the response to a question with these options."""
        return self.post({"model": "specfuse", "messages": QUESTION, **options})

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over these labels, or 0 if it is missing."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        return sum(
            sample.value
            for sample in samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def counted(self, name: str, value: float, **labels: str) -> bool:
        """Wait until a metric reaches a value: answers are counted just after their last byte."""
        return until(lambda: self.metric(name, **labels) == value)

    def idle(self) -> bool:
        """Wait until all answers have ended and all members have forgotten them."""
        flying = ("specfuse_answers_in_flight", "specfuse_answers_waiting")
        members = [
            scripted for scripted in self.llm.members if isinstance(scripted, ScriptedMember)
        ]
        forgotten = until(lambda: not any(member.open_queries for member in members))
        return forgotten and all(self.counted(name, 0) for name in flying)


@contextmanager
def serving() -> Iterator[Callable[..., Endpoint]]:
    """Return a function that starts an endpoint; all endpoints are stopped at the end."""
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
            endpoint = Endpoint(llm, f"http://127.0.0.1:{listener.getsockname()[1]}", closing)
            assert until(lambda: server.started)
            assert not ready or until(lambda: endpoint.get("/ready").status_code == 200)
            return endpoint

        yield start


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    with serving() as start:
        yield start


def events(response: httpx2.Response) -> list[Any]:
    """Return the events of a stream: the JSON of each, and the final mark unchanged."""
    data = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [event if event == "[DONE]" else json.loads(event) for event in data]
