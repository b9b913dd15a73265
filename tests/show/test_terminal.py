"""Who wrote which piece of what a round shows, also where nobody did."""

from dataclasses import replace

import pytest

from langchain_specfuse.core.values import Draft, Round, Segment
from langchain_specfuse.show.terminal import Paint, pieces, table


def a_round(text, said, forced="", closed=""):
    even = {"a": 1.0}
    return Round(
        1, text, Segment(said), "a", {"a": Draft(said)}, {}, {}, even, even, even, even, forced=forced, closed=closed
    )


@pytest.mark.parametrize(
    ("round", "expected"),
    [
        (a_round("Hello", "Hello"), [("a", "Hello")]),
        (a_round("held back, Hello", "Hello"), [("a", "held back, Hello")]),
        (a_round('{"city": "Rome", "big":', "Rome", '{"city": "", "big":'), None),
        (a_round('{"a": "a', "a", '{"a": "'), [("", '{"a": "'), ("a", "a")]),
        (a_round('Ro"}', "Ro", "", '"}'), [("a", "Ro"), ("", '"}')]),
        (a_round('Rome"}', "Rome", '"', "}"), [("a", "Rome"), ("", '"}')]),
        (a_round("[]", "", "[", "]"), [("", "[]")]),
        (a_round("cut by a stop", "cut by a stop string", "x"), [("a", "cut by a stop")]),
    ],
)
def test_every_piece_has_its_author_and_nothing_is_lost(round, expected):
    told = pieces(round)
    assert "".join(text for _, text in told) == round.text
    assert told == (expected or [("", '{"city": "'), ("a", "Rome"), ("", '", "big":')])


def test_what_nobody_wrote_is_dim_and_a_hand_that_closed_is_named():
    paint = Paint(["a"], on=True)
    assert paint.by("", "x") == "\x1b[2mx\x1b[0m"
    assert "closed by hand: '\"}'" in table([a_round('Ro"}', "Ro", "", '"}')], Paint(["a"], on=False))


def test_who_was_late_is_named_with_its_work():
    late = replace(a_round("Blue", "Blue"), late={"draft": ("b", "c"), "verify": ("b",)})
    told = table([late], Paint(["a", "b", "c"], on=False))
    assert "   late in draft: b, c\n   late in verify: b\n" in told
