"""The profile is correct from the start, as far as it is known without loading a member."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import ConfigurableField

from langchain_specfuse import ChatModelMember, Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.member import Probe

from .conftest import BLUE, WAYS, asked


class Server(ScriptedMember):
    """Knows its properties only after it has asked its server."""

    def preview(self) -> Any:
        return None

    def probe(self) -> Probe:
        return Probe(self.name, max_context=self.max_context, reasons=True)


class Seeing(Server):
    """Reports only after loading that it reads images."""

    def probe(self) -> Probe:
        return Probe(self.name, max_context=2048, takes=("image", "file"))


class Ollama(FakeListChatModel):
    """A chat model that chooses its context length like Ollama."""

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
def test_the_profile_describes_what_drafting_members_read_and_whether_they_reason(
    members: Any, before: Any, after: Any
) -> None:
    llm = SpecFuseChatModel(
        members=members, method=Method(verifiers=[ScriptedMember(BLUE, max_context=100)])
    )
    keys = ("max_input_tokens", "reasoning_output")
    assert tuple(map(llm.profile.get, keys)) == before
    llm.invoke("?")
    assert tuple(map(llm.profile.get, keys)) == after
    assert (
        llm.profile["tool_calling"]
        and llm.profile["structured_output"]
        and not llm.profile["image_inputs"]
    )


def test_the_users_entries_stay_and_missing_ones_are_added() -> None:
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


async def test_a_first_guess_is_corrected_once_the_member_is_known() -> None:
    llm = SpecFuseChatModel(members=[of(None, Seeing)])
    before = copy.deepcopy(llm)
    assert llm.profile["image_inputs"] is False
    await llm.ainvoke("?")
    assert llm.profile["image_inputs"] is llm.profile["pdf_inputs"] is True
    for twin in (before, pickle.loads(pickle.dumps(before)), before.model_copy()):
        twin.invoke("?")
        assert twin.profile["image_inputs"] is True


def test_a_members_own_profile_is_used() -> None:
    llm = SpecFuseChatModel(members=[chat(image_inputs=True, audio_inputs=False)])
    assert llm.profile["image_inputs"] is True and llm.profile["audio_inputs"] is False


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_with_other_members_leaves_the_profile_as_it_is(way: str) -> None:
    llm = SpecFuseChatModel(members=[of(None)])
    before = dict(llm.profile)
    await asked(llm, way, members=[of(1024, Seeing)])
    await asked(llm.bind(model=of(512)), way)
    assert llm.profile == before and "max_input_tokens" not in before


def test_the_users_entries_take_precedence_over_detected_ones() -> None:
    llm = SpecFuseChatModel(members=[of(None, Seeing)], profile={"image_inputs": False})
    llm.invoke("?")
    assert llm.profile["image_inputs"] is False and llm.profile["pdf_inputs"] is True
    llm.profile["max_input_tokens"] = 99
    llm.invoke("?")
    assert llm.profile["max_input_tokens"] == 99
    llm.profile = {"pdf_inputs": False}
    llm.invoke("?")
    assert (llm.profile["pdf_inputs"], llm.profile["max_input_tokens"]) == (False, 2048)
    assert llm.profile["image_inputs"] is True
    again = pickle.loads(pickle.dumps(llm))
    again.invoke("?")
    assert again.profile == llm.profile


def test_a_configured_chat_model_learns_from_its_own_members() -> None:
    llm = SpecFuseChatModel(members=[of(4096)], profile={"tool_calling": False})
    configurable: Any = llm.configurable_fields(members=ConfigurableField(id="members"))
    other, _ = configurable.with_config(configurable={"members": [of(1024)]}).prepare()
    assert other.profile["max_input_tokens"] == 1024
    assert other.profile["tool_calling"] is False
