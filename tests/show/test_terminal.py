"""The table of a run, and the legend."""

from __future__ import annotations

from dataclasses import replace

from langchain_specfuse.core.round import Departure, Rejection, Round
from langchain_specfuse.core.values import Draft, Segment
from langchain_specfuse.errors import MemberError, advised
from langchain_specfuse.show.terminal import Paint, legend, table, with_refused


def a_round(text, segment, forced=""):
    even = {"a": 1.0}
    return Round(
        1,
        text,
        Segment(segment),
        "a",
        {"a": Draft(segment)},
        {},
        {},
        even,
        even,
        even,
        even,
        forced=forced,
    )


def test_the_table_names_what_happened_in_a_round():
    cause = advised(MemberError("no connection"), "start the server")
    gone = Departure("c", "error", "no connection", 1, cause)
    item = replace(a_round("Blue", "Blue"), looped=("b",), left=(gone,), finish="length")
    item = replace(item, lead="a", evidence={"b": -0.5})
    lines = table([item], Paint(["a", "b", "c"], on=False)).splitlines()
    assert [line.strip() for line in lines[2:6]] == [
        "loops, not eligible: b",
        "a was unsure; evidence for others: b -0.50",
        "c left (error): no connection",
        "-> start the server",
    ]
    assert lines[-1].startswith("1 round (a 1), 1 token in 0.0 s") and lines[-1].endswith(
        "the budget was used up"
    )
    assert Paint(["a"], on=True).by("", "x") == "\x1b[2mx\x1b[0m", "forced text is dim"


def test_the_table_has_the_columns_of_a_vote_only_if_there_was_one():
    lead = a_round("Blue", "Blue")
    head = table([lead], Paint(["a", "b"], on=False)).splitlines()[0]
    assert head.split() == ["#", "author", "text", "seconds"]
    vote = replace(lead, drafts={**lead.drafts, "b": Draft("Red")})
    head = table([lead, vote], Paint(["a", "b"], on=False)).splitlines()[0]
    assert head.split() == ["#", "author", "segment", "total", "margin", "weights", "seconds"]


def test_the_table_strikes_out_what_checks_refused():
    guarantee = Rejection("b", " We\nguarantee it", "no_promises", "promises something")
    cut = Rejection("a", " We hope to guarantee", "no_promises", "promises something", kept=8)
    shown = Rejection("a", " LOUD", "lowercase", "has 'L'", is_shown=True)
    item = replace(a_round(" We hope", " We hope"), rejected=(guarantee, cut, shown))
    item = replace(item, withdrawn=" for", finish="check")
    lines = table([item], Paint(["a", "b"], on=False)).splitlines()
    assert [line.strip() for line in lines[2:6]] == [
        "✗ b: ' We\\nguarantee it' (no_promises: promises something)",
        "✗ a, after ' We hope': ' to guarantee' (no_promises: promises something)",
        "✗ a: ' LOUD' (lowercase: has 'L'; shown all the same)",
        "withdrawn: ' for'",
    ]
    assert lines[-1].endswith("a check refused the rest; checks refused 3 drafts")
    struck = table([item], Paint(["a", "b"], on=True))
    assert "\x1b[9m' to guarantee'\x1b[0m" in struck and "\x1b[9m' for'\x1b[0m" in struck


def test_refused_text_is_struck_out_where_it_would_have_stood():
    def streamed(text, *rejected):
        item = replace(a_round(text, text), rejected=rejected)
        coded = with_refused(item, text, Paint(["a"], on=True))
        assert with_refused(item, text, Paint(["a"], on=False)) == text
        return coded.replace("\x1b[2;9;31m", "<").replace("\x1b[0m", ">")

    whole = Rejection("a", "We guarantee it.", "no_promises", "promises something")
    assert streamed("We hope", whole) == "<We guarantee it.> We hope"
    cut = Rejection("a", " to guarantee it", "no_promises", "promises something", kept=3)
    assert streamed(" to", cut) == " to <guarantee it>"
    held = replace(cut, text=" it", kept=0, held_back=" guarantee")
    assert streamed(" hope", held) == " <guarantee it> hope"
    assert streamed(" hope", replace(held, is_shown=True)) == " hope"
    assert streamed("", replace(held, text=" \x1b[2J")) == " <guarantee ␛[2J>"


def test_text_of_a_rejection_cannot_control_the_terminal():
    evil = Rejection("b\x1b[2J", "\x1b[2J", "x\x1b[2J", "why\x1b[2J\nerror: no")
    lines = table([replace(a_round("", ""), rejected=(evil,))], Paint(["a"], on=False))
    assert "\x1b" not in lines and "\nerror" not in lines


def test_the_legend_has_squares_only_where_their_colours_tell_members_apart():
    assert legend(Paint(["a", "b"], on=False)) == "a  b"
    assert legend(Paint(["a"], on=True)) == "\x1b[36m■ a\x1b[0m"
