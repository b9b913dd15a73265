"""How answers end before their time: closed, cancelled, late, or failing. Nothing shown is lost, nothing is kept."""

from __future__ import annotations

import asyncio
import functools
import operator
import threading
import time
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError, ModelNotFoundError, ModelTimeoutError

from langchain_specfuse import (
    AnswerTimeoutError,
    EnsembleError,
    MemberError,
    MemberNotFoundError,
    PromptTooLongError,
    ScriptedMember,
    SpecFuseCallbackHandler,
    SpecFuseChatModel,
    SpecFuseError,
)

from .conftest import BLUE, FailingMember, SlowMember, asked

LONG = " ".join(f"word{i}" for i in range(400))


@pytest.fixture
def slow() -> SpecFuseChatModel:
    """Would take four seconds for its answer."""
    members = [SlowMember(LONG, name=name, device=f"slow-{name}") for name in "ab"]
    return SpecFuseChatModel(members=members, segment_tokens=2, max_tokens=400)


def free(llm: SpecFuseChatModel) -> bool:
    return not any(member.open_queries for member in llm.members)


def quiet(llm: SpecFuseChatModel) -> bool:
    """Nobody drafts any more."""
    before = [member.draft_calls for member in llm.members]
    time.sleep(0.1)
    return before == [member.draft_calls for member in llm.members]


def test_closing_a_stream_frees_everything(slow: Any, soon: Any) -> None:
    chunks = slow.stream("?")
    next(chunks)
    assert not free(slow)
    chunks.close()
    assert soon(lambda: free(slow))
    assert quiet(slow)


def test_leaving_a_loop_frees_everything(slow: Any, soon: Any) -> None:
    for _ in slow.stream("?"):
        break
    assert soon(lambda: free(slow))
    assert quiet(slow)


async def asoon(happened: Any) -> bool:
    for _ in range(400):
        if happened():
            return True
        await asyncio.sleep(0.005)
    return False


async def test_leaving_an_async_loop_frees_everything(slow: Any) -> None:
    async for _ in slow.astream("?"):
        break
    assert await asoon(lambda: free(slow))
    assert quiet(slow)


@pytest.mark.parametrize("way", ["ainvoke", "astream", "astream_events", "abatch"])
async def test_cancelling_a_task_frees_everything(slow: Any, way: str) -> None:
    task = asyncio.create_task(asked(slow, way))
    assert await asoon(lambda: not free(slow))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asoon(lambda: free(slow))
    assert quiet(slow)


async def test_a_limit_around_the_call_frees_everything(slow: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.ainvoke("?"), 0.1)
    assert await asoon(lambda: free(slow))
    assert quiet(slow)


@pytest.mark.parametrize("way", ["stream", "astream", "invoke", "ainvoke"])
async def test_an_answer_that_takes_too_long_is_langchains_timeout_and_frees_everything(slow: Any, way: str) -> None:
    start = time.perf_counter()
    with pytest.raises(AnswerTimeoutError, match=r"timeout=0\.15") as error:
        await asked(slow, way, timeout=0.15)
    assert time.perf_counter() - start < 3
    assert isinstance(error.value, ModelTimeoutError)
    assert isinstance(error.value, TimeoutError)
    assert isinstance(error.value, SpecFuseError)
    assert error.value.is_retryable
    assert await asoon(lambda: free(slow))


def test_a_hanging_member_leaves_and_the_others_finish() -> None:
    class Hanging(ScriptedMember):
        def draft(self, jobs: Any) -> Any:
            time.sleep(1.5)
            return super().draft(jobs)

    members = [ScriptedMember(BLUE, name="a"), Hanging("never", name="b", device="hanging")]
    answer = SpecFuseChatModel(members=members, member_timeout=0.5).invoke("Why?")
    assert answer.text == BLUE
    (left,) = answer.response_metadata["specfuse"]["exits"]
    assert (left["member"], left["kind"]) == ("b", "timeout")
    time.sleep(1.5)


class Dawdling(ScriptedMember):
    """Answers when it is let go."""

    def __init__(self, *args: Any, **choices: Any) -> None:
        super().__init__(*args, **choices)
        self.go = threading.Event()

    def draft(self, jobs: Any) -> Any:
        self.go.wait(10)
        return super().draft(jobs)


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream"])
async def test_a_late_member_is_left_out_for_a_call_and_everybody_is_told(way: str) -> None:
    slow = Dawdling(BLUE, name="b", device=f"dawdling-{way}")
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a"), slow], member_timeout=0.3, max_rounds=3)
    told: list[Any] = []
    config: Any = {"callbacks": [SpecFuseCallbackHandler(on_round=told.append)]}
    choice: Any = {"straggler": "leave_out"}
    if way == "invoke":
        answer: Any = await asyncio.to_thread(llm.invoke, "Why?", config, **choice)
    elif way == "stream":
        chunks = await asyncio.to_thread(lambda: list(llm.stream("Why?", config, **choice)))
        answer = functools.reduce(operator.add, chunks)
    elif way == "ainvoke":
        answer = await llm.ainvoke("Why?", config, **choice)
    else:
        answer = functools.reduce(operator.add, [chunk async for chunk in llm.astream("Why?", config, **choice)])
    about = answer.response_metadata["specfuse"]
    assert BLUE.startswith(answer.text) and answer.text
    assert (about["late"], about["exits"]) == ({"b": about["rounds"]}, [])
    assert all(event.late["draft"] == ["b"] for event in told) and len(told) == about["rounds"]
    slow.go.set()
    again = await llm.ainvoke("Why?", straggler="wait")
    assert again.text == answer.text and again.response_metadata["specfuse"]["late"] == {}


# --- failing members --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_member_that_fails_in_the_middle_leaves_and_nothing_shown_is_repeated(call: int) -> None:
    def llm() -> SpecFuseChatModel:
        members = [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE, name="b", fails_in=call)]
        return SpecFuseChatModel(members=members, segment_tokens=4)

    assert "".join(chunk.text for chunk in llm().stream("Why?")) == BLUE
    assert "".join([chunk.text async for chunk in llm().astream("Why?")]) == BLUE
    (left,) = llm().invoke("Why?").response_metadata["specfuse"]["exits"]
    assert (left["member"], left["round"]) == ("b", call)
    assert "scripted failure" in left["reason"]


def test_when_nobody_is_left_the_error_has_what_was_agreed() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a", fails_in=2)], segment_tokens=4)
    shown = SpecFuseCallbackHandler(on_round=(texts := []).append)
    with pytest.raises(EnsembleError) as error:
        list(llm.stream("Why?", {"callbacks": [shown]}))
    assert "".join(event.text for event in texts) == error.value.text == "The sky is blue"
    assert [failure.member for failure in error.value.failures] == ["a"]
    assert not isinstance(error.value, ContextOverflowError | ModelNotFoundError)


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch"])
async def test_a_prompt_too_long_for_all_is_langchains_overflow(way: str) -> None:
    llm = SpecFuseChatModel(members=[FailingMember("overflow", name="a"), FailingMember("overflow", name="b")])
    with pytest.raises(PromptTooLongError) as error:
        await asked(llm, way)
    assert isinstance(error.value, ContextOverflowError)
    assert isinstance(error.value, EnsembleError)
    assert len(error.value.failures) == 2
    assert "longer context" in error.value.__notes__[-1]


def test_a_prompt_too_long_for_one_is_answered_by_the_others() -> None:
    llm = SpecFuseChatModel(members=[FailingMember("overflow", name="a"), ScriptedMember(BLUE, name="b")])
    assert llm.invoke("Why?").text == BLUE


class Unloadable(ScriptedMember):
    def __init__(self, error: Exception) -> None:
        super().__init__(BLUE, name="unloadable")
        self.errors = [error]

    def probe(self) -> Any:
        if self.errors:
            raise self.errors.pop()
        return super().probe()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_a_model_that_does_not_exist_is_langchains_not_found(asynchronous: bool) -> None:
    llm = SpecFuseChatModel(members=[Unloadable(MemberError("no such model", member="x", kind="not_found"))])
    with pytest.raises(MemberNotFoundError, match="no such model") as error:
        _ = await llm.ainvoke("?") if asynchronous else llm.invoke("?")
    assert isinstance(error.value, ModelNotFoundError)
    assert error.value.member == "x"


async def test_whatever_loading_raises_is_told_as_a_members_failure_and_tried_again_next_time() -> None:
    llm = SpecFuseChatModel(members=[Unloadable(OSError("disk on fire"))])
    with pytest.raises(MemberError, match="disk on fire") as error:
        await llm.ainvoke("?")
    assert isinstance(error.value.__cause__, OSError)
    assert llm.invoke("?").text == BLUE


# --- LangChain's own ways to go on ------------------------------------------------------------------------------


def test_with_retry_asks_again() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a", fails_in=1)])
    assert llm.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke("Why?").text == BLUE


def test_with_fallbacks_asks_somebody_else() -> None:
    llm = SpecFuseChatModel(members=[FailingMember("overflow", name="a")])
    other = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="b")])
    answer = llm.with_fallbacks([other], exceptions_to_handle=(ContextOverflowError,)).invoke("Why?")
    assert answer.text == BLUE


async def test_a_crowd_of_which_a_third_is_cancelled_leaves_nothing_behind_and_the_others_right() -> None:
    device = "crowded"
    members = [SlowMember(lambda query: f"{query.turns[-1].text} {BLUE}", name=n, device=device) for n in "abc"]
    for member in members:
        member.seconds = 0.002
    llm = SpecFuseChatModel(members=members, segment_tokens=2)

    async def one(number: int) -> str | None:
        if number % 3 == 0:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(llm.ainvoke(f"n{number}"), 0.001 * (number % 7 + 1))
            return None
        if number % 3 == 1:
            return (await llm.ainvoke(f"n{number}")).text
        return "".join([chunk.text async for chunk in llm.astream(f"n{number}")])

    answers = await asyncio.gather(*(one(number) for number in range(200)))
    assert [answer for answer in answers if answer] == [f"n{i} {BLUE}" for i in range(200) if i % 3]
    assert await asoon(lambda: free(llm))
    threads = [thread for thread in threading.enumerate() if device in thread.name]
    assert len(threads) <= 1, "one desk, one thread"
