"""A key that was refused is read again for the member's next question, in the same process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langchain_specfuse import (
    EnsembleError,
    ServerMember,
    SpecFuseChatModel,
    SpecFuseError,
    unload,
)

from . import tiny
from .fake_chat_server import FakeChatServer
from .fake_server import INST_END, FakeServer
from .test_chat_model import STORY, talker

QUESTION = "Why is the sky blue?"
KINDS = {"ollama": "llama3.2", "lm studio": "my-model"}

Serve = Callable[..., FakeChatServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FakeChatServer] = []

    def make(kind: str) -> FakeChatServer:
        servers.append(FakeChatServer(kind, talker(), key="right"))
        return servers[-1]

    yield make
    unload()
    for server in servers:
        server.stop()


@pytest.fixture
def named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> FakeChatServer:
    """The server that ``"openai:my-model"`` asks."""
    pytest.importorskip("langchain_openai")
    server = serve("lm studio")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    return server


@pytest.fixture
def vllm() -> Iterator[FakeServer]:
    fake = FakeServer("vllm", *tiny.cached("llama", 2, chat_template=INST_END), key="first")
    yield fake
    fake.stop()


@pytest.fixture
def keyed(vllm: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpecFuseChatModel]:
    """Its member has sent the first key to that server."""
    monkeypatch.setenv("SPECFUSE_API_KEY", "first")
    member = ServerMember(vllm.url, "tiny", tokenizer=vllm.tokenizer)
    yield SpecFuseChatModel(members=[member], max_tokens=8)
    member.unload()


def refused(llm: SpecFuseChatModel) -> EnsembleError:
    """The error of a question whose only member's key is refused."""
    with pytest.raises(EnsembleError, match="401") as caught:
        llm.invoke(QUESTION)
    assert [failure.kind for failure in caught.value.failures] == ["denied"]
    return caught.value


def advice_of(error: SpecFuseError) -> str:
    return "\n".join(error.notes)


# --- members named by their address ---------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variable", ["SPECFUSE_API_KEY", "CHAT_KEY"])
def test_a_corrected_key_of_a_server_that_only_chats_is_used(
    serve: Serve, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = serve(kind).url
    member: Any = f"{url}#{KINDS[kind]}"
    if variable != "SPECFUSE_API_KEY":
        member = ServerMember(url, KINDS[kind], api_key_env=variable)
    monkeypatch.setenv(variable, "wrong")
    asked_before = SpecFuseChatModel(members=[member])
    refused(asked_before)
    monkeypatch.setenv(variable, "right")
    assert SpecFuseChatModel(members=[member]).invoke(QUESTION).text == STORY
    assert asked_before.invoke(QUESTION).text == STORY


def test_a_key_that_a_server_replaced_is_read_again(
    vllm: FakeServer, keyed: SpecFuseChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = keyed.invoke(QUESTION).text
    vllm.key = "second"
    vllm.asked.clear()
    refused(keyed)
    refused(keyed)
    paths = [path for path, _ in vllm.asked]
    assert paths == ["/v1/completions"] * 2, "it connects again only with another key"
    monkeypatch.setenv("SPECFUSE_API_KEY", "second")
    assert keyed.invoke(QUESTION).text == answer


def test_a_connection_keeps_the_key_that_its_server_takes(
    keyed: SpecFuseChatModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = keyed.invoke(QUESTION).text
    monkeypatch.delenv("SPECFUSE_API_KEY")
    assert keyed.invoke(QUESTION).text == answer


def test_a_corrected_key_that_no_header_can_hold_is_refused_with_its_variable(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = SpecFuseChatModel(members=[f"{serve('lm studio').url}#my-model"])
    monkeypatch.setenv("SPECFUSE_API_KEY", "wrong")
    refused(llm)
    monkeypatch.setenv("SPECFUSE_API_KEY", "söcond")
    with pytest.raises(SpecFuseError, match="SPECFUSE_API_KEY has characters"):
        llm.invoke(QUESTION)
    monkeypatch.setenv("SPECFUSE_API_KEY", "right")
    assert llm.invoke(QUESTION).text == STORY


# --- chat models ----------------------------------------------------------------------------------


def test_a_corrected_key_of_a_chat_model_that_was_named_is_used(
    named: FakeChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_before = SpecFuseChatModel(members=["openai:my-model"])
    assert "environment variable OPENAI_API_KEY" in advice_of(refused(asked_before))
    member = asked_before._first_member()
    device = member.device
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    llm = SpecFuseChatModel(members=["openai:my-model"])
    assert llm.invoke(QUESTION).text == asked_before.invoke(QUESTION).text == STORY
    assert llm._first_member() is asked_before._first_member() is member
    assert member.device == device, "its worker is the same, whose queue has its jobs"


def test_questions_at_once_all_use_the_corrected_key(
    named: FakeChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = SpecFuseChatModel(members=["openai:my-model"])
    refused(llm)
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    answers = llm.batch([QUESTION] * 6)
    assert [answer.text for answer in answers] == [STORY] * 6


def test_a_chat_model_object_keeps_its_key(
    named: FakeChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="my-model", max_retries=0)
    llm = SpecFuseChatModel(members=[chat])
    refused(llm)
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    refused(llm)


def test_a_key_that_is_gone_is_asked_for(
    named: FakeChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = SpecFuseChatModel(members=["openai:my-model"])
    refused(llm)
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(SpecFuseError) as caught:
        llm.invoke(QUESTION)
    assert "export OPENAI_API_KEY=..." in advice_of(caught.value)
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    assert llm.invoke(QUESTION).text == STORY
