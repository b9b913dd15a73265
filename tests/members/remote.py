"""Members whose work is done on servers of the tests, which can fall silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_openai import ChatOpenAI

from langchain_specfuse import ChatModelMember, ServerMember, SpecFuseChatModel

from . import tiny
from .failing_server import FailingServer
from .fake_server import INST_END, FakeServer

KINDS = ("chat model", "vllm", "llama.cpp")
WORDS = 24
"""The length of an answer."""


def _model() -> Any:
    return tiny.cached("gpt2", 2, chat_template=INST_END, tokenizer="unigram")


class Remote:
    """A member on a server of its own."""

    member: Any
    hung_up: list[float]
    """When the server saw a connection closed before the end of its reply."""

    def hang(self, at: int) -> None:
        """Fall silent before this token of the next replies, until :meth:`go_on`; 0: before the
        reply begins."""
        raise NotImplementedError

    def recover(self) -> None:
        """Do not hang in replies that begin from now on."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Let the replies that hang go on, too."""
        raise NotImplementedError

    def hangs(self) -> bool:
        """Whether a reply has fallen silent."""
        raise NotImplementedError

    def slow_down(self, token_s: float, first_s: float = 0.0) -> None:
        """Take this long for a token, and for whatever precedes the first."""
        raise NotImplementedError

    def asked(self) -> int:
        """How many answers were asked for."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    @property
    def llm(self) -> SpecFuseChatModel:
        """The member alone."""
        return SpecFuseChatModel(members=[self.member], max_tokens=WORDS)

    def threads(self) -> list[str]:
        """The threads that work for this member."""
        ours = f"specfuse-{self.member.name}"
        return [thread.name for thread in threading.enumerate() if thread.name == ours]


class RemoteChat(Remote):
    """A ``ChatOpenAI``."""

    def __init__(self, name: str) -> None:
        self.server = FailingServer("a", how="hang", words=WORDS)
        model = ChatOpenAI(model="m", base_url=self.server.url, api_key="none", max_retries=0)
        self.member = ChatModelMember(model, name=name)
        self.hung_up = self.server.hung_up

    def hang(self, at: int) -> None:
        self.server.failed_at, self.server.fails_after = 0.0, at
        self.server.released.clear()

    def recover(self) -> None:
        self.server.fails_after = None

    def go_on(self) -> None:
        self.recover()
        self.server.released.set()

    def hangs(self) -> bool:
        return self.server.failed_at > 0

    def slow_down(self, token_s: float, first_s: float = 0.0) -> None:
        self.server.word_s, self.server.first_s = token_s, first_s

    def asked(self) -> int:
        return len(self.server.asked)

    def stop(self) -> None:
        self.server.stop()


class RemoteServer(Remote):
    """A ``ServerMember``."""

    def __init__(self, engine: str, name: str) -> None:
        self.server = FakeServer(engine, *_model())
        self.member = ServerMember(
            self.server.url, "tiny", name=name, tokenizer=self.server.tokenizer
        )
        self.member.probe()
        self.hung_up = self.server.hung_up
        self._silent = False
        self._go = threading.Event()

    def hang(self, at: int) -> None:
        self._silent = False
        self._go = go = threading.Event()
        self.server.go.clear()

        def fault(path: str, _: int) -> str | None:
            if "completion" not in path or go.is_set():
                return None
            self._silent = True
            return "hang"

        def pace(number: int) -> Iterator[bytes]:
            while number == at and not go.is_set():
                self._silent = True
                yield b""
                time.sleep(0.005)

        if at:
            self.server.pace = pace
        else:
            self.server.fault = fault

    def recover(self) -> None:
        self.server.pace = self.server.fault = None

    def go_on(self) -> None:
        self.recover()
        self._go.set()
        self.server.go.set()

    def hangs(self) -> bool:
        return self._silent

    def slow_down(self, token_s: float, first_s: float = 0.0) -> None:
        self.server.pace = lambda number: time.sleep(token_s if number else first_s)

    def asked(self) -> int:
        return sum(bool(body and body.get("stream")) for _, body in self.server.asked)

    def stop(self) -> None:
        self.go_on()
        self.member.unload()
        self.server.stop()


@contextmanager
def running(kind: str, name: str = "lead") -> Iterator[Remote]:
    remote = RemoteChat(name) if kind == "chat model" else RemoteServer(kind, name)
    try:
        yield remote
    finally:
        remote.stop()


def until(condition: Callable[[], object], limit_s: float = 30.0) -> bool:
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(condition())
