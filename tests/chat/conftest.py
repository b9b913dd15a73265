"""Small ensembles with known answers, and members that fail or wait."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Failure
from tests.methods import in_method

BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
"""As many words as BLUE: a scripted member continues at the same word whichever member wrote the
words before."""
LIMIT_S = 30
"""Tests wait this long for events in other threads."""


@pytest.fixture
def ensemble() -> Callable[..., SpecFuseChatModel]:
    """Return a factory of chat models with two members that differ and answer BLUE together."""

    def make(*answers: Any, names: str = "abcdef", **options: Any) -> SpecFuseChatModel:
        scripts = answers or (BLUE, WIDE)
        members = [
            ScriptedMember(script, name=name) for script, name in zip(scripts, names, strict=False)
        ]
        return SpecFuseChatModel(
            **in_method(**{"members": members, "segment_tokens": 4, **options})
        )

    return make


@pytest.fixture
def no_cache() -> Iterator[None]:
    from langchain_core.globals import set_llm_cache

    yield
    set_llm_cache(None)


def until(happened: Callable[[], object], timeout_s: float = LIMIT_S) -> bool:
    """Wait until the condition is true; return whether it became true."""
    end = time.monotonic() + timeout_s
    while not happened() and time.monotonic() < end:
        time.sleep(0.005)
    return bool(happened())


async def auntil(happened: Callable[[], object]) -> bool:
    return await asyncio.to_thread(until, happened)


def free(llm: SpecFuseChatModel) -> bool:
    """Return whether no member holds any state of a query."""
    return not any(member.open_queries for member in llm.members)


class GatedMember(ScriptedMember):
    """Drafts its first segments, then blocks in ``draft`` until its gate opens."""

    def __init__(self, *args: Any, first: int = 1, **options: Any) -> None:
        super().__init__(*args, **options)
        self.first = first
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.questions: list[str] = []
        """The questions in the order in which the first drafts were made."""

    def draft(self, jobs: Any) -> Any:
        if any(len(job.answer) >= self.first for job in jobs):
            self.waiting.set()
            self.gate.wait(LIMIT_S)
        self.questions += [job.query.turns[-1].text for job in jobs if not job.answer]
        return super().draft(jobs)


class FailingMember(ScriptedMember):
    """Fails every draft with the given kind of failure."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__("never said", **options)
        self.kind = kind

    def draft(self, jobs: Any) -> Any:
        return [Failure(self.kind, f"a failure of the kind {self.kind}") for _ in jobs]


WAYS = ["invoke", "ainvoke", "stream", "astream", "batch", "abatch", "astream_events"]


async def asked(llm: SpecFuseChatModel, way: str, question: Any = "Why?", **options: Any) -> Any:
    """Call the chat model in the given way; streams return lists, batches ask twice."""
    if way in ("batch", "abatch"):
        question = [question, question]
    if way == "astream_events":
        options["version"] = "v2"
    result = getattr(llm, way)(question, **options)
    if way == "stream":
        return list(result)
    if way in ("astream", "astream_events"):
        return [item async for item in result]
    return await result if inspect.isawaitable(result) else result


def joined(chunks: list[Any]) -> Any:
    """Return the message that the chunks of a stream add up to."""
    return sum(chunks[1:], chunks[0])
