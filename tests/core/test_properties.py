"""Properties of every answer, with random members that babble, fail and return nonsense."""

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import first_stop
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import DraftJob, Failure, Panelist, Scored, ScoreJob
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .play import answering, babbler, play

settings = st.builds(
    Settings,
    max_tokens=st.just(40),
    stop=st.sampled_from([None, ["good good"], ["w1", " "]]),
    lead=st.sampled_from([None, "m0", "m1"]),
    method=st.builds(
        Method,
        segment_tokens=st.integers(1, 4),
        score=st.sampled_from(["mean_prob", "mean_logprob", "logprob_per_byte"]),
        weighting=st.sampled_from(["equal", "confidence"]),
        reward=st.sampled_from(["wins", "margins"]),
        learning_rate=st.sampled_from([0.0, 1.0, 50.0]),
        exit=st.sampled_from(["studentized", "never"]),
        min_members=st.integers(1, 3),
        loop_guard=st.booleans(),
        margin=st.sampled_from([None, 0.0, 0.3, math.inf]),
        sure=st.sampled_from([0.0, 0.1, 1.0]),
    ),
)
roles = st.lists(
    st.sampled_from(["drafts", "drafts", "both", "both", "both", "scores"]), min_size=0, max_size=5
)


def unreliable(answerer, seed, rate):
    """Return the same member, but with occasional failures and invalid numbers."""
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
    """Return babblers by name, and a panel with one full member and one for each of these roles."""
    names = [f"m{i}" for i in range(len(roles) + 1)]
    panel = [Panelist("m0")] + [
        Panelist(name, role != "scores", role != "drafts")
        for name, role in zip(names[1:], roles, strict=True)
    ]
    members = {
        name: unreliable(babbler(seed * 31 + i, skill=0.4 * i - 0.5), seed * 37 + i, rate)
        for i, name in enumerate(names)
    }
    return members, panel


@given(settings, roles, st.integers(0, 10**6), st.sampled_from([0.0, 0.0, 0.03, 0.2]))
def test_every_answer_keeps_the_promises(settings, roles, seed, rate):
    members, panel = crowd(roles, seed, rate)
    played = play(members, settings, panel)
    drafters = {member.name for member in panel if member.drafts}
    verifiers = {member.name for member in panel if member.scores}

    assert played.error is None or (isinstance(played.error, EnsembleError) and rate)
    departed: dict[str, int] = {}
    for round in played.rounds:
        departed.update({departure.member: departure.round for departure in round.left})
        # Weights sum to 1, stay positive, and belong to the members still in.
        assert math.fsum(round.weights.values()) == pytest.approx(1)
        assert min(round.weights.values()) > 0
        assert set(round.weights) == {member.name for member in panel} - set(departed)
        # Votes and totals sum to 1.
        for row in [*round.votes.values(), round.totals]:
            by_draft = {
                (round.drafts[name].text, round.drafts[name].ended): share
                for name, share in row.items()
            }
            assert math.fsum(by_draft.values()) == pytest.approx(1)
            assert all(math.isfinite(share) and share >= 0 for share in row.values())
        if not round.lead or round.lead in round.looped or round.lead not in round.drafts:
            assert round.totals[round.winner] == max(round.totals.values())
        elif round.lead not in round.authors:
            assert (
                round.evidence[round.winner]
                == max(round.evidence.values())
                > settings.method.margin
            )
        if settings.method.margin != math.inf:  # otherwise another member takes its place
            assert round.lead in ("", settings.lead)
        assert all(0 <= reward <= 1 for reward in round.rewards.values())
        assert set(round.votes) <= verifiers and set(round.drafts) <= drafters
        # A drafting member stays; so do min_members, unless they fail.
        assert drafters - set(departed)
        exits = [d for r in played.rounds for d in r.left if d.kind == "exit"]
        assert not exits or len(drafters - set(departed)) + rate * 99 >= min(
            settings.method.min_members, len(drafters)
        )
    # A member that left is not asked again; members are asked only for what they can do.
    for ask in played.asks:
        assert not [name for name in ask.jobs if departed.get(name, 10**9) < ask.round]
        assert all(
            name in (drafters if isinstance(job, DraftJob) else verifiers)
            for name, job in ask.jobs.items()
        )
        assert all(
            len(job.candidates) > 0 for job in ask.jobs.values() if isinstance(job, ScoreJob)
        )
    # Text is conserved, and within its budget.
    if played.error is None:
        whole = "".join(round.segment.text for round in played.rounds)
        assert whole.startswith(played.text)
        assert (played.text == whole) == (played.rounds[-1].finish != "stop_string")
        assert not any(word in played.text for word in settings.stop_strings)
        assert [round.finish for round in played.rounds[:-1]] == [None] * (len(played.rounds) - 1)
        assert len(whole.split()) <= 40


@given(settings, roles, st.integers(0, 10**6))
def test_relabelling_members_changes_only_names(settings, roles, seed):
    members, panel = crowd(roles, seed, 0.05)
    original = play(members, settings, panel)
    members, panel = crowd(roles, seed, 0.05)
    new = {name: f"z{9 - int(name[1:])}" for name in members}
    relabelled = play(
        {new[name]: member for name, member in members.items()},
        settings.model_copy(update={"lead": new.get(settings.lead)}),
        [replace(member, name=new[member.name]) for member in panel],
    )
    assert relabelled.text == original.text
    assert [round.winner for round in relabelled.rounds] == [
        new[round.winner] for round in original.rounds
    ]
    assert [list(round.weights.values()) for round in relabelled.rounds] == [
        list(r.weights.values()) for r in original.rounds
    ]
    assert relabelled.left == [new[name] for name in original.left]


WORDS = ["The", " sky", " is", "\n", "\n\n", " blue", ".", " and", " so on", "END", " E", "N"]
scripts = st.lists(st.sampled_from(WORDS), max_size=20).map("".join)
stops = st.lists(
    st.one_of(
        st.sampled_from(["\n", "\n\n", "END", " blue.", "sky is"]),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map("".join),
    ),
    min_size=1,
    max_size=3,
)


def stopping(answerer):
    """Return the same member, but with drafts that end after a stop string, like a server's."""

    def reply(job, number):
        draft = answerer(job, number)
        if not isinstance(job, DraftJob) or (at := first_stop(draft.text, job.stop)) is None:
            return draft
        end = at + min(len(word) for word in job.stop if draft.text.startswith(word, at))
        return replace(draft, text=draft.text[:end], ended=False, tokens=(1,), logprobs=None)

    return reply


@given(settings, st.lists(scripts, min_size=1, max_size=4), stops, st.booleans())
def test_stop_strings_only_cut(settings, scripts, stop, judged):
    """With ``stop``, the answer is the answer without it, cut at the first stop string."""
    names = [f"m{i}" for i in range(len(scripts))]
    panel = [Panelist(name, drafts=not (judged and name != "m0")) for name in names]

    def answer(stop):
        members = {
            name: stopping(answering(ScriptedMember(script, name=name)))
            for name, script in zip(names, scripts, strict=True)
        }
        return play(members, settings.model_copy(update={"stop": list(stop)}), panel)

    plain, stopped = answer(()), answer(tuple(stop))
    at = first_stop(plain.text, stop)
    assert stopped.text == plain.text[:at]
    assert stopped.rounds[-1].finish == (plain.rounds[-1].finish if at is None else "stop_string")


def test_the_random_answers_contain_exits_failures_and_many_rounds():
    """Otherwise the properties above would be vacuous."""
    runs = [
        play(
            crowd(["both"] * 4, seed, 0.02)[0],
            Settings(max_tokens=200, method=Method(segment_tokens=4)),
        )
        for seed in range(15)
    ]
    kinds = {
        departure.kind for played in runs for round in played.rounds for departure in round.left
    }
    assert kinds >= {"exit", "error", "nan"}
    assert max(len(played.rounds) for played in runs) > 10
