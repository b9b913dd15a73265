"""One round's vote: distinct drafts, who must score what, ties, loops."""

import math

import pytest

from langchain_specfuse.core.ballot import Ballot
from langchain_specfuse.core.values import Draft, Scored, Settings

SURE = (-0.1,)


def ballot(answer="", settings=None, **drafts):
    made = {n: d if isinstance(d, Draft) else Draft(d, tokens=(1,), logprobs=SURE) for n, d in drafts.items()}
    return Ballot(settings or Settings(), made, answer)


def counted(vote, scores, **weights):
    return vote.counted(scores, weights)


def test_drafts_that_coincide_are_one_candidate():
    vote = ballot(a=" x", b=" y", c=" x")
    assert [(c.text, c.authors) for c in vote.candidates] == [(" x", ("a", "c")), (" y", ("b",))]


def test_the_same_text_with_and_without_an_end_are_two_candidates():
    vote = ballot(a=Draft(" x", True), b=Draft(" x", False))
    assert len(vote.candidates) == 2
    won = counted(vote, {"a": [-0.5, -1.0]}, a=0.5, b=0.5)
    assert (won.winner, won.segment.ended, won.disputed) == ("a", True, True)


def test_nobody_is_asked_about_a_draft_whose_numbers_came_with_it():
    vote = ballot(a=" x", b=" y", c=Draft(" z", logprobs=None))
    assert [c.text for c in vote.unknown_to("a")] == [" y", " z"]
    assert [c.text for c in vote.unknown_to("c")] == [" x", " y", " z"]
    assert [c.text for c in vote.unknown_to("judge")] == [" x", " y", " z"]


def test_own_numbers_and_replies_meet_at_the_right_drafts():
    vote = ballot(a=" x", b=Draft(" y", tokens=(1,), logprobs=(-7.0,)), c=" z")
    assert vote.scores_of("b", Scored(((-1.0,), (-3.0,)))) == [-1.0, -7.0, -3.0]
    assert vote.scores_of("judge", Scored(((-1.0,), (-2.0,), (-3.0,)))) == [-1.0, -2.0, -3.0]


def test_the_highest_total_wins():
    won = counted(ballot(a=" x", b=" y"), {"a": [-1.0, -0.2], "b": [-1.0, -0.5]}, a=0.5, b=0.5)
    assert won.winner == "b"
    assert won.segment.text == " y"
    assert math.fsum(won.totals.values()) == pytest.approx(1)


def test_a_heavier_verifier_decides():
    scores = {"a": [-0.1, -2.0], "b": [-2.0, -0.1]}
    assert counted(ballot(a=" x", b=" y"), scores, a=0.8, b=0.2).winner == "a"
    assert counted(ballot(a=" x", b=" y"), scores, a=0.2, b=0.8).winner == "b"


def test_ties_go_to_the_heavier_then_to_the_earlier_member():
    even = {"a": [-1.0, -1.0], "b": [-1.0, -1.0]}
    assert counted(ballot(a=" x", b=" y"), even, a=0.4, b=0.6).winner == "b"
    assert counted(ballot(a=" x", b=" y"), even, a=0.5, b=0.5).winner == "a"


def test_what_float_rounding_tells_apart_is_still_a_tie():
    names = "abcdefg"
    votes = {n: [-0.1 * k for k in range(7)][i:] + [-0.1 * k for k in range(7)][:i] for i, n in enumerate(names)}
    won = counted(ballot(**{n: f" {n}" for n in names}), votes, **dict.fromkeys(names, 1 / 7))
    assert len({round(total, 12) for total in won.totals.values()}) == 1
    assert won.winner == "a"


def test_without_any_vote_the_heaviest_author_is_followed():
    won = counted(ballot(a=" x", b=" y"), {}, a=0.3, b=0.7)
    assert (won.winner, won.scores) == ("b", {})
    assert won.totals == {"a": 0.5, "b": 0.5}


def test_the_segment_carries_every_authors_own_tokens_the_winners_first():
    vote = ballot(a=Draft(" x", tokens=(1,), logprobs=SURE), b=" y", c=Draft(" x", tokens=(2, 3), logprobs=SURE))
    segment = counted(vote, {"b": [-0.1, -3.0]}, a=0.3, b=0.3, c=0.4).segment
    assert list(segment.tokens.items()) == [("c", (2, 3)), ("a", (1,))]


def test_a_missing_verifiers_weight_is_shared_among_those_that_vote():
    won = counted(ballot(a=" x", b=" y"), {"a": [-1.0, -1.0]}, a=0.02, b=0.98)
    assert math.fsum(won.totals.values()) == pytest.approx(1)


LOOP = "it is so because " * 4


def test_a_loop_waits_while_another_draft_goes_on():
    vote = ballot(LOOP, a="it is so because", b=" Rayleigh scattering")
    assert vote.looped == ("a",)
    won = counted(vote, {}, a=0.9, b=0.1)
    assert (won.winner, won.totals, won.rewards) == ("b", {"a": 0.0, "b": 1.0}, {"a": 0.0, "b": 1.0})
    assert won.disputed


def test_when_all_loop_they_may():
    vote = ballot(LOOP, a="it is so because", b="it is so")
    assert vote.looped == ()
    assert len(vote.eligible) == 2


def test_one_member_alone_is_never_touched():
    vote = ballot(LOOP, a="it is so because")
    assert (vote.looped, len(vote.eligible)) == ((), 1)


def test_the_loop_guard_can_be_switched_off():
    vote = ballot(LOOP, Settings(loop_guard=False), a="it is so because", b=" Rayleigh scattering")
    assert (vote.looped, len(vote.eligible)) == ((), 2)


def test_a_draft_that_says_nothing_is_chosen_only_when_nobody_says_anything():
    assert [c.text for c in ballot(a="", b=" y").eligible] == [" y"]
    assert [c.text for c in ballot(a=Draft("", True), b=" y").eligible] == ["", " y"]
    won = counted(ballot(a="", b=""), {}, a=0.5, b=0.5)
    assert (won.segment.text, won.disputed) == ("", False)
