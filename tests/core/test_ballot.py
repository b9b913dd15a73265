"""One round's vote: distinct drafts, who must score which, ties and loops."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.ballot import Ballot
from langchain_specfuse.core.options import Method
from langchain_specfuse.core.values import Draft, Scored, Segment

SURE = (-0.1,)


def ballot(answer="", method=None, **drafts):
    drafts_by_name = {
        n: d if isinstance(d, Draft) else Draft(d, tokens=(1,), logprobs=SURE)
        for n, d in drafts.items()
    }
    return Ballot(method or Method(), drafts_by_name, answer)


def read(**rows):
    """Return every verifier's scores of drafts of one token each."""
    return {judge: [[value] for value in row] for judge, row in rows.items()}


def test_the_same_text_with_and_without_an_end_are_two_candidates():
    vote = ballot(a=Draft(" x", True), b=Draft(" x", False))
    assert len(vote.candidates) == 2
    won = vote.count(read(a=[-0.5, -1.0]), {"a": 0.5, "b": 0.5})
    assert (won.winner, won.segment.ended, won.disputed) == ("a", True, True)


def test_a_member_does_not_score_its_own_draft_if_its_log_probabilities_are_known():
    vote = ballot(a=" x", b=" y", c=Draft(" z", logprobs=None))
    assert [c.text for c in vote.to_score("a")] == [" y", " z"]
    assert [c.text for c in vote.to_score("c")] == [" x", " y", " z"]
    assert [c.text for c in vote.to_score("judge")] == [" x", " y", " z"]


def test_own_and_scored_log_probabilities_are_matched_to_the_right_drafts():
    vote = ballot(a=" x", b=Draft(" y", tokens=(1,), logprobs=(-7.0,)), c=" z")
    assert vote.readings_of("b", Scored(((-1.0,), (-3.0,)))) == [(-1.0,), (-7.0,), (-3.0,)]
    assert vote.readings_of("judge", Scored(((-1.0,), (-2.0,), (-3.0,)))) == [
        (-1.0,),
        (-2.0,),
        (-3.0,),
    ]


def test_a_heavier_verifier_decides():
    scores = {"a": [-0.1, -2.0], "b": [-2.0, -0.1]}
    assert ballot(a=" x", b=" y").count(read(**scores), {"a": 0.8, "b": 0.2}).winner == "a"
    assert ballot(a=" x", b=" y").count(read(**scores), {"a": 0.2, "b": 0.8}).winner == "b"


def test_ties_go_to_the_heavier_then_to_the_earlier_member():
    even = {"a": [-1.0, -1.0], "b": [-1.0, -1.0]}
    assert ballot(a=" x", b=" y").count(read(**even), {"a": 0.4, "b": 0.6}).winner == "b"
    assert ballot(a=" x", b=" y").count(read(**even), {"a": 0.5, "b": 0.5}).winner == "a"


def test_totals_that_differ_only_by_float_rounding_are_a_tie():
    names = "abcdefg"
    row = [-0.1 * k for k in range(7)]
    scores = {name: row[i:] + row[:i] for i, name in enumerate(names)}
    won = ballot(**{n: f" {n}" for n in names}).count(read(**scores), dict.fromkeys(names, 1 / 7))
    assert len({round(total, 12) for total in won.totals.values()}) == 1
    assert won.winner == "a"


def test_the_segment_carries_the_tokens_of_all_its_authors_the_winner_first():
    vote = ballot(
        a=Draft(" x", tokens=(1,), logprobs=SURE),
        b=" y",
        c=Draft(" x", tokens=(2, 3), logprobs=SURE),
    )
    segment = vote.count(read(b=[-0.1, -3.0]), {"a": 0.3, "b": 0.3, "c": 0.4}).segment
    assert list(segment.tokens.items()) == [("c", (2, 3)), ("a", (1,))]


LOOP = "it is so because " * 4


@given(
    st.sampled_from(["", " x", LOOP]),
    st.sampled_from(["", " so", LOOP]),
    st.booleans(),
    st.sampled_from([None, "a", "other"]),
    st.builds(
        Method,
        margin=st.sampled_from([None, 0.0, math.inf]),
        reward=st.sampled_from(["wins", "margins"]),
        loop_guard=st.booleans(),
    ),
)
def test_the_vote_on_one_draft_is_that_on_a_draft_and_its_twin(answer, text, ended, lead, method):
    draft = Draft(text, ended, (1,) if text else (), SURE * (bool(text) + ended))
    one, two = ballot(answer, method, a=draft), ballot(answer, method, a=draft, b=draft)
    lone, twins = (vote.count({}, {"a": 0.5, "b": 0.5}, lead) for vote in (one, two))
    assert one.looped == two.looped == ()
    assert lone.segment == replace(twins.segment, tokens={"a": draft.tokens})
    assert (twins.winner, twins.authors) == ("a", ("a", "b"))
    for field in ("totals", "rewards"):
        assert getattr(lone, field) == {"a": getattr(twins, field)["a"]}
    others = {"winner": "a", "authors": ("a",), "totals": {}, "rewards": {}, "segment": Segment("")}
    assert replace(lone, **others) == replace(twins, **others)


def test_a_loop_loses_to_any_draft_that_goes_on():
    vote = ballot(LOOP, a="it is so because", b=" Rayleigh scattering")
    assert vote.looped == ("a",)
    won = vote.count({}, {"a": 0.9, "b": 0.1})
    assert (won.winner, won.totals, won.rewards) == (
        "b",
        {"a": 0.0, "b": 1.0},
        {"a": 0.0, "b": 1.0},
    )
    assert won.disputed


def test_loops_are_eligible_if_every_draft_loops_or_the_guard_is_off():
    assert ballot(LOOP, a="it is so because").looped == ()
    assert ballot(LOOP, a="it is so because", b="it is so").looped == ()
    unguarded = ballot(
        LOOP, Method(loop_guard=False), a="it is so because", b=" Rayleigh scattering"
    )
    assert (unguarded.looped, len(unguarded.eligible)) == ((), 2)


def test_an_empty_draft_is_eligible_only_where_all_are_empty_or_it_ends_the_answer():
    assert [c.text for c in ballot(a="", b=" y").eligible] == [" y"]
    assert [c.text for c in ballot(a=Draft("", True), b=" y").eligible] == ["", " y"]
    won = ballot(a="", b="").count({}, {"a": 0.5, "b": 0.5})
    assert (won.segment.text, won.disputed) == ("", False)
