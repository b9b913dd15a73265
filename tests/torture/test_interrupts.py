"""Ctrl-C and cancellation wherever they strike: the next answer is the same as ever, and nothing is held.

Two ways to interrupt: at the n-th entry of a function in the caller's thread (where Python looks for signals, so that
every n is a place where Ctrl-C can strike), and by cancelling a task, or raising in it, at its n-th await. Afterwards
the same members answer once more, from another thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import _base, thread

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.engine import Ensemble

# Python reports an interrupt that strikes in a finalizer, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
PATIENCE_S = 60.0
QUESTION = "Why is the sky blue?"

SYNC = {
    "invoke": lambda llm: llm.invoke(QUESTION),
    "stream": lambda llm: list(llm.stream(QUESTION)),
    "batch": lambda llm: llm.batch([QUESTION, QUESTION]),
}


async def streamed(llm):
    return [chunk async for chunk in llm.astream(QUESTION)]


ASYNC = {
    "ainvoke": lambda llm: llm.ainvoke(QUESTION),
    "astream": streamed,
    "abatch": lambda llm: llm.abatch([QUESTION, QUESTION]),
}


class Case:
    """Members that no other test uses, and the model over them."""

    def __init__(self):
        self.members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
        self.llm = SpecFuseChatModel(members=self.members, segment_tokens=4)

    def wrong_afterwards(self):
        """What is not as it was before: the next answer, or what members keep of queries."""
        answers = []

        def ask():
            try:
                answers.append(str(self.llm.invoke(QUESTION).text))
            except Exception as error:
                answers.append(repr(error))

        another = threading.Thread(target=ask, daemon=True)
        another.start()
        another.join(PATIENCE_S)
        if answers != [BLUE]:
            return f"the next answer is {answers}"
        end = time.monotonic() + PATIENCE_S
        while open_queries := [query for member in self.members for query in member.open_queries]:
            if time.monotonic() > end:
                return f"still held: {open_queries}"
            time.sleep(0.002)
        return None


def strike_all(strikes):
    """Run every strike on members of its own. Returns how many struck."""
    struck = 0
    for strike in strikes:
        case = Case()
        struck += strike(case)
        assert case.wrong_afterwards() is None
    return struck


# --- at the entry of a function ---------------------------------------------------------------------------------


class AtEntry:
    """Raises KeyboardInterrupt where the n-th function begins, as a signal would that came just then."""

    def __init__(self, number, way):
        self.number, self.count, self.first_of = number, 0, {}
        # LangChain's batch has a pool of threads, and the pool's own locks do not survive it: not a fault of ours.
        self.spared = (threading.__file__, thread.__file__, _base.__file__) if way == "batch" else ()

    def __call__(self, frame, event, _):
        if event == "call" and frame.f_code.co_filename not in self.spared:
            self.count += 1
            self.first_of.setdefault(frame.f_code, self.count)
            if self.count == self.number:
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def watching(self):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


def interrupted_at_entry(case, way, number):
    try:
        with AtEntry(number, way).watching():
            SYNC[way](case.llm)
    except (KeyboardInterrupt, Exception):  # the standard library's own conditions may make another error of it
        return True
    return False  # a finalizer caught it


def entries(way):
    """All entries of functions in the caller's thread while it asks."""
    SYNC[way](Case().llm)  # what is done only once in a process does not count
    case, watch = Case(), AtEntry(0, way)
    with watch.watching():
        SYNC[way](case.llm)
    return watch


EVERY = [pytest.param(way, 1, marks=pytest.mark.long) for way in SYNC]


@pytest.mark.parametrize(("way", "step"), [("invoke", 31), ("stream", 31), ("batch", 2), *EVERY])
def test_an_interrupt_at_the_entry_of_any_function(way, step):
    numbers = range(1, entries(way).count + 1, step)
    assert strike_all(lambda case, n=n: interrupted_at_entry(case, way, n) for n in numbers) > 10


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_an_interrupt_while_members_load_and_the_answer_begins(way):
    """Every single entry around the one where members begin to load, on into the worker."""
    loading = entries(way).first_of[Ensemble.loaded.__code__]
    numbers = range(loading - 60, loading + 60)
    assert strike_all(lambda case, n=n: interrupted_at_entry(case, way, n) for n in numbers) > 100


# --- at an await ------------------------------------------------------------------------------------------------


class AtAwait:
    """Strikes where any task waits for the n-th time: cancels that task, or raises ``error`` in it."""

    def __init__(self, number, error):
        self.number, self.error, self.count = number, error, 0

    def task(self, loop, work, **about):
        """A task factory."""
        return asyncio.Task(Watched(work, self), loop=loop, **about)


class Watched(Coroutine):
    """A coroutine whose awaits are counted."""

    def __init__(self, work, watch):
        self.work, self.watch = work, watch

    def send(self, value):
        return self._awaited(self.work.send(value))

    def throw(self, *error):
        return self._awaited(self.work.throw(*error))

    def close(self):
        self.work.close()

    def __await__(self):
        raise AssertionError("a task sends and throws")

    def _awaited(self, waited):
        self.watch.count += 1
        if self.watch.count != self.watch.number:
            return waited
        if self.watch.error:
            return self.throw(self.watch.error())
        asyncio.current_task().cancel()
        return waited


def interrupted_at_await(case, way, number, error):
    """(whether it struck, how often a task waited)."""
    watch, loop = AtAwait(number, error), asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a gather whose parts are cancelled one by one complains
    loop.set_task_factory(watch.task)
    try:
        loop.run_until_complete(ASYNC[way](case.llm))
    except (asyncio.CancelledError, KeyboardInterrupt, Exception):
        pass  # LangChain takes a part that was cancelled for a result
    finally:
        count, watch.number = watch.count, 0
        loop.run_until_complete(cancel_the_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    return number <= count, count


async def cancel_the_rest():
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
@pytest.mark.parametrize("way", ASYNC)
def test_a_cancellation_or_an_interrupt_at_every_await(way, error):
    _, count = interrupted_at_await(Case(), way, 0, error)
    strikes = (lambda case, n=n: interrupted_at_await(case, way, n, error)[0] for n in range(1, count + 1))
    assert strike_all(strikes) > 3


def test_the_checks_notice_a_member_that_forgets_nothing(monkeypatch):
    monkeypatch.setattr(ScriptedMember, "forget", lambda member, query_id: None)
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 1.0)
    assert Case().wrong_afterwards().startswith("still held")
