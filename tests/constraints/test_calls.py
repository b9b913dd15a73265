"""Calls in text: told from prose, whole or not, equal or not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import calls_of, canonical, referee_for
from langchain_specfuse.constraints._referee import bytewise
from langchain_specfuse.core.values import Call, CallFormat, Constraint

from .walks import walk

TOOLS = [
    {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "find", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}},
]
HERMES = {"begin": "<tool_call>\n", "end": "\n</tool_call>", "between": "\n"}
BARE = {"begin": "", "end": "", "between": "; ", "arguments_key": "parameters"}
BRACKETS = {"begin": "[CALL]", "end": "", "between": ""}
FORMATS = [HERMES, BARE, BRACKETS]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
FIND = '<tool_call>\n{"name": "find", "arguments": {"q": "</tool_call> \\"}"}}\n</tool_call>'


def calls(form=None, parallel=True, tools=TOOLS):
    return Constraint("calls", json.dumps({"tools": tools, "parallel": parallel, **(form or HERMES)}))


def auto(form=None, parallel=True):
    return Constraint("any_of", json.dumps([["prose", ""], ["calls", calls(form, parallel).body]]))


def test_prose_calls_and_an_unfinished_call_are_told_apart():
    text = f"I add.\n{ADD}\n{FIND}\n<tool_call>\n{{"
    prose, found, rest = calls_of(auto(), text)
    assert prose == "I add.\n"
    assert [call.name for call in found] == ["add", "find"]
    assert json.loads(found[1].arguments) == {"q": '</tool_call> "}'}
    assert rest == "<tool_call>\n{"


@pytest.mark.parametrize("form", FORMATS)
def test_a_growing_text_only_ever_gains_calls(form):
    constraint = auto(form)
    written = CallFormat(**form)
    body = ['{"name": "add", "ARGS": {"a": 1}}', '{"name": "find", "ARGS": {"q": "x}\\"{"}}']
    body = [one.replace("ARGS", written.arguments_key) for one in body]
    text = "Well: " + written.between.join(written.begin + one + written.end for one in body)
    before = []
    for size in range(len(text) + 1):
        prose, found, rest = calls_of(constraint, text[:size])
        assert found[: len(before)] == before
        assert "Well: ".startswith(prose)
        before = found
    assert [call.name for call in before] == ["add", "find"]
    assert rest == ""


@given(st.text(alphabet='<tol_cal>\n{"name": ,rgumets}[]\\1', max_size=60) | st.text(max_size=40))
def test_no_text_is_too_strange(text):
    for constraint in (auto(), calls(), auto(BARE), CallFormat(), None, Constraint("json")):
        prose, found, rest = calls_of(constraint, text)
        assert found or prose + rest == text


def test_equal_calls_are_equal_however_they_are_written():
    one = Call("f", '{"b": [1.0, {"x": "é"}], "a": 2}')
    assert canonical(one) == canonical(Call("f", '{"a":2,"b":[1,{"x":"\\u00e9"}]}', id="7"))
    assert canonical(one) != canonical(Call("g", one.arguments))
    assert canonical(Call("f", '{"a": true}')) != canonical(Call("f", '{"a": 1}'))
    assert canonical(Call("f", "{")) == canonical(Call("f", "{"))


def test_drafts_that_complete_equal_calls_are_the_same():
    referee = referee_for(calls())
    begun = '<tool_call>\n{"name": "find", "arguments": {"q": "'
    assert referee.same(begun, 'é"}}\n</tool_call>') == referee.same(begun, '\\u00e9"}}\n</tool_call>')
    assert referee.same(begun, 'é"}}\n</tool_call>') != referee.same(begun, 'e"}}\n</tool_call>')
    assert referee.same(begun, "é") == "é"
    assert referee_for(Constraint("json")).same("", "{") == "{"


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("parallel", [False, True])
def test_whatever_is_written_a_call_comes_out(form, parallel):
    import random

    referee = referee_for(calls(form, parallel))
    for seed in range(8):
        dice = random.Random(seed)
        state = bytewise().grammar(calls(form, parallel)).start()
        text = walk(state, dice, dice.choice([0, 20, 120])).decode("utf-8", "ignore")
        text += referee.closing(text)
        prose, found, rest = calls_of(calls(form, parallel), text)
        assert (prose, rest) == ("", "")
        assert found
        assert len(found) == 1 or parallel
        for call in found:
            assert set(json.loads(call.arguments)) == {"add": {"a"}, "find": {"q"}}[call.name]
        assert referee.must_end(text) is not parallel


@pytest.mark.parametrize("form", FORMATS)
def test_a_call_is_inside_from_its_begin_to_its_end(form):
    written = CallFormat(**form)
    state = bytewise().grammar(auto(form)).start()
    state.advance("So: ")
    body = f'{{"name": "find", "{written.arguments_key}": {{"q": "}}"}}}}'
    inside = []
    text = written.begin + body + written.end
    for byte in text.encode():
        state.advance(bytes([byte]))
        inside.append(state.in_call)
    first = inside.index(True)
    assert first == (len(written.begin) - 1 if written.begin else len('{"name": "') - 1)
    assert inside == [False] * first + [True] * (len(text) - first - 1) + [False]


def test_free_text_or_a_call_behind_which_nothing_may_come():
    referee = referee_for(auto(parallel=False))
    assert referee.legal("", "Just prose. <tool") == len("Just prose. <tool")
    assert referee.may_end("Just prose. <tool")
    assert referee.forced("Prose <tool_call>\n") == '{"name": "'
    assert not referee.may_end("Prose <tool_call>\n")
    assert referee.must_end(f"Prose {ADD}")
    assert referee.legal(f"Prose {ADD}", " and") == 0
    assert referee.legal("", "Prose <tool_call> and") == len("Prose <tool_call> and")
    assert referee.legal("", "Prose <tool_call>\nand") == len("Prose <tool_call>\n")


def test_calls_or_an_answer_by_a_schema():
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    constraint = Constraint("any_of", json.dumps([["calls", calls().body], ["json_schema", schema]]))
    referee = referee_for(constraint)
    assert referee.forced("") == ""
    assert referee.forced("<") == 'tool_call>\n{"name": "'
    assert referee.forced("{") == '"n":'
    assert referee.must_end('{"n": 1}')
    assert referee.legal("", "x") == 0
    assert calls_of(constraint, '{"n": 1}') == ('{"n": 1}', [], "")
    assert [call.name for call in calls_of(constraint, ADD).calls] == ["add"]


def test_what_follows_a_call_is_inside_the_next_one_from_its_first_byte():
    """So that the next call is drafted whole, and the vote, or a referee that knows it already, sees all of it."""
    state = bytewise().grammar(calls()).start()

    assert state.advance(ADD) == len(ADD) and not state.in_call
    for byte in "\n<tool_call>\n":
        state.advance(byte)
        assert state.in_call
