"""Small ensembles whose answers are known."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves more often than others do."


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
