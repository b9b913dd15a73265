"""The profile is true from the beginning, as far as it can be known without loading a member or
asking a server."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import ChatModelMember, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.member import Probe

from .conftest import BLUE


class Server(ScriptedMember):
    """A member that knows itself only after it has asked."""

    def preview(self) -> Any:
        return None

    def probe(self) -> Probe:
        return Probe(self.name, max_context=self.max_context, reasons=True)


class Ollama(FakeListChatModel):
    """A chat model with Ollama's choice of a context."""

    num_ctx: int | None = None


def of(size: int | None, kind: Any = ScriptedMember) -> Any:
    return kind(BLUE, max_context=size)


def chat(num_ctx: int | None = None, **profile: Any) -> Ollama:
    return Ollama(responses=[BLUE], num_ctx=num_ctx, profile=profile)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("members", "before", "after"),
    [
        ([of(4096), of(2048)], (2048, False), (2048, False)),
        ([of(4096), of(None)], (4096, False), (4096, False)),
        ([of(None)], (None, False), (None, False)),
        ([of(4096), of(2048, Server)], (None, None), (2048, True)),
        ([chat(max_input_tokens=9000)], (9000, None), (9000, None)),
        (
            [ChatModelMember(chat(2000, max_input_tokens=9000, reasoning_output=True)), of(4096)],
            *[(2000, True)] * 2,
        ),
    ],
)
def test_it_has_what_drafting_members_can_read_and_whether_they_reason(
    members: Any, before: Any, after: Any
) -> None:
    llm = SpecFuseChatModel(members=members, verifiers=[ScriptedMember(BLUE, max_context=100)])
    keys = ("max_input_tokens", "reasoning_output")
    assert tuple(map(llm.profile.get, keys)) == before
    llm.invoke("?")
    assert tuple(map(llm.profile.get, keys)) == after
    assert (
        llm.profile["tool_calling"]
        and llm.profile["structured_output"]
        and not llm.profile["image_inputs"]
    )


def test_what_the_user_gives_stays_and_the_rest_is_added() -> None:
    members = [
        of(4096, Server),
        "http://localhost:1/v1#none",
        "openai:no-such-model",
        "./none.gguf",
    ]
    llm = SpecFuseChatModel(
        members=members, profile={"max_input_tokens": 500, "structured_output": False}
    )
    assert llm.profile["max_input_tokens"] == 500 and llm.profile["tool_calling"] is True
    assert llm.profile["structured_output"] is False and "reasoning_output" not in llm.profile
