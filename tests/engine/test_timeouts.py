"""Members that exceed ``member_timeout`` leave the answer; the others finish it, and nobody waits
for them twice."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember
from tests import late

from .conftest import (
    BLUE,
    PATIENCE_S,
    Gated,
    collected,
    facts,
    fresh_device,
    open_queries,
    query,
    text,
    until,
)

GREY = "The sky is grey because of the heavy clouds above us all today."
"""As many words as BLUE: whichever draft wins a round, no word of the answer is lost or doubled."""
LIMITED = Settings(method=Method(segment_tokens=2), member_timeout=600)


def is_whole(answer):
    """Whether every word stands at its place in one of the two scripts."""
    words = answer.split()
    return len(words) == 13 and all(
        word in both for word, *both in zip(words, BLUE.split(), GREY.split(), strict=True)
    )


def departures(rounds):
    return [
        (departure.member, departure.kind, departure.round)
        for round in rounds
        for departure in round.left
    ]


def answer(ensemble, way):
    """The rounds of an answer, by threads or by asyncio."""
    if way == "sync":
        return list(ensemble.rounds(query(), LIMITED))
    return asyncio.run(collected(ensemble, query(), LIMITED))


def trio(hung):
    """The hanging member with two that work on other devices. (On its own device, they would wait
    for it.)"""
    hung.device = fresh_device()
    blue = ScriptedMember(BLUE, name="b", device=fresh_device())
    grey = ScriptedMember(GREY, name="c", device=fresh_device())
    return Ensemble([hung, blue, grey])


def release(hung):
    """It returns, and forgets."""
    hung.gate.set()
    assert until(lambda: not hung.open_queries)
    assert hung.overlaps == 0


expiring = pytest.mark.usefixtures("limits_expire_when_members_hang")


@expiring
@pytest.mark.parametrize("work", ["draft", "score"])
def test_a_member_that_exceeds_its_limit_leaves_and_the_others_finish(work):
    outcomes = []
    for way in ("sync", "async"):
        hung = Gated(GREY, gated_call=2, gated_work=work, name="a")
        rounds = answer(trio(hung), way)
        ((name, kind, number),) = departures(rounds)
        assert (name, kind) == ("a", "timeout")
        assert rounds[number - 1].left[0].reason == "did not answer within member_timeout=600 s"
        assert is_whole(text(rounds)) and len(rounds) > number
        assert all("a" not in round.weights for round in rounds[number - 1 :])
        release(hung)
        outcomes.append(facts(rounds))
    assert outcomes[0] == outcomes[1]


@expiring
def test_a_lone_member_that_hangs_is_an_error_and_answers_again_when_it_has_returned(device):
    hung = Gated(BLUE, name="a", device=device)
    ensemble = Ensemble([hung])
    for _ in range(2):  # the second time it still hangs
        with pytest.raises(EnsembleError, match="member_timeout=600"):
            answer(ensemble, "sync")
    release(hung)
    assert text(answer(ensemble, "sync")) == BLUE


# --- with real time limits ------------------------------------------------------------------------


class Moody(ScriptedMember):
    """Sometimes takes longer than its limit."""

    dice = random.Random(5)

    def draft(self, jobs):
        time.sleep(self.dice.choice([0] * 12 + [0.12]))
        return super().draft(jobs)

    def score(self, jobs):
        time.sleep(self.dice.choice([0] * 12 + [0.12]))
        return super().score(jobs)


@pytest.mark.parametrize("second", [BLUE, GREY], ids=["twins", "others"])
def test_whichever_members_time_out_no_word_is_lost(second):
    moody = [Moody(BLUE, name="a", device=fresh_device()), Moody(second, name="b")]
    members = [*moody, ScriptedMember(BLUE, name="c", device=fresh_device())]
    ensemble = Ensemble(members)

    async def crowd():
        settings = Settings(method=Method(segment_tokens=2), lead=None, member_timeout=0.05)
        return await asyncio.gather(*(collected(ensemble, query(), settings) for _ in range(20)))

    with late.only_where(lambda name: name != "c"):
        whole = asyncio.run(crowd())
    assert any(kind == "timeout" for rounds in whole for _, kind, _ in departures(rounds))
    for rounds in whole:
        assert is_whole(text(rounds))
        assert second == GREY or text(rounds) == BLUE
    assert until(lambda: not open_queries(members), PATIENCE_S)
