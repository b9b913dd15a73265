"""Messages on their way in: nothing that was said is lost, and nothing that cannot be said passes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import convert_to_messages, convert_to_openai_messages

from langchain_specfuse._messages import turns_of
from langchain_specfuse.door.faults import Fault
from langchain_specfuse.door.messages import messages_of

from .conftest import tried

texts = st.text(st.characters(codec="utf-8"), max_size=30)
parts = st.lists(texts.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=4)
contents = texts | parts
objects = st.dictionaries(texts, st.integers() | texts | st.none() | st.booleans(), max_size=3)
calls = st.builds(
    lambda number, name, arguments: {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    },
    st.integers(0, 9),
    st.text("abc_", min_size=1, max_size=9),
    objects,
)


def said(role):
    return st.builds(lambda content: {"role": role, "content": content}, contents)


callers = st.builds(
    lambda content, made: {"role": "assistant", "content": content, "tool_calls": made},
    st.none() | contents,
    st.lists(calls, min_size=1, max_size=3, unique_by=lambda call: call["id"]),
)
answers = st.builds(
    lambda content, number: {"role": "tool", "content": content, "tool_call_id": f"call_{number}"},
    contents,
    st.integers(0, 9),
)
roles = [said(role) for role in ("system", "developer", "user", "assistant")]
conversations = st.lists(st.one_of(*roles, callers, answers), min_size=1, max_size=6)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
near_misses = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name", "function_call", "refusal"]),
        st.sampled_from(["user", "assistant", "tool", "system"]) | anything,
        max_size=5,
    ),
    max_size=3,
)


def text_of(content):
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


@given(conversations)
def test_every_text_and_every_call_arrives_in_order(told):
    read = messages_of(told)
    assert [message.text for message in read] == [text_of(one["content"]) for one in told]
    made = [call for message in read for call in getattr(message, "tool_calls", ())]
    wanted = [call for one in told for call in one.get("tool_calls", ())]
    assert [(call["name"], call["args"], call["id"]) for call in made] == [
        (call["function"]["name"], json.loads(call["function"]["arguments"]), call["id"]) for call in wanted
    ]


@given(conversations)
def test_the_members_hear_what_langchains_own_conversion_would_tell_them(told):
    plain = [{**one, "content": text_of(one["content"])} for one in told]
    assert turns_of(messages_of(told)) == turns_of(convert_to_messages(plain))


@given(conversations)
def test_there_and_back_again_is_the_same(told):
    read = messages_of(told)
    assert turns_of(messages_of(convert_to_openai_messages(read))) == turns_of(read)


@given(anything | near_misses)
def test_whatever_is_sent_is_read_or_refused_with_advice(told):
    read, fault = tried(messages_of, told)
    if fault:
        assert fault.status == 400 and "-> " in str(fault) and len(str(fault)) < 600
        assert json.loads(fault.json)
    else:
        assert len(read) == len(told)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}, "'image_url', wanted 'text'"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "'input_audio', wanted 'text'"),
        ({"type": "file", "file": {"file_id": "f"}}, "'file', wanted 'text'"),
        ({"type": "text", "text": 3}, "no part of a content"),
        ("only a text", "no part of a content"),
    ],
)
def test_what_is_no_text_is_refused_by_its_place(part, told):
    with pytest.raises(Fault, match=told) as raised:
        messages_of([{"role": "user", "content": [{"type": "text", "text": "What is this?"}, part]}])
    assert raised.value.param == "messages[0].content[1]"
    assert "AAAA" not in str(raised.value)


def test_a_call_whose_arguments_are_no_object_is_told_as_it_was_made():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{a: 1"}}
    (turn,) = turns_of(messages_of([{"role": "assistant", "content": None, "tool_calls": [call]}]))
    assert json.loads(turn.calls[0].arguments) == {"invalid": "{a: 1"}


def test_what_an_assistant_refused_is_what_it_said():
    told = {"role": "assistant", "content": None, "refusal": "I had rather not."}
    assert messages_of([told])[0].text == "I had rather not."
    part = {"type": "refusal", "refusal": "No."}
    assert messages_of([{"role": "assistant", "content": [part]}])[0].text == "No."


def test_the_name_of_a_user_is_kept():
    (turn,) = turns_of(messages_of([{"role": "user", "name": "ann", "content": "hello"}]))
    assert turn.text == "ann: hello"
