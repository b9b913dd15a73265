"""Several members are sure of different beginnings: one that is no party says which of these the question calls for."""

from __future__ import annotations

import math

import pytest

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.umpire import ANYWAY, SURE, Dispute, called_for, decided, dispute, without_question
from langchain_specfuse.core.values import (
    LATE,
    PRESETS,
    Ask,
    Candidate,
    Draft,
    Failure,
    Query,
    Round,
    Scored,
    ScoreJob,
    Seat,
    Settings,
    Turn,
)

KIND = "mean_logprob"
AUTHORS = [["ann"], ["bob"], ["cyd"]]
QUESTION = Query("q", (Turn("system", "Be brief."), Turn("user", "Say 94 in Spanish.")))
"""Two think that it is theirs, ann alone is right, and cyd knows nothing and says so."""
DRAFTS = {"ann": "noventa y cuatro", "bob": "9 + 4", "cyd": "Hm"}
SURELY, HARDLY = -0.01, -1.0


class Told:
    """Plays the members: who is sure of what, and what cyd makes of it without the question."""

    def __init__(self, unasked: dict[str, float] | Failure, sure: tuple[str, ...] = ("ann", "bob")) -> None:
        self.unasked, self.sure = unasked, sure
        self.asked: list[tuple[str, ScoreJob]] = []

    def __call__(self, ask: Ask) -> dict[str, object]:
        return {name: self._reply(name, job) for name, job in ask.jobs.items()}

    def _reply(self, name: str, job: object) -> object:
        if not isinstance(job, ScoreJob):
            return Draft(DRAFTS[name], True, tokens=(1,), logprobs=(SURELY if name in self.sure else HARDLY,))
        if job.query.turns[-1].text:
            return Scored(tuple((self._finds(name, c),) for c in job.candidates))
        self.asked.append((name, job))
        return (
            self.unasked
            if isinstance(self.unasked, Failure)
            else Scored(tuple((self.unasked[c.authors[0]],) for c in job.candidates))
        )

    def _finds(self, name: str, candidate: Candidate) -> float:
        # Everybody finds what others wrote strange; cyd finds the sum more ordinary than the Spanish.
        return {"ann": -4.0, "bob": -3.1}[candidate.authors[0]] if name == "cyd" else -8.0


def answered(told: Told, query: Query = QUESTION, **settings: object) -> list[Round]:
    loop, replies, all_rounds = rounds(query, Settings(**settings), Panel.of([Seat(n) for n in DRAFTS])), None, []
    while True:
        try:
            item = loop.send(replies)
        except StopIteration:
            return all_rounds
        replies = told(item) if isinstance(item, Ask) else all_rounds.append(item)


def first(told: Told, query: Query = QUESTION, **settings: object) -> Round:
    return answered(told, query, **settings)[0]


def test_the_draft_that_the_question_calls_for_wins_a_dispute_of_the_sure():
    told = Told({"ann": -7.0, "bob": -3.2})
    one = first(told)
    assert (one.winner, one.umpire) == ("ann", "cyd")
    assert one.votes["bob"]["ann"] > 0.99
    assert one.votes["bob"]["bob"] == 0.0
    assert first(Told({"ann": -4.1, "bob": -7.0})).winner == "bob"


def test_the_umpire_is_asked_once_about_the_drafts_in_dispute_and_without_the_question():
    told = Told({"ann": -7.0, "bob": -3.2})
    first(told)
    ((name, job),) = told.asked
    assert name == "cyd"
    assert [turn.text for turn in job.query.turns] == ["Be brief.", ""]
    assert job.query.id != QUESTION.id
    assert [c.text for c in job.candidates] == [DRAFTS["ann"], DRAFTS["bob"]]
    assert not job.thinks


@pytest.mark.parametrize("sure", [(), ("ann",), ("ann", "bob", "cyd")])
def test_nobody_is_asked_where_one_alone_is_sure_or_all_are(sure: tuple[str, ...]):
    told = Told({"ann": -7.0, "bob": -3.2}, sure)
    assert first(told).umpire == ""
    assert told.asked == []


def test_it_can_be_switched_off_and_the_papers_presets_have_none():
    told = Told({"ann": -7.0, "bob": -3.2})
    assert first(told, umpire=False).umpire == ""
    for preset in ("specfuse", "specem"):
        assert first(told, **PRESETS[preset]).umpire == ""
    assert told.asked == []


def test_an_umpire_that_fails_rules_nothing_and_leaves_like_anybody_who_fails():
    told = Told(Failure("error", "out of ink"))
    one = first(told)
    assert (one.umpire, len(told.asked)) == ("", 1)
    assert [(gone.member, gone.kind, gone.reason) for gone in one.left] == [("cyd", "error", "out of ink")]
    assert set(one.scores) == {"ann", "bob"}
    assert "cyd" not in one.weights


def test_an_umpire_that_is_late_rules_nothing_and_is_told_to_be_late():
    told = Told(Failure(LATE, "not yet"))
    one = first(told)
    assert (one.umpire, one.left, one.late) == ("", (), {"verify": ("cyd",)})
    assert one.totals == first(Told({}), umpire=False).totals


def test_an_umpire_can_be_done_without():
    """So nobody waits for one that is late, whatever else is waited for."""
    asks = []

    class Watching(Told):
        def __call__(self, ask):
            asks.append(ask)
            return super().__call__(ask)

    first(Watching({"ann": -7.0, "bob": -3.2}))
    assert [ask.spare for ask in asks[:3]] == [False, False, True]


def test_an_umpire_that_talks_nonsense_rules_nothing():
    class Wrong(Told):
        def _reply(self, name, job):
            reply = super()._reply(name, job)
            return Scored(((float("nan"),), (0.0,))) if self.asked and self.asked[-1][1] is job else reply

    assert first(Wrong({"ann": -7.0, "bob": -3.2})).umpire == ""


def test_what_nobody_asked_needs_no_umpire():
    told = Told({"ann": -7.0, "bob": -3.2})
    query = Query("q", (Turn("user", "Say 94."), Turn("assistant", "It is")))
    assert first(told, query).umpire == ""
    assert told.asked == []


def test_later_rounds_have_no_umpire():
    class Longer(Told):
        def _reply(self, name, job):
            reply = super()._reply(name, job)
            if isinstance(reply, Draft):
                text = reply.text + f" {len(job.answer)}"
                return Draft(text, len(job.answer) > 1, tokens=(1,), logprobs=reply.logprobs)
            return reply

    told = Longer({"ann": -7.0, "bob": -3.2})
    all_rounds = answered(told)
    assert [one.umpire for one in all_rounds] == ["cyd", "", ""]
    assert len(told.asked) == 1


def test_what_the_umpire_spent_counts():
    class Spending(Told):
        def _reply(self, name, job):
            from dataclasses import replace

            from langchain_specfuse.core.values import Effort

            return replace(super()._reply(name, job), effort=Effort(read=7))

    read = {name: effort.read for name, effort in first(Spending({"ann": -7.0, "bob": -3.2})).efforts["verify"].items()}
    assert read == {"ann": 7, "bob": 7, "cyd": 14}


def test_a_writer_is_sure_from_its_bound_on():
    def between(probability: float) -> Dispute | None:
        own = math.log(probability)
        return dispute(KIND, {"ann": [own, -9, -9], "bob": [-9, own, -9], "cyd": [-9, -9, -1]}, AUTHORS)

    assert between(SURE + 1e-9) == Dispute((0, 1), ("ann", "bob"), "cyd")
    assert between(SURE - 1e-6) is None


def test_the_least_sure_of_those_who_are_no_party_decides():
    scores = {
        "ann": [SURELY, -9, -9, -9],
        "bob": [-9, SURELY, -9, -9],
        "cyd": [-3, -4, -2.0, -9],
        "dan": [-3, -4, -9, -0.5],
    }
    told = dispute(KIND, scores, [*AUTHORS, ["dan"]])
    assert told is not None
    assert told.umpire == "cyd"
    # Who only scores may be the one, and who wrote the same as a party may not.
    assert dispute(KIND, {**scores, "eva": [-3, -4, -5, -6]}, [*AUTHORS, ["dan"]]).umpire == "eva"  # type: ignore[union-attr]
    shared = dispute(KIND, {**scores, "cyd": [-1.0, -4, -9, -9]}, [["ann", "cyd"], ["bob"], ["dan"]])
    assert shared is not None
    assert (shared.parties, shared.umpire) == (("ann", "bob"), "dan")


@pytest.mark.parametrize(("kind", "sure", "not_sure"), [("mean_prob", 0.98, 0.96), ("logprob_per_byte", -0.005, -0.02)])
def test_sure_is_a_probability_a_token_whatever_the_score_is(kind, sure, not_sure):
    def between(own: float) -> Dispute | None:
        strange = 0.001 if kind == "mean_prob" else -5.0
        return dispute(kind, {"ann": [own, strange], "bob": [strange, own], "cyd": [strange, strange]}, AUTHORS[:2])

    assert between(sure) is not None
    assert between(not_sure) is None


def test_not_all_of_what_is_likely_anyway_counts_against_a_draft():
    # As much likelier without the question as with it: then the likelier one is called for.
    assert called_for(KIND, [-1.0, -2.0], [-1.0, -2.0]) == 0
    assert called_for(KIND, [-1.0, -2.0], [-1.0, -2.0 - 1.0 / ANYWAY - 0.01]) == 1
    assert called_for(KIND, [-1.0, -2.0], [-1.0, -2.0 - 0.1 / ANYWAY + 0.01]) == 0
    assert called_for("mean_prob", [0.0, 0.0], [1e-9, 0.5]) == 0


def test_only_parties_votes_change_and_what_they_gave_to_others_stays():
    ballots = {"ann": [0.7, 0.1, 0.2], "bob": [0.1, 0.8, 0.1], "cyd": [0.2, 0.3, 0.5]}
    told = decided(ballots, Dispute((0, 1), ("ann", "bob"), "cyd"), 0)
    assert told == {
        "ann": [pytest.approx(0.8), 0.0, 0.2],
        "bob": [pytest.approx(0.9), 0.0, 0.1],
        "cyd": [0.2, 0.3, 0.5],
    }


def test_a_conversation_without_turns_has_no_question():
    assert without_question(Query("q", ())) is None
