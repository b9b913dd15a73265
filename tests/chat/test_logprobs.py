"""Log-probabilities of an answer's tokens are where users of OpenAI's API expect them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.runnables import Runnable

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.members.scripted import SURE
from tests.methods import in_method

ANSWER = "The sky is blue because of the air, all of it."


def content(message: Any) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = message.response_metadata["logprobs"]["content"]
    return entries


def llm(*answers: Any, **options: Any) -> Runnable[Any, Any]:
    return quiet(*answers, **options).bind(logprobs=True)


def quiet(*answers: Any, **options: Any) -> SpecFuseChatModel:
    members = [answer if hasattr(answer, "draft") else ScriptedMember(answer) for answer in answers]
    return SpecFuseChatModel(**in_method(**{"members": members, "segment_tokens": 3, **options}))


async def test_the_tokens_are_those_of_the_answer_in_every_way_of_asking() -> None:
    chat = llm(ANSWER, "The sea is deep.")
    chunks = list(chat.stream("?"))
    late = [chunk async for chunk in chat.astream("?")]
    streamed: Any = AIMessageChunk("")
    for chunk in chunks:
        streamed += chunk
    events = chat.stream_events("?", version="v3")
    for message in (chat.invoke("?"), streamed, sum(late[1:], late[0]), events.output):
        assert "".join(entry["token"] for entry in content(message)) == ANSWER
        assert b"".join(bytes(entry["bytes"]) for entry in content(message)) == ANSWER.encode()
        assert {entry["logprob"] for entry in content(message)} == {SURE}
        assert all(entry["top_logprobs"] == [] for entry in content(message))
    json.dumps(content(streamed), allow_nan=False)


def test_log_probabilities_are_present_only_where_requested() -> None:
    chat = quiet(ANSWER)
    assert content(chat.invoke("?", logprobs=True))
    assert content(chat.bind(logprobs=True).invoke("?"))
    assert "logprobs" not in chat.invoke("?").response_metadata


def test_members_are_asked_for_them_only_then() -> None:
    """vLLM and llama-server compute and send them for a stream only if they are requested."""

    class Noting(ScriptedMember):
        wants: list[bool]

        def draft(self, jobs: Any) -> Any:
            self.wants = [job.logprobs for job in jobs]
            return super().draft(jobs)

    member = Noting(ANSWER)
    for wanted in (False, True):
        quiet(member).invoke("?", logprobs=wanted)
        assert member.wants == [wanted]


@pytest.mark.parametrize("stop", ["blue", "because of", " air", "all"])
def test_tokens_behind_a_stop_string_are_not_listed(stop: str) -> None:
    for segment_tokens in (1, 3, 50):
        message = llm(ANSWER, segment_tokens=segment_tokens).invoke("?", stop=[stop])
        listed = "".join(entry["token"] for entry in content(message))
        assert ANSWER.startswith(listed) and message.text.startswith(listed)
        assert len(message.text) - len(listed) < 2  # the space before the stop string


class Silent(ScriptedMember):
    """Reports no log-probabilities, like most hosted models."""

    def draft(self, jobs: Any) -> Any:
        return [replace(draft, logprobs=None) for draft in super().draft(jobs)]


class Whole(ScriptedMember):
    """Does not report where its tokens end, and assigns its answer zero probability."""

    def draft(self, jobs: Any) -> Any:
        drafts = super().draft(jobs)
        impossible = [(-math.inf,) * len(draft.logprobs) for draft in drafts]
        return [
            replace(draft, ends=None, logprobs=row)
            for draft, row in zip(drafts, impossible, strict=True)
        ]


def test_unknown_tokens_are_left_out_or_become_one_entry_per_segment() -> None:
    assert content(llm(Silent(ANSWER)).invoke("?")) == []
    entries = content(llm(Whole(ANSWER), segment_tokens=5).invoke("?"))
    assert [entry["token"] for entry in entries] == [
        "The sky is blue because",
        " of the air, all of",
        " it.",
    ]
    assert {entry["logprob"] for entry in entries} == {-9999.0}


def test_a_whole_answer_under_a_constraint_has_log_probabilities_too() -> None:
    empty = {"type": "object", "properties": {}}
    tool = {"type": "function", "function": {"name": "look", "parameters": empty}}
    chat = llm(ANSWER, segment="answer", result="text")
    for option in ({"tools": [tool]}, {"choice": [ANSWER, "No."]}):
        message = chat.bind(**option).invoke("?")
        assert message.text == "".join(entry["token"] for entry in content(message)) == ANSWER


def test_forced_text_has_no_entries() -> None:
    schema = {"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]}
    message = llm('{"sky": "blue"}').invoke("?", response_format=schema)
    assert message.text == '{"sky": "blue"}'
    assert "".join(entry["token"] for entry in content(message)) in 'blue"}'
