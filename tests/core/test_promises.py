"""What holds in every run, whatever the members do: random members that babble, fail and talk nonsense."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.values import DraftJob, Failure, Scored, ScoreJob, Seat, Settings
from langchain_specfuse.errors import EnsembleError

from .play import babbler, play

kinds = st.fixed_dictionaries(
    {
        "score": st.sampled_from(["mean_prob", "mean_logprob", "logprob_per_byte"]),
        "feedback": st.sampled_from(["off", "published", "anytime"]),
        "learning_rate": st.sampled_from([0.0, 1.0, 50.0]),
        "exit": st.sampled_from(["studentized", "quiet", "literal", "fixed", "never"]),
        "min_members": st.integers(1, 3),
        "segment_tokens": st.integers(1, 4),
        "drafters": st.sampled_from([None, None, 1, 2]),
        "stop": st.sampled_from([(), ("good good",), ("w1", " ")]),
    }
)
crowds = st.lists(st.sampled_from(["drafts", "drafts", "both", "both", "both", "scores"]), min_size=0, max_size=5)


def unreliable(answerer, seed, rate):
    """The same member, but now and then it fails or returns a number that is none."""
    rng = random.Random(seed)

    def reply(job, number):
        fate = rng.random()
        if fate < rate / 2:
            return Failure("error", "fell over")
        if fate < rate and isinstance(job, ScoreJob):
            return Scored(tuple((math.nan,) for _ in job.candidates))
        return answerer(job, number)

    return reply


def crowd(roles, seed, rate):
    names = [f"m{i}" for i in range(len(roles) + 1)]
    seats = [Seat("m0")] + [
        Seat(n, role != "scores", role != "drafts") for n, role in zip(names[1:], roles, strict=True)
    ]
    members = {
        n: unreliable(babbler(seed * 31 + i, skill=0.4 * i - 0.5), seed * 37 + i, rate) for i, n in enumerate(names)
    }
    return members, seats


@given(kinds, crowds, st.integers(0, 10**6), st.sampled_from([0.0, 0.0, 0.03, 0.2]))
def test_every_run_keeps_the_promises(choices, roles, seed, rate):
    members, seats = crowd(roles, seed, rate)
    settings = Settings(max_tokens=40, **choices)
    played = play(members, settings, seats)
    drafters = {seat.name for seat in seats if seat.drafts}
    voters = {seat.name for seat in seats if seat.scores}

    assert played.error is None or (isinstance(played.error, EnsembleError) and rate)
    gone: dict[str, int] = {}
    for round in played.rounds:
        gone.update({departure.member: departure.round for departure in round.left})
        # Weights sum to 1, stay positive, belong to those who are in.
        assert math.fsum(round.weights.values()) == pytest.approx(1)
        assert min(round.weights.values()) > 0
        assert set(round.weights) == {seat.name for seat in seats} - set(gone)
        # Votes and totals are shares.
        for row in [*round.votes.values(), round.totals]:
            assert math.fsum(
                {round.drafts[n].text + str(round.drafts[n].ended): v for n, v in row.items()}.values()
            ) == (pytest.approx(1))
            assert all(math.isfinite(share) and share >= 0 for share in row.values())
        assert round.totals[round.winner] == max(round.totals.values())
        assert all(0 <= reward <= 1 for reward in round.rewards.values())
        assert set(round.votes) <= voters
        assert set(round.drafts) <= drafters
        # Somebody who can write stays; so do as many as asked for, unless they fail.
        assert drafters - set(gone)
        exits = [d for r in played.rounds for d in r.left if d.kind == "exit"]
        assert not exits or len(drafters - set(gone)) + rate * 99 >= min(settings.min_members, len(drafters))
    # Nobody who left is asked again; nobody drafts or scores who cannot.
    for ask in played.asks:
        assert not [name for name in ask.jobs if gone.get(name, 10**9) < ask.round]
        assert all(name in (drafters if isinstance(job, DraftJob) else voters) for name, job in ask.jobs.items())
        assert all(len(job.candidates) > 0 for job in ask.jobs.values() if isinstance(job, ScoreJob))
    # Text is conserved, and within its budget.
    if played.error is None:
        whole = "".join(round.segment.text for round in played.rounds)
        assert whole.startswith(played.text)
        assert (played.text == whole) == (played.rounds[-1].finish != "stop_string")
        assert not any(word in played.text for word in settings.stop)
        assert [round.finish for round in played.rounds[:-1]] == [None] * (len(played.rounds) - 1)
        assert len(whole.split()) <= 40


@given(kinds, crowds, st.integers(0, 10**6))
def test_relabelling_members_changes_nothing_but_names(choices, roles, seed):
    settings = Settings(max_tokens=30, **choices)
    members, seats = crowd(roles, seed, 0.05)
    one = play(members, settings, seats)
    members, seats = crowd(roles, seed, 0.05)
    new = {name: f"z{9 - int(name[1:])}" for name in members}
    other = play(
        {new[name]: member for name, member in members.items()},
        settings,
        [Seat(new[seat.name], seat.drafts, seat.scores) for seat in seats],
    )
    assert other.text == one.text
    assert [round.winner for round in other.rounds] == [new[round.winner] for round in one.rounds]
    assert [list(round.weights.values()) for round in other.rounds] == [list(r.weights.values()) for r in one.rounds]
    assert other.left == [new[name] for name in one.left]


@given(st.integers(0, 10**6))
def test_a_run_can_be_repeated(seed):
    first, second = (play(crowd(["both"] * 3, seed, 0.02)[0], Settings(max_tokens=30)) for _ in range(2))
    assert [(r.text, r.winner, r.weights) for r in first.rounds] == [
        (r.text, r.winner, r.weights) for r in second.rounds
    ]


def test_the_random_runs_do_see_exits_failures_and_loops_of_several_rounds():
    """Otherwise the properties above would hold for nothing."""
    runs = [play(crowd(["both"] * 4, seed, 0.02)[0], Settings(max_tokens=200, segment_tokens=4)) for seed in range(15)]
    kinds = {gone.kind for played in runs for round in played.rounds for gone in round.left}
    assert kinds >= {"exit", "error", "nan"}
    assert max(len(played.rounds) for played in runs) > 10
