"""Members that wait at a gate, time limits that expire when a member hangs, and a check that no
thread is left."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection
from typing import ClassVar

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.engine import Ensemble, worker
from langchain_specfuse.engine.limits import Waiting
from langchain_specfuse.members.scripted import ScriptedMember

BLUE = "The sky is blue because of Rayleigh scattering in the air above us."
GREY = "The sky is grey because of the heavy clouds that bring us rain today."
SHORT = Settings(method=Method(segment_tokens=2))
PATIENCE_S = 30.0
"""Tests wait for a condition this long: much longer than it takes on a busy machine."""
_NUMBERS = itertools.count()


def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
    """Wait until the condition holds."""
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


def query(text: str = "Why?") -> Query:
    return Query(f"q{next(_NUMBERS)}", (Turn("user", text),))


def fresh_device() -> str:
    return f"device-{next(_NUMBERS)}"


def our_threads(besides: Collection[threading.Thread] = ()) -> list[str]:
    """The names of the package's threads, besides some. The event loops of checks stay, and threads
    without work stay for a while."""
    ours = (thread for thread in threading.enumerate() if thread.name.startswith("specfuse"))
    names = [thread.name for thread in ours if thread not in besides]
    return [name for name in names if not name.endswith(("-loop", "-idle"))]


def worker_threads() -> list[str]:
    """The names of the threads that compute on fresh devices. Members of other files' tests may
    still have threads of their own."""
    return [name for name in our_threads() if name.startswith("specfuse-device-")]


def text(rounds) -> str:
    return "".join(round.text for round in rounds)


def facts(rounds):
    """The parts of rounds that must not depend on threads and time."""
    return [
        (r.number, r.text, r.winner, list(r.drafts), r.totals, r.weights, r.left, r.finish)
        for r in rounds
    ]


async def collected(ensemble, query, settings):
    """All rounds of an answer, by asyncio."""
    return [round async for round in ensemble.arounds(query, settings)]


def open_queries(members) -> list[str]:
    return [query_id for member in members for query_id in member.open_queries]


class Gated(ScriptedMember):
    """Waits at its gate from the ``gated_call``-th call of ``gated_work`` on.

    ``inside`` is set when it waits there.
    """

    made: ClassVar[list[Gated]] = []

    def __init__(self, answer, gated_call=1, gated_work="draft", **options):
        super().__init__(answer, **options)
        self.made.append(self)
        self.gate = threading.Event()
        self.inside = threading.Event()
        self.gated_call, self.gated_work = gated_call, gated_work
        self.drafted_after_forget: list[str] = []
        self.forgotten: list[str] = []
        self.overlaps = 0
        """How often it was called while another call was under way."""
        self._busy = threading.Lock()

    def draft(self, jobs):
        return self._alone("draft", super().draft, jobs)

    def score(self, jobs):
        return self._alone("score", super().score, jobs)

    def forget(self, query_id):
        self.forgotten.append(query_id)
        self._alone("forget", super().forget, query_id)

    def _alone(self, work, call, argument):
        if not self._busy.acquire(blocking=False):
            self.overlaps += 1
            self._busy.acquire()
        try:
            result = call(argument)
            calls = {"draft": self.draft_calls, "score": self.score_calls}.get(work, 0)
            if work == self.gated_work and calls >= self.gated_call and not self.gate.is_set():
                self.inside.set()
                self.gate.wait(2 * PATIENCE_S)
            if work == "draft":
                self.drafted_after_forget += [
                    job.query.id for job in argument if job.query.id in self.forgotten
                ]
            return result
        finally:
            self._busy.release()

    @property
    def hangs(self) -> bool:
        return self.inside.is_set() and not self.gate.is_set()


@pytest.fixture
def limits_expire_when_members_hang(monkeypatch):
    """Time limits, however long, expire when the member waits at its gate, and never otherwise."""

    def left_s(waiting):
        return 0.002 if any(waiting.is_open(name) for name in waiting.limits) else None

    def late(waiting):
        limits = waiting.limits.copy().items()
        return [(name, limit) for name, limit in limits if hangs(name) and waiting.is_open(name)]

    def hangs(name):
        return any(member.name == name and member.hangs for member in Gated.made)

    monkeypatch.setattr(Waiting, "left_s", left_s)
    monkeypatch.setattr(Waiting, "late", late)
    Gated.made.clear()


@pytest.fixture(autouse=True)
def no_thread_stays(monkeypatch):
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    before = set(threading.enumerate())  # an answer of another test may hold one of them
    yield
    assert until(lambda: not our_threads(before)), our_threads(before)


@pytest.fixture
def device():
    return fresh_device()


@pytest.fixture
def pair(device):
    return Ensemble(
        [
            ScriptedMember(BLUE, name="a", device=device),
            ScriptedMember(GREY, name="b", device=device),
        ]
    )
