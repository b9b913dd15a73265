"""Small ensembles whose answers are known."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Failure

BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
"""Of the same number of words: a scripted member goes on at the same place whoever wrote what."""


@pytest.fixture
def ensemble() -> Callable[..., SpecFuseChatModel]:
    """A chat model of two members that differ; its answer is BLUE. Names and answers are free to choose."""

    def make(*answers: Any, names: str = "abcdef", **options: Any) -> SpecFuseChatModel:
        scripts = answers or (BLUE, WIDE)
        members = [ScriptedMember(script, name=name) for script, name in zip(scripts, names, strict=False)]
        return SpecFuseChatModel(**{"members": members, "segment_tokens": 4, **options})

    return make


@pytest.fixture
def soon() -> Callable[[Callable[[], bool]], bool]:
    """Whether something becomes true within two seconds."""

    def wait(happened: Callable[[], bool]) -> bool:
        return any(happened() or time.sleep(0.005) for _ in range(400))  # type: ignore[func-returns-value]

    return wait


@pytest.fixture
def no_cache() -> Iterator[None]:
    from langchain_core.globals import set_llm_cache

    yield
    set_llm_cache(None)


class SlowMember(ScriptedMember):
    """Takes its time for every batch of drafts."""

    seconds = 0.02

    def draft(self, jobs: Any) -> Any:
        time.sleep(self.seconds)
        return super().draft(jobs)


class FailingMember(ScriptedMember):
    """Fails every draft in the given way."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__("never said", **options)
        self.kind = kind

    def draft(self, jobs: Any) -> Any:
        return [Failure(self.kind, f"a failure of the kind {self.kind}") for _ in jobs]


async def asked(llm: SpecFuseChatModel, way: str, question: Any = "Why?", **options: Any) -> Any:
    """The result of asking in this way; streams as lists, batches of two."""
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
