"""Servers that only chat, such as Ollama's or LM Studio's, are members by their address."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from langchain_specfuse import (
    EnsembleError,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
)
from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Segment
from langchain_specfuse.errors import MemberError, UsageError

from ..contract import MemberContract, draft_job, drafted
from ..fake_chat_server import FakeChatServer
from ..test_chat_model import STORY, talker

Serve = Callable[..., FakeChatServer]
KINDS = {"ollama": "llama3.2", "lm studio": "my-model"}


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FakeChatServer] = []

    def make(kind: str, **options: Any) -> FakeChatServer:
        servers.append(FakeChatServer(kind, talker(), **options))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


class Voteless(ServerMember):
    """Reports that it cannot score, because the contract's rules for scores do not apply to
    ballots."""

    def probe(self) -> Probe:
        return replace(super().probe(), scores=False)


class TestContract(MemberContract):
    @pytest.fixture
    def make_member(self, serve: Serve) -> Iterator[Callable[[], ServerMember]]:
        server, members = serve("ollama"), list[ServerMember]()

        def make() -> ServerMember:
            members.append(Voteless(server.url, "llama3.2"))
            return members[-1]

        yield make
        for member in members:
            member.unload()


@pytest.mark.parametrize(
    ("kind", "path", "chat"),
    [
        ("ollama", "", "ChatOllama"),
        ("lm studio", "/v1", "ChatOpenAI"),
    ],
)
def test_it_is_named_by_its_address_and_model(
    serve: Serve, kind: str, path: str, chat: str
) -> None:
    server = serve(kind)
    llm = SpecFuseChatModel(
        members=[f"{server.url}{path}#{KINDS[kind]}"], method=Method(segment_tokens=4)
    )
    answer = llm.invoke("Why is the sky blue?")
    usage = {"requests": 1, "input_tokens": 26, "output_tokens": len(STORY.split())}
    assert answer.text == STORY and answer.response_metadata["specfuse"]["usage"] == {
        KINDS[kind]: usage
    }
    (body,) = server.asked
    assert (body["options"] if kind == "ollama" else body)["temperature"] == 0, (
        "answers are repeatable"
    )
    assert chat in llm._first_member().probe().detail
    with pytest.warns(UserWarning, match="four bytes"):
        assert llm.get_num_tokens("12345678") == 2
    llm.unload()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_given_up_is_cut_and_the_text_of_others_is_continued(
    serve: Serve, kind: str
) -> None:
    server = serve(kind)
    member = ServerMember(server.url, KINDS[kind])
    server.go_on.clear()
    assert drafted(member, draft_job(segment_tokens=1)).text == "The"
    member.forget("q")
    server.go_on.set()
    assert server.hung_up.wait(10) and len(server.said) < len(STORY.split())
    assert (
        drafted(member, draft_job(answer=(Segment("The sky is"),), segment_tokens=3)).text
        == " blue because air"
    )
    assert server.asked[-1]["messages"][-1]["content"] == "The sky is"
    assert not drafted(
        member, draft_job(id="warm", sampling=replace(draft_job().sampling, temperature=0.7))
    ).ended
    assert (server.asked[-1]["options"] if kind == "ollama" else server.asked[-1])[
        "temperature"
    ] == 0.7
    member.unload()


def test_ollama_shows_whether_a_lead_is_sure(serve: Serve) -> None:
    other = ScriptedMember(STORY.replace("blue", "red"), name="other")
    llm = SpecFuseChatModel(
        members=[f"{serve('ollama').url}#llama3.2", other],
        lead="llama3.2",
        method=Method(segment_tokens=4),
    )
    assert llm.invoke("Why?").text == STORY and other.draft_calls == 0
    llm.unload()


def test_a_key_is_sent_and_never_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_KEY", "sesame")
    for kind, model in KINDS.items():
        server = serve(kind)
        member = ServerMember(server.url, model, api_key_env="CHAT_KEY")
        drafted(member, draft_job())
        assert server.headers["Authorization"] == "Bearer sesame" and "sesame" not in repr(
            (member, member.spec)
        )
        member.unload()


@pytest.mark.parametrize("kind", KINDS)
def test_the_advice_names_the_variable_that_a_refused_key_was_read_from(
    serve: Serve, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_KEY", "wrong")
    server = serve(kind, key="right")
    member = ServerMember(server.url, KINDS[kind], api_key_env="CHAT_KEY")
    with pytest.raises(EnsembleError, match="401") as caught:
        SpecFuseChatModel(members=[member]).invoke("Why is the sky blue?")
    (advice,) = caught.value.notes
    assert "environment variable CHAT_KEY" in advice and "OPENAI_API_KEY" not in advice
    member.unload()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", ["", "x" * 255])
def test_a_refused_key_that_a_gateway_repeats_is_not_shown(
    serve: Serve, kind: str, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LiteLLM's 401 says which key it has received."""
    monkeypatch.setenv("CHAT_KEY", "Bearer sesame-4711")
    server = serve(kind, key="right")
    server.refusal = f"{before}Received API Key = {{}}"
    member = ServerMember(server.url, KINDS[kind], api_key_env="CHAT_KEY")
    with pytest.raises(EnsembleError) as caught:
        SpecFuseChatModel(members=[member]).invoke("Why is the sky blue?")
    assert "sesa" not in str(caught.value) and (before or "***" in str(caught.value))
    member.unload()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chat_template": "plain"}, "it only chats, without chat_template="),
        ({"model": "other"}, "serves llama3.2:latest; expected other"),
    ],
)
def test_unsupported_arguments_are_refused(
    serve: Serve, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((MemberError, UsageError), match=message):
        ServerMember(**({"base_url": serve("ollama").url} | options)).probe()


def test_a_server_that_lists_no_models_is_refused_with_advice(serve: Serve) -> None:
    with pytest.raises(MemberError, match="lists no models") as error:
        ServerMember(serve("lm studio", models=False).url, "my-model").probe()
    assert "ChatOpenAI(base_url=..., model=...)" in error.value.notes[0]
    assert (
        "ChatOllama" in ServerMember(serve("ollama", models=False).url, "llama3.2").probe().detail
    )


@pytest.mark.parametrize(
    ("kind", "package"), [("ollama", "langchain-ollama"), ("lm studio", "langchain-openai")]
)
def test_the_package_that_is_missing_is_named(
    serve: Serve, kind: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(UsageError, match=f"it needs {package}") as error:
        ServerMember(serve(kind).url, KINDS[kind]).probe()
    assert error.value.notes == (f"-> pip install {package}",)
