"""The agreed text: conserved byte for byte, cut at stop strings, within its budget."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import Answer, first_stop, held_back
from langchain_specfuse.core.values import Segment


def told(pieces, stop=(), budget=1000, last=False, ended=True):
    """(answer, what was released piece by piece), until it finishes."""
    answer, released = Answer(stop=tuple(stop), budget=budget), []
    for k, piece in enumerate(pieces):
        final = k == len(pieces) - 1
        answer = answer.plus(Segment(piece, ended and final, {"a": (1,)}), last=last and final)
        released.append(answer.released)
        if answer.finish:
            break
    return answer, released


texts = st.lists(st.text(alphabet=st.sampled_from("ab \nE天😀\u0301"), max_size=5), min_size=1, max_size=12)
stops = st.lists(st.text(alphabet=st.sampled_from("ab \nE天"), min_size=1, max_size=4), max_size=3)


@given(texts)
def test_without_stop_strings_the_pieces_are_the_answer(pieces):
    answer, released = told(pieces)
    assert released == pieces
    assert answer.text == "".join(pieces)
    assert answer.finish == "stop"


@given(texts, stops)
def test_a_stop_string_never_shows_and_everything_before_it_does(pieces, stop):
    answer, released = told(pieces, stop)
    whole, shown = "".join(pieces), "".join(released)
    assert not any(word in shown for word in stop)
    assert shown == answer.text
    assert whole.startswith(shown)
    if answer.finish == "stop":
        assert shown == whole
    else:
        assert answer.finish == "stop_string"
        assert any(whole[len(shown) :].startswith(word) for word in stop)


@given(texts, stops)
def test_nothing_that_was_released_is_ever_taken_back(pieces, stop):
    answer = Answer(stop=tuple(stop), budget=1000)
    shown = ""
    for piece in pieces:
        answer = answer.plus(Segment(piece, tokens={"a": (1,)}))
        shown += answer.released
        assert answer.text.startswith(shown)
        if answer.finish:
            break
    assert len(answer.text) - len(shown) <= max((len(word) - 1 for word in stop), default=0)


@pytest.mark.parametrize(
    ("pieces", "stop", "released", "finish"),
    [
        (["one E", "ND two"], ["END"], ["one ", ""], "stop_string"),
        (["one E", "N", "D two"], ["END"], ["one ", "", ""], "stop_string"),
        (["one E", "NOUGH"], ["END"], ["one ", "ENOUGH"], "stop"),
        (["one E", "EN", "D."], ["END"], ["one ", "E", ""], "stop_string"),
        (["\n", "\n", "\n"], ["\n\n"], ["", ""], "stop_string"),
        (["a END b END"], ["END"], ["a "], "stop_string"),
        (["END"], ["END"], [""], "stop_string"),
        (["xaab", "c"], ["aabc", "ab"], ["xa"], "stop_string"),
        (["a", "b"], [""], ["a", "b"], "stop"),
    ],
)
def test_stop_strings_across_seams(pieces, stop, released, finish):
    answer, got = told(pieces, stop)
    assert (got, answer.finish) == (released, finish)


@pytest.mark.parametrize("way_out", ["ended", "budget", "last round"])
def test_a_held_back_beginning_is_released_when_the_answer_ends_without_the_stop_string(way_out):
    budget = 2 if way_out == "budget" else 100
    answer, released = told(["one ", "E"], ["END"], budget, last=way_out == "last round", ended=way_out == "ended")
    assert released == ["one ", "E"]
    assert answer.finish == ("stop" if way_out == "ended" else "length")


def test_the_budget_counts_the_tokens_of_whoever_wrote_the_segment():
    answer = Answer(stop=(), budget=10)
    answer = answer.plus(Segment("four", tokens={"winner": (1, 2, 3, 4), "other": (1,)}))
    assert answer.tokens_left == 6
    answer = answer.plus(Segment("six", tokens={"other": (1,) * 6}))
    assert (answer.tokens_left, answer.finish) == (0, "length")


def test_a_segment_without_tokens_costs_one_so_that_every_answer_ends():
    answer = Answer(stop=(), budget=3)
    for _ in range(3):
        answer = answer.plus(Segment("x"))
    assert answer.finish == "length"


def test_ending_on_the_last_token_of_the_budget_is_an_ending():
    answer, _ = told(["end"], budget=1)
    assert answer.finish == "stop"


def test_an_answer_never_changes_only_the_next_one_is_made():
    empty = Answer(stop=(), budget=9)
    empty.plus(Segment("x"))
    assert (empty.text, empty.segments, empty.tokens_left) == ("", (), 9)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_held_back_is_the_longest_beginning_of_a_stop_string(text, stop):
    naive = [n for n in range(len(text) + 1) for w in stop if n < len(w) and n and text[-n:] == w[:n]]
    assert held_back(text, stop) == max(naive, default=0)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(0, 4))
def test_first_stop_is_the_earliest(text, stop, start):
    naive = [at for at in range(start, len(text)) if any(text.startswith(word, at) for word in stop)]
    assert first_stop(text, stop, start) == (naive[0] if naive else None)
