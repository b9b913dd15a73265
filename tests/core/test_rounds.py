"""Whole answers as readable tables: which member is asked for what, and what happens if members
fail."""

import math

import pytest

from langchain_specfuse.core.options import METHODS, Method, Settings
from langchain_specfuse.core.values import (
    Draft,
    DraftJob,
    Effort,
    Failure,
    Panelist,
    Scored,
    ScoreJob,
)
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .play import QUERY, answering, play, speakers, table

BLUE = "The sky is blue because of Rayleigh scattering."
GREY = "The sky is grey because of heavy rain clouds."
SHORT = Settings(method=Method(segment_tokens=3))
WITH_JUDGE = [Panelist("a"), Panelist("b"), Panelist("judge", drafts=False)]


def test_two_that_agree_outvote_one():
    assert table(play(speakers(a=GREY, b=BLUE, c=BLUE), SHORT)) == (
        "1 a: 'The sky is' | a=1.00 b=1.00 c=1.00 | a=0.33 b=0.33 c=0.33\n"
        "2 b: ' blue because of' | a=0.43 b=0.57 c=0.57 | a=0.29 b=0.36 c=0.36\n"
        "3 b: ' Rayleigh scattering.' | a=0.34 b=0.66 c=0.66 | a=0.24 b=0.38 c=0.38 | stop"
    )


def test_the_winning_segment_becomes_the_context_of_all_members():
    jobs = [job for _, job in play(speakers(a=GREY, b=BLUE, c=BLUE), SHORT).asked(DraftJob, 3)]
    assert {"".join(segment.text for segment in job.answer) for job in jobs} == {
        "The sky is blue because of"
    }


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_one_member_or_twins_write_their_own_answer_without_scoring(method, n, size):
    settings = Settings(method=Method.named(method, segment_tokens=size))
    played = play(speakers(**{f"m{i}": BLUE for i in range(n)}), settings)
    assert (played.text, played.rounds[-1].finish) == (BLUE, "stop")
    assert (played.asked(ScoreJob), played.left) == ([], [])
    assert all(len(set(round.weights.values())) == 1 for round in played.rounds)
    assert all(round.scores == {} and round.margin == 1.0 for round in played.rounds)


def test_verify_only_members_vote_without_thinking_and_only_where_there_is_a_choice():
    played = play(speakers(a=GREY, b=BLUE, judge=BLUE), SHORT, WITH_JUDGE)
    assert played.text == BLUE
    assert "judge" not in dict(played.asked(DraftJob))
    first, *others = played.rounds
    assert first.scores == {}
    assert all("judge" in round.votes and "judge" not in round.totals for round in others)
    assert {name: job.thinks for name, job in played.asked(ScoreJob)} == {
        "a": True,
        "b": True,
        "judge": False,
    }
    assert play(speakers(a=BLUE, judge=GREY), None, WITH_JUDGE[::2]).asked(ScoreJob) == []


def test_without_any_verifier_the_heaviest_member_writes():
    panel = [Panelist("a", scores=False), Panelist("b", scores=False)]
    played = play(speakers(a=GREY, b=BLUE), SHORT, panel, prior={"b": 2})
    assert (played.text, played.left, played.asked(ScoreJob)) == (BLUE, [], [])


def test_a_member_that_is_clearly_worse_leaves_and_is_not_asked_again():
    words = [f"w{i}" for i in range(40)]
    good, middling = " ".join(words), " ".join(w if i % 3 else f"b{i}" for i, w in enumerate(words))
    played = play(
        speakers(a=good, b=middling, c=good, z="no " * 40),
        Settings(method=Method(segment_tokens=2)),
    )
    departure = next(d for round in played.rounds for d in round.left)
    assert (departure.member, departure.kind) == ("z", "exit")
    assert 3 <= departure.round <= 6
    assert "z" not in {
        name for ask in played.asks if ask.round > departure.round for name in ask.jobs
    }
    assert "keep-probability" in departure.reason


# --- failing members ------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [DraftJob, ScoreJob])
@pytest.mark.parametrize("kind", ["error", "timeout", "nan", "overflow"])
def test_a_member_that_fails_leaves_with_its_reason_and_the_others_finish(work, kind):
    members = speakers(a=GREY, b=BLUE, c=BLUE)
    fine, cause = members["a"], RuntimeError("burnt out")

    def failing(job, number):
        if isinstance(job, work) and number == 2:
            return Failure(kind, "burnt out", cause)
        return fine(job, number)

    played = play({**members, "a": failing}, SHORT)
    assert played.text == BLUE
    (departure,) = played.rounds[1].left
    assert (
        departure.member,
        departure.kind,
        departure.reason,
        departure.round,
        departure.cause,
    ) == (
        "a",
        kind,
        "burnt out",
        2,
        cause,
    )
    assert "a" not in {name for ask in played.asks if ask.round > 2 for name in ask.jobs}
    assert math.fsum(played.rounds[1].weights.values()) == pytest.approx(1)


NONSENSE = {
    "NaN": (
        Scored(((-1.0, math.nan),)),
        "nan",
        "returned nan as a log-probability (expected a number of at most 0)",
    ),
    "a probability": (
        Scored(((0.7,),)),
        "nan",
        "returned 0.7 as a log-probability (expected a number of at most 0)",
    ),
    "few rows": (Scored(()), "error", "scored 0 candidates (expected 1)"),
    "a draft": (Draft(" x"), "error", "replied with Draft (expected Scored)"),
    "nothing": (None, "error", "replied with NoneType (expected Scored)"),
}


@pytest.mark.parametrize(("reply", "kind", "reason"), NONSENSE.values(), ids=NONSENSE)
def test_a_member_that_scores_nonsense_leaves_and_the_others_finish(reply, kind, reason):
    members = speakers(a=GREY, b=BLUE, c=BLUE)
    fine = members["a"]
    members["a"] = lambda job, number: fine(job, number) if isinstance(job, DraftJob) else reply
    played = play(members, SHORT)
    assert played.text == BLUE
    (left,) = [departure for round in played.rounds for departure in round.left]
    assert (left.member, left.kind) == ("a", kind)
    assert left.reason.startswith(reason)


@pytest.mark.parametrize("reply", [None, Scored(()), Draft(" x", logprobs=(math.nan,))])
def test_a_member_that_drafts_nonsense_leaves_and_the_others_finish(reply):
    played = play({**speakers(b=BLUE, c=BLUE), "a": lambda job, number: reply}, SHORT)
    assert (played.text, played.left) == (BLUE, ["a"])


def test_when_no_member_is_left_the_error_has_the_agreed_text_and_every_failure():
    def fails_in(number, cause):
        fine = answering(ScriptedMember(BLUE))
        return lambda job, round: (
            Failure("error", f"gone in {round}", cause) if round == number else fine(job, round)
        )

    first, second = RuntimeError("one"), RuntimeError("two")
    played = play(
        {"a": fails_in(2, first), "b": fails_in(3, second)},
        Settings(method=Method(segment_tokens=2)),
    )
    error = played.error
    assert isinstance(error, EnsembleError)
    assert error.text == played.text == "The sky is blue"
    assert [(f.member, f.round, f.kind, f.__cause__) for f in error.failures] == [
        ("a", 2, "error", first),
        ("b", 3, "error", second),
    ]
    assert "a (error): gone in 2; b (error): gone in 3" in str(error)


# --- jobs, budgets and records --------------------------------------------------------------------


@pytest.mark.parametrize("drafting", ["ab", "a"])
def test_a_job_contains_everything_needed_to_repeat_it(drafting):
    """Only a lone drafter gets the stop strings: a draft that ends early is scored differently."""
    settings = Settings(
        method=Method(segment_tokens=2), max_tokens=20, temperature=0.5, seed=7, stop=["zzz"]
    )
    panel = [Panelist(name, drafts=name in drafting) for name in "ab"]
    played = play(speakers(a=GREY, b=BLUE), settings, panel)
    drafts = [
        (ask.round, job)
        for ask in played.asks
        for job in ask.jobs.values()
        if isinstance(job, DraftJob)
    ]
    assert all(job.query == QUERY for _, job in [*drafts, *played.asked(ScoreJob)])
    for number, job in drafts:
        assert (job.sampling, job.segment_tokens) == (settings.sampling, 2)
        assert job.stop == (("zzz",) if drafting == "a" else ())
        assert len(job.answer) == number - 1
        assert job.max_tokens == 20 - sum(
            len(next(iter(segment.tokens.values()))) for segment in job.answer
        )


@pytest.mark.parametrize("budget", [1, 2, 5, 7])
def test_the_budget_is_kept(budget):
    played = play(
        speakers(a=BLUE, b=GREY), Settings(method=Method(segment_tokens=3), max_tokens=budget)
    )
    assert (len(played.text.split()), played.rounds[-1].finish) == (budget, "length")


def test_effort_and_time_are_recorded_by_phase():
    first, second, *_ = play(speakers(a=GREY, b=BLUE), SHORT).rounds
    assert set(first.efforts) == set(first.seconds) == {"draft"}
    assert set(second.efforts) == set(second.seconds) == {"draft", "verify"}
    assert second.efforts["draft"]["a"] == Effort(read=3, reused=6, prompt=3)
