"""Who is cast: all when nobody chooses otherwise; else who wins, and all as soon as it is less sure, loops or fails."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.ballot import Vote
from langchain_specfuse.core.casting import FAR, Casting
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import Departure, Draft, Failure, Scored, ScoreJob, Seat, Segment, Settings

from .play import play, speakers
from .test_promises import crowd
from .test_recorded import CASES, SCRIPTS, digest, members, record

ONE = Settings(max_tokens=30, segment_tokens=3, drafters=1)


def sayer(word, sure, likes=-2.0, size=3):
    """Says one word over and over; ``sure(round)`` is how sure it is of it. It ``likes`` what others write so much."""

    def reply(job, number):
        if isinstance(job, ScoreJob):
            return Scored(tuple((likes,) * size for _ in job.candidates))
        text = "".join(f" {word}{number}{k}" for k in range(size))
        return Draft(text, False, tuple(range(size)), (sure(number),) * size)

    return reply


def always(value):
    return lambda _: value


def writers(played):
    return [set(round.drafts) for round in played.rounds]


@pytest.mark.parametrize("case", CASES)
def test_as_many_drafters_as_there_are_members_is_the_default_to_the_last_digit(case):
    one, other = (play(members(case), Settings(max_tokens=60, segment_tokens=4, drafters=n)) for n in (None, 5))
    assert digest(one) == digest(other)


def test_the_recorded_runs_would_notice_who_drafts():
    recorded, cast = record(), record(drafters=1)
    assert sum(recorded[case] != cast[case] for case in recorded) > len(recorded) / 2


def test_who_won_goes_on_alone_and_nobody_is_asked_for_a_score():
    played = play({"a": sayer("x", always(-0.5)), "b": sayer("y", always(-0.1)), "c": sayer("z", always(-0.5))}, ONE)
    assert writers(played) == [{"a", "b", "c"}] + [{"b"}] * 9
    assert [bool(round.scores) for round in played.rounds] == [True] + [False] * 9


def test_in_doubt_all_draft_in_the_same_round_and_nobody_drafts_twice():
    wavers = sayer("y", lambda number: -3.0 if number == 3 else -0.1)
    played = play({"a": sayer("x", always(-0.5)), "b": wavers, "c": sayer("z", always(-0.6))}, ONE)
    assert [len(round.drafts) for round in played.rounds][:3] == [3, 1, 3]
    third = [set(ask.jobs) for ask in played.asks if ask.round == 3]
    assert third == [{"b"}, {"a", "c"}, {"a", "b", "c"}]
    assert played.rounds[2].winner == "a"
    assert list(played.rounds[2].drafts) == ["a", "b", "c"]


def test_a_lone_writer_that_falls_into_a_loop_calls_the_rest():
    def loops(job, number):
        if isinstance(job, ScoreJob):
            return Scored(tuple((-4.0,) * 3 for _ in job.candidates))
        return Draft(" around and around and around", False, (1, 2, 3), (-0.01,) * 3)

    others = {"a": sayer("x", always(-1.0)), "c": sayer("z", always(-1.0))}
    settings = dataclasses.replace(ONE, max_tokens=9)
    assert writers(play({"b": loops, **others}, settings))[1:] == [{"b"}, {"a", "b", "c"}]  # twice is no loop yet
    careless = dataclasses.replace(settings, loop_guard=False)
    assert writers(play({"b": loops, **others}, careless))[1:] == [{"b"}, {"b"}]


def test_a_lone_writer_that_fails_is_replaced_in_the_same_round():
    works = sayer("y", always(-0.1))
    breaks = lambda job, number: Failure("error", "fell over") if number == 2 else works(job, number)
    played = play({"a": sayer("x", always(-0.5)), "b": breaks, "c": sayer("z", always(-0.6))}, ONE)
    assert played.left == ["b"]
    assert writers(played)[1] == {"a", "c"}
    assert played.error is None


def test_a_lone_writer_whose_context_is_full_leaves_the_answer_to_those_who_have_room():
    works = sayer("y", always(-0.1))
    full = lambda job, number: Failure("overflow", "full") if number >= 2 else works(job, number)
    played = play({"a": sayer("x", always(-0.5)), "b": full}, ONE)
    assert played.left == ["b"]
    assert played.rounds[-1].finish == "length"
    assert len(played.rounds) == 10
    both = play({"a": full, "b": full}, ONE)
    assert (both.left, both.error, both.rounds[-1].finish) == ([], None, "length")


def test_who_cannot_tell_how_sure_it_is_never_goes_on_alone():
    def silent(job, number):
        reply = sayer("x", always(-0.1))(job, number)
        return dataclasses.replace(reply, logprobs=None) if isinstance(reply, Draft) else reply

    played = play({"a": silent, "b": silent}, ONE)
    assert writers(played) == [{"a", "b"}] * 10


def test_rounds_of_one_writer_change_no_weight_and_send_nobody_away():
    played = play({n: sayer(n, always(-0.1 * k - 0.1)) for k, n in enumerate("abcde")}, Settings(60, drafters=1))
    alone = [round for round in played.rounds if len(round.drafts) == 1]
    assert alone
    assert all(round.weights == round.weights_before and not round.left for round in alone)


def test_twins_cast_one_answer_like_one_with_equal_weights():
    played = play(speakers(**dict.fromkeys("abc", SCRIPTS["blue"])), ONE)
    assert played.text == SCRIPTS["blue"]
    assert all(len(set(round.weights.values())) == 1 for round in played.rounds)
    assert played.jobs(ScoreJob) == []


def test_nobody_goes_on_alone_before_there_was_something_to_win():
    played = play(speakers(**{name: f"One two three four five {name} seven eight nine." for name in "abc"}), ONE)
    assert [len(round.drafts) for round in played.rounds] == [3, 3, 1]


@given(st.integers(1, 4), st.integers(0, 10**6), st.sampled_from([0.0, 0.05]))
def test_at_least_so_many_draft_who_are_still_in(drafters, seed, rate):
    members, seats = crowd(["both"] * 3, seed, rate)
    played = play(members, Settings(max_tokens=60, segment_tokens=3, drafters=drafters), seats)
    for round in played.rounds:
        still_in = set(round.weights_before) | set(round.drafts)
        assert len(round.drafts) >= min(drafters, len(still_in)) or round.left


def drafts_of(**sure):
    return {name: Draft(" x", False, (1,), (value,)) for name, value in sure.items()}


def won(casting, winner, **sure):
    vote = Vote(winner, (winner,), Segment(" x"), {}, {}, {}, {}, {}, disputed=True)
    return casting.after(drafts_of(**sure), vote)


def test_a_lone_draft_must_be_nearly_as_sure_as_the_surest_still_in_usually_is():
    casting = won(won(Casting(), "b", a=-0.25, b=-1.0), "b", a=-0.75, b=-1.0)
    panel, bar = Panel.of([Seat("a"), Seat("b")]), -0.5 + math.log(FAR)
    assert not casting.doubts(panel, drafts_of(b=bar + 0.01), "", True)
    assert casting.doubts(panel, drafts_of(b=bar - 0.01), "", True)
    alone = panel.without([Departure("a", "error", "fell over", 2)])
    assert not casting.doubts(alone, drafts_of(b=bar - 0.01), "", True)


def test_a_draft_that_says_nothing_is_doubted_and_one_that_ends_the_answer_is_none_such():
    casting, panel = won(Casting(), "a", a=-1.0, b=-1.0), Panel.of([Seat("a"), Seat("b")])
    assert casting.doubts(panel, {"a": Draft("", False, (), (-0.1,))}, "", True)
    assert not casting.doubts(panel, {"a": Draft("", True, (), (-0.1,))}, "", True)
