"""The option ``drafters``: few members draft while they are confident, all as soon as one is not, loops or fails."""

import math

from langchain_specfuse.core.ballot import Vote
from langchain_specfuse.core.drafters import SHARE_OF_USUAL, DrafterChoice
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import Departure, Draft, Failure, Panelist, Segment

from .play import play, repeater, speakers

ONE = Settings(max_tokens=30, segment_tokens=3, method=Method(drafters=1, min_members=1))


def always(value):
    return lambda round: value


OTHERS = {"a": repeater("x", always(-0.5)), "c": repeater("z", always(-0.6))}


def drafters(played):
    return [set(round.drafts) for round in played.rounds]


def test_the_winner_goes_on_alone_and_nobody_scores():
    played = play({"b": repeater("y", always(-0.1)), **OTHERS}, ONE)
    assert drafters(played) == [{"a", "b", "c"}] + [{"b"}] * 9
    assert [bool(round.scores) for round in played.rounds] == [True] + [False] * 9


def test_in_doubt_the_others_draft_in_the_same_round():
    wavers = repeater("y", lambda number: -3.0 if number == 3 else -0.1)
    played = play({"a": OTHERS["a"], "b": wavers, "c": OTHERS["c"]}, ONE)
    assert [len(round.drafts) for round in played.rounds][:3] == [3, 1, 3]
    third = [set(ask.jobs) for ask in played.asks if ask.round == 3]
    assert third == [{"b"}, {"a", "c"}, {"a", "b", "c"}]
    assert played.rounds[2].winner == "a"
    assert list(played.rounds[2].drafts) == ["a", "b", "c"]


def test_a_lone_drafter_that_fails_is_replaced_in_the_same_round():
    works = repeater("y", always(-0.1))
    breaks = lambda job, number: Failure("error", "fell over") if number == 2 else works(job, number)
    played = play({"b": breaks, **OTHERS}, ONE)
    assert (played.left, played.error) == (["b"], None)
    assert drafters(played)[1] == {"a", "c"}


def test_a_lone_drafter_whose_context_is_full_leaves_the_answer_to_those_with_room():
    works = repeater("y", always(-0.1))
    full = lambda job, number: Failure("overflow", "full") if number >= 2 else works(job, number)
    played = play({"a": OTHERS["a"], "b": full}, ONE)
    assert (played.left, played.rounds[-1].finish, len(played.rounds)) == (["b"], "length", 10)
    both = play({"a": full, "b": full}, ONE)
    assert (both.left, both.error, both.rounds[-1].finish) == ([], None, "length")


def test_all_draft_until_one_has_won():
    played = play(speakers(**{name: f"One two three four five {name} seven eight nine." for name in "abc"}), ONE)
    assert [len(round.drafts) for round in played.rounds] == [3, 3, 1]


def drafts_of(**confidence):
    return {name: Draft(" x", False, (1,), (value,)) for name, value in confidence.items()}


def won(choice, winner, **confidence):
    vote = Vote(winner, (winner,), Segment(" x"), {}, {}, {}, {}, disputed=True)
    return choice.after(drafts_of(**confidence), vote)


def test_a_lone_draft_must_be_nearly_as_confident_as_the_most_confident_member_still_in():
    choice = won(won(DrafterChoice(), "b", a=-0.25, b=-1.0), "b", a=-0.75, b=-1.0)
    panel, least = Panel.of([Panelist("a"), Panelist("b")]), -0.5 + math.log(SHARE_OF_USUAL)
    assert not choice.doubts(panel, drafts_of(b=least + 0.01), "", True)
    assert choice.doubts(panel, drafts_of(b=least - 0.01), "", True)
    alone = panel.without([Departure("a", "error", "fell over", 2)])
    assert not choice.doubts(alone, drafts_of(b=least - 0.01), "", True)
