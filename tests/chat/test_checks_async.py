"""Checks through the whole chat model where time matters: cancelled streams, many answers at once,
checks that are slow or fail, and LangChain's ways of calling it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool

from langchain_specfuse import CheckError, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.chat.errors import AnswerTimeoutError
from langchain_specfuse.core.checks import Check, CheckContext
from langchain_specfuse.engine import worker
from tests import late
from tests.methods import in_method

from .conftest import BLUE, LIMIT_S, WIDE, asked, auntil, free, until

USER = contextvars.ContextVar("user", default="nobody")
ASYNC_WAYS = ["ainvoke", "astream", "abatch", "astream_events"]
SYNC_WAYS = ["invoke", "stream", "batch"]


def our_threads() -> list[str]:
    """Those of computing and of checks. The event loops of checks stay, and threads without work
    stay for a while."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("specfuse")]
    return [name for name in names if not name.endswith(("-loop", "-idle"))]


@pytest.fixture(autouse=True)
def no_thread_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    yield
    assert until(lambda: not our_threads()), our_threads()


class Gate:
    """Checks that pass the first text that they see, and hang at the next until they are
    released."""

    def __init__(self) -> None:
        self.asked = 0
        self.inside = threading.Event()
        self.released = threading.Event()
        self.cancelled = threading.Event()

    def plain(self, text: str) -> None:
        self.asked += 1
        if self.asked > 1:
            self.inside.set()
            self.released.wait(LIMIT_S)

    async def coroutine(self, text: str) -> None:
        self.asked += 1
        if self.asked == 1:
            return
        self.inside.set()
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@pytest.fixture
def gate() -> Iterator[Gate]:
    hanging = Gate()
    yield hanging
    hanging.released.set()


def llm_of(*checks: Any, scripts: tuple[Any, ...] = (BLUE,), **options: Any) -> SpecFuseChatModel:
    members = [ScriptedMember(script, name=f"m{at}") for at, script in enumerate(scripts)]
    return SpecFuseChatModel(
        members=members, checks=list(checks), **in_method(**{"segment_tokens": 3, **options})
    )


def patient(check: Any) -> Check:
    return Check(check, "patient", timeout_s=2 * LIMIT_S)


def text_of(result: Any) -> str:
    """The text of an answer, however it was asked for."""
    if not isinstance(result, list):
        return str(result.text)
    if result and isinstance(result[0], dict):
        streamed = [event for event in result if event["event"] == "on_chat_model_stream"]
        return "".join(event["data"]["chunk"].text for event in streamed)
    return "".join(chunk.text for chunk in result)


# --- cancelled streams ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_closing_a_stream_while_a_check_is_asked_frees_everything(gate: Gate, kind: str) -> None:
    llm = llm_of(patient(getattr(gate, kind)))
    stream = llm.stream("Why?")
    first = next(stream)
    assert BLUE.startswith(first.text)
    assert gate.inside.wait(LIMIT_S)
    stream.close()
    assert until(lambda: free(llm))
    if kind == "coroutine":
        assert gate.cancelled.wait(LIMIT_S)
    gate.released.set()
    assert until(lambda: not our_threads())
    assert gate.asked == 2, "a cancelled answer asks no check any more"


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("how", ["aclose", "cancel", "timeout"])
async def test_an_asynchronous_stream_that_is_cancelled_frees_everything(
    gate: Gate, kind: str, how: str
) -> None:
    llm = llm_of(patient(getattr(gate, kind)))
    stream: AsyncIterator[Any] = llm.astream("Why?")
    seen = [await anext(stream)]

    async def read() -> None:
        seen.extend([chunk async for chunk in stream])

    assert await auntil(gate.inside.is_set)
    if how == "aclose":
        await stream.aclose()  # type: ignore[attr-defined]
    elif how == "cancel":
        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(read(), 0.05)
    assert await auntil(lambda: free(llm))
    if kind == "coroutine":
        assert await auntil(gate.cancelled.is_set)
    gate.released.set()
    assert await auntil(lambda: "specfuse-check" not in our_threads())
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert gate.asked == 2 and len(seen) == 1


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_stream_that_nobody_reads_any_more_is_freed_with_its_iterator(
    gate: Gate, kind: str
) -> None:
    llm = llm_of(patient(getattr(gate, kind)))
    stream = llm.stream("Why?")
    next(stream)
    assert gate.inside.wait(LIMIT_S)
    del stream
    gc.collect()
    assert until(lambda: free(llm))


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_the_end_of_the_event_loop_ends_its_answers(gate: Gate, kind: str) -> None:
    llm = llm_of(patient(getattr(gate, kind)))

    async def main() -> None:
        asyncio.create_task(llm.ainvoke("Why?"))  # noqa: RUF006
        assert await auntil(gate.inside.is_set)

    asyncio.run(main())
    assert until(lambda: free(llm))
    gate.released.set()
    assert llm.invoke("Why?", checks=[]).text == BLUE


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_the_time_limit_of_an_answer_holds_while_a_check_hangs(
    gate: Gate, kind: str, way: str
) -> None:
    llm = llm_of(patient(getattr(gate, kind)), timeout=0.3)
    with late.answers_only_where(gate.inside.is_set), pytest.raises(AnswerTimeoutError) as raised:
        await asked(llm, way)
    assert raised.value.text and BLUE.startswith(raised.value.text)
    assert await auntil(lambda: free(llm))


# --- checks that are slow, or fail ----------------------------------------------------------------


@pytest.mark.parametrize("way", [*SYNC_WAYS, *ASYNC_WAYS])
async def test_a_slow_check_delays_the_answer_and_changes_nothing(way: str) -> None:
    async def slow(text: str) -> None:
        await asyncio.sleep(0.01)

    def slow_too(text: str) -> None:
        time.sleep(0.01)

    result = await asked(llm_of(slow, slow_too), way)
    answers = result if way in ("batch", "abatch") else [result]
    assert [text_of(answer) for answer in answers] == [BLUE] * len(answers)


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream"])
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
async def test_a_check_that_takes_too_long_ends_the_answer(gate: Gate, way: str, kind: str) -> None:
    llm = llm_of(Check(getattr(gate, kind), "judge", timeout_s=0.1), on_failure="end")
    with (
        late.only_where(lambda check: gate.inside.is_set()),
        pytest.raises(CheckError, match=r"judge.*took longer than 0\.1 s") as raised,
    ):
        await asked(llm, way)
    assert raised.value.text and BLUE.startswith(raised.value.text)
    assert await auntil(lambda: free(llm))


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_check_that_raises_late_ends_the_answer_with_what_was_streamed(way: str) -> None:
    async def late(text: str) -> None:
        if len(text) > 30:
            raise LookupError("too long for me")

    with pytest.raises(CheckError) as raised:
        await asked(llm_of(late), way)
    assert 0 < len(raised.value.text) <= 30 and BLUE.startswith(raised.value.text)
    assert isinstance(raised.value.__cause__, LookupError)


async def streamed(llm: SpecFuseChatModel, way: str) -> tuple[str, CheckError | None]:
    """What a stream has shown, and the error with which it ended."""
    shown = ""
    try:
        if way == "stream":
            for chunk in llm.stream("Why?"):
                shown += chunk.text
        elif way == "astream":
            async for chunk in llm.astream("Why?"):
                shown += chunk.text
        else:
            async for event in llm.astream_events("Why?", version="v2"):
                if event["event"] == "on_chat_model_stream":
                    shown += event["data"]["chunk"].text
    except CheckError as error:
        return shown, error
    return shown, None


def moody(seed: int) -> Any:
    """A check that refuses one text in four, whatever it says."""
    dice = random.Random(seed)

    async def check(text: str) -> str | None:
        await asyncio.sleep(0)
        return None if dice.random() < 0.75 else "not today"

    return check


@pytest.mark.parametrize("way", ["stream", "astream"])
@pytest.mark.parametrize("on_failure", ["raise", "end"])
@pytest.mark.parametrize("seed", range(6))
async def test_a_check_that_refuses_sometimes_leaves_no_gap_and_no_repetition(
    way: str, on_failure: str, seed: int
) -> None:
    options = {"redrafts": 2, "segment_tokens": 1 + seed % 4, "on_failure": on_failure}
    llm = llm_of(moody(seed), scripts=(BLUE, WIDE), **options)
    shown, error = await streamed(llm, way)
    words = list(zip(BLUE.split(), WIDE.split(), strict=True))
    if error is not None:
        assert error.text == shown
    elif on_failure != "end":
        assert len(shown.split()) == len(words)
    for word, known in zip(shown.split(), words, strict=False):
        assert word in known, shown
    assert await auntil(lambda: free(llm))


def test_after_a_failed_answer_the_next_one_is_as_good() -> None:
    llm = llm_of(lambda text: "never")
    for _ in range(3):
        with pytest.raises(CheckError):
            llm.invoke("Why?")
        assert until(lambda: free(llm))
        assert llm.invoke("Why?", checks=[lambda text: None]).text == BLUE


# --- many answers at once -------------------------------------------------------------------------


async def test_fifty_answers_at_once_ask_an_asynchronous_check_side_by_side() -> None:
    inside = most = 0

    async def judge(text: str) -> str | None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        # the first answers wait for the others
        end = time.monotonic() + LIMIT_S
        while most < 50 and time.monotonic() < end:
            await asyncio.sleep(0.001)
        inside -= 1
        return "mentions waves" if "waves more" in text else None

    llm = llm_of(patient(judge), scripts=(BLUE, WIDE))
    found = await asyncio.gather(*[llm.ainvoke(f"Question {at}?") for at in range(50)])
    assert most == 50
    assert {message.text for message in found} == {found[0].text}
    assert "waves more" not in found[0].text
    assert await auntil(lambda: free(llm))


def test_a_batch_of_synchronous_answers_asks_coroutines_side_by_side() -> None:
    loops: set[int] = set()
    inside = most = 0

    async def judge(text: str) -> None:
        nonlocal inside, most
        loops.add(id(asyncio.get_running_loop()))
        inside += 1
        most = max(most, inside)
        end = time.monotonic() + LIMIT_S
        while most < 20 and time.monotonic() < end:
            await asyncio.sleep(0.001)
        inside -= 1

    llm = llm_of(patient(judge))
    assert [message.text for message in llm.batch(["Why?"] * 20)] == [BLUE] * 20
    assert most == 20 and len(loops) == 1


async def test_a_blocking_check_does_not_block_the_callers_loop(gate: Gate) -> None:
    llm = llm_of(patient(gate.plain))
    task = asyncio.create_task(llm.ainvoke("Why?"))
    assert await auntil(gate.inside.is_set)
    assert (await llm.ainvoke("Why?", checks=[lambda text: None])).text == BLUE
    assert not task.done()
    gate.released.set()
    assert (await task).text == BLUE


# --- context --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [*SYNC_WAYS, *ASYNC_WAYS])
async def test_checks_see_the_context_variables_of_their_caller(way: str) -> None:
    seen: set[str] = set()

    async def judge(text: str) -> None:
        seen.add(USER.get())
        USER.set("judge")

    def plain(text: str) -> None:
        seen.add(USER.get())
        USER.set("plain")

    token = USER.set("ann")
    try:
        await asked(llm_of(judge, plain), way)
        assert USER.get() == "ann"
    finally:
        USER.reset(token)
    assert seen == {"ann"}


async def test_answers_at_once_have_variables_of_their_own() -> None:
    seen: dict[str, set[str]] = {}

    async def judge(text: str, context: CheckContext) -> None:
        await asyncio.sleep(0)
        seen.setdefault(context.messages[-1].text, set()).add(USER.get())

    llm = llm_of(judge)

    async def ask(user: str) -> None:
        USER.set(user)
        await llm.ainvoke(user)

    users = [f"user {at}" for at in range(10)]
    await asyncio.gather(*map(ask, users))
    assert seen == {user: {user} for user in users}


async def test_the_context_has_the_conversation_and_the_config() -> None:
    contexts: list[CheckContext] = []

    def judge(text: str, context: CheckContext) -> None:
        contexts.append(context)

    config = {"metadata": {"tenant": 7}, "tags": ["mine"]}
    for way in ("invoke", "ainvoke"):
        contexts.clear()
        await asked(llm_of(judge), way, config=config)
        for context in contexts:
            assert context.author == "m0" and context.draft
            assert [message.text for message in context.messages] == ["Why?"]
            assert context.config["metadata"]["tenant"] == 7
            assert "mine" in context.config["tags"]
        assert [context.ended for context in contexts][-1]


# --- Runnables and agents -------------------------------------------------------------------------


class Runs(BaseCallbackHandler):
    """Which run started which."""

    def __init__(self) -> None:
        self.parents: dict[str, Any] = {}
        self.chat_models: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.chat_models.append((kwargs["run_id"], kwargs.get("parent_run_id")))

    def on_chain_start(self, serialized: Any, inputs: Any, **kwargs: Any) -> None:
        self.parents[str(kwargs["run_id"])] = kwargs.get("parent_run_id")


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_chat_model_as_a_judge_runs_within_the_run_that_it_judges(way: str) -> None:
    def verdict(query: Any) -> str:
        return "no: waves" if "waves more" in query.turns[-1].text else "yes"

    judge = SpecFuseChatModel(members=[ScriptedMember(verdict, name="judge")])

    def reason(text: str) -> str | None:
        return None if text == "yes" else text

    runs = Runs()
    check = judge | StrOutputParser() | RunnableLambda(reason)
    llm = llm_of(check, scripts=(BLUE, WIDE))
    answer = text_of(await asked(llm, way, config={"callbacks": [runs]}))
    assert answer and "waves more" not in answer
    assert len(answer.split()) == len(BLUE.split())
    own = runs.chat_models[0][0]
    assert len(runs.chat_models) > 1
    for _, parent in runs.chat_models[1:]:
        while str(parent) in runs.parents:
            parent = runs.parents[str(parent)]
        assert parent == own


@tool
def transfer(amount: int) -> str:
    """Transfer money."""
    return f"transferred {amount}"


def small(text: str, context: CheckContext) -> str | None:
    amounts = [call["args"]["amount"] for call in context.tool_calls]
    return "too much" if any(amount > 100 for amount in amounts) else None


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_agent_makes_only_calls_that_pass(is_async: bool) -> None:
    def member(amount: int, name: str) -> ScriptedMember:
        return ScriptedMember([ScriptedMember.call("transfer", amount=amount), "Done."], name=name)

    async def asmall(text: str, context: CheckContext) -> str | None:
        return small(text, context)

    check = Check(asmall if is_async else small, "small", at="call")
    llm = SpecFuseChatModel(members=[member(500, "a"), member(50, "b")], lead="a", checks=[check])
    agent = create_agent(llm, tools=[transfer])
    question = {"messages": [("human", "Pay!")]}
    result = await agent.ainvoke(question) if is_async else agent.invoke(question)
    results = [message.text for message in result["messages"] if message.type == "tool"]
    assert results == ["transferred 50"]
    assert result["messages"][-1].text == "Done."


async def test_an_agent_streams_only_what_has_passed() -> None:
    async def judge(text: str) -> str | None:
        return "mentions waves" if "waves more" in text else None

    agent = create_agent(llm_of(judge, scripts=(BLUE, WIDE)), tools=[])
    question = {"messages": [("human", "Why?")]}
    events = [event async for event in agent.astream_events(question, version="v2")]
    shown = text_of(events)
    assert "waves more" not in shown and len(shown.split()) == len(BLUE.split())
    chunks = [chunk async for chunk, _ in agent.astream(question, stream_mode="messages")]
    assert "".join(chunk.text for chunk in chunks) == shown


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream", "astream_events"])
async def test_a_fallback_takes_over_where_no_text_passes_from_the_beginning(way: str) -> None:
    async def never(text: str) -> str:
        return "never"

    llm: Any = llm_of(never).with_fallbacks([llm_of(scripts=("Grey.",))])
    assert text_of(await asked(llm, way)).endswith("Grey.")


@pytest.mark.parametrize("way", ["stream", "astream", "astream_events"])
async def test_a_stream_ends_with_the_error_after_the_text_that_passed(way: str) -> None:
    async def judge(text: str) -> str | None:
        return "mentions waves" if "waves" in text else None

    shown, error = await streamed(llm_of(judge), way)
    assert error is not None and error.text == shown
    assert BLUE.startswith(shown) and "waves" not in shown and "scatters" in shown


def test_checks_that_ask_the_same_chat_model_do_not_wait_for_each_other() -> None:
    inner = llm_of()

    def judge(text: str) -> str | None:
        return None if inner.invoke("Good?").text == BLUE else "bad"

    outer = inner.bind(checks=[judge, judge])
    assert [message.text for message in outer.batch(["Why?"] * 8)] == [BLUE] * 8
