"""The loop may ask the referee about any text, in any order and from any thread."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import check, half_escape, referee_for, respaced
from langchain_specfuse.core.referee import FREE
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import SpecFuseError

from .walks import json_schema

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        'q"\\é\n': {"type": "null"},
    },
    "required": ["name", "age", 'q"\\é\n'],
}
WHOLE = json.dumps({"name": "some name", "age": 31, 'q"\\é\n': None}, ensure_ascii=False)
WIDE: dict[str, Any] = {
    "type": "object",
    "properties": {f"key {n}": {"type": ["integer", "string"]} for n in range(40)},
}
WIDE["required"] = list(WIDE["properties"])


def test_without_a_constraint_everything_is_legal() -> None:
    assert referee_for(None) is FREE


def test_forced_text_leaves_space_at_its_end_and_splits_no_character() -> None:
    referee = referee_for(json_schema(PERSON))
    assert referee.forced("") == '{"name": "'
    assert referee.forced('{"name": "x"') == ', "age":'
    assert referee.forced('{"name": "x", "age": 3, ') == '"q\\"\\\\é\\n": null}'
    assert referee.forced('{"name": "x", "age": 3') == ""
    choice = referee_for(Constraint("choice", json.dumps(["é", "è"])))
    assert choice.forced("") == ""
    assert choice.legal("", "é") == 1
    assert choice.legal("", "ê") == 0


def test_a_draft_is_cut_at_its_last_legal_character() -> None:
    referee = referee_for(json_schema(PERSON))
    assert referee.legal("", '{"name": "x", "age": 3.5') == len('{"name": "x", "age": 3')
    assert referee.legal('{"name": "', 'é😀"  ') == 3
    assert referee.legal("", "Sure! {") == 0
    assert referee.legal("", "{\n") == 1
    with pytest.raises(SpecFuseError, match="does not fit its constraint from"):
        referee.may_end("Sure!")


def test_spans_cover_the_text_without_a_choice() -> None:
    referee = referee_for(json_schema(PERSON))
    draft = '{"name": "x", "age": 3'
    assert [draft[a:b] for a, b in referee.spans("", draft)] == ['{"name": "', ', "age": ']
    assert referee.spans('{"name": "x"', ", ") == ((0, 2),)
    assert referee.spans('{"name": "', "abc") == ()


def test_answers_may_be_asked_about_in_any_order() -> None:
    referee = referee_for(json_schema(PERSON))
    for at in [5, 30, 2, len(WHOLE), 0, 17, 29, 16]:
        alone = referee_for(json_schema(PERSON))
        for ask in ("may_end", "must_end", "forced"):
            assert getattr(referee, ask)(WHOLE[:at]) == getattr(alone, ask)(WHOLE[:at])
        assert referee.legal(WHOLE[:at], WHOLE[at:]) == len(WHOLE) - at
        assert referee.must_end(WHOLE[:at]) == (at == len(WHOLE))


@pytest.mark.parametrize(
    ("constraint", "whole", "wrong"),
    [
        (Constraint("regex", "^[a-z]+-[0-9]{2}$"), "ab-12", "ab-1x"),
        (Constraint("regex", "a/b\\$|c"), "a/b$", "a/c"),
        (Constraint("regex", r"https?:\/\/[a-z]+\\/"), "https://a\\/", r"https:\x2f"),
        (Constraint("choice", '["a", "ab", "x.y*/\\"\\n"]'), 'x.y*/"\n', "abc"),
        (Constraint("grammar", 'root ::= "x" tail\ntail ::= "," root | "!"'), "x,x,x!", "x;"),
        (Constraint("json"), '{"a": [1, {"b": null}]}', "[1]"),
        (Constraint("any_of", '[["choice", "[\\"yes\\"]"], ["json", ""]]'), "yes", "no"),
    ],
)
def test_patterns_choices_grammars_json_and_any_of_are_enforced(
    constraint: Constraint, whole: str, wrong: str
) -> None:
    check(constraint)
    referee = referee_for(constraint)
    assert referee.legal("", whole) == len(whole)
    assert referee.may_end(whole)
    assert referee.legal("", wrong) < len(wrong)


@pytest.mark.parametrize("text", ['"Z\\u00fcrich"', '"\\ud83d\\ude00"', '"a\\/b"'])
def test_a_string_has_one_spelling_and_is_cut_before_an_escape_of_another(text: str) -> None:
    """Otherwise half an escape would have to become a character that nobody intended."""
    referee = referee_for(json_schema({"type": "string"}))
    legal = text[: referee.legal("", text)]
    assert "\\" not in legal and text.startswith(legal)
    whole = json.dumps(json.loads(text) + "\n\\", ensure_ascii=False)
    assert referee.legal("", whole) == len(whole)


# --- white space ----------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
spacings = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"separators": (" ,", " :")}]
)


@given(values, spacings, st.floats(0, 1))
def test_white_space_in_json_is_normalised_to_the_grammars(
    value: Any, spacing: dict[str, Any], share: float
) -> None:
    right, text = (
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, ensure_ascii=False, **spacing),
    )
    assert respaced(Constraint("json"), "", text) == right
    answer = right[: int(share * len(right))]
    assert answer + respaced(Constraint("json"), answer, right[len(answer) :]) == right


@given(values, spacings, st.data())
def test_white_space_is_normalised_the_same_in_every_division_into_parts(
    value: Any, spacing: dict[str, Any], data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=False, **spacing)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=5).map(sorted))
    parts = [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]
    answer = ""
    for part in parts:
        answer += respaced(Constraint("json"), answer, part)
    assert answer == respaced(Constraint("json"), "", text)


@given(values, spacings, st.data())
def test_escapes_in_json_become_the_characters_that_they_mean(
    value: Any, spacing: dict[str, Any], data: st.DataObject
) -> None:
    """Python's json.dumps writes \\u00f6, PHP's json_encode \\/."""
    text = json.dumps(value, **spacing).replace("/", "\\/")
    end = data.draw(st.integers(0, len(text)))
    end -= half_escape(text[:end])
    begun = respaced(Constraint("json"), "", text[:end])
    whole = begun + respaced(Constraint("json"), begun, text[end:])
    assert whole == json.dumps(value, ensure_ascii=False)


def test_white_space_stays_if_the_answer_need_not_be_json() -> None:
    for constraint in (None, Constraint("regex", r"[a, b]*"), Constraint("choice", '["a , b"]')):
        assert respaced(constraint, "", "a , b") == "a , b"
