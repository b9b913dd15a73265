"""Members that exceed their time limit: skipped for a round, removed, or waited for; and they come
back."""

from __future__ import annotations

import asyncio
import random
import threading
import time

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import Schedule
from langchain_specfuse.engine.worker import worker_for
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import (
    BLUE,
    PATIENCE_S,
    SHORT,
    Gated,
    collected,
    facts,
    fresh_device,
    open_queries,
    query,
    text,
    until,
)

pytestmark = pytest.mark.usefixtures("limits_expire_when_members_hang")
GREY = "The sky is grey because of the heavy clouds above us all today."
"""As many words as BLUE: whichever draft wins a round, no word of the answer is lost or doubled."""
SKIP = Settings(segment_tokens=2, method=Method(late="skip"))
LIMIT = Schedule(member_timeout=600)
REAL_TIMER = threading.Timer


def is_whole(answer):
    """Whether every word stands at its place in one of the two scripts."""
    words = answer.split()
    return len(words) == 13 and all(
        w in both for w, *both in zip(words, BLUE.split(), GREY.split(), strict=True)
    )


def departures(rounds):
    return [(gone.member, gone.kind, gone.round) for r in rounds for gone in r.left]


def answer(ensemble, way, settings=SKIP, **options):
    """The rounds of an answer, by threads or by asyncio."""
    if way == "sync":
        return list(ensemble.rounds(query(), settings, schedule=LIMIT, **options))
    return asyncio.run(collected(ensemble, query(), settings, schedule=LIMIT, **options))


def trio(hung, shared=False):
    """The hanging member with two that work, on one device or each on its own."""
    devices = [fresh_device()] * 3 if shared else [fresh_device() for _ in range(3)]
    hung.device = devices[0]
    others = [
        ScriptedMember(t, name=n, device=d)
        for t, n, d in zip((BLUE, GREY), "bc", devices[1:], strict=True)
    ]
    return Ensemble([hung, *others])


def release(hung):
    """It returns, and forgets."""
    hung.gate.set()
    assert until(lambda: not hung.open_queries)
    assert hung.overlaps == 0


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "three devices"])
def test_a_late_member_is_skipped_and_stays_by_threads_and_by_asyncio(shared):
    found = []
    for way in ("sync", "async"):
        hung = Gated(BLUE, gated_call=2, name="a")
        rounds = answer(trio(hung, shared), way)
        assert is_whole(text(rounds)) and len(rounds) > 3
        assert departures(rounds) == []
        assert rounds[0].late == {} and rounds[0].late_members == ()
        assert all(r.late["draft"] == ("a",) and "a" not in r.drafts for r in rounds[1:])
        assert all("a" in r.weights and "a" not in r.scores for r in rounds[1:])
        release(hung)
        found.append(facts(rounds))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_late_verifier_is_left_out_of_the_vote(way):
    hung = Gated(BLUE, gated_work="score", name="a")
    rounds = answer(trio(hung), way)
    assert is_whole(text(rounds))
    voted = [r for r in rounds if r.scores or r.late.get("verify")]
    assert voted and all(r.late["verify"] == ("a",) and "a" not in r.scores for r in voted)
    # its draft counts, only its vote is missing
    assert "a" in voted[0].drafts and voted[0].totals["a"] > 0
    release(hung)


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "three devices"])
def test_a_member_that_must_not_be_late_leaves_and_is_not_waited_for_again(shared):
    hung = Gated(GREY, gated_call=2, name="a")
    rounds = answer(trio(hung, shared), "sync", SHORT)
    assert departures(rounds) == [("a", "timeout", 2)]
    assert rounds[1].left[0].reason == "did not answer within member_timeout=600 s"
    assert all(not r.late for r in rounds)
    release(hung)


def test_a_hanging_member_alone_is_an_error_without_skip_and_waited_for_with_it(device):
    hung = Gated(BLUE, name="a", device=device)
    with pytest.raises(EnsembleError, match=r"member_timeout=600"):
        answer(Ensemble([hung]), "sync", SHORT)
    release(hung)
    hung = Gated(BLUE, gated_call=2, name="a", device=fresh_device())
    running = Ensemble([hung]).rounds(query(), SKIP, schedule=LIMIT)
    first = next(running)
    assert hung.expired.wait(PATIENCE_S)
    hung.gate.set()
    rounds = [first, *running]
    assert facts(rounds) == facts(Ensemble([ScriptedMember(BLUE, name="a")]).rounds(query(), SHORT))


@pytest.mark.parametrize("shared", [True, False], ids=["one device", "two devices"])
def test_a_late_reply_is_not_taken_for_a_later_job_and_its_member_comes_back(shared):
    """a hangs in its second draft, b in its fourth: then a returns, with a draft that is two rounds
    old."""
    first = fresh_device()
    worker = worker_for(first)
    a = Gated(BLUE, gated_call=2, name="a", device=first)
    b = Gated(BLUE, gated_call=4, name="b", device=first if shared else fresh_device())
    running = Ensemble([a, b]).rounds(query(), SKIP, schedule=LIMIT)
    rounds = [next(running) for _ in range(3)]
    assert [r.late for r in rounds] == [{}, {"draft": ("a",)}, {"draft": ("a",)}]
    assert b.expired.wait(PATIENCE_S)
    a.gate.set()  # both are late: no member is left to go on with, so they are waited for
    fourth = next(running)
    assert (set(fourth.drafts), fourth.late) == ({"a"}, {"draft": ("b",)})
    b.gate.set()
    rounds += [fourth, *running]
    assert text(rounds) == BLUE
    assert rounds[-1].weights == {"a": 0.5, "b": 0.5}
    batches = [size for name, _, size in worker.batches if name == "a"]
    assert set(batches) == {1}  # jobs of rounds that are over were not done with the others
    assert until(lambda: not open_queries([a, b]))
    assert (a.overlaps, b.overlaps) == (0, 0)


# --- with real time limits ------------------------------------------------------------------------


class Moody(ScriptedMember):
    """Sometimes takes longer than its limit."""

    dice = random.Random(5)

    def draft(self, jobs):
        time.sleep(self.dice.choice([0, 0, 0, 0.004, 0.012]))
        return super().draft(jobs)

    def score(self, jobs):
        time.sleep(self.dice.choice([0, 0, 0.004, 0.012]))
        return super().score(jobs)


@pytest.mark.parametrize("second", [BLUE, GREY], ids=["twins", "others"])
def test_whichever_members_are_late_no_word_is_lost_and_twins_stay_equal(monkeypatch, second):
    monkeypatch.setattr(threading, "Timer", REAL_TIMER)
    members = [
        Moody(t, name=n, device=fresh_device())
        for t, n in ((BLUE, "a"), (second, "b"), (BLUE, "c"))
    ]
    ensemble = Ensemble(members)

    async def one(k):
        settings = Settings(
            segment_tokens=2, method=Method(late="skip", exit=["studentized", "never"][k % 2])
        )
        return await collected(ensemble, query(), settings, schedule=Schedule(member_timeout=0.005))

    async def crowd():
        return await asyncio.gather(*map(one, range(20)))

    answers = asyncio.run(crowd())
    assert any(r.late for rounds in answers for r in rounds)
    for rounds in answers:
        assert is_whole(text(rounds))
        assert not {kind for _, kind, _ in departures(rounds)} - {"exit"}
        if second == BLUE:
            assert text(rounds) == BLUE and departures(rounds) == []
            assert all(weight == pytest.approx(1 / 3) for weight in rounds[-1].weights.values())
    assert until(lambda: not open_queries(members), PATIENCE_S)
