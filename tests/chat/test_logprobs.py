"""The log-probabilities of an answer's tokens, where a caller of OpenAI's looks for them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.members.scripted import SURE

ANSWER = "The sky is blue because of the air, all of it."


def content(message: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = message.response_metadata["logprobs"]["content"]
    return found


def llm(*answers: Any, **options: Any) -> SpecFuseChatModel:
    members = [one if hasattr(one, "draft") else ScriptedMember(one) for one in answers]
    return SpecFuseChatModel(
        **{"members": members, "segment_tokens": 3, "logprobs": True, **options}
    )


async def test_the_tokens_are_those_of_the_answer_in_every_way_of_asking() -> None:
    chat = llm(ANSWER, "The sea is deep.")
    chunks = list(chat.stream("?"))
    late = [one async for one in chat.astream("?")]
    streamed: Any = AIMessageChunk("")
    for chunk in chunks:
        streamed += chunk
    events = chat.stream_events("?", version="v3")
    for message in (chat.invoke("?"), streamed, sum(late[1:], late[0]), events.output):
        assert "".join(one["token"] for one in content(message)) == ANSWER
        assert b"".join(bytes(one["bytes"]) for one in content(message)) == ANSWER.encode()
        assert {one["logprob"] for one in content(message)} == {SURE}
        assert all(one["top_logprobs"] == [] for one in content(message))
    json.dumps(content(streamed), allow_nan=False)


def test_log_probabilities_are_present_only_where_requested() -> None:
    chat = llm(ANSWER, logprobs=False)
    assert content(chat.invoke("?", logprobs=True))
    assert content(chat.bind(logprobs=True).invoke("?"))
    assert "logprobs" not in chat.invoke("?").response_metadata


@pytest.mark.parametrize("stop", ["blue", "because of", " air", "all"])
def test_tokens_behind_a_stop_string_are_not_listed(stop: str) -> None:
    for segment_tokens in (1, 3, 50):
        message = llm(ANSWER, segment_tokens=segment_tokens).invoke("?", stop=[stop])
        said = "".join(one["token"] for one in content(message))
        assert ANSWER.startswith(said) and message.text.startswith(said)
        assert len(message.text) - len(said) < 2  # the space in front of the stop string


class Silent(ScriptedMember):
    """Reports no log-probabilities, as most hosted models do."""

    def draft(self, jobs: Any) -> Any:
        return [replace(one, logprobs=None) for one in super().draft(jobs)]


class Whole(ScriptedMember):
    """Does not say where its tokens end, and finds its answer impossible."""

    def draft(self, jobs: Any) -> Any:
        found = super().draft(jobs)
        impossible = [(-math.inf,) * len(one.logprobs) for one in found]
        return [
            replace(one, ends=None, logprobs=row)
            for one, row in zip(found, impossible, strict=True)
        ]


def test_unknown_tokens_are_left_out_or_become_one_entry_per_segment() -> None:
    assert content(llm(Silent(ANSWER)).invoke("?")) == []
    entries = content(llm(Whole(ANSWER), segment_tokens=5).invoke("?"))
    assert [one["token"] for one in entries] == [
        "The sky is blue because",
        " of the air, all of",
        " it.",
    ]
    assert {one["logprob"] for one in entries} == {-9999.0}


def test_a_whole_answer_under_a_constraint_has_log_probabilities_too() -> None:
    empty = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "look", "parameters": empty}}
    chat = llm(ANSWER, segment="answer", result="text")
    for option in ({"tools": [tool]}, {"choice": [ANSWER, "No."]}):
        message = chat.bind(**option).invoke("?")
        assert message.text == "".join(one["token"] for one in content(message)) == ANSWER


def test_forced_text_has_no_entries() -> None:
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    message = llm('{"sky": "blue"}').invoke("?", response_format=schema)
    assert message.text == '{"sky": "blue"}'
    assert "".join(one["token"] for one in content(message)) in 'blue"}'
