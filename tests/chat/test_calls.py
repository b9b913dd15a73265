"""Tool calls are streamed as pieces with ids, and a broken call is never readable."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.utils.json import parse_partial_json

from langchain_specfuse.chat.call_text import CUT_OFF, Splitter, marked
from langchain_specfuse.constraints import CallPiece
from langchain_specfuse.core.values import CallFormat
from tests.constraints.test_calls import ARGUMENTS, BARE, HERMES, written
from tests.torture.texts import cut


def fed(
    format: CallFormat, text: str, places: list[int], *, cut_off: bool = False
) -> list[tuple[str, list[CallPiece]]]:
    splitter, pieces = Splitter(format, anywhere=True), cut(text, places)
    return [
        splitter.feed(
            piece,
            last=at == len(pieces) - 1,
            cut=CUT_OFF if cut_off and at == len(pieces) - 1 else "",
        )
        for at, piece in enumerate(pieces)
    ]


def arguments(parts: list[tuple[str, list[CallPiece]]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for _, pieces in parts:
        assert len({piece.index for piece in pieces}) == len(pieces)
        for piece in pieces:
            texts[piece.index] = texts.get(piece.index, "") + piece.arguments
    return texts


@pytest.mark.parametrize("size", range(1, len(HERMES.begin)))
def test_the_beginning_of_a_call_at_the_end_is_text_unless_the_answer_was_cut(
    size: int,
) -> None:
    text = "So: " + HERMES.begin[:size]
    for cut_off, shown in ((False, text), (True, "So: ")):
        for at in (0, 2, 5):
            parts = fed(HERMES, text, [at], cut_off=cut_off)
            assert ("".join(prose for prose, _ in parts), arguments(parts)) == (shown, {})


@given(
    ARGUMENTS,
    st.integers(1, 400),
    st.lists(st.integers(0, 200), max_size=6),
    st.sampled_from([HERMES, BARE]),
)
def test_a_call_that_is_cut_off_is_never_parsed_as_a_complete_one(
    values: Any, size: int, places: list[int], format: CallFormat
) -> None:
    whole = written(format, "add", values)
    text = whole[: min(size, len(whole) - 1)]
    for partial in arguments(fed(format, text, places, cut_off=True)).values():
        assert partial.endswith(marked(CUT_OFF))
        assert parse_partial_json(partial) is None


def test_arguments_stream_in_pieces_and_name_and_id_are_sent_once() -> None:
    text = written(HERMES, "say", {"what": "one two three"})
    (_, (first,)), (_, (second,)) = fed(HERMES, text, [text.index("two")])
    assert (first.name, first.arguments) == ("say", '{"what": "one ')
    assert (second.name, second.id, second.arguments) == (None, None, 'two three"}')
    ((_, pieces),) = fed(HERMES, "\n".join(written(HERMES, "add", {"a": n}) for n in range(5)), [])
    assert len({piece.id for piece in pieces}) == 5 == len(pieces)
    assert all(str(piece.id).startswith("call_") for piece in pieces)
