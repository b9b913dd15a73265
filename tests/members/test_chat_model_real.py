"""ChatOpenAI as a member on a real llama-server: continuations, votes, cost and cancellation."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langchain_specfuse import (
    ChatModelMember,
    LlamaCppMember,
    Method,
    ServerMember,
    SpecFuseChatModel,
)
from langchain_specfuse.core.values import Candidate, Segment
from langchain_specfuse.demo import SMOLLM2, file_of
from tests import late

from . import engines
from .contract import draft_job, drafted, score_job, scored

pytestmark = [pytest.mark.serving, pytest.mark.slow]
BEGUN = (Segment("The sky is blue because the"),)
LONG = 3000
"""Tokens of an answer that is cancelled."""


@pytest.fixture(scope="module")
def engine(engine_for: Callable[[str], engines.Engine]) -> engines.Engine:
    return engine_for("llama.cpp")


@pytest.fixture
def hosted(engine: engines.Engine) -> Iterator[Callable[..., ChatModelMember]]:
    members: list[ChatModelMember] = []

    def make(**options: Any) -> ChatModelMember:
        common = {
            "base_url": engine.url,
            "api_key": "none",
            "model": engines.MODEL,
            "temperature": 0,
        }
        members.append(
            ChatModelMember(
                ChatOpenAI(**common, stream_usage=True, **options), name="hosted", price=(1, 1)
            )
        )
        return members[-1]

    yield make
    for member in members:
        member.unload()


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_behind_chat_openai_it_continues_a_text_as_it_would_have_written_it(
    engine_for: Callable[[str], engines.Engine], name: str
) -> None:
    """In one request: the server is asked in its own way, which its list of models shows."""
    url = engine_for(name).url
    model = ChatOpenAI(model=engines.MODEL, base_url=url, api_key="none", temperature=0)
    whole = model.invoke("Why is the sky blue?", max_tokens=48).text
    words = re.findall(r"\s*\S+", whole)
    for count in (1, 3, 10, 20):
        begun = "".join(words[:count])
        job = draft_job(id=f"{count}", answer=(Segment(begun),), segment_tokens=8)
        draft = drafted(ChatModelMember(model, name="a"), job)
        assert draft.effort.requests == 1
        assert draft.text and whole.startswith(begun + draft.text)


def test_it_continues_the_text_of_others_and_votes_on_it(
    hosted: Callable[..., ChatModelMember],
) -> None:
    member = hosted()
    draft = drafted(member, draft_job(answer=BEGUN, segment_tokens=6))
    assert draft.text.startswith(" ") and len(draft.text.split()) == 6
    candidates = (
        Candidate(" air scatters blue light.", True, ("x",)),
        Candidate(" sea is blue.", True, ("y",)),
    )
    ballots = scored(member, score_job(*candidates, answer=BEGUN))
    assert math.fsum(math.exp(share) for (share,) in ballots.logprobs) == pytest.approx(1.0)
    assert ballots.effort.requests == 2 and ballots.effort.input_tokens > 60


def test_a_stream_that_is_given_up_stops_the_server(
    hosted: Callable[..., ChatModelMember], engine: engines.Engine
) -> None:
    def busy() -> list[int]:
        """What the slots at work have decoded."""
        with urllib.request.urlopen(f"{engine.url.removesuffix('/v1')}/slots") as reply:
            return [
                slot["next_token"][0]["n_decoded"]
                for slot in json.load(reply)
                if slot["is_processing"]
            ]

    member = hosted(max_tokens=LONG, extra_body={"ignore_eos": True})
    drafted(member, draft_job(segment_tokens=4))
    assert len(busy()) == 1
    member.forget("q")
    decoded = 0
    while now := busy():
        decoded = max(decoded, *now)
    assert decoded < LONG / 2


@pytest.mark.parametrize("lead", [None, "hosted"])
def test_it_writes_with_a_model_in_this_process_and_its_cost_is_reported(
    hosted: Callable[..., ChatModelMember], lead: str | None
) -> None:
    local = LlamaCppMember(file_of(SMOLLM2), name="local")
    llm = SpecFuseChatModel(
        members=[hosted(logprobs=True), local],
        lead=lead,
        method=Method(segment_tokens=6),
        max_tokens=40,
        trace="off",
    )
    answer = llm.invoke("Name three colours of the rainbow.")
    summary = answer.response_metadata["specfuse"]
    used = summary["usage"]["hosted"]
    assert answer.text and summary["exits"] == [] and list(summary["usage"]) == ["hosted"]
    assert used["requests"] >= 1 and used["cost"] == pytest.approx(
        (used["input_tokens"] + used["output_tokens"]) / 1e6
    )


@pytest.mark.parametrize("how", ["killed", "hung"])
@pytest.mark.parametrize("kind", ["chat", "tokens"])
def test_a_model_in_this_process_continues_where_the_engine_of_the_lead_is_gone(
    hosted: Callable[..., ChatModelMember], engine: engines.Engine, kind: str, how: str
) -> None:
    lead = hosted() if kind == "chat" else ServerMember(engine.url, engines.MODEL, name="hosted")
    spare = LlamaCppMember(file_of(SMOLLM2), name="spare")
    llm = SpecFuseChatModel(
        members=[lead, spare],
        lead="hosted",
        method=Method(segment_tokens=4),
        max_tokens=48,
        member_timeout=3.0,
    )
    stream, hangs = llm.stream("Describe a lighthouse in three sentences."), threading.Event()
    with late.only_where(lambda name: name == "hosted" and hangs.is_set()):
        text = "".join(str(next(stream).text) for _ in range(3))
        begun = text
        try:
            if how == "killed":
                engine.kill()
            else:
                os.killpg(engine.process.pid, signal.SIGSTOP)
                hangs.set()
            *rest, last = stream
        finally:
            if how == "killed":
                engine.start()
            else:
                os.killpg(engine.process.pid, signal.SIGCONT)
    text += "".join(str(chunk.text) for chunk in (*rest, last))
    summary = next(
        chunk.response_metadata["specfuse"]
        for chunk in (*rest, last)
        if "specfuse" in chunk.response_metadata
    )
    gone = [(left["member"], left["kind"]) for left in summary["exits"]]
    assert text.startswith(begun) and len(text.split()) > len(begun.split())
    # a chat model may have sent all of its short answer before its engine was gone
    assert gone == [("hosted", "error" if how == "killed" else "timeout")]
