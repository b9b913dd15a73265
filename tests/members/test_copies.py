"""A used member can be pickled and copied; the copy opens its own connections and answers alike."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import (
    ChatModelMember,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
    TransformersMember,
)

from . import tiny
from .fake_chat_server import FakeChatServer
from .fake_server import INST_END, FakeServer
from .test_chat_model import STORY, talker

COPIES = {
    "pickled": lambda one: pickle.loads(pickle.dumps(one)),
    "copied": copy.copy,
    "copied deeply": copy.deepcopy,
}


@pytest.fixture(params=COPIES)
def copied(request: Any) -> Iterator[Callable[[Any], Any]]:
    """Return a function that copies in one way; the copies' connections are closed at the end."""
    copies: list[Any] = []

    def make(original: Any) -> Any:
        copies.append(COPIES[request.param](original))
        return copies[-1]

    yield make
    for copied_object in copies:
        for member in getattr(copied_object, "members", [copied_object]):
            getattr(member, "unload", lambda: None)()


def says(member: Any) -> str:
    return (
        SpecFuseChatModel(members=[member], max_tokens=12, method=Method(segment_tokens=4))
        .invoke("Why?")
        .text
    )


@pytest.fixture
def served() -> Iterator[ServerMember]:
    model, tokenizer = tiny.cached("llama", 1, chat_template=INST_END)
    server = FakeServer("vllm", model, tokenizer)
    member = ServerMember(server.url, tokenizer=tokenizer, name="served", system_prompt="Be brief.")
    yield member
    member.unload()
    server.stop()


def test_a_used_server_member_can_be_copied(served: ServerMember, copied: Any) -> None:
    answer = says(served)
    twin = copied(served)
    assert (twin.name, twin.spec, twin.device) == (served.name, served.spec, served.device)
    assert says(twin) == answer
    twin.unload()
    assert says(served) == answer, "the copy's connections were its own"


def test_a_used_member_on_a_chat_server_can_be_copied(copied: Any) -> None:
    server = FakeChatServer("ollama", talker())
    member = ServerMember(server.url, "llama3.2")
    try:
        assert says(copied(member)) == says(member) == says(copied(member))
    finally:
        member.unload()
        server.stop()


def test_a_used_chat_model_member_can_be_copied(copied: Any) -> None:
    member = ChatModelMember(FakeListChatModel(responses=["The sky is blue."] * 9), name="fake")
    stream = SpecFuseChatModel(members=[member], method=Method(segment_tokens=1)).stream("Why?")
    first = next(stream)
    twin = copied(member)
    assert says(twin) == "The sky is blue."
    assert first.text + "".join(chunk.text for chunk in stream) == "The sky is blue."
    assert twin.spec == member.spec


def test_a_chat_model_that_was_named_is_made_again_from_its_name(
    copied: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("langchain_openai")
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    member = ChatModelMember("openai:gpt-4.1-mini", price=(0.4, 1.6))
    twin = copied(member)
    assert (twin.name, twin.spec, twin.price) == (member.name, member.spec, member.price)
    assert type(twin.model) is type(member.model)


def test_a_used_scripted_member_is_fresh_when_copied(copied: Any) -> None:
    member = ScriptedMember(STORY, name="a", fails_in=9)
    assert (answer := says(member))
    assert member.draft_calls
    twin = copied(member)
    assert (twin.draft_calls, twin.open_queries) == (0, {})
    assert says(twin) == answer


def test_a_used_chat_model_can_be_copied(served: ServerMember, copied: Any) -> None:
    llm = SpecFuseChatModel(
        members=[served, ScriptedMember(STORY, name="a")],
        max_tokens=8,
        method=Method(segment_tokens=4),
    )
    answer = llm.invoke("Why?").text
    assert copied(llm).invoke("Why?").text == answer


def test_a_used_member_in_this_process_can_be_copied(tmp_path: Path, copied: Any) -> None:
    model, tokenizer = tiny.build("llama", 1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    member = TransformersMember(str(tmp_path), name="local")
    answer = says(member)
    twin = copied(member)
    assert twin.cache is None
    assert says(twin) == answer
    member.unload()
