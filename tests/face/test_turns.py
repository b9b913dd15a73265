"""How much company an answer has: bounds, priorities, and what is told to whoever comes when it is full."""

from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest
from langchain_core.exceptions import ModelRateLimitError

from langchain_specfuse import BusyError, ScriptedMember, SpecFuseChatModel, TooBusyError, UsageError

BLUE = "The sky is blue because of the air."


class Slow(ScriptedMember):
    """Works while its gate is open, and says who was asked when."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.gate, self.inside = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def draft(self, jobs: Any) -> Any:
        self.inside.set()
        self.gate.wait(10)
        self.asked += [job.query.turns[-1].text for job in jobs if not job.answer]
        return super().draft(jobs)


def slow(name: str, **choices: Any) -> tuple[Slow, SpecFuseChatModel]:
    member = Slow(BLUE, name=name, device=f"turns-{name}")
    return member, SpecFuseChatModel(members=[member], **choices)


async def held_up(member: Slow, llm: SpecFuseChatModel) -> asyncio.Task[Any]:
    """An answer that is under way until the gate opens."""
    first = asyncio.create_task(llm.ainvoke("first"))
    await asyncio.to_thread(member.inside.wait)
    return first


async def in_line(llm: SpecFuseChatModel, many: int) -> None:
    """So many wait for their turn."""
    ensemble = llm._held
    assert ensemble is not None
    async with asyncio.timeout(30):
        while ensemble.line.waiting < many:
            await asyncio.sleep(0.005)


def test_who_is_one_too_many_is_told_in_langchains_words_and_asks_again() -> None:
    member, llm = slow("busy", at_once=1, max_waiting=0)

    async def asked() -> tuple[BusyError, str, str]:
        first = await held_up(member, llm)
        with pytest.raises(BusyError) as told:
            await llm.ainvoke("second")
        again = llm.with_retry(retry_if_exception_type=(BusyError,), stop_after_attempt=20)
        second = asyncio.create_task(again.ainvoke("second"))
        await asyncio.sleep(0.05)
        member.gate.set()
        return told.value, (await first).text, (await second).text

    error, first, second = asyncio.run(asked())
    assert isinstance(error, TooBusyError) and isinstance(error, ModelRateLimitError)
    assert error.is_retryable and 0.1 <= error.retry_after_s <= 60
    assert "ask again in about" in error.__notes__[0]
    assert (first, second) == (BLUE, BLUE)


def test_a_stream_is_refused_before_its_first_chunk() -> None:
    member, llm = slow("stream", at_once=1, max_waiting=0)
    threading.Timer(0.3, member.gate.set).start()
    first = llm.stream("first")
    reader = threading.Thread(target=lambda: list(first))
    reader.start()
    assert member.inside.wait(5)
    with pytest.raises(BusyError):
        next(iter(llm.stream("second")))
    reader.join(10)


def test_the_urgent_go_before_those_that_came_earlier() -> None:
    member, llm = slow("urgent", at_once=1)

    async def asked() -> list[Any]:
        first = await held_up(member, llm)
        others = []
        for k, priority in enumerate((0, 0, 3, -1)):
            others.append(asyncio.create_task(llm.ainvoke(f"{k}", priority=priority)))
            await in_line(llm, k + 1)
        member.gate.set()
        return await asyncio.gather(first, *others)

    assert {message.text for message in asyncio.run(asked())} == {BLUE}
    assert member.asked == ["first", "2", "0", "1", "3"]


def test_a_batch_larger_than_may_be_at_once_is_answered_whole() -> None:
    member = ScriptedMember(lambda query: f"It is {query.turns[-1].text}.", name="batch", device="turns-batch")
    llm = SpecFuseChatModel(members=[member], at_once=3)
    questions = [str(number) for number in range(30)]
    assert [m.text for m in llm.batch(questions)] == [f"It is {q}." for q in questions]
    assert [m.text for m in asyncio.run(llm.abatch(questions))] == [f"It is {q}." for q in questions]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"at_once": 0}, "at_once must be a whole number of at least 1, got 0"),
        ({"max_waiting": -1}, "max_waiting must be a whole number of at least 0, got -1"),
        ({"max_waiting": True}, "max_waiting must be a whole number of at least 0, got True"),
        ({"priority": 1.5}, "priority must be a whole number, got 1.5"),
    ],
)
def test_what_cannot_be_is_told(choice: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        SpecFuseChatModel(members=[ScriptedMember(BLUE)], **choice)
    with pytest.raises(UsageError, match=told):
        SpecFuseChatModel(members=[ScriptedMember(BLUE)]).invoke("Why?", **choice)


def test_company_changes_no_answer_and_so_no_cache_key() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE)])
    urgent = SpecFuseChatModel(members=llm.members, at_once=2, max_waiting=7, priority=3)
    assert llm._get_llm_string() == urgent._get_llm_string()
    assert llm._get_llm_string() == llm._get_llm_string(priority=5, at_once=1, max_waiting=1)


def test_an_error_survives_being_packed() -> None:
    error = pickle.loads(pickle.dumps(BusyError("too many", retry_after_s=3.5)))
    assert (str(error), error.retry_after_s) == ("too many", 3.5)


# --- who asks from where -----------------------------------------------------------------------------------------


def test_several_event_loops_one_after_another_and_at_once() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="l", device="turns-loops")], at_once=2)
    told: list[str] = []

    async def asked() -> None:
        told.extend(m.text for m in await asyncio.gather(*(llm.ainvoke("Why?") for _ in range(5))))

    asyncio.run(asked())
    asyncio.run(asked())
    threads = [threading.Thread(target=asyncio.run, args=[asked()]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert told == [BLUE] * 30


def test_an_event_loop_that_is_closed_in_the_middle_of_an_answer_gives_the_place_back() -> None:
    member, llm = slow("closed", at_once=1)

    async def begun() -> None:
        await held_up(member, llm)

    asyncio.run(begun())  # cancels what is still under way
    member.gate.set()
    assert llm.invoke("Why?").text == BLUE


def test_callers_on_anyio() -> None:
    anyio = pytest.importorskip("anyio")
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="y", device="turns-anyio")], at_once=2)
    told: list[str] = []

    async def asked() -> None:
        async def one() -> None:
            told.append((await llm.ainvoke("Why?")).text)

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(one)
        with anyio.move_on_after(0):
            await llm.ainvoke("Why?")
        told.append((await llm.ainvoke("Why?")).text)

    anyio.run(asked)
    assert told == [BLUE] * 7


@pytest.mark.parametrize("way", ["ainvoke", "astream"])
def test_an_event_loop_that_is_none_of_asyncios_is_told(way: str) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="n", device="turns-none")])
    asked = llm.ainvoke("Why?") if way == "ainvoke" else anext(llm.astream("Why?"))
    with pytest.raises(UsageError, match="asyncio") as told:
        asked.send(None)  # as a loop of another kind would
    assert "trio.to_thread.run_sync(llm.invoke, question)" in told.value.__notes__[0]


def test_callers_on_trio_ask_from_a_thread_and_are_told_so() -> None:
    trio = pytest.importorskip("trio")
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="t", device="turns-trio")])

    async def asked() -> str:
        with pytest.raises(UsageError, match="asyncio"):
            await llm.ainvoke("Why?")
        message = await trio.to_thread.run_sync(llm.invoke, "Why?")
        return str(message.text)

    assert trio.run(asked) == BLUE
