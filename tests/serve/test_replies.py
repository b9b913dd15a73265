"""What a client receives for each chunk of a chat model."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.serve.completions import Completion

from .conftest import BLUE, QUESTION, Thinking, ensemble

SUMMARY = {"exits": [{"member": "a", "reason": "secret"}], "finish": "stop"}


def test_reasoning_is_sent_but_reasons_of_exits_are_not():
    completion = Completion("m")
    last = AIMessageChunk("", response_metadata={"specfuse": SUMMARY})
    chunks = [
        AIMessageChunk("", additional_kwargs={"reasoning_content": text})
        for text in ("Hm", ", well")
    ]
    events = [
        event
        for chunk in [*chunks, AIMessageChunk("Yes."), last]
        for event in completion.add(chunk)
    ]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [
        {"role": "assistant", "reasoning_content": "Hm"},
        {"reasoning_content": ", well"},
        {"content": "Yes."},
    ]
    whole = completion.whole()
    message = whole["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Yes.", "Hm, well")
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert "secret" not in json.dumps([whole, *completion.closing()])


def test_a_client_gets_the_reasoning_beside_the_answer(serve):
    message = serve(SpecFuseChatModel(members=[Thinking()])).ask().json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("It is blue.", "The air.")


@pytest.mark.parametrize(
    ("block", "metadata"),
    [
        ({"type": "thinking", "thinking": "Hm"}, {"model_provider": "anthropic"}),
        ({"type": "reasoning", "reasoning": "Hm"}, {"output_version": "v1"}),
    ],
)
def test_reasoning_in_blocks_is_sent_beside_the_text(block, metadata):
    """``ChatAnthropic`` and ``output_version="v1"`` put reasoning into the content."""
    chunk = AIMessageChunk([{**block, "index": 0}], response_metadata=metadata)
    (event,) = Completion("m").add(chunk)
    assert event["choices"][0]["delta"] == {"role": "assistant", "reasoning_content": "Hm"}


def test_calls_are_numbered_from_0_whatever_their_index_is():
    """``ChatAnthropic`` gives a call the index of its block, ``ChatOllama`` gives it none."""
    for indexes in ((1, 2), (None, None)):
        completion = Completion("m")
        names = zip("ab", indexes, strict=True)
        for name, index in names:
            piece = tool_call_chunk(name=name, args="{}", id=f"call_{name}", index=index)
            completion.add(AIMessageChunk("", tool_call_chunks=[piece]))
        completion.add(AIMessageChunk("", response_metadata={"specfuse": SUMMARY}))
        (choice,) = completion.whole()["choices"]
        calls = choice["message"]["tool_calls"]
        assert [(call["id"], call["function"]["name"]) for call in calls] == [
            ("call_a", "a"),
            ("call_b", "b"),
        ]
        assert choice["finish_reason"] == "tool_calls"


def test_the_model_is_the_member_that_wrote(serve):
    class Failing(ScriptedMember):
        def draft(self, jobs):
            raise RuntimeError("down")

    members = [ScriptedMember(BLUE, name="first"), ScriptedMember(BLUE, name="second")]
    client = serve(ensemble(*members, lead="first")).client()
    asked = {"model": "specfuse", "messages": QUESTION}
    assert client.chat.completions.create(**asked).model == "first"
    assert {chunk.model for chunk in client.chat.completions.create(**asked, stream=True)} == {
        "first"
    }
    members[0] = Failing(BLUE, name="first")
    client = serve(ensemble(*members, lead="first")).client()
    assert client.chat.completions.create(**asked).model == "second"
    assert client.responses.create(model="specfuse", input="Why?").model == "second"
    assert [model.id for model in client.models.list()] == ["specfuse"]
