"""Ctrl-C and cancellation, wherever they strike: the next answer is what it always is, and nothing is held.

The short form of ``tests/torture/interrupts.py``, which strikes everywhere.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.engine.ensemble import Ensemble
from tests.torture import interrupts
from tests.torture.interrupts import ASYNC, CASES, SYNC, at_random, campaign, entry_of, every_await, every_entry, truth

# Python itself tells of an interrupt that strikes in a finalizer, and goes on.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("way", SYNC)
def test_at_any_entry_of_a_function(way: str) -> None:
    make = CASES["scripted"]
    ends, wrong = campaign(make, every_entry(make, SYNC[way], 2 if way == "batch" else 31), truth(make))
    assert wrong == [] and ends["interrupted"] > 10


@pytest.mark.parametrize("way", ["invoke", "stream"])
def test_while_members_load_and_their_first_answer_begins(way: str) -> None:
    """Every single entry where members begin to load: a hundred before, and on into the desk."""
    make = CASES["scripted"]
    loading = entry_of(Ensemble.loaded, make, SYNC[way])
    strikes = every_entry(make, SYNC[way], 1, loading - 100)[:130]
    ends, wrong = campaign(make, strikes, truth(make))
    assert wrong == [] and ends["interrupted"] > 100


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
@pytest.mark.parametrize("way", ASYNC)
def test_at_every_await(way: str, error: Any) -> None:
    make = CASES["scripted"]
    ends, wrong = campaign(make, every_await(make, ASYNC[way], error), truth(make))
    assert wrong == [] and sum(ends.values()) > 3


@pytest.mark.parametrize("kind", CASES)
def test_at_random_moments(kind: str) -> None:
    make = CASES[kind]
    text = truth(make)
    ends, wrong = campaign(make, at_random(SYNC["stream"], 0.05, 20, 7), text)
    assert wrong == [] and sum(ends.values()) == 20


@pytest.mark.slow
def test_the_campaign_keeps_to_its_minutes(capsys: Any) -> None:
    began = time.monotonic()
    assert interrupts.main(["--minutes", "0.05"]) == 0
    assert time.monotonic() - began < 3 + 60  # all kinds start before, and what was begun is ended
    told = capsys.readouterr().out
    assert "scripted, ainvoke" in told and " strikes, 0 threads left" in told


def test_the_campaign_finds_what_is_left_behind() -> None:
    """It can fail: members that forget nothing, and a desk whose lock is taken."""

    class Hoarder(ScriptedMember):
        def forget(self, query_id: str) -> None: ...

    one = Hoarder("The sky is blue.", name="a")
    case = interrupts.Case(SpecFuseChatModel(members=[one]), lambda: list(one.open_queries))
    assert [told for told in interrupts.wrong_after(case, "The sky is blue.") if told.startswith("still held")]


def test_a_load_that_was_interrupted_as_it_began_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from langchain_specfuse.engine import ensemble

    honest, calls = ensemble.desk_for, []

    def interrupted(device: str) -> Any:
        calls.append(device)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return honest(device)

    monkeypatch.setattr(ensemble, "desk_for", interrupted)
    made = Ensemble([ScriptedMember("Hello.", name="a")])
    with pytest.raises(KeyboardInterrupt):
        made.loaded()
    assert set(made.loaded().result(5)) == {"a"}


def test_who_is_interrupted_while_waiting_for_a_load_hurts_nobody_else() -> None:
    """An interrupt can leave a future's lock taken; it must be that caller's own."""
    made = Ensemble([ScriptedMember("Hello.", name="a")])
    made.loaded().result(5)
    taken = made.loaded()
    taken._condition.acquire()  # and never released
    told: list[Any] = []
    other = threading.Thread(target=lambda: told.append(made.loaded().result(5)), daemon=True)
    other.start()
    other.join(5)
    assert told and set(told[0]) == {"a"}
