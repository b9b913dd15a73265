"""What a client receives for each chunk of a chat model."""

from __future__ import annotations

import json

from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessageChunk

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.serve.responses import Completion

SUMMARY = {"exits": [{"member": "a", "reason": "secret"}]}


def test_reasoning_is_sent_but_reasons_of_exits_are_not():
    completion = Completion("m")
    last = AIMessageChunk("", response_metadata={"finish_reason": "stop", "specfuse": SUMMARY})
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
    llm = SpecFuseChatModel(
        members=[FakeListChatModel(responses=["<think>The air.</think>It is blue."])]
    )
    message = serve(llm).ask().json()["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("It is blue.", "The air.")
