"""Limits on concurrent answers, errors beyond them, and use from several threads and loops."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.exceptions import ModelRateLimitError
from langchain_core.language_models import FakeListChatModel

from langchain_specfuse import BusyError, Method, ScriptedMember, SpecFuseChatModel, TooBusyError
from langchain_specfuse.engine import worker

from .conftest import BLUE, LIMIT_S, GatedMember, until


def gated(name: str, **options: Any) -> tuple[GatedMember, SpecFuseChatModel]:
    member = GatedMember(BLUE, name=name, device=f"concurrency-{name}", first=0)
    return member, SpecFuseChatModel(members=[member], max_concurrency=1, **options)


async def started(member: GatedMember, llm: SpecFuseChatModel) -> asyncio.Task[Any]:
    """Start an answer that runs until the gate opens."""
    first = asyncio.create_task(llm.ainvoke("first"))
    await asyncio.to_thread(member.waiting.wait, LIMIT_S)
    return first


async def test_a_call_beyond_the_limit_raises_langchains_rate_limit_error_and_can_be_retried() -> (
    None
):
    member, llm = gated("refused")
    first = await started(member, llm)
    for refused in (
        llm.ainvoke("second", max_waiting=0),
        anext(llm.astream("second", max_waiting=0)),
    ):
        with pytest.raises(TooBusyError) as error:
            await refused
        assert isinstance(error.value, BusyError) and isinstance(error.value, ModelRateLimitError)
        assert error.value.is_retryable and 0.1 <= error.value.retry_after_s <= 60
    copied = pickle.loads(pickle.dumps(error.value))
    assert (str(copied), copied.retry_after_s) == (str(error.value), error.value.retry_after_s)
    member.gate.set()
    assert (await first).text == BLUE
    assert (await llm.ainvoke("second", max_waiting=0)).text == BLUE


def test_event_loops_can_be_used_one_after_another_and_at_once() -> None:
    llm = SpecFuseChatModel(
        members=[ScriptedMember(BLUE, name="l", device="concurrency-loops")], max_concurrency=2
    )
    texts: list[str] = []

    async def ask() -> None:
        texts.extend(m.text for m in await asyncio.gather(*(llm.ainvoke("Why?") for _ in range(5))))

    asyncio.run(ask())
    threads = [threading.Thread(target=asyncio.run, args=[ask()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert texts == [BLUE] * 25


def test_deleted_chat_models_leave_no_thread_and_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    before = set(worker._WORKERS)

    def ask(number: int) -> str:
        hosted = FakeListChatModel(responses=[BLUE] * 9)
        scripted = ScriptedMember(BLUE, name="own", device=f"short-lived {number}")
        llm = SpecFuseChatModel(
            members=[scripted, hosted], lead="own", method=Method(segment_tokens=8)
        )
        return llm.invoke("Why?").text

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(ask, range(200))) == {BLUE}

    def left() -> list[str]:
        gc.collect()
        ours = [thread.name for thread in threading.enumerate() if "specfuse-" in thread.name]
        threads = [name for name in ours if "short-lived" in name or "FakeListChatModel" in name]
        return threads + [name for name in worker._WORKERS if name not in before]

    assert until(lambda: not left()), left()
