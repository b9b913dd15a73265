"""Members that score texts outside an answer."""

from __future__ import annotations

import asyncio
import time

import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Candidate, Failure, Query, Scored, ScoreJob, Turn
from langchain_specfuse.engine.ensemble import Ensemble
from langchain_specfuse.engine.scoring import Scorers
from tests import late


def job(number: int = 0) -> ScoreJob:
    query = Query(f"q{number}", (Turn("user", "yes or no?"),))
    return ScoreJob(query, (), (Candidate("yes", True, ()), Candidate("no", True, ())))


class Broken(ScriptedMember):
    """Raises in ``probe`` or ``score``, or is slow."""

    def __init__(self, where: str, **options) -> None:
        super().__init__("yes", **options)
        self.where = where

    def probe(self):
        if self.where == "probe":
            raise RuntimeError("no weights")
        return super().probe()

    def score(self, jobs):
        if self.where == "score":
            raise RuntimeError("no scores")
        if self.where == "slow":
            time.sleep(0.5)
        return super().score(jobs)


@pytest.fixture(params=["sync", "async"])
def ask(request):
    """Ask several questions of all members that load."""

    def asked(scorers: Scorers, count: int = 1, **options):
        settings = Settings(**options)
        if request.param == "sync":
            able = [n for n, probe in scorers.probes().items() if not isinstance(probe, Failure)]
            return scorers.scored([dict.fromkeys(able, job(i)) for i in range(count)], settings)

        async def wait():
            probes = await scorers.aprobes()
            able = [n for n, probe in probes.items() if not isinstance(probe, Failure)]
            jobs = [dict.fromkeys(able, job(i)) for i in range(count)]
            return await scorers.ascored(jobs, settings)

        return asyncio.run(wait())

    return asked


def test_every_member_scores_every_question_and_keeps_nothing(ask):
    members = [ScriptedMember("yes", name="a"), ScriptedMember("no", name="b")]
    replies = ask(Scorers(Ensemble(members)), count=20)
    assert len(replies) == 20
    for received in replies:
        yes, no = received["a"].logprobs
        assert sum(yes) > sum(no)
        yes, no = received["b"].logprobs
        assert sum(yes) < sum(no)
    deadline = time.monotonic() + 30
    while any(member.open_queries for member in members) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(member.open_queries for member in members)


@pytest.mark.parametrize("where", ["probe", "score"])
def test_a_member_that_fails_does_not_affect_the_others(ask, where):
    members = [Broken(where, name="bad"), ScriptedMember("yes", name="good")]
    (received,) = ask(Scorers(Ensemble(members)))
    assert isinstance(received["good"], Scored)
    assert not isinstance(received.get("bad"), Scored)


def test_a_member_that_takes_too_long_fails_alone(ask):
    members = [Broken("slow", name="bad", device="other"), ScriptedMember("yes", name="good")]
    with late.only_where(lambda name: name == "bad"):
        (received,) = ask(Scorers(Ensemble(members)), member_timeout=0.1)
    assert received["bad"].kind == "timeout"
    assert isinstance(received["good"], Scored)


def test_a_member_that_did_not_load_is_loaded_for_the_next_question(ask):
    member = Broken("probe", name="late")
    scorers = Scorers(Ensemble([member]))
    assert isinstance(scorers.probes()["late"], Failure)
    member.where = ""
    (received,) = ask(scorers)
    assert isinstance(received["late"], Scored)
