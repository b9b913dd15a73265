"""The members' contract on fake servers of each engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from langchain_specfuse import ServerMember
from langchain_specfuse.core.member import Member

from .. import tiny
from ..contract import MemberContract
from ..fake_server import FakeServer


class Served(MemberContract):
    engine = ""
    arch, seed = "llama", 1
    tokenizer: str | None = None
    """Another one than the architecture's own."""
    lends = False
    """Whether the server's own tokenizer is used."""
    settles = False

    @pytest.fixture
    def make_member(self) -> Iterator[Callable[[], Member]]:
        model, tokenizer = tiny.cached(
            self.arch, self.seed, **({"tokenizer": self.tokenizer} if self.tokenizer else {})
        )
        server = FakeServer(self.engine, model, tokenizer)
        lent = None if self.lends else tokenizer
        members: list[ServerMember] = []

        def make() -> ServerMember:
            members.append(ServerMember(server.url, "tiny", tokenizer=lent))
            return members[-1]

        yield make
        for member in members:
            member.unload()
        server.stop()


class TestVLLMWithAPlainTemplate(Served):
    engine = "vllm"
    arch = "gpt2"


class TestVLLMThatWeStart(Served):
    engine = "vllm that we start"


class TestLlamaCppWithItsOwnTokenizer(Served):
    engine = "llama.cpp"
    lends = True
    tokenizer = "unigram"  # without partial characters, for which it reports no numbers
