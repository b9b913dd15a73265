"""Answers that are closed, cancelled, late or failing keep the streamed text and free caches."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from typing import Any

import pytest
from langchain_core.exceptions import ContextOverflowError, ModelNotFoundError, ModelTimeoutError

from langchain_specfuse import (
    AnswerTimeoutError,
    EnsembleError,
    MemberError,
    MemberNotFoundError,
    Method,
    PromptTooLongError,
    ScriptedMember,
    SpecFuseChatModel,
    SpecFuseError,
)
from langchain_specfuse.core.values import Failure

from .conftest import BLUE, FailingMember, GatedMember, asked, auntil, free, until

LONG = " ".join(f"word{i}" for i in range(4000))


@pytest.fixture
def gated() -> Any:
    """Return a member that drafts its first segment, then waits."""
    members = [GatedMember(LONG, name=name, device=f"gated-{name}") for name in "ab"]
    yield SpecFuseChatModel(members=members, method=Method(segment_tokens=2), max_tokens=4000)
    for member in members:
        member.gate.set()


def ends(llm: SpecFuseChatModel) -> bool:
    """Check that everything is freed soon after the gate opens, before the answer is complete."""
    for member in llm.members:
        member.gate.set()
    return until(lambda: free(llm)) and all(member.draft_calls < 1000 for member in llm.members)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_breaking_out_of_a_stream_frees_everything(gated: Any, asynchronous: bool) -> None:
    if asynchronous:
        async for _ in gated.astream("?"):
            break
        for _ in range(20):  # the event loop closes a generator that was left in a later turn
            await asyncio.sleep(0.001)
    else:
        for _ in gated.stream("?"):  # which closes it
            assert not free(gated)
            break
    assert await asyncio.to_thread(ends, gated)


@pytest.mark.parametrize("way", ["ainvoke", "astream", "astream_events", "abatch"])
async def test_cancelling_a_task_frees_everything(gated: Any, way: str) -> None:
    task = asyncio.create_task(asked(gated, way))
    await asyncio.to_thread(gated.members[0].waiting.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for member in gated.members:
        member.gate.set()
    assert await auntil(lambda: free(gated))


@pytest.mark.parametrize("way", ["stream", "astream", "invoke", "ainvoke"])
async def test_a_late_answer_raises_langchains_timeout_with_the_agreed_text(
    gated: Any, way: str
) -> None:
    with pytest.raises(AnswerTimeoutError, match=r"timeout=0\.5") as error:
        await asked(gated, way, timeout=0.5)
    assert isinstance(error.value, ModelTimeoutError)
    assert isinstance(error.value, TimeoutError)
    assert isinstance(error.value, SpecFuseError)
    assert error.value.is_retryable
    assert "word0 word1".startswith(error.value.text)
    assert await asyncio.to_thread(ends, gated)


ABANDONED = """
import asyncio, builtins
from langchain_core.callbacks import BaseCallbackHandler
from langchain_specfuse import ScriptedMember, SpecFuseChatModel

class Listener(BaseCallbackHandler):
    def on_llm_error(self, error, **kwargs):
        print(type(error).__name__, flush=True)

llm = SpecFuseChatModel(members=[ScriptedMember("The sky is blue. " * 30, name=name) for name in "ab"])
config = {"callbacks": [Listener()]}
async def read():
    builtins.kept = llm.astream("?", config)
    await anext(builtins.kept)
asyncio.run(read())
stream = llm.stream("?", config)
next(stream)
"""


def test_an_unfinished_stream_does_not_keep_the_interpreter_alive() -> None:
    program = [sys.executable, "-c", ABANDONED]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "GeneratorExit\n" * 2, "")


# --- failing members ------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 2, 3])
async def test_a_member_that_fails_leaves_and_no_shown_text_is_repeated(call: int) -> None:
    def llm() -> SpecFuseChatModel:
        members = [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE, name="b", fails_in=call)]
        return SpecFuseChatModel(members=members, method=Method(segment_tokens=4))

    assert "".join(chunk.text for chunk in llm().stream("Why?")) == BLUE
    assert "".join([chunk.text async for chunk in llm().astream("Why?")]) == BLUE
    (left,) = llm().invoke("Why?").response_metadata["specfuse"]["exits"]
    assert (left["member"], left["round"]) == ("b", call)
    assert "scripted failure" in left["reason"]


def test_when_no_member_is_left_the_error_has_the_agreed_text_and_the_failures() -> None:
    llm = SpecFuseChatModel(
        members=[ScriptedMember(BLUE, name="a", fails_in=2)], method=Method(segment_tokens=4)
    )
    with pytest.raises(EnsembleError) as error:
        list(llm.stream("Why?"))
    assert error.value.text == "The sky is blue"
    assert [failure.member for failure in error.value.failures] == ["a"]
    assert ".failures" in "".join(error.value.notes)
    assert not isinstance(error.value, ContextOverflowError | ModelNotFoundError)


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch"])
async def test_a_prompt_too_long_for_all_members_raises_langchains_overflow_error(way: str) -> None:
    llm = SpecFuseChatModel(
        members=[FailingMember("overflow", name="a"), FailingMember("overflow", name="b")]
    )
    with pytest.raises(PromptTooLongError) as error:
        await asked(llm, way)
    assert isinstance(error.value, ContextOverflowError)
    assert isinstance(error.value, EnsembleError)
    assert len(error.value.failures) == 2
    assert "longer context" in error.value.notes[-1]


class SmallContext(ScriptedMember):
    """Its context is full after two segments."""

    def draft(self, jobs: Any) -> Any:
        full = Failure("overflow", "its context is full")
        return [
            full if len(job.answer) >= 2 else reply
            for job, reply in zip(jobs, super().draft(jobs), strict=True)
        ]


def test_the_finish_reason_is_length_when_all_contexts_are_full() -> None:
    members = [SmallContext("a b c d e f g h", name=name) for name in "ab"]
    answer = SpecFuseChatModel(members=members, method=Method(segment_tokens=2)).invoke("count")
    assert (answer.text, answer.response_metadata["finish_reason"]) == ("a b c d", "length")
    members[1] = ScriptedMember("a b c d e f g h", name="b")
    answer = SpecFuseChatModel(members=members, method=Method(segment_tokens=2)).invoke("count")
    assert (answer.text, answer.response_metadata["finish_reason"]) == ("a b c d e f g h", "stop")


class Unloadable(ScriptedMember):
    """Fails to load the first time."""

    def __init__(self, error: Exception) -> None:
        super().__init__(BLUE, name="unloadable")
        self.errors = [error]

    def probe(self) -> Any:
        if self.errors:
            raise self.errors.pop()
        return super().probe()


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_model_that_does_not_exist_raises_langchains_not_found_error(way: str) -> None:
    llm = SpecFuseChatModel(
        members=[Unloadable(MemberError("no such model", member="x", kind="not_found"))]
    )
    with pytest.raises(MemberNotFoundError, match="no such model") as error:
        await asked(llm, way)
    assert isinstance(error.value, ModelNotFoundError)
    assert error.value.member == "x"


async def test_an_error_while_loading_is_a_members_failure_and_the_next_question_tries_again() -> (
    None
):
    llm = SpecFuseChatModel(members=[Unloadable(OSError("disk on fire"))])
    with pytest.raises(MemberError, match="disk on fire") as error:
        await llm.ainvoke("?")
    assert isinstance(error.value.__cause__, OSError)
    assert llm.invoke("?").text == BLUE


def test_langchains_retries_and_fallbacks_work() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a", fails_in=1)])
    assert (
        llm.with_retry(stop_after_attempt=2, wait_exponential_jitter=False).invoke("Why?").text
        == BLUE
    )
    full = SpecFuseChatModel(members=[FailingMember("overflow", name="a")])
    assert (
        full.with_fallbacks([llm], exceptions_to_handle=(ContextOverflowError,)).invoke("Why?").text
        == BLUE
    )


async def test_the_first_answer_that_max_tokens_cuts_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a")])

    def warned() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    assert llm.invoke("?").text == BLUE and not warned()
    cut = llm.invoke("?", max_tokens=2)
    assert cut.response_metadata["finish_reason"] == "length"
    (warning,) = warned()
    assert "max_tokens=2" in warning and "-> raise max_tokens" in warning
    await llm.ainvoke("?", max_tokens=3)
    assert len(warned()) == 1  # once for each chat model
    other = pickle.loads(pickle.dumps(llm))
    async for _ in other.astream("?", max_tokens=3):
        pass
    assert len(warned()) == 2


async def test_an_answer_that_only_repeats_itself_is_reported_with_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("It is so. " * 1000, name="a")])
    answers = [llm.invoke("?"), await llm.ainvoke("?")]
    assert {answer.response_metadata["finish_reason"] for answer in answers} == {"length"}
    assert all(len(answer.text) < 3000 for answer in answers)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "only repeated itself" in warning and "repetition_penalty" in warning


def test_an_answer_that_nobody_can_continue_is_not_blamed_on_max_tokens(
    caplog: pytest.LogCaptureFixture,
) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("I will not.", name="a")])
    about = llm.invoke("?", response_format={"type": "json_object"}).response_metadata
    assert about["finish_reason"] == "length" and about["specfuse"]["stalled"]
    assert "max_tokens" not in caplog.text
