"""Whatever mix of checks, failures and deaths an answer meets, no word is lost, repeated or
forbidden.

Each member writes its name and the number of each word, and continues a text of others at its next
number. So an answer shows who wrote which word, and whether one is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from langchain_specfuse import (
    ChatModelMember,
    CheckError,
    EnsembleError,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    checks,
)
from tests.members.calling_model import CallingModel, call_of
from tests.members.failing_server import FailingServer
from tests.members.streaming import StreamingMember

from .conftest import joined
from .test_failover import CALL, Booking, FailingModel, book, numbers

WORDS = 16
MIXES, QUICK_MIXES = 250, 100
FORM_MIXES = 30
PLACES = ("segment", "sentence", "line", "answer")


@dataclass
class Watch:
    """A check that refuses some words, and remembers every text that it has passed."""

    refused: frozenset[str]
    passed: set[str]

    def __call__(self, text: str) -> str | None:
        found = self.refused.intersection(text.replace(".", "").split())
        if found:
            return f"it has {min(found)}"
        self.passed.add(text)
        return None

    def has_passed(self, shown: str) -> bool:
        return not shown or any(text.startswith(shown) for text in self.passed)


def script(name: str, rng: random.Random) -> str:
    """Numbered words; some end a sentence, and some a line."""
    words = [f"{name}{number}" + rng.choice(["", "", ".", ".\n"]) for number in range(WORDS)]
    return " ".join(words)


def scripted(name: str, rng: random.Random) -> ScriptedMember:
    fails_in = rng.randint(1, 2 * WORDS) if rng.random() < 0.5 else None
    return ScriptedMember(script(name, rng), name=name, fails_in=fails_in)


def hosted(name: str, rng: random.Random) -> ChatModelMember:
    after = rng.randint(0, WORDS) if rng.random() < 0.5 else None
    how = rng.choice(["raise", "cut", "500", "429", "401"])
    model = FailingModel(
        called=name, fails_after=after, how=how, words=WORDS, asked=[], released=threading.Event()
    )
    return ChatModelMember(model, name=name)


def streaming(name: str, rng: random.Random) -> StreamingMember:
    breaks_after = rng.randint(0, 2 * WORDS) if rng.random() < 0.5 else None
    return StreamingMember(
        script(name, rng), name=name, seed=rng.randrange(99), breaks_after=breaks_after
    )


def mix(seed: int) -> tuple[SpecFuseChatModel, Watch]:
    """One to four members of all kinds, how they write together, and a check of their words."""
    rng = random.Random(seed)
    names = "abcd"[: rng.randint(1, 4)]
    members: list[Any] = [rng.choice([scripted, hosted, streaming])(name, rng) for name in names]
    refused = {
        f"{rng.choice(names)}{rng.randrange(WORDS)}" for _ in range(rng.choice([0, 1, 1, 2, 4]))
    }
    watch = Watch(frozenset(refused), set())
    llm = SpecFuseChatModel(
        members=members,
        method=Method(segment_tokens=rng.choice([1, 3, 8, 64])),
        lead=rng.choice([None, names[0], names[-1]]),
        redrafts=rng.choice([0, 1, 3]),
        on_failure=rng.choice(["raise", "end"]),
        checks=[checks.at(rng.choice(PLACES), watch)],
    )
    return llm, watch


def chunks_of(llm: SpecFuseChatModel, is_async: bool) -> tuple[list[Any], Exception | None]:
    """The chunks of an answer, and the error with which it ended."""
    chunks: list[Any] = []

    async def ask() -> None:
        async for chunk in llm.astream("Count."):
            chunks.append(chunk)  # noqa: PERF401 (an error ends it)

    try:
        if is_async:
            asyncio.run(ask())
        else:
            chunks.extend(llm.stream("Count."))
    except (EnsembleError, CheckError) as error:
        return chunks, error
    return chunks, None


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=() if first < QUICK_MIXES else pytest.mark.long)
        for first in range(0, MIXES, 50)
    ],
)
def test_no_mix_of_checks_and_deaths_loses_repeats_or_shows_a_refused_word(first: int) -> None:
    for seed in range(first, first + 50):
        llm, watch = mix(seed)
        chunks, error = chunks_of(llm, is_async=seed % 2 == 1)
        shown = ""
        for chunk in chunks:
            shown += chunk.text
            assert watch.has_passed(shown), f"{seed}: shown before it has passed"
        words = shown.replace(".", "")
        assert not watch.refused.intersection(words.split()), f"{seed}: a refused word is shown"
        assert numbers(words) == list(range(len(words.split()))), f"{seed}: lost or repeated"
        if error is not None:
            assert error.text == shown, f"{seed}: the error has what was streamed"
            continue
        finish = joined(chunks).response_metadata["finish_reason"]
        assert finish in ("stop", "check")
        if finish == "stop":
            assert len(words.split()) == WORDS, f"{seed}: the answer is not complete"


# --- objects and calls ----------------------------------------------------------------------------


def form_mix(seed: int, text: str, reply: Any) -> SpecFuseChatModel:
    """One to three members that all write this text, and of which some fail. Chat models reply with
    this text or message."""
    rng = random.Random(seed)

    def one(name: str) -> Any:
        after = rng.randint(0, 24) if rng.random() < 0.6 else None
        kind = rng.choice(["scripted", "hosted", "streaming"])
        if kind == "scripted":
            return ScriptedMember(text, name=name, fails_in=None if after is None else 1 + after)
        if kind == "hosted":
            model = CallingModel(replies=[reply], fails_after=after, asked=[])
            return ChatModelMember(model, name=name)
        return StreamingMember(text, name=name, seed=rng.randrange(99), breaks_after=after)

    names = "abc"[: rng.randint(1, 3)]
    return SpecFuseChatModel(
        members=[one(name) for name in names],
        method=Method(segment_tokens=rng.choice([1, 4, 64])),
        lead=rng.choice([None, names[0], names[-1]]),
    )


def test_no_mix_of_deaths_changes_an_object_or_a_call() -> None:
    text = json.dumps(CALL, ensure_ascii=False)
    complete = 0
    for seed in range(FORM_MIXES):
        booker = form_mix(seed, text, text).with_structured_output(Booking)
        call = ScriptedMember.call("book", **CALL)
        caller = form_mix(seed, call, call_of("book", **CALL)).bind_tools([book])
        with contextlib.suppress(EnsembleError):
            assert booker.invoke("Book.").model_dump() == CALL, seed
            complete += 1
        with contextlib.suppress(EnsembleError):
            message = caller.invoke("Book.")
            assert [call["args"] for call in message.tool_calls] == [CALL], seed
            assert message.invalid_tool_calls == [] and message.text == ""
            complete += 1
    assert complete > FORM_MIXES


# --- every byte -------------------------------------------------------------------------------------

SHORT = 5


@pytest.fixture
def pair() -> Iterator[tuple[FailingServer, FailingServer]]:
    servers = FailingServer("a", words=SHORT), FailingServer("b", words=SHORT)
    yield servers
    for server in servers:
        server.stop()


@pytest.mark.parametrize("step", [29, pytest.param(3, marks=pytest.mark.long)])
def test_a_takeover_at_any_byte_loses_and_repeats_nothing(
    pair: tuple[FailingServer, FailingServer], step: int
) -> None:
    """An event has about 140 bytes, so that the cuts fall on each part of one in turn."""
    lead, reserve = pair
    for count in range(0, 2000, step):
        lead.bytes_sent = count
        members = [
            ChatModelMember(
                ChatOpenAI(model="m", base_url=server.url, api_key="none", max_retries=0),
                name=server.name,
            )
            for server in pair
        ]
        text = (
            SpecFuseChatModel(members=members, method=Method(segment_tokens=2))
            .invoke("Count.")
            .text
        )
        assert "\ufffd" not in text
        assert numbers(text.replace("ö", "")) == list(range(SHORT)), f"cut after {count} bytes"
        if len(reserve.asked) == 0:
            return  # the whole reply has arrived
        reserve.asked.clear()
    raise AssertionError("the reply never arrived")
