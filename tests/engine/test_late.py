"""Members that exceed their time limit leave the answer."""

from __future__ import annotations

import asyncio

import pytest

from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import Schedule
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import (
    BLUE,
    SHORT,
    Gated,
    collected,
    fresh_device,
    query,
    until,
)

pytestmark = pytest.mark.usefixtures("limits_expire_when_members_hang")
GREY = "The sky is grey because of the heavy clouds above us all today."
"""As many words as BLUE: whichever draft wins a round, no word of the answer is lost or doubled."""
LIMIT = Schedule(member_timeout=600)


def is_whole(answer):
    """Whether every word stands at its place in one of the two scripts."""
    words = answer.split()
    return len(words) == 13 and all(
        w in both for w, *both in zip(words, BLUE.split(), GREY.split(), strict=True)
    )


def departures(rounds):
    return [(gone.member, gone.kind, gone.round) for r in rounds for gone in r.left]


def answer(ensemble, way, settings=SHORT, **options):
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
def test_a_late_member_leaves_and_is_not_waited_for_again(shared):
    hung = Gated(GREY, gated_call=2, name="a")
    rounds = answer(trio(hung, shared), "sync", SHORT)
    assert departures(rounds) == [("a", "timeout", 2)]
    assert rounds[1].left[0].reason == "did not answer within member_timeout=600 s"
    release(hung)


def test_a_hanging_member_alone_is_an_error(device):
    hung = Gated(BLUE, name="a", device=device)
    with pytest.raises(EnsembleError, match=r"member_timeout=600"):
        answer(Ensemble([hung]), "sync", SHORT)
    release(hung)
