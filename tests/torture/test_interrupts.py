"""Ctrl-C at any moment leaves the next answer unchanged and leaks nothing.

An interrupt arrives at the n-th entry of a function in the caller's thread: Python checks for
signals there, so every n is a place where Ctrl-C can arrive. Afterwards the same members answer
once more, from another thread. Cancelled tasks are in ``engine/test_drive.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from concurrent.futures import _base, thread

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.engine import Ensemble, checker
from tests.chat.conftest import BLUE, WIDE

# Python reports an interrupt in a finalizer and continues.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PATIENCE_S = 60.0
QUESTION = "Why is the sky blue?"

SYNC = {
    "invoke": lambda llm: llm.invoke(QUESTION),
    "stream": lambda llm: list(llm.stream(QUESTION)),
    "batch": lambda llm: llm.batch([QUESTION, QUESTION]),
}


def read_the_first_chunk(llm):
    stream = llm.stream(QUESTION)
    next(stream)
    stream.close()


WAYS = {**SYNC, "close": read_the_first_chunk}


class Case:
    """Members that no other test uses, and the chat model of them."""

    def __init__(self, *checks):
        self.members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
        self.llm = SpecFuseChatModel(members=self.members, segment_tokens=4, checks=list(checks))

    def wrong_afterwards(self):
        """Return what has changed: the next answer, or state that members hold of queries."""
        answers = []

        def ask():
            try:
                answers.append(str(self.llm.invoke(QUESTION, checks=[]).text))
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


def strike_all(strikes, *checks):
    """Run every interrupt on members of its own; return how many arrived."""
    struck = 0
    for strike in strikes:
        case = Case(*checks)
        struck += strike(case)
        assert case.wrong_afterwards() is None
    return struck


# --- at the entry of a function -------------------------------------------------------------------


class AtEntry:
    """Raises KeyboardInterrupt at the n-th entry of a function, like a signal at that moment. With
    a file, only its functions count."""

    def __init__(self, number, way, file=None):
        self.number, self.count, self.first_of, self.file = number, 0, {}, file
        # LangChain's batch has a pool of threads, and the pool's own locks do not survive it: not a
        # fault of ours.
        self.spared = (
            (threading.__file__, thread.__file__, _base.__file__) if way == "batch" else ()
        )

    def __call__(self, frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file not in self.spared and self.file in (None, file):
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


def interrupted_at_entry(case, way, number, file=None):
    try:
        with AtEntry(number, way, file).watching():
            WAYS[way](case.llm)
    # conditions of the standard library may turn it into another error
    except (KeyboardInterrupt, Exception):
        return True
    return False  # a finalizer caught it


def entries(way, *checks, file=None):
    """Count the entries of functions in the caller's thread during one answer."""
    WAYS[way](Case(*checks).llm)  # work that is done once per process does not count
    case, watch = Case(*checks), AtEntry(0, way, file)
    with watch.watching():
        WAYS[way](case.llm)
    return watch


MANY = [pytest.param(way, 3, marks=pytest.mark.long) for way in ("invoke", "stream")]


@pytest.mark.parametrize(("way", "step"), [("invoke", 31), ("stream", 31), ("batch", 2), *MANY])
def test_an_interrupt_at_the_entry_of_any_function_changes_no_later_answer(way, step):
    numbers = range(1, entries(way).count + 1, step)
    assert strike_all(lambda case, n=n: interrupted_at_entry(case, way, n) for n in numbers) > 10


async def lingers(text):
    """A check that passes the first segment and never returns for a longer text."""
    if len(text.split()) > 4:
        await asyncio.sleep(PATIENCE_S)


def test_an_interrupt_while_checks_are_cancelled_changes_no_later_answer():
    file = checker.__file__
    numbers = range(1, entries("close", lingers, file=file).count + 1)
    assert len(numbers) > 4
    # most arrive in a finalizer, where Python reports them and continues
    strike_all(
        (lambda case, n=n: interrupted_at_entry(case, "close", n, file) for n in numbers), lingers
    )


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_an_interrupt_while_members_load_changes_no_later_answer(way):
    """This covers every entry around the place where members begin to load, including the
    worker's."""
    loading = entries(way).first_of[Ensemble.loaded.__code__]
    numbers = range(loading - 60, loading + 60)
    assert strike_all(lambda case, n=n: interrupted_at_entry(case, way, n) for n in numbers) > 100


def test_these_checks_detect_a_member_that_forgets_nothing(monkeypatch):
    monkeypatch.setattr(ScriptedMember, "forget", lambda member, query_id: None)
    monkeypatch.setattr(sys.modules[__name__], "PATIENCE_S", 1.0)
    assert Case().wrong_afterwards().startswith("still held")
