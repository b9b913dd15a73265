"""Whatever is sent to the door: an answer in OpenAI's form or an error in OpenAI's form, and the next one is served.

OpenAI's own client says what is well formed.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from langchain_specfuse import ScriptedMember
from langchain_specfuse.door import Limits
from langchain_specfuse.door.orders import KNOWN
from tests.torture.fuzz import mutations
from tests.torture.texts import broken, pieced, places_in

from .conftest import ASKED, BLUE, Door, ensemble, events, until
from .test_messages import conversations

ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
SHAPED = {"type": "json_schema", "json_schema": {"name": "sum", "schema": ADD}}
RIGHT: dict[str, list[Any]] = {
    "temperature": [0, 0.5, 2],
    "top_p": [0.1, 1],
    "seed": [0, -1, 2**62],
    "stop": ["air", ["sky", "\n"], []],
    "max_tokens": [1, 5],
    "n": [1],
    "tools": [[TOOL]],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "add"}}],
    "parallel_tool_calls": [True, False],
    "response_format": [{"type": "text"}, {"type": "json_object"}, SHAPED],
    "regex": ["[a-c]+"],
    "choice": [["yes", "no"]],
    "user": ["ann"],
    "stream_options": [{"include_usage": True}],
}
HURTING = [10**30, -1, 1e308, 2**63, True, None, "", [], {}, [[[[[]]]]], "\ud800", "\x00", ["\udfff"], "x" * 3000, -0.0]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | broken | st.sampled_from(HURTING),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(KNOWN)) | broken, inner, max_size=3)
    ),
    max_leaves=5,
)
FORM = {"message", "type", "param", "code"}


@st.composite
def right(draw: Any) -> dict[str, Any]:
    """What may well be answered."""
    names = draw(st.lists(st.sampled_from(sorted(RIGHT)), max_size=4, unique=True))
    if "tool_choice" in names or "parallel_tool_calls" in names:
        names.append("tools")
    told = {name: draw(st.sampled_from(RIGHT[name])) for name in names}
    messages = draw(conversations | st.just(ASKED))
    return copy.deepcopy({"model": "specfuse", "messages": messages, "stream": draw(st.booleans()), **told})


@st.composite
def wrong(draw: Any) -> dict[str, Any]:
    """The same with something exchanged, added or left out, anywhere in it."""
    body = draw(right())
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(list(places_in(body))))
        what = draw(st.sampled_from(["other", "gone", "more"]))
        if what == "gone":
            holder.pop(key)
        elif what == "more" and isinstance(holder, dict):
            holder[draw(st.sampled_from(sorted(KNOWN)) | broken)] = draw(anything)
        else:
            holder[key] = draw(anything)
    return body


@st.composite
def sent(draw: Any) -> bytes:
    """Bytes that were, or are nearly, such a body."""
    text = json.dumps(draw(right() | wrong()), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):  # a key that comes twice
        key, value = draw(st.sampled_from(sorted(KNOWN))), json.dumps(draw(anything))
        text = f'{{"{key}": {value}, {text[1:]}' if draw(st.booleans()) else f'{text[:-1]}, "{key}": {value}}}'
    data = text.encode("utf-8", "surrogatepass")
    return next(mutations(data, 1, draw(st.integers(0, 255)))) if draw(st.booleans()) else data


class Line:
    """One connection to a door, for many questions."""

    def __init__(self, door: Door) -> None:
        self.door, self.client = door, door.http()

    def post(self, body: Any) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return self.client.post(f"{self.door.url}/v1/chat/completions", content=content, headers=headers)


@pytest.fixture
def here(door):
    """A door that must be as good as new after each test."""
    lines = {"limits": Limits(most_bytes=200_000, most_shape_bytes=4_000, most_tokens=100)}
    opened = door(ensemble(ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE.upper(), name="b")), **lines)
    yield Line(opened)
    assert until(lambda: opened.hall.gate.inside == 0)
    assert opened.asked().json()["choices"][0]["message"]["content"] == BLUE


def well_formed(told: httpx.Response) -> str | None:
    """The text of an answer that is as OpenAI's are; None where it is an error that is as OpenAI's are."""
    if told.status_code != 200:
        assert 400 <= told.status_code < 500, told.text
        assert told.headers["content-type"] == "application/json"
        return refused(told.json())
    if not told.headers["content-type"].startswith("text/event-stream"):
        answer = ChatCompletion.model_validate(told.json(), strict=True)
        (choice,) = answer.choices
        assert answer.usage is not None and choice.finish_reason in ("stop", "length", "tool_calls")
        assert choice.message.content is not None or choice.message.tool_calls
        calls = [call.function for call in choice.message.tool_calls or () if call.type == "function"]
        return (choice.message.content or "") + "".join(f"{call.name}{call.arguments}" for call in calls)
    *parts, last = events(told)
    assert last == "[DONE]" and "error" not in parts[-1]
    chunks = [ChatCompletionChunk.model_validate(part, strict=True) for part in parts]
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    finishes = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert len(finishes) == 1 and deltas[0].role == "assistant"
    calls = [piece.function for delta in deltas for piece in delta.tool_calls or () if piece.function]
    said = "".join(delta.content or "" for delta in deltas)
    return said + "".join(f"{call.name or ''}{call.arguments or ''}" for call in calls)


def refused(told: Any) -> None:
    assert set(told) == {"error"} and set(told["error"]) == FORM
    error = told["error"]
    assert error["message"] and isinstance(error["message"], str) and isinstance(error["type"], str)
    assert len(error["message"]) < 10_000
    assert isinstance(error["code"], str) and isinstance(error["param"], str | None)


quick = settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quick
@given(told=right() | wrong())
def test_streamed_or_whole_it_is_the_same_answer_or_the_same_refusal(here: Any, told: dict[str, Any]) -> None:
    plain = {name: value for name, value in told.items() if name not in ("stream", "stream_options")}
    whole, streamed = (here.post({**plain, "stream": stream}) for stream in (False, True))
    assert well_formed(whole) == well_formed(streamed)
    assert whole.status_code == streamed.status_code
    if whole.status_code != 200:
        assert whole.json() == streamed.json()
    well_formed(here.post(told))


@quick
@given(data=sent())
def test_any_bytes_are_answered_or_refused_in_openais_form(here: Any, data: bytes) -> None:
    well_formed(here.post(data))
    assert here.client.get(here.door.url + "/health").status_code == 200


@pytest.fixture
def echo(door):
    """A door that says what it is told."""
    return Line(door(ensemble(lambda query: query.turns[-1].text, max_tokens=1000, segment_tokens=16)))


@quick
@given(text=pieced)
def test_any_text_comes_back_to_the_character_streamed_or_whole(echo: Any, text: str) -> None:
    body = {"model": "specfuse", "messages": [{"role": "user", "content": text}]}
    told = [well_formed(echo.post({**body, "stream": stream})) for stream in (False, True)]
    assert told == [text, text]
