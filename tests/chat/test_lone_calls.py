"""An answer that consists of one call in plain JSON, fenced or not, becomes a call."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain.agents import create_agent
from langchain_core.messages import AIMessageChunk
from langchain_core.tools import tool

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.chat.call_text import Splitter
from langchain_specfuse.chat.shape import COMMON
from tests.methods import in_method
from tests.torture.texts import cut


@tool
def get_weather(city: str, days: int = 1) -> str:
    """Tell the weather in a city."""
    return f"It is sunny in {city} for {days}."


ARGUMENTS = {"city": 'the "old" {city}\\', "days": 2}
BODY = json.dumps({"name": "get_weather", "arguments": ARGUMENTS})
PRETTY = json.dumps({"name": "get_weather", "parameters": ARGUMENTS}, indent=2)
TURNED = json.dumps({"arguments": ARGUMENTS, "name": "get_weather"})
CALLS = {
    "plain": BODY,
    "spaced": f"\n {PRETTY}\n\n",
    "fenced": f"```json\n{PRETTY}\n```",
    "fenced without a language": f"```\n{BODY}\n```\n",
    "fenced and not closed": f"```json\n{BODY}",
    "turned round": TURNED,
}
TEXTS = {
    "a sentence in front": f"I call it: {BODY}",
    "a sentence behind": f"{BODY} is the call.",
    "two of them": f"{BODY}\n{BODY}",
    "a fence with text behind": f"```json\n{BODY}\n```\nDone.",
    "no tool": '{"name": "get_time", "arguments": {}}',
    "a person": '```json\n{"name": "Ann", "age": 3}\n```',
    "more keys": '{"name": "get_weather", "arguments": {}, "why": 1}',
    "arguments that are none": '{"name": "get_weather", "arguments": "Rome"}',
    "a name alone": '{"name": "get_weather"}',
    "cut JSON": BODY[:-3],
    "code": "```python\nprint({1: 2})\n```",
    "a list": f"[{BODY}]",
    "white space": "  \n",
    "backquotes": "``",
}


def model(text: str, segment_tokens: int = 3, **options: Any) -> Any:
    members = [ScriptedMember(text), ScriptedMember(text)]
    llm = SpecFuseChatModel(**in_method(members=members, segment_tokens=segment_tokens, **options))
    return llm.bind_tools([get_weather])


@pytest.mark.parametrize("form", CALLS)
@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_a_call_in_plain_json_alone_in_an_answer_is_a_call(form: str, version: str) -> None:
    for size in (1, 3, 100):
        llm = model(CALLS[form], size, output_version=version)
        streams = [list(llm.stream("?")), [part async for part in llm.astream("?")]]
        messages = [llm.invoke("?"), await llm.ainvoke("?")]
        messages += [sum(chunks[1:], chunks[0]) for chunks in streams]
        for message in messages:
            (call,) = message.tool_calls
            assert (call["name"], call["args"], message.text) == ("get_weather", ARGUMENTS, "")
            assert call["id"] and message.response_metadata["finish_reason"] == "tool_calls"
        assert not any(chunk.text for chunks in streams for chunk in chunks)


def test_a_call_before_a_stop_string_is_a_call() -> None:
    for text in (f"{BODY} END", f"```json\n{BODY}\n```\nEND and more"):
        message = model(text).invoke("?", stop=["END"])
        assert [call["args"] for call in message.tool_calls] == [ARGUMENTS]
        assert message.response_metadata["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("form", TEXTS)
def test_other_text_is_returned_to_the_last_character(form: str) -> None:
    for size in (1, 3, 100):
        llm = model(TEXTS[form], size)
        chunks = list(llm.stream("?"))
        message: Any = sum(chunks[1:], chunks[0])
        for answer in (llm.invoke("?"), message):
            assert (answer.text, answer.tool_calls, answer.invalid_tool_calls) == (
                TEXTS[form],
                [],
                [],
            )
            assert answer.response_metadata["finish_reason"] == "stop"


def test_text_that_can_no_longer_become_a_call_is_streamed_at_once() -> None:
    for text in (
        "```python\na b c d e f",
        '{"name": "Ann", "is": 1} a b c d',
        '{"arguments": [1, 2, 3, 4, 5, 6, 7], "x": 8}',
        "A b c d e f g h",
    ):
        chunks = [chunk.text for chunk in model(text, 2).stream("?") if chunk.text]
        assert len(chunks) > 2


pieces = st.sampled_from(["```", "json\n", "{", '"name"', ": ", '"get_weather"', ", ", '"arguments"', "{}", "}", "\n", "a", '"'])  # fmt: skip


@given(st.lists(pieces, max_size=12).map("".join) | st.sampled_from([*CALLS.values(), *TEXTS.values()]),
       st.lists(st.integers(0, 10**6), max_size=5))  # fmt: skip
def test_text_is_conserved_and_calls_do_not_depend_on_where_pieces_end(
    text: str, places: list[int]
) -> None:
    prose, calls = Splitter(COMMON, anywhere=True, lone=["get_weather"]).feed(text, last=True)
    splitter = Splitter(COMMON, anywhere=True, lone=["get_weather"])
    parts = [splitter.feed(part)[0] for part in cut(text, places)]
    last, calls_in_parts = splitter.feed("", last=True)
    assert [replace(call, id=None) for call in calls_in_parts] == [
        replace(call, id=None) for call in calls
    ]
    assert "".join([*parts, last]) == prose == ("" if calls else text)


def test_a_call_that_the_budget_cuts_stays_text() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(PRETTY)], max_tokens=6)
    message = llm.bind_tools([get_weather]).invoke("?")
    assert message.tool_calls == [] and PRETTY.startswith(message.text) and message.text
    assert message.response_metadata["finish_reason"] == "length"


def test_arguments_of_a_call_in_plain_json_are_checked_like_any_others() -> None:
    for wrong in ({}, {"city": 7}, {"city": "Rome", "days": "two"}):
        body = json.dumps({"name": "get_weather", "arguments": wrong})
        message = model(f"```json\n{body}\n```").invoke("?")
        assert message.tool_calls == [] and message.text == ""
        (broken,) = message.invalid_tool_calls
        assert broken["name"] == "get_weather" and broken["error"]


def test_a_requested_object_is_not_a_call() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}, "arguments": {}}}
    body = '{"name": "get_weather", "arguments": {}}'
    message = model(body).invoke("?", response_format=schema)
    assert (message.text, message.tool_calls) == (body, [])


def test_without_tools_nothing_is_read_as_a_call() -> None:
    message = SpecFuseChatModel(members=[ScriptedMember(BODY)]).invoke("?")
    assert (message.text, message.tool_calls) == (BODY, [])


async def test_an_agent_runs_a_call_in_plain_json() -> None:
    """Small models that were trained on code call tools this way."""
    fenced = f"```json\n{json.dumps({'name': 'get_weather', 'arguments': {'city': 'Rome'}})}\n```"
    members = [ScriptedMember([fenced, "It is sunny in Rome."])]
    agent = create_agent(SpecFuseChatModel(members=members), [get_weather])
    asked = {"messages": [("human", "How is the weather in Rome?")]}
    for state in (agent.invoke(asked), await agent.ainvoke(asked)):
        kinds = [message.type for message in state["messages"]]
        assert kinds == ["human", "ai", "tool", "ai"]
        assert state["messages"][2].content == "It is sunny in Rome for 1."
    streamed = [part for part, _ in agent.stream(asked, stream_mode="messages")]
    texts = [part.text for part in streamed if isinstance(part, AIMessageChunk)]
    assert "".join(texts) == "It is sunny in Rome."
