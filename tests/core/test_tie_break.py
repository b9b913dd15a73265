"""Several members are confident in different openings: a neutral member decides which the question asks for."""

from __future__ import annotations

import math

import pytest

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.tie_break import CONFIDENT, Tie, find_tie, without_question
from langchain_specfuse.core.values import Draft, Failure, Query, Scored, ScoreJob, Turn

from .play import play

AUTHORS = [["ann"], ["bob"], ["cyd"]]
QUESTION = Query("q", (Turn("system", "Be brief."), Turn("user", "Say 94 in Spanish.")))
DRAFTS = {"ann": "noventa y cuatro", "bob": "9 + 4", "cyd": "Hm"}
"""Ann and bob take the question for theirs; ann is right. Cyd knows nothing."""
SURE, UNSURE = -0.01, -1.0


class Members:
    """Their replies. ``bare``: what cyd gives ann's and bob's drafts without the question, or how it fails."""

    def __init__(self, bare=None, sure=("ann", "bob")):
        self.bare, self.sure = bare or {"ann": -7.0, "bob": -3.2}, sure
        self.asked_bare: list[tuple[str, ScoreJob]] = []

    def reply(self, name, job):
        if not isinstance(job, ScoreJob):
            return Draft(DRAFTS[name], True, tokens=(1,), logprobs=(SURE if name in self.sure else UNSURE,))
        if job.query.turns[-1].text:
            # Others' drafts are strange to all; cyd finds the sum more ordinary than the Spanish.
            row = {"ann": -4.0, "bob": -3.1} if name == "cyd" else dict.fromkeys(DRAFTS, -8.0)
            return Scored(tuple((row[c.authors[0]],) for c in job.candidates))
        self.asked_bare.append((name, job))
        if not isinstance(self.bare, dict):
            return self.bare
        return Scored(tuple((self.bare[c.authors[0]],) for c in job.candidates))

    def play(self, **options):
        answerers = {name: lambda job, _, name=name: self.reply(name, job) for name in DRAFTS}
        return play(answerers, Settings(method=Method(**options)), query=QUESTION)


def test_the_draft_that_the_question_asks_for_wins():
    first = Members().play().rounds[0]
    assert (first.winner, first.tie_breaker) == ("ann", "cyd")
    assert first.votes["bob"]["ann"] > 0.99
    assert first.votes["bob"]["bob"] == 0.0
    assert Members({"ann": -4.1, "bob": -7.0}).play().rounds[0].winner == "bob"


def test_the_tie_breaker_scores_the_tied_drafts_once_without_the_question():
    members = Members()
    members.play()
    ((name, job),) = members.asked_bare
    assert name == "cyd"
    assert [turn.text for turn in job.query.turns] == ["Be brief.", ""]
    assert job.query.id != QUESTION.id
    assert [c.text for c in job.candidates] == [DRAFTS["ann"], DRAFTS["bob"]]
    assert not job.thinks


@pytest.mark.parametrize("sure", [(), ("ann",), ("ann", "bob", "cyd")])
def test_no_tie_where_fewer_than_two_are_confident_or_nobody_is_neutral(sure):
    members = Members(sure=sure)
    assert members.play().rounds[0].tie_breaker == ""
    assert members.asked_bare == []


def test_a_failed_tie_breaker_leaves_and_nobody_decides():
    members = Members(Failure("error", "out of ink"))
    first = members.play().rounds[0]
    assert (first.tie_breaker, len(members.asked_bare)) == ("", 1)
    assert [(gone.member, gone.kind, gone.reason) for gone in first.left] == [("cyd", "error", "out of ink")]
    assert set(first.scores) == {"ann", "bob"}
    assert "cyd" not in first.weights


@pytest.mark.parametrize("turns", [(), (Turn("user", "Say 94."), Turn("assistant", "It is"))])
def test_no_tie_break_where_the_conversation_does_not_end_with_a_question(turns):
    assert without_question(Query("q", turns)) is None


@pytest.mark.parametrize(
    ("kind", "sure", "unsure"),
    [
        ("mean_prob", CONFIDENT, CONFIDENT - 0.001),
        ("mean_logprob", math.log(CONFIDENT) + 1e-9, math.log(CONFIDENT) - 1e-6),
        ("logprob_per_byte", math.log(CONFIDENT) / 4 + 1e-9, math.log(CONFIDENT) / 4 - 1e-6),
    ],
)
def test_confident_is_a_probability_per_token_whatever_the_score(kind, sure, unsure):
    def between(own):
        low = 0.001 if kind == "mean_prob" else -5.0
        return find_tie(kind, {"ann": [own, low], "bob": [low, own], "cyd": [low, low]}, AUTHORS[:2])

    assert between(sure) == Tie((0, 1), ("ann", "bob"), "cyd")
    assert between(unsure) is None
