"""Calls within text are separated from prose, read in any pieces, and compared by value."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import CallReader, canonical, reader_for, referee_for
from langchain_specfuse.core.values import CallFormat, Constraint, ToolCall
from tests.torture.texts import cut

from .walks import BYTES, walk

TOOLS = [
    {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}},
            "required": ["a"],
        },
    },
    {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
        },
    },
]
HERMES = CallFormat()
BARE = CallFormat("", "", "; ", arguments_key="parameters")
BRACKETS = CallFormat("[CALL]", "", "")
FOREIGN = CallFormat("<｜呼叫｜>", "</呼叫>", "", "函数", "参数")
FORMATS = [HERMES, BARE, BRACKETS, FOREIGN]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


def calls(form: CallFormat = HERMES, parallel: bool = True) -> Constraint:
    how = {name: getattr(form, name) for name in CallFormat.__dataclass_fields__}
    return Constraint("calls", json.dumps({"tools": TOOLS, "parallel": parallel, **how}))


def auto(form: CallFormat = HERMES, parallel: bool = True) -> Constraint:
    return Constraint("any_of", json.dumps([["prose", ""], ["calls", calls(form, parallel).body]]))


def written(form: CallFormat, name: str, arguments: Any) -> str:
    body = {form.name_key: name, form.arguments_key: arguments}
    return form.begin + json.dumps(body, ensure_ascii=False) + form.end


def read(constraint: Constraint | CallFormat, text: str) -> CallReader:
    if isinstance(constraint, CallFormat):
        reader = CallReader(constraint, anywhere=True)
    else:
        reader = reader_for(constraint)
    assert reader is not None
    reader.feed(text)
    return reader


# --- the reader -----------------------------------------------------------------------------------

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-99, 99)
    | st.text(st.sampled_from('ab"\\{}[]<>/\n天'), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(st.sampled_from('ab"}{'), max_size=3), VALUES, max_size=3)
PROSE = st.text(st.sampled_from("ab <tol_c>\n"), max_size=20).filter(
    lambda text: HERMES.begin not in text + "\n"
)
MANY = st.lists(st.tuples(st.sampled_from(["add", 'od"d', "天気"]), ARGUMENTS), max_size=3)


@given(PROSE, MANY, st.lists(st.integers(0, 200), max_size=12), st.sampled_from(FORMATS))
def test_text_and_calls_are_conserved_wherever_the_text_is_cut(
    prose: str, many: list[tuple[str, Any]], places: list[int], form: CallFormat
) -> None:
    text = prose + form.between.join(written(form, name, arguments) for name, arguments in many)
    reader, prose_read, names, arguments_read = (
        CallReader(form, anywhere=True),
        "",
        [],
        [""] * len(many),
    )
    for piece in cut(text, places):
        more, pieces = reader.feed(piece)
        prose_read += more
        assert prose.startswith(prose_read)
        for call_piece in pieces:
            names += [call_piece.name] if call_piece.name is not None else []
            arguments_read[call_piece.index] += call_piece.arguments
    assert prose_read + reader.finish() == prose
    assert list(zip(names, arguments_read, strict=True)) == [
        (n, json.dumps(a, ensure_ascii=False)) for n, a in many
    ]
    assert [(call.name, call.arguments) for call in reader.calls] == list(
        zip(names, arguments_read, strict=True)
    )
    assert reader.ends == tuple(sorted(reader.ends)) and (not many or reader.ends[-1] == len(text))


def test_if_no_prose_is_allowed_a_call_begins_the_answer_or_there_is_none() -> None:
    reader = CallReader(BRACKETS, anywhere=False)
    assert reader.feed('{"how": "[CALL]{"}') == ('{"how": "[CALL]{"}', [])
    assert read(calls(BRACKETS), written(BRACKETS, "add", {"a": 1})).calls[0].name == "add"
    assert reader_for(Constraint("json")) is None and reader_for(None) is None


def test_calls_are_compared_by_value_whatever_their_spelling() -> None:
    call = ToolCall("f", '{"b": [1.0, {"x": "é"}], "a": 2}')
    assert canonical(call) == canonical(ToolCall("f", '{"a":2,"b":[1,{"x":"\\u00e9"}]}', id="7"))
    assert canonical(call) != canonical(ToolCall("g", call.arguments))
    assert canonical(ToolCall("f", '{"a": true}')) != canonical(ToolCall("f", '{"a": 1}'))
    assert canonical(ToolCall("f", "{")) == canonical(ToolCall("f", "{"))


# --- the grammar ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("parallel", [False, True])
def test_every_complete_text_consists_of_calls_that_satisfy_their_schemas(
    form: CallFormat, parallel: bool
) -> None:
    referee = referee_for(calls(form, parallel))
    ended = 0
    for seed in range(12):
        data, whole = walk(
            BYTES.grammar(calls(form, parallel)).start(), random.Random(seed), most=20
        )
        if whole:
            reader = read(calls(form, parallel), data.decode())
            assert (reader.prose, reader.rest) == (0, "")
            assert len(reader.calls) == 1 or parallel
            for call in reader.calls:
                assert set(json.loads(call.arguments)) == {"add": {"a"}, "find": {"q"}}[call.name]
            assert referee.must_end(data.decode()) is not parallel
            ended += 1
    assert ended > 3


@pytest.mark.parametrize("form", FORMATS)
def test_a_state_is_inside_a_call_from_its_begin_to_its_end(form: CallFormat) -> None:
    state = BYTES.grammar(auto(form)).start()
    state.advance("So: ")
    text = written(form, "find", {"q": "}"})
    inside = []
    for byte in text.encode():
        state.advance(bytes([byte]))
        inside.append(state.in_call)
    first = inside.index(True)
    assert first == len((form.begin or '{"name": "').encode()) - 1
    assert inside == [False] * first + [True] * (len(inside) - first - 1) + [False]


def test_text_after_a_call_is_inside_the_next_call_from_its_first_byte() -> None:
    """The next call is then drafted as a whole, and a referee that already knows it sees all of
    it."""
    state = BYTES.grammar(calls()).start()
    assert state.advance(ADD) == len(ADD) and not state.in_call
    for byte in "\n<tool_call>\n":
        state.advance(byte)
        assert state.in_call


# --- the referee ----------------------------------------------------------------------------------


def test_drafts_that_complete_equal_calls_are_equal() -> None:
    referee = referee_for(calls())
    begun = '<tool_call>\n{"name": "find", "arguments": {"q": "'
    assert referee.same(begun, 'é"}}\n</tool_call>') == referee.same(
        begun, '\\u00e9"}}\n</tool_call>'
    )
    assert referee.same(begun, 'é"}}\n</tool_call>') != referee.same(begun, 'e"}}\n</tool_call>')
    assert referee.same(begun, "é") == "é"
    assert referee_for(Constraint("json")).same("", "{") == "{"


def test_without_parallel_calls_nothing_follows_a_call() -> None:
    referee = referee_for(auto(parallel=False))
    assert referee.legal("", "Just prose. <tool") == len("Just prose. <tool")
    assert referee.may_end("Just prose. <tool")
    assert referee.forced("Prose <tool_call>\n") == '{"name": "'
    assert not referee.may_end("Prose <tool_call>\n")
    assert referee.must_end(f"Prose {ADD}")
    assert referee.legal(f"Prose {ADD}", " and") == 0
    assert referee.legal("", "Prose <tool_call> and") == len("Prose <tool_call> and")
    assert referee.legal("", "Prose <tool_call>\nand") == len("Prose <tool_call>\n")
    assert [referee.prose(text) for text in ("Prose <tool", f"Prose {ADD}")] == [6, 6]


def test_any_of_allows_calls_or_an_answer_by_a_schema() -> None:
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
    constraint = Constraint(
        "any_of", json.dumps([["calls", calls().body], ["json_schema", schema]])
    )
    referee = referee_for(constraint)
    assert referee.forced("") == ""
    assert referee.forced("<") == 'tool_call>\n{"name": "'
    assert referee.forced("{") == '"n":'
    assert referee.must_end('{"n": 1}')
    assert referee.legal("", "x") == 0
    assert read(constraint, '{"n": 1}').calls == () and read(constraint, ADD).calls[0].name == "add"


def test_an_equal_call_may_not_be_repeated() -> None:
    """Small models that are free to call repeat one call until the budget is used up."""
    referee, again = referee_for(auto()), ADD.replace("1}", "1.0}")
    two, three = (ADD.replace("1}", f"{n}}}") for n in (2, 3))
    assert referee.legal("", ADD) == len(ADD)
    assert referee.legal(ADD, f"\n{two}") == len(two) + 1
    assert referee.legal(ADD, f"\n{ADD}") == referee.legal(ADD, f"\n{again}") == 0
    assert referee.legal("", f"{ADD}\n{ADD}") == len(ADD)
    assert referee.legal(ADD, f"\n{two}\n{three}\n{two}") == len(f"\n{two}\n{three}")


def test_the_mere_beginning_of_another_call_is_cut_from_a_draft() -> None:
    referee = referee_for(auto())
    for more in ("\n", "\n<to", "\n<tool_call>\n", "\n\n", "\nDone.", " and so on"):
        assert referee.legal("", ADD + more) == len(ADD)
        assert referee.legal(ADD, more) == 0
    assert referee.legal("", ADD + '\n<tool_call>\n{"name"') == len(ADD) + len(
        '\n<tool_call>\n{"name"'
    )
    assert referee.legal("", "Well.\n") == len("Well.\n")
