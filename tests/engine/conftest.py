"""Members that stall, hang, raise and count; and a check that every test leaves no thread behind."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.engine import Ensemble, desk
from langchain_specfuse.members.scripted import ScriptedMember

BLUE = "The sky is blue because of Rayleigh scattering in the air above us."
GREY = "The sky is grey because of the heavy clouds that bring us rain today."
SHORT = Settings(segment_tokens=2)
_NUMBERS = itertools.count()


def until(true: Callable[[], object], timeout_s: float = 5.0) -> bool:
    """Wait until it is true."""
    end = time.monotonic() + timeout_s
    while not true() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(true())


def query(text: str = "Why?") -> Query:
    return Query(f"q{next(_NUMBERS)}", (Turn("user", text),))


def fresh_device() -> str:
    return f"device-{next(_NUMBERS)}"


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("specfuse")]


class Gated(ScriptedMember):
    """Works only while its gate is open; ``inside`` is set while it waits there."""

    def __init__(self, answer, gated_call=1, **choices):
        super().__init__(answer, **choices)
        self.gate, self.inside, self.gated_call = threading.Event(), threading.Event(), gated_call
        self.drafted_after_forget = []
        self.forgotten = []
        self.busy = threading.Lock()
        self.overlaps = 0

    def draft(self, jobs):
        with self._alone():
            replies = super().draft(jobs)
            if self.draft_calls >= self.gated_call and not self.gate.is_set():
                self.inside.set()
                self.gate.wait(10)
            self.drafted_after_forget += [job.query.id for job in jobs if job.query.id in self.forgotten]
            return replies

    def score(self, jobs):
        with self._alone():
            return super().score(jobs)

    def forget(self, query_id):
        with self._alone():
            self.forgotten.append(query_id)
            super().forget(query_id)

    def _alone(self):
        member = self

        class Alone:
            def __enter__(self):
                if not member.busy.acquire(blocking=False):
                    member.overlaps += 1
                    member.busy.acquire()

            def __exit__(self, *_):
                member.busy.release()

        return Alone()


@pytest.fixture(autouse=True)
def no_thread_stays(monkeypatch):
    monkeypatch.setattr(desk, "IDLE_S", 0.05)
    yield
    assert until(lambda: not our_threads()), our_threads()


@pytest.fixture
def device():
    return fresh_device()


@pytest.fixture
def pair(device):
    return Ensemble([ScriptedMember(BLUE, name="a", device=device), ScriptedMember(GREY, name="b", device=device)])
