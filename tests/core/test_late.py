"""Replies that are not there in time: the round goes on without them, and nobody is judged by what it did not say."""

from __future__ import annotations

import random

import pytest

from langchain_specfuse.core.values import LATE, Draft, DraftJob, Failure, Scored, ScoreJob, Settings
from langchain_specfuse.errors import EnsembleError

from .play import babbler, play, speakers

TOO_LATE = Failure(LATE, "did not answer in time")
SHORT = Settings(segment_tokens=2)
BLUE = "The sky is blue because of the air."
GREY = "The sky is grey and full of clouds."
TEAL = "One sea was teal, but two were wide."


def late_in(answerer, *rounds, work=(DraftJob, ScoreJob)):
    """The same member, but late in these rounds."""
    return lambda job, number: TOO_LATE if number in rounds and isinstance(job, work) else answerer(job, number)


def test_who_drafts_late_is_out_of_this_round_only():
    members = speakers(a=BLUE, b=GREY, c=BLUE)
    played = play({**members, "b": late_in(members["b"], 2, work=DraftJob)}, SHORT)
    first, second, third, *_ = played.rounds
    assert (second.late, second.stragglers) == ({"draft": ("b",)}, ("b",))
    assert set(second.drafts) == {"a", "c"} and set(third.drafts) == set(first.drafts) == {"a", "b", "c"}
    assert (first.late, third.late, played.left) == ({}, {}, [])
    assert second.as_dict()["late"] == {"draft": ["b"]}


def test_who_votes_late_has_no_vote_but_its_draft_is_there():
    members = speakers(a="No, " + BLUE, b=GREY, c=TEAL)
    played = play({**members, "b": late_in(members["b"], 1, work=ScoreJob)}, SHORT)
    first = played.rounds[0]
    assert first.late == {"verify": ("b",)}
    assert set(first.drafts) == set(first.totals) == {"a", "b", "c"}
    assert set(first.votes) == {"a", "c"}
    assert sum(first.totals.values()) == pytest.approx(1)  # those who voted decide, all of it


def test_who_is_late_is_judged_by_nothing():
    """Its weight changes only as that of a member that was never compared, and nobody is voted out meanwhile."""
    skills = {"a": 0.5, "b": 0.4, "c": -2.0, "d": 0.5}
    members = {name: babbler(seed, skill, ends=0.0) for seed, (name, skill) in enumerate(skills.items())}
    settings = Settings(max_tokens=300)
    usual = play(members, settings)
    assert "c" in usual.left  # it is clearly worse
    always = play({**members, "c": late_in(members["c"], *range(1, 999))}, settings)
    assert always.left == [] and len(always.rounds) > 10
    first = always.rounds[0]
    ordered = sorted(first.rewards.values())
    assert ordered[0] < 0.5 < ordered[-1]
    assert min(first.weights, key=first.weights.__getitem__) != "c" != max(first.weights, key=first.weights.__getitem__)


def test_all_late_by_mistake_is_an_error_not_a_round_without_drafts():
    """Whoever sends the replies waits for one at least. If it does not, the loop says so and does not go astray."""
    members = speakers(a=BLUE, b=GREY)
    played = play({name: late_in(member, 2) for name, member in members.items()}, SHORT)
    assert isinstance(played.error, EnsembleError)
    assert played.error.text == played.rounds[0].text
    assert "did not answer in time" in str(played.error)


def test_late_is_no_excuse_where_the_only_other_reply_is_nonsense():
    members = speakers(a=BLUE, b=GREY)
    ill = {
        "a": late_in(members["a"], 2),
        "b": lambda job, n: members["b"](job, n) if n < 2 else Draft("x", logprobs=(1.0,)),
    }
    assert isinstance(play(ill, SHORT).error, EnsembleError)


def test_the_rest_are_asked_when_the_one_that_is_cast_is_late():
    members = speakers(a=BLUE, b=GREY, c=BLUE)
    settings = Settings(segment_tokens=2, drafters=1)
    played = play({**members, "a": late_in(members["a"], 3, work=DraftJob)}, settings, prior={"a": 1.5})
    asks = [ask for ask in played.asks if ask.round == 3 and isinstance(next(iter(ask.jobs.values())), DraftJob)]
    assert [(set(ask.jobs), ask.spare) for ask in asks] == [({"a"}, True), ({"a", "b", "c"}, False)]
    assert set(played.rounds[2].drafts) == {"b", "c"} and played.rounds[2].late == {"draft": ("a",)}


def test_everybody_who_is_late_is_told_also_when_members_are_asked_in_two_turns():
    members = speakers(a=BLUE, b=GREY, c=BLUE)
    late = {name: late_in(members[name], 3, work=DraftJob) for name in "ab"}
    played = play({**members, **late}, Settings(segment_tokens=2, drafters=1), prior={"a": 1.5})
    assert played.rounds[2].late == {"draft": ("a", "b")} and set(played.rounds[2].drafts) == {"c"}


def test_who_was_late_and_is_back_when_the_rest_are_asked_drafts_with_them():
    members, asked = speakers(a=BLUE, b=GREY, c=BLUE), []

    def back(job, number):
        asked.append((number, type(job)))
        return TOO_LATE if asked.count((3, DraftJob)) == 1 and asked[-1] == (3, DraftJob) else members["a"](job, number)

    played = play({**members, "a": back}, Settings(segment_tokens=2, drafters=1), prior={"a": 1.5})
    assert asked.count((3, DraftJob)) == 2
    assert set(played.rounds[2].drafts) == {"a", "b", "c"} and played.rounds[2].late == {}


def test_nothing_is_spare_where_all_draft():
    played = play(speakers(a=BLUE, b=GREY), SHORT)
    assert not any(ask.spare for ask in played.asks)


@pytest.mark.parametrize("seed", range(25))
def test_whoever_is_late_when_the_promises_hold(seed):
    """Weights sum to 1 and stay positive, the text is the segments, the late stay, and a missing draft never wins."""
    dice = random.Random(seed)
    names = "abcd"[: dice.choice([2, 3, 4])]
    plain = {name: babbler(seed * 10 + i, dice.uniform(-1, 1)) for i, name in enumerate(names)}

    def sometimes(name):
        def reply(job, number):
            told = plain[name](job, number)
            kept = name == names[number % len(names)]  # one is always in time
            return told if kept or dice.random() < 0.6 else TOO_LATE

        return reply

    settings = Settings(max_tokens=120, exit="never", drafters=dice.choice([None, None, 1]))
    played = play({name: sometimes(name) for name in names}, settings)
    assert played.error is None and played.left == [] and played.rounds[-1].finish
    assert played.text == "".join(round.segment.text for round in played.rounds)
    for round in played.rounds:
        assert set(round.weights) == set(names)
        assert sum(round.weights.values()) == pytest.approx(1) and min(round.weights.values()) > 0
        assert round.winner in round.drafts and not set(round.drafts) & set(round.late.get("draft", ()))
        assert not set(round.votes) & set(round.late.get("verify", ()))


def test_a_reply_that_is_there_is_not_late():
    assert not isinstance(Scored(()), Failure)
    played = play(speakers(a=BLUE, b=GREY), SHORT)
    assert all(round.late == {} for round in played.rounds)
