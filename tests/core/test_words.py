"""What people read when something goes wrong or somebody leaves: word by word."""

from __future__ import annotations

import math

import pytest

from langchain_specfuse.core.panel import Panel, dismissed, observed
from langchain_specfuse.core.rounds import failure_of
from langchain_specfuse.core.values import (
    Candidate,
    Departure,
    Draft,
    DraftJob,
    Failure,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Seat,
    Turn,
)
from langchain_specfuse.core.verdict import decided
from langchain_specfuse.errors import EnsembleError, UsageError

from .play import play

QUERY = Query("q", (Turn("user", "Why?"),))
DRAFTING = DraftJob(QUERY, (), 10, 20, Sampling())
SCORING = ScoreJob(QUERY, (), (Candidate("x", False, ()), Candidate("y", True, ())))
RIGHT = ((-1.0,), (-1.0, -2.0))


@pytest.mark.parametrize(
    ("job", "reply", "kind", "words"),
    [
        (DRAFTING, Scored(()), "error", "replied with Scored (wanted Draft)"),
        (SCORING, Draft("x"), "error", "replied with Draft (wanted Scored)"),
        (SCORING, Scored(((-1.0,),)), "error", "scored 1 candidates (wanted 2)"),
        (SCORING, Scored(RIGHT, ends=((1,),)), "error", "told 1 rows of ends for 2 candidates"),
        (SCORING, Scored(((0.5,), (-1.0,))), "nan", "returned 0.5 as a log-probability (wanted a number of at most 0)"),
        (
            SCORING,
            Scored(((-1.0, 0.002), (-1.0,))),
            "nan",
            "returned 0.002 as a log-probability (wanted a number of at most 0)",
        ),
        (
            DRAFTING,
            Draft("x", logprobs=(-1.0, math.nan)),
            "nan",
            "returned nan as a log-probability (wanted a number of at most 0)",
        ),
    ],
)
def test_a_reply_that_is_none_is_told_as_what_it_is(job, reply, kind, words):
    assert failure_of(job, reply) == Failure(kind, words)


def test_what_cannot_even_be_looked_at_is_told_with_its_error():
    found = failure_of(SCORING, Scored((("a",), (-1.0,))))
    assert found.kind == "error" and found.message.startswith("replied with nonsense: TypeError: ")
    assert isinstance(found.cause, TypeError)
    half = failure_of(DRAFTING, Draft("\ud800"))
    assert half.message.startswith("replied with nonsense: UnicodeEncodeError: 'utf-8' codec")


@pytest.mark.parametrize("row", [(), (0.001,), (-1.0, 0.001), (0.0005, 0.0005)])
def test_a_number_may_be_a_little_above_0(row):
    assert failure_of(SCORING, Scored((row, (-1.0,)))) is None
    assert failure_of(SCORING, Scored((RIGHT[0], RIGHT[1]), ends=((1,), (1,)))) is None


def failing(kind, when=1):
    def reply(job, number):
        if number >= when:
            return Failure(kind, "it fell")
        if isinstance(job, ScoreJob):
            return Scored(tuple((-1.0,) for _ in job.candidates))
        return Draft(" one", False, (1,), (-1.0,))

    return reply


@pytest.mark.parametrize(
    ("kinds", "note"),
    [
        (("error", "error"), "what each member raised is in .failures, with its cause; try them one by one"),
        (("overflow", "overflow"), "shorten the conversation, or use members with a longer context"),
        (("overflow", "nan"), "what each member raised is in .failures, with its cause; try them one by one"),
    ],
)
def test_who_is_left_alone_is_told_why_and_what_to_do(kinds, note):
    error = play({"a": failing(kinds[0]), "b": failing(kinds[1])}).error
    assert isinstance(error, EnsembleError)
    told = f"no member is left to go on in round 1: a ({kinds[0]}): it fell; b ({kinds[1]}): it fell"
    assert str(error).splitlines()[0] == told
    assert any(line.endswith(note) for line in (*str(error).splitlines(), *getattr(error, "__notes__", [])))
    assert [(one.member, one.kind, one.round) for one in error.failures] == [("a", kinds[0], 1), ("b", kinds[1], 1)]


def test_who_was_voted_out_has_not_failed():
    panel = Panel.of([Seat("a")]).left
    assert panel == ()
    gone = Panel.of([Seat("a"), Seat("b")]).without([Departure("b", "exit", "lost", 3)])
    assert [departure.kind for departure in gone.left] == ["exit"]
    assert gone.without([]) is gone


@pytest.mark.parametrize("prior", [-0.1, math.inf, math.nan])
def test_a_prior_weight_that_is_none_is_told(prior):
    with pytest.raises(UsageError) as error:
        Panel.of([Seat("a")], {"a": prior})
    assert str(error.value).splitlines()[0] == f"the prior weight of 'a' is {prior!r}"
    assert any(note.removeprefix("-> ") == "give a number from 0 up" for note in error.value.__notes__)
    assert Panel.of([Seat("a"), Seat("b")], {"a": 0.0}).weights == {"a": 0.02, "b": 0.98}


def lost(rounds, kind="studentized", assured=None):
    """Two members; one of them has had the worse of it in so many rounds."""
    panel = Panel.of([Seat("a"), Seat("b")])
    for number in range(1, rounds + 1):
        panel = observed(panel, {"a": 1.0, "b": 0.0}, "a")
        panel = dismissed(kind, panel, 1, number, assured)
    return panel


def test_why_somebody_was_voted_out_is_told_in_numbers():
    (gone,) = lost(9).left
    share = float(gone.reason.split("keep-probability ")[1].split(",")[0])
    assert gone.reason == f"its drafts kept losing: keep-probability {share:.3f}, under 0.250"
    assert 0 <= share < 0.25
    assert (gone.member, gone.kind) == ("b", "exit") and gone.round >= 3
    (silent,) = lost(1, "quiet", {"a": 1.0, "b": 0.1}).left
    assert silent.reason.endswith(", under 0.500, and it is unsure of every draft")
    assert silent.round == 1


def test_nobody_left_to_decide_is_told():
    loop = decided(QUERY, ["yes", "no"], Panel.of([Seat("a")]))
    next(loop)
    with pytest.raises(EnsembleError) as error:
        loop.send({"a": Failure("timeout", "too slow")})
    assert str(error.value).splitlines()[0] == "no member is left to decide: a (timeout): too slow"
    advice = "what each member raised is in .failures, with its cause; try them one by one"
    assert any(note.endswith(advice) for note in error.value.__notes__)
    with pytest.raises(UsageError) as usage:
        next(decided(QUERY, ["yes"], Panel.of([Seat("a", scores=False)])))
    assert str(usage.value).splitlines()[0] == "none of these members can score, so nobody can decide"
    wanted = "a decision needs a member that knows log-probabilities, as TransformersMember does"
    assert any(note.endswith(wanted) for note in usage.value.__notes__)


@pytest.mark.parametrize("size", [0, 1])
def test_a_label_needs_its_tokens_and_its_end(size):
    loop = decided(QUERY, ["yes"], Panel.of([Seat("a"), Seat("b")]))
    next(loop)
    found = loop.send({"a": Scored(((-0.5,) * size,)), "b": Scored(((-0.5, -0.5),))})
    assert [gone.reason for gone in found.left] == [
        f"returned {size} numbers for a label (wanted its tokens and the end)"
    ]
    assert list(found.by_member) == ["b"]
