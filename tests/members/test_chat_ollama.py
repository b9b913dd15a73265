"""Ollama's chat models are sent the settings that all of its models accept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_ollama import ChatOllama

from langchain_specfuse import EnsembleError, Method, ScriptedMember, SpecFuseChatModel

from .fake_chat_server import FakeChatServer
from .test_chat_model import STORY, talker

PERSON: dict[str, Any] = {
    "title": "Person",
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
ANN = {"name": "Ann", "age": 7}


@pytest.fixture
def server() -> Iterator[FakeChatServer]:
    server = FakeChatServer("ollama", talker())
    yield server
    server.stop()


def llama(server: FakeChatServer, **fields: Any) -> ChatOllama:
    return ChatOllama(model="llama3.2", base_url=server.url, **fields)


def sent(server: FakeChatServer) -> list[dict[str, Any]]:
    """The temperature and the seed of every request."""
    wanted = ("temperature", "seed")
    return [{key: body["options"].get(key) for key in wanted} for body in server.asked]


def test_a_model_by_name_answers_greedily_by_default(
    server: FakeChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", server.url)
    SpecFuseChatModel(members=["ollama:greedy"]).invoke("Why is the sky blue?")
    assert sent(server) == [{"temperature": 0, "seed": 0}]


def test_votes_and_continuations_are_greedy_too(server: FakeChatServer) -> None:
    other = ScriptedMember(STORY.replace("blue", "red"), name="other")
    llm = SpecFuseChatModel(
        members=[llama(server), other], lead=None, method=Method(segment_tokens=4)
    )
    llm.invoke("Why is the sky blue?")
    texts = [body["messages"][-1]["content"] for body in server.asked]
    assert any("Reply with its letter" in text for text in texts)
    assert len(server.asked) > 2
    assert all(options == {"temperature": 0, "seed": 0} for options in sent(server))


def test_settings_of_its_own_are_kept(server: FakeChatServer) -> None:
    own = llama(server, temperature=0.3, seed=5, num_predict=90)
    llm = SpecFuseChatModel(members=[own])
    llm.invoke("Why is the sky blue?")
    (body,) = server.asked
    assert body["options"] == {"temperature": 0.3, "seed": 5, "num_predict": 90}


@pytest.mark.parametrize("by_address", [False, True])
def test_samples_of_an_answer_differ_by_their_seeds(
    server: FakeChatServer, by_address: bool
) -> None:
    member = f"{server.url}#llama3.2" if by_address else llama(server)
    llm = SpecFuseChatModel(
        members=[member],
        method=Method(segment="answer", samples=3, result="text"),
        temperature=0.7,
        seed=3,
    )
    llm.invoke("Why is the sky blue?")
    # Two equal results of three decide.
    assert sent(server) == [{"temperature": 0.7, "seed": seed} for seed in (3, 4)]
    llm.unload()


def test_an_object_is_asked_for_by_its_schema(server: FakeChatServer) -> None:
    server.formatted = json.dumps(ANN)
    llm = SpecFuseChatModel(members=[llama(server)])
    assert llm.with_structured_output(PERSON).invoke("Who?") == ANN
    (body,) = server.asked
    assert body["format"] == PERSON


def test_any_object_is_asked_for_as_json(server: FakeChatServer) -> None:
    server.formatted = json.dumps(ANN)
    llm = SpecFuseChatModel(members=[llama(server)])
    answer = llm.invoke("Who?", response_format={"type": "json_object"})
    assert json.loads(answer.text) == ANN
    assert server.asked[0]["format"] == "json"


def test_an_object_in_a_format_is_still_checked(server: FakeChatServer) -> None:
    """A server that ignores the format writes prose, and is asked once more."""
    llm = SpecFuseChatModel(members=[llama(server)], max_tokens=20)
    with pytest.raises(EnsembleError, match="is not what was asked for: it is not JSON"):
        llm.with_structured_output(PERSON).invoke("Who?")
    assert [body["format"] for body in server.asked] == [PERSON, PERSON]
    assert "it is not JSON" in server.asked[1]["messages"][-1]["content"]
    assert [body["options"]["num_predict"] for body in server.asked] == [20, 20]


def failing_with(server: FakeChatServer) -> SpecFuseChatModel:
    """A member that fails after a few words of an object, with an Ollama model in reserve."""
    failing = ScriptedMember(json.dumps(ANN), name="lead", fails_in=2)
    return SpecFuseChatModel(
        members=[failing, llama(server)], lead="lead", method=Method(segment_tokens=2)
    )


def test_an_object_that_was_not_shown_is_begun_anew_in_its_format(server: FakeChatServer) -> None:
    server.formatted = json.dumps(ANN)
    assert failing_with(server).with_structured_output(PERSON).invoke("Who?") == ANN
    (body,) = server.asked
    assert body["format"] == PERSON and len(body["messages"]) == 1


def test_an_object_that_was_shown_is_continued_without_a_format(server: FakeChatServer) -> None:
    """With a format, the reply would be a whole new object."""
    server.formatted = json.dumps(ANN)
    server.talker.script = json.dumps(ANN)
    booker = failing_with(server).with_structured_output(PERSON)
    assert list(booker.stream("Who?"))[-1] == ANN
    last = server.asked[-1]
    assert last["messages"][-1] == {"role": "assistant", "content": '{"name": "Ann", "age":'}
    assert not last.get("format") and '"age"' in last["messages"][0]["content"]


def test_an_error_of_the_server_is_not_asked_for_again(server: FakeChatServer) -> None:
    server.format_error = "model requires more system memory (9 GiB) than is available"
    llm = SpecFuseChatModel(members=[llama(server)])
    with pytest.raises(EnsembleError, match="more system memory"):
        llm.with_structured_output(PERSON).invoke("Who?")
    assert len(server.asked) == 1
