"""What the loop asks the referee: in texts, in any order, from any thread, about answers of any length."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.constraints import _referee, check, referee_for
from langchain_specfuse.core.referee import Unbound
from langchain_specfuse.core.values import Constraint

from .walks import assert_satisfies, json_schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, 'q"\\é\n': {"type": "null"}},
    "required": ["name", "age", 'q"\\é\n'],
}
WIDE = {"type": "object", "properties": {f"key {n}": {"type": ["integer", "string"]} for n in range(128)}}
WIDE["required"] = list(WIDE["properties"])
HALVES = [
    ({"type": "string"}, '"a\\'),
    ({"type": "string", "minLength": 4}, '"a'),
    ({"type": "string", "minLength": 500}, '"a'),
    ({"type": "string", "pattern": "^[a-z]{3}-[0-9]{4}$"}, '"a'),
    ({"type": "string", "pattern": "^x*yz?w$"}, '"xx'),
    ({"type": "string", "pattern": r"foo\d"}, '"fo'),
    ({"type": "string", "pattern": r"[0-9]+ (apples|pears)"}, '"I have '),
    ({"type": "string", "pattern": r"\sx\s"}, '"a\\n'),
    ({"type": "string", "pattern": r"^.+\n.+$"}, '"one'),
    ({"type": "string", "format": "email"}, '"someone'),
    ({"type": "string", "format": "date-time"}, '"2024-02-2'),
    ({"type": "string", "format": "uuid"}, '"12'),
    ({"type": "integer", "minimum": 1000}, "1"),
    ({"type": "integer", "minimum": 1000}, ""),
    ({"type": "number", "exclusiveMinimum": 0.5, "maximum": 0.75}, "0.5"),
    ({"type": "number"}, "-"),
    ({"type": "number"}, "1."),
    ({"enum": ["a long choice", "a long chase"]}, '"a long ch'),
    ({"type": "array", "items": {"type": "array", "minItems": 2, "items": {"type": "boolean"}}, "minItems": 2}, "[[t"),
    ({"$ref": "#/$defs/T", "$defs": {"T": {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}}}}, '{"t": {"'),
    (WIDE, '{"key 0": 1, "key 1": "'),
]


@pytest.mark.parametrize(("schema", "text"), HALVES)
def test_half_a_value_is_made_whole(schema, text):
    referee = referee_for(json_schema(schema))
    assert referee.legal("", text) == len(text)
    assert_satisfies(text + referee.closing(text), schema)


def test_nobody_is_bound_without_a_constraint():
    assert isinstance(referee_for(None), Unbound)


def test_forced_text_leaves_space_at_its_end_and_splits_no_character():
    referee = referee_for(json_schema(PERSON))
    assert referee.forced("") == '{"name": "'
    assert referee.forced('{"name": "x"') == ', "age":'
    assert referee.forced('{"name": "x", "age": 3, ') == '"q\\"\\\\é\\n": null}'
    assert referee.forced('{"name": "x", "age": 3') == ""
    choice = referee_for(Constraint("choice", json.dumps(["é", "è"])))
    assert choice.forced("") == ""
    assert choice.legal("", "é") == 1
    assert choice.legal("", "ê") == 0


def test_a_draft_is_cut_at_its_last_legal_character():
    referee = referee_for(json_schema(PERSON))
    assert referee.legal("", '{"name": "x", "age": 3.5') == len('{"name": "x", "age": 3')
    assert referee.legal('{"name": "', 'é😀"  ') == 3
    assert referee.legal("", "Sure! {") == 0
    assert referee.legal("", "{\n") == 1


def test_spans_are_where_there_was_no_choice():
    referee = referee_for(json_schema(PERSON))
    draft = '{"name": "x", "age": 3'
    spans = referee.spans("", draft)
    assert [draft[a:b] for a, b in spans] == ['{"name": "', ', "age": ']
    assert referee.spans('{"name": "x"', ", ") == ((0, 2),)
    assert referee.spans('{"name": "', "abc") == ()


def test_a_whole_answer_must_end():
    referee = referee_for(json_schema(PERSON))
    whole = json.dumps({"name": "x", "age": 3, 'q"\\é\n': None}, ensure_ascii=False)
    assert referee.legal("", whole) == len(whole)
    assert referee.may_end(whole)
    assert referee.must_end(whole)
    assert not referee.must_end(whole[:-1])
    number = referee_for(json_schema({"type": "integer"}))
    assert number.may_end("12")
    assert not number.must_end("12")


@settings(max_examples=60, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t\r\b\f"), max_size=30), st.integers()
)
def test_what_json_dumps_writes_is_legal(name, age):
    """All but control characters that have no letter of their own."""
    value = {"name": name, "age": age, 'q"\\é\n': None}
    whole = json.dumps(value, ensure_ascii=False)
    referee = referee_for(json_schema(PERSON))
    assert referee.legal("", whole) == len(whole)
    assert referee.must_end(whole)


def test_answers_may_be_asked_about_in_any_order():
    referee, fresh = referee_for(json_schema(PERSON)), json_schema(PERSON)
    whole = '{"name": "some name", "age": 31, "q\\"\\\\é\\n": null}'
    for at in [5, 30, 2, len(whole), 0, 17, 29, 16]:
        alone = referee_for(fresh)
        for ask in ("may_end", "must_end", "forced", "closing"):
            assert getattr(referee, ask)(whole[:at]) == getattr(alone, ask)(whole[:at])
        assert referee.legal(whole[:at], whole[at:]) == len(whole) - at


def test_threads_may_share_a_referee():
    referee, wrong = referee_for(json_schema(WIDE)), []
    whole = json.dumps({f"key {n}": n for n in range(128)})

    def ask(first):
        places = range(first, len(whole), 40)
        wrong.extend(at for at in places if referee.legal(whole[:at], whole[at : at + 9]) != len(whole[at : at + 9]))

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_megabyte_is_read_once():
    referee = referee_for(json_schema(PERSON))
    answer = '{"name": "' + "word é " * 160_000
    began = time.perf_counter()
    assert referee.legal("", answer) == len(answer)
    referee.may_end(answer)
    first = time.perf_counter() - began
    began = time.perf_counter()
    for _ in range(5):
        assert referee.legal(answer, "more words") == 10
        answer += "more words"
    again = (time.perf_counter() - began) / 5
    assert again < first / 2
    assert_satisfies(answer + referee.closing(answer), PERSON)


def test_128_keys_are_forced_one_after_the_other():
    referee = referee_for(json_schema(WIDE))
    check(json_schema(WIDE))
    answer = ""
    for n in range(128):
        answer += referee.forced(answer)
        assert answer.endswith(f'"key {n}":')
        answer += f' "{n}"'
    answer += referee.closing(answer)
    assert json.loads(answer) == {f"key {n}": str(n) for n in range(128)}


@pytest.mark.parametrize(
    ("constraint", "whole", "wrong"),
    [
        (Constraint("regex", "^[a-z]+-[0-9]{2}$"), "ab-12", "ab-1x"),
        (Constraint("regex", "a/b\\$|c"), "a/b$", "a/c"),
        (Constraint("regex", r"https?:\/\/[a-z]+\\/"), "https://a\\/", r"https:\x2f"),
        (Constraint("choice", '["a", "ab", "x.y*/\\"\\n"]'), 'x.y*/"\n', "abc"),
        (Constraint("grammar", 'root ::= "x" tail\ntail ::= "," root | "!"'), "x,x,x!", "x;"),
        (Constraint("json"), '{"a": [1, {"b": null}]}', "[1]"),
    ],
)
def test_other_kinds(constraint, whole, wrong):
    check(constraint)
    referee = referee_for(constraint)
    assert referee.legal("", whole) == len(whole)
    assert referee.may_end(whole)
    assert referee.legal("", wrong) < len(wrong)
    for at in range(len(whole)):
        closed = whole[:at] + referee.closing(whole[:at])
        assert referee.legal("", closed) == len(closed)
        assert referee.may_end(closed)


def test_where_no_short_way_is_found_the_answer_stays_as_it_was_streamed(monkeypatch, caplog):
    referee = referee_for(Constraint("json_schema", json.dumps(PERSON)))
    monkeypatch.setattr(_referee, "closed", lambda *told, **more: None)
    assert referee.closing("{") == ""
    assert "stays cut off" in caplog.text


def test_a_call_that_was_made_already_may_not_be_made_again():
    """Small models that are free to call repeat one call until the budget is gone."""
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}
    how = {"begin": "<call>", "end": "</call>", "between": "\n", "name_key": "name", "arguments_key": "arguments"}
    calls = json.dumps({"tools": [tool], "parallel": True, **how})
    referee = referee_for(Constraint("any_of", json.dumps([["prose", ""], ["calls", calls]])))

    def call(value):
        return f'<call>{{"name": "f", "arguments": {{"a": {value}}}}}</call>'

    assert referee.legal("", call(1)) == len(call(1))
    assert referee.legal(call(1), "\n" + call(2)) == len(call(2)) + 1
    assert referee.legal(call(1), "\n" + call(1)) == referee.legal(call(1), "\n" + call("1.0")) == 0
    assert referee.legal("", call(1) + "\n" + call(1)) == len(call(1))
    three = "\n".join(map(call, (2, 3, 2)))
    assert referee.legal(call(1), "\n" + three) == len("\n" + call(2) + "\n" + call(3))
    assert referee.may_end(call(1)) and referee.legal("Words. ", "and words") == len("and words")


@pytest.mark.parametrize("text", ['"Z\\u00fcrich"', '"\\ud83d\\ude00"', '"a\\/b"'])
def test_a_string_has_one_writing_and_is_cut_before_an_escape_of_another(text):
    """Else half of one would have to be closed, with a character that nobody meant."""
    referee = referee_for(json_schema({"type": "string"}))
    legal = text[: referee.legal("", text)]
    assert "\\" not in legal
    assert json.loads(legal + referee.closing(legal)) == legal.strip('"')
    whole = json.dumps(json.loads(text) + "\n\\", ensure_ascii=False)
    assert referee.legal("", whole) == len(whole)


def test_what_only_begins_another_call_is_left_out():
    how = {"begin": "<call>", "end": "</call>", "between": "\n", "name_key": "name", "arguments_key": "arguments"}
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]}}
    calls = json.dumps({"tools": [tool], "parallel": True, **how})
    referee = referee_for(Constraint("any_of", json.dumps([["prose", ""], ["calls", calls]])))
    one = '<call>{"name": "f", "arguments": {"a": 1}}</call>'
    for more in ("\n", "\n<ca", "\n<call>", "\n\n", "\nDone.", " and so on"):
        assert referee.legal("", one + more) == len(one)
        assert referee.legal(one, more) == 0
    assert referee.legal("", one + '\n<call>{"name"') == len(one) + len('\n<call>{"name"')
    assert referee.legal("", "Well.\n") == len("Well.\n")
