"""The text of an answer is parted into words and calls, wherever the seams are."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.utils.json import parse_partial_json

from langchain_specfuse._calls import BEYOND, CLOSED, Parted, Splitter
from langchain_specfuse.core.values import CallFormat

FORMAT = CallFormat()
OTHER = CallFormat("[CALLS]", "[/CALLS]", "", "function", "parameters")


def written(name: str, arguments: Any, format: CallFormat = FORMAT) -> str:
    body = {format.name_key: name, format.arguments_key: arguments}
    return format.begin + json.dumps(body, ensure_ascii=False) + format.end


def fed(splitter: Splitter, text: str, cuts: list[int]) -> list[Parted]:
    places = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    return [splitter.feed(piece, last=place == len(pieces) - 1) for place, piece in enumerate(pieces)]


def joined(parts: list[Parted]) -> tuple[str, list[tuple[str, str]]]:
    calls: dict[int, list[Any]] = {}
    for piece in (piece for part in parts for piece in part.pieces):
        if piece.name is not None:
            assert piece.index not in calls and piece.id
            calls[piece.index] = [piece.name, ""]
        calls[piece.index][1] += piece.arguments
    assert list(calls) == list(range(len(calls)))
    return "".join(part.said for part in parts), [(name, text) for name, text in calls.values()]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.text(st.sampled_from('ab"\\{}[]<>/\n天'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(st.sampled_from('ab"}{'), max_size=3), VALUES, max_size=3)
NAMES = st.sampled_from(["add", "get_weather", 'od"d', "天気"])
PROSE = st.text(st.sampled_from("ab <tol_c>\n{"), max_size=20).filter(lambda text: FORMAT.begin not in text + "\n")
CUTS = st.lists(st.integers(0, 200), max_size=12)


@given(PROSE, st.lists(st.tuples(NAMES, ARGUMENTS), max_size=3), CUTS, st.sampled_from([FORMAT, OTHER]))
def test_words_and_calls_come_out_as_they_went_in_wherever_the_seams(
    prose: str, calls: list[tuple[str, Any]], cuts: list[int], format: CallFormat
) -> None:
    text = prose + format.between.join(written(name, arguments, format) for name, arguments in calls)
    splitter = Splitter(format, anywhere=True)
    parts = fed(splitter, text, cuts)
    said, found = joined(parts)
    assert said == prose
    assert found == [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]
    assert splitter.calls == len(calls)


@given(PROSE, CUTS)
def test_the_beginning_of_a_call_is_held_back_only_until_it_is_clear(prose: str, cuts: list[int]) -> None:
    text = prose + written("add", {"a": 1})
    parts = fed(Splitter(FORMAT, anywhere=True), text, cuts)
    seen = ""
    for part in parts:
        seen += part.said
        assert prose.startswith(seen)
    assert "".join(part.said for part in fed(Splitter(FORMAT, anywhere=True), prose, cuts)) == prose


@pytest.mark.parametrize("size", range(1, len(FORMAT.begin)))
def test_the_beginning_of_a_call_that_ends_an_answer_is_told_only_if_the_answer_was_not_cut(size: int) -> None:
    text = "So: " + FORMAT.begin[:size]
    for cut, said in ((False, text), (True, "So: ")):
        for at in (0, 2, 5):
            splitter = Splitter(FORMAT, anywhere=True)
            parts = [splitter.feed(text[:at]), splitter.feed(text[at:], last=True, cut=cut)]
            assert joined(parts) == (said, [])
    assert Splitter(FORMAT, anywhere=True).feed(FORMAT.begin[:size], last=True, cut=True) == Parted()


@given(ARGUMENTS, st.integers(1, 400), CUTS)
def test_a_call_that_was_closed_by_hand_or_not_at_all_can_be_read_by_nobody(
    arguments: Any, size: int, cuts: list[int]
) -> None:
    whole = written("add", arguments)
    size = min(size, len(whole) - 1)
    for text, closed in ((whole, whole[size:]), (whole[:size], "")):
        places = [0, *sorted({cut for cut in cuts if 0 < cut < size}), len(text)]
        splitter = Splitter(FORMAT, anywhere=True)
        pieces = [text[a:b] for a, b in pairwise(places)]
        parts = [splitter.feed(piece) for piece in pieces[:-1]]
        parts.append(splitter.feed(pieces[-1], last=True, cut=True, closed=closed))
        _, calls = joined(parts)
        assert calls or not closed
        for _, told in calls:
            assert told.endswith(CLOSED)
            assert parse_partial_json(told) is None


def test_what_looks_like_a_call_inside_a_text_that_is_none_stays_text() -> None:
    text = '{"how": "[CALLS]{"}'
    assert joined(fed(Splitter(OTHER, anywhere=False), text, list(range(40)))) == (text, [])
    call = written("add", {}, OTHER)
    assert joined(fed(Splitter(OTHER, anywhere=False), call, list(range(40)))) == ("", [("add", "{}")])


def test_arguments_come_in_pieces_and_the_name_once() -> None:
    text = written("say", {"what": "one two three"})
    first, second = fed(Splitter(FORMAT, anywhere=True), text, [text.index("two")])
    assert (first.pieces[0].name, first.pieces[0].arguments) == ("say", '{"what": "one ')
    assert (second.pieces[0].name, second.pieces[0].id, second.pieces[0].arguments) == (None, None, 'two three"}')


def test_ids_are_never_the_same() -> None:
    text = "\n".join(written("add", {"a": n}) for n in range(5))
    pieces = Splitter(FORMAT, anywhere=True).feed(text, last=True).pieces
    assert len({piece.id for piece in pieces}) == 5 == len(pieces)
    assert all(str(piece.id).startswith("call_") for piece in pieces)


@pytest.mark.parametrize("number", ["1e999", "-1E+400", '[0, {"a": 2.5e308}]'])
@pytest.mark.parametrize("cut", [0, 30, 62])
def test_a_call_with_a_number_that_no_float_holds_can_be_read_by_nobody(number: str, cut: int) -> None:
    text = FORMAT.begin + f'{{"name": "add", "arguments": {{"a": {number}, "b": 1}}}}' + FORMAT.end
    _, calls = joined(fed(Splitter(FORMAT, anywhere=True), text, [cut]))
    assert calls[0][0] == "add"
    assert calls[0][1] == f'{{"a": {number}, "b": 1}}{BEYOND}'
    assert parse_partial_json(calls[0][1]) is None


def test_a_large_number_is_told_as_it_is() -> None:
    text = written("add", {"a": 1.5e308, "b": 10**400, "c": "1e999"})
    _, calls = joined(fed(Splitter(FORMAT, anywhere=True), text, []))
    assert json.loads(calls[0][1]) == {"a": 1.5e308, "b": 10**400, "c": "1e999"}
