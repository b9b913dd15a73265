"""Whole runs of the loop as readable tables, and who is asked for what."""

import math
from itertools import pairwise

import pytest

from langchain_specfuse.core.referee import Unbound
from langchain_specfuse.core.values import (
    PRESETS,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Round,
    Sampling,
    Scored,
    ScoreJob,
    Seat,
    Segment,
    Settings,
)
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .play import QUERY, asked, play, speakers, table

BLUE = "The sky is blue because of Rayleigh scattering."
GREY = "The sky is grey because of heavy rain clouds."


def test_two_that_agree_outvote_one():
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3))
    assert table(played) == (
        "1 a: 'The sky is' | a=1.00 b=1.00 c=1.00 | a=0.33 b=0.33 c=0.33\n"
        "2 b: ' blue because of' | a=0.43 b=0.57 c=0.57 | a=0.29 b=0.36 c=0.36\n"
        "3 b: ' Rayleigh scattering.' | a=0.34 b=0.66 c=0.66 | a=0.24 b=0.38 c=0.38 | stop"
    )


def test_a_draft_that_third_parties_prefer_earns_weight():
    far, light, looks = "because it is far away.", "because light scatters.", "since light scatters."
    played = play(
        speakers(a=f"The sky is blue {far}", b=f"The sky is blue {light}", c=f"The sky looks blue {looks}"),
        Settings(segment_tokens=2, voice="equal", reward="wins", learning_rate=1.0),
    )
    assert table(played) == (
        "1 a: 'The sky' | a=1.00 b=1.00 c=1.00 | a=0.33 b=0.33 c=0.33\n"
        "2 a: ' is blue' | a=0.60 b=0.60 c=0.40 | a=0.33 b=0.33 c=0.33\n"
        "3 b: ' because light' | a=0.33 b=0.35 c=0.33 | a=0.30 b=0.39 c=0.30\n"
        "4 b: ' scatters.' | a=0.32 b=0.68 c=0.68 | a=0.30 b=0.39 c=0.30 | stop"
    )


def test_the_winner_goes_back_to_everybody():
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3))
    third = [job for ask in played.asks if ask.round == 3 for job in ask.jobs.values() if isinstance(job, DraftJob)]
    assert {"".join(segment.text for segment in job.answer) for job in third} == {"The sky is blue because of"}


def test_one_member_writes_its_own_answer_and_never_scores():
    for size in (1, 3, 100):
        played = play(speakers(a=BLUE), Settings(segment_tokens=size))
        assert played.text == BLUE
        assert played.jobs(ScoreJob) == []
        assert played.rounds[-1].finish == "stop"


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_twins_answer_like_one_with_equal_weights_and_without_scoring(preset, n):
    played = play(speakers(**{f"m{i}": BLUE for i in range(n)}), Settings(segment_tokens=2, **PRESETS[preset]))
    assert played.text == BLUE
    assert played.jobs(ScoreJob) == []
    assert played.left == []
    assert all(len(set(round.weights.values())) == 1 for round in played.rounds)
    assert all(round.scores == {} and round.margin == 1.0 for round in played.rounds)


def test_coinciding_drafts_are_scored_once():
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3))
    scoring = next(ask for ask in played.asks if ask.round == 2 and isinstance(ask.jobs["a"], ScoreJob))
    assert {name: [c.text for c in job.candidates] for name, job in scoring.jobs.items()} == {
        "a": [" blue because of"],
        "b": [" grey because of"],
        "c": [" grey because of"],
    }


def test_verify_only_members_vote_never_draft_and_are_asked_only_when_there_is_a_choice():
    seats = [Seat("a"), Seat("b"), Seat("judge", drafts=False)]
    played = play(speakers(a=GREY, b=BLUE, judge=BLUE), Settings(segment_tokens=3), seats)
    assert played.text == BLUE
    assert played.jobs(DraftJob).count("judge") == 0
    first, *others = played.rounds
    assert first.scores == {}
    assert all("judge" in round.votes and "judge" not in round.totals for round in others)
    assert play(speakers(a=BLUE, judge=GREY), None, [Seat("a"), Seat("judge", drafts=False)]).jobs(ScoreJob) == []


def test_draft_only_members_votes_are_left_out_never_guessed():
    seats = [Seat("a"), Seat("b", scores=False), Seat("c", scores=False)]
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3, feedback="off"), seats)
    assert set(played.jobs(ScoreJob)) == {"a"}
    assert all(set(round.votes) <= {"a"} for round in played.rounds)
    assert played.text == GREY  # the only voter prefers its own


def test_when_nobody_can_score_the_answer_is_still_written():
    seats = [Seat("a", scores=False), Seat("b", scores=False)]
    played = play(speakers(a=GREY, b=BLUE), Settings(segment_tokens=3), seats, prior={"b": 2})
    assert played.text == BLUE
    assert played.jobs(ScoreJob) == []
    assert played.left == []


def test_weights_of_a_round_are_those_before_its_update():
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=1))
    for one, two in pairwise(played.rounds):
        assert two.weights_before == one.weights
    for round in played.rounds:
        for name, total in round.totals.items():
            if round.votes:
                by_hand = math.fsum(round.weights_before[judge] * row[name] for judge, row in round.votes.items())
                assert total == pytest.approx(by_hand)
    assert any(round.weights != round.weights_before for round in played.rounds)


def test_feedback_off_keeps_the_weights():
    played = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=1, feedback="off", exit="never"))
    assert {tuple(round.weights.values()) for round in played.rounds} == {(1 / 3, 1 / 3, 1 / 3)}


@pytest.mark.parametrize(("kind", "steps"), [("published", [1, 1 / 2, 1 / 3]), ("anytime", [1.665, 1.177, 0.961])])
def test_learning_rates_follow_their_schedule(kind, steps):
    def talk(name):
        def reply(job, number):
            if isinstance(job, ScoreJob):
                return Scored(tuple((-1.0 if "a" in c.text else -2.0,) for c in job.candidates))
            return Draft(f" {name}{number}", False, (1,), (-1.0 if name == "a" else -2.0,))

        return reply

    played = play({n: talk(n) for n in "ab"}, Settings(feedback=kind, learning_rate=0.7071, exit="never", max_rounds=3))
    for round, step in zip(played.rounds, steps, strict=True):
        gain = math.log(round.weights["a"] / round.weights["b"])
        gain -= math.log(round.weights_before["a"] / round.weights_before["b"])
        eta = gain / (round.rewards["a"] - round.rewards["b"])
        assert eta == pytest.approx(step * (0.7071 if kind == "published" else 1.0), rel=1e-3)


def test_one_member_that_is_clearly_worse_leaves_and_is_not_asked_again():
    words = [f"w{i}" for i in range(40)]
    good = " ".join(words)
    played = play(
        speakers(a=good, b=" ".join(w if i % 3 else f"b{i}" for i, w in enumerate(words)), c=good, z="no " * 40),
        Settings(segment_tokens=2),
    )
    gone = next(d for round in played.rounds for d in round.left)
    assert (gone.member, gone.kind) == ("z", "exit")
    assert 3 <= gone.round <= 6
    assert "z" not in {name for ask in played.asks if ask.round > gone.round for name in ask.jobs}
    assert "keep-probability" in gone.reason


@pytest.mark.parametrize("when", ["draft", "verify"])
@pytest.mark.parametrize("kind", ["error", "timeout", "nan", "overflow"])
def test_a_member_that_fails_leaves_with_its_reason_and_the_others_finish(when, kind):
    talkers = speakers(a=GREY, b=BLUE, c=BLUE)
    fine, cause = talkers["a"], RuntimeError("burnt out")

    def failing(job, number):
        due = isinstance(job, DraftJob) if when == "draft" else isinstance(job, ScoreJob)
        return Failure(kind, "burnt out", cause) if due and number == 2 else fine(job, number)

    played = play({**talkers, "a": failing}, Settings(segment_tokens=3))
    assert played.text == BLUE
    (gone,) = played.rounds[1].left
    assert (gone.member, gone.kind, gone.reason, gone.round, gone.cause) == ("a", kind, "burnt out", 2, cause)
    assert played.rounds[1].failures == (Failure(kind, "burnt out"),)
    assert "a" not in {name for ask in played.asks if ask.round > 2 for name in ask.jobs}
    assert math.fsum(played.rounds[1].weights.values()) == pytest.approx(1)


NONSENSE = {
    "NaN": ("nan", Scored(((-1.0, math.nan),))),
    "plus infinity": ("nan", Scored(((math.inf,),))),
    "a probability, not its logarithm": ("nan", Scored(((0.7,),))),
    "too few rows": ("error", Scored(())),
    "too many rows": ("error", Scored(((-1.0,), (-1.0,), (-1.0,)))),
    "a draft": ("error", Draft(" x")),
    "nothing": ("error", None),
    "text": ("error", Scored((("x",),))),
    "None for a number": ("error", Scored(((None, -1.0),))),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_a_member_that_scores_nonsense_leaves_and_the_others_finish(name):
    kind, reply = NONSENSE[name]
    talkers = speakers(a=GREY, b=BLUE, c=BLUE)
    fine = talkers["a"]
    talkers["a"] = lambda job, n: fine(job, n) if isinstance(job, DraftJob) else reply
    played = play(talkers, Settings(segment_tokens=3))
    assert played.text == BLUE
    assert [(d.member, d.kind) for round in played.rounds for d in round.left] == [("a", kind)]


@pytest.mark.parametrize("reply", [None, Scored(()), Draft("\ud83d"), Draft(" x", logprobs=(math.nan,)), Draft(None)])
def test_a_member_that_drafts_nonsense_leaves_and_the_others_finish(reply):
    played = play({**speakers(b=BLUE, c=BLUE), "a": lambda job, n: reply}, Settings(segment_tokens=3))
    assert (played.text, played.left) == (BLUE, ["a"])


@pytest.mark.parametrize("value", [-math.inf, -1e300, -0.0, 5e-4])
def test_odd_but_honest_numbers_are_no_reason_to_leave(value):
    talkers = speakers(a=GREY, b=BLUE)
    fine = talkers["a"]
    talkers["a"] = lambda job, n: (
        fine(job, n) if isinstance(job, DraftJob) else Scored(tuple((value,) for _ in job.candidates))
    )
    played = play(talkers, Settings(segment_tokens=3))
    assert (played.error, played.left) == (None, [])
    assert all(math.isfinite(vote) for round in played.rounds for row in round.votes.values() for vote in row.values())


def test_when_nobody_is_left_the_error_has_the_agreed_text_and_every_failure():
    def fails_in(number, member, cause):
        fine = asked(member)
        return lambda job, n: Failure("error", f"gone in {n}", cause) if n == number else fine(job, n)

    one, two = RuntimeError("one"), RuntimeError("two")
    played = play(
        {"a": fails_in(2, ScriptedMember(BLUE), one), "b": fails_in(3, ScriptedMember(BLUE), two)},
        Settings(segment_tokens=2),
    )
    error = played.error
    assert isinstance(error, EnsembleError)
    assert error.text == played.text == "The sky is blue"
    assert [(f.member, f.round, f.kind, f.__cause__) for f in error.failures] == [
        ("a", 2, "error", one),
        ("b", 3, "error", two),
    ]
    assert "a (error): gone in 2; b (error): gone in 3" in str(error)


def test_a_verify_only_member_alone_cannot_go_on():
    seats = [Seat("a"), Seat("judge", drafts=False)]
    played = play({**speakers(judge=BLUE), "a": lambda job, n: Failure("error", "no")}, None, seats)
    assert isinstance(played.error, EnsembleError)
    assert [failure.member for failure in played.error.failures] == ["a"]


def test_a_job_carries_all_that_is_needed_to_redo_it():
    sampling = Sampling(temperature=0.5, seed=7)
    played = play(speakers(a=GREY, b=BLUE), Settings(segment_tokens=2, max_tokens=20, sampling=sampling, stop=("zzz",)))
    drafts = [(ask.round, job) for ask in played.asks for job in ask.jobs.values() if isinstance(job, DraftJob)]
    scores = [job for ask in played.asks for job in ask.jobs.values() if isinstance(job, ScoreJob)]
    assert all(job.query == QUERY for job in [*scores, *(job for _, job in drafts)])
    for number, job in drafts:
        assert job.sampling == sampling
        assert (job.segment_tokens, job.stop) == (2, ("zzz",))
        assert len(job.answer) == number - 1
        spent = sum(len(next(iter(segment.tokens.values()))) for segment in job.answer)
        assert job.max_tokens == 20 - spent


@pytest.mark.parametrize("budget", [1, 2, 5, 7])
def test_the_budget_is_kept(budget):
    played = play(speakers(a=BLUE, b=GREY), Settings(segment_tokens=3, max_tokens=budget))
    assert len(played.text.split()) == budget
    assert played.rounds[-1].finish == "length"


def test_max_rounds_is_kept():
    played = play(speakers(a=BLUE, b=GREY), Settings(segment_tokens=1, max_rounds=3))
    assert len(played.rounds) == 3
    assert [round.finish for round in played.rounds] == [None, None, "length"]


def test_a_stop_string_ends_the_answer_across_a_seam():
    played = play(speakers(a=BLUE, b=BLUE), Settings(segment_tokens=1, stop=("blue because",)))
    assert played.text == "The sky is "
    assert played.rounds[-1].finish == "stop_string"


def test_members_that_never_say_anything_do_not_keep_the_answer_open():
    played = play({"a": lambda job, n: Draft("")}, Settings(max_tokens=6))
    assert (played.text, len(played.rounds), played.rounds[-1].finish) == ("", 1, "length")


def test_effort_and_time_are_told_by_phase():
    played = play(speakers(a=GREY, b=BLUE), Settings(segment_tokens=3))
    assert set(played.rounds[0].efforts) == set(played.rounds[0].seconds) == {"draft"}
    second = played.rounds[1]
    assert set(second.efforts) == set(second.seconds) == {"draft", "verify"}
    assert second.efforts["draft"]["a"] == Effort(read=3, reused=6, prompt=3)


def test_a_round_is_plain_json():
    import json

    for round in play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3)).rounds:
        assert json.loads(json.dumps(round.as_dict())) == round.as_dict()


def test_the_margin_is_the_lead_over_the_best_other_draft():
    second = play(speakers(a=GREY, b=BLUE, c=BLUE), Settings(segment_tokens=3)).rounds[1]
    assert second.margin == pytest.approx(second.totals["b"] - second.totals["a"])


def test_the_margin_knows_an_ended_draft_from_one_that_goes_on():
    def talk(ended, sure):
        return lambda job, n: (
            Draft(" x", ended or n > 1, (1,), (-sure,) * (1 + (ended or n > 1)))
            if isinstance(job, DraftJob)
            else Scored(tuple((-1.0,) * (1 + c.ended) for c in job.candidates))
        )

    first = play({"a": talk(True, 0.1), "b": talk(False, 2.0)}, Settings(exit="never")).rounds[0]
    assert 0 < first.margin < 1


def told(drafts, totals, winner, authors=()):
    zero = dict.fromkeys(drafts, 0.0)
    made = {name: Draft(text) for name, text in drafts.items()}
    segment = Segment(drafts[winner])
    return Round(1, segment.text, segment, winner, made, {}, {}, totals, zero, zero, zero, authors=authors)


@pytest.mark.parametrize(
    ("drafts", "totals", "authors", "dissent", "runner_up"),
    [
        ({"a": "x", "b": "x"}, {"a": 0.5, "b": 0.5}, (), 0.0, None),
        ({"a": "x", "b": "y"}, {"a": 0.5, "b": 0.5}, (), 1.0, "b"),
        ({"a": "x", "b": "y"}, {"a": 1.0, "b": 0.0}, (), 0.0, "b"),
        ({"a": "x", "b": "y", "c": "x"}, {"a": 0.5, "b": 0.5, "c": 0.5}, (), 1.0, "b"),
        ({"a": "x", "b": "y", "c": "z"}, {"a": 0.6, "b": 0.1, "c": 0.3}, (), 0.817, "c"),
        ({"a": "1", "b": "1.0"}, {"a": 0.5, "b": 0.5}, ("a", "b"), 0.0, None),
    ],
)
def test_dissent_and_the_runner_up_are_told_by_distinct_drafts(drafts, totals, authors, dissent, runner_up):
    round = told(drafts, totals, "a", authors)
    assert round.dissent == pytest.approx(dissent, abs=1e-3)
    assert round.runner_up == runner_up
    assert {"dissent", "runner_up"} <= round.as_dict().keys()


def test_who_only_votes_is_told_that_it_need_not_think():
    seats = [Seat("a"), Seat("b"), Seat("c", drafts=False)]
    played = play(speakers(a=BLUE, b=GREY, c=BLUE), seats=seats)
    asked = {n: job.thinks for ask in played.asks for n, job in ask.jobs.items() if isinstance(job, ScoreJob)}
    assert asked == {"a": True, "b": True, "c": False}


def test_a_prompt_that_is_too_long_for_all_is_an_error_also_where_the_answer_begins_by_force():
    """What a constraint forces is no answer of anybody's."""

    class Forces(Unbound):
        def forced(self, answer):
            return "" if answer else '{"a": '

    full = Failure("overflow", "too long")
    played = play({"a": lambda job, number: full, "b": lambda job, number: full}, referee=Forces())
    assert isinstance(played.error, EnsembleError) and not played.rounds
