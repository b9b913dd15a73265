"""Any request gets an answer or an error in OpenAI's form, and the next request is answered.

OpenAI's own client decides what is well-formed.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import convert_to_messages
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from langchain_specfuse import ScriptedMember
from langchain_specfuse.chat.messages import turns_of
from langchain_specfuse.serve import Limits
from langchain_specfuse.serve.requests import IGNORED, NEUTRAL, USED, read_request
from tests.torture.texts import broken, pieced, places_in

from .conftest import BLUE, PATH, QUESTION, Endpoint, ensemble, events, serving

KNOWN = sorted(USED | IGNORED | NEUTRAL.keys())

# --- conversations --------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=30)
contents = texts | st.lists(
    texts.map(lambda text: {"type": "text", "text": text}), min_size=1, max_size=4
)
arguments = st.dictionaries(
    texts, st.integers() | texts | st.none() | st.booleans(), max_size=3
).map(json.dumps)
functions = st.fixed_dictionaries(
    {"name": st.text("abc_", min_size=1, max_size=9), "arguments": arguments}
)
calls = st.builds(
    lambda number, function: {"id": f"call_{number}", "type": "function", "function": function},
    st.integers(0, 9),
    functions,
)
several = st.lists(calls, min_size=1, max_size=3, unique_by=lambda call: call["id"])
plain = st.sampled_from(["system", "developer", "user", "assistant"])
messages = st.one_of(
    st.fixed_dictionaries({"role": plain, "content": contents}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.none() | contents, "tool_calls": several}
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": contents, "tool_call_id": st.just("call_1")}
    ),
)
conversations = st.lists(messages, min_size=1, max_size=6)


def read(messages: Any) -> Any:
    return turns_of(read_request({"model": "m", "messages": messages}, "m", Limits()).messages)


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or ())


@given(conversations)
def test_members_read_what_langchains_own_conversion_gives(conversation):
    assert read(conversation) == turns_of(
        convert_to_messages(
            [{**message, "content": text_of(message["content"])} for message in conversation]
        )
    )


def test_invalid_calls_and_names_are_passed_on():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{a: 1"}}
    (turn,) = read([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert json.loads(turn.calls[0].arguments) == {"invalid": "{a: 1"}
    assert read([{"role": "user", "name": "ann", "content": "hello"}])[0].text == "ann: hello"


# --- bodies ---------------------------------------------------------------------------------------

ADD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": ADD}}
RIGHT: dict[str, list[Any]] = {
    "temperature": [0, 0.5, 2],
    "stop": ["air", ["sky", "\n"], []],
    "max_tokens": [1, 5],
    "tools": [[TOOL]],
    "tool_choice": ["auto", "none", "required", {"type": "function", "function": {"name": "add"}}],
    "parallel_tool_calls": [True, False],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "s", "schema": ADD}},
    ],
    "choice": [["yes", "no"]],
    "stream_options": [{"include_usage": True}],
}
HURTING = [
    10**30,
    -1,
    1e308,
    2**63,
    True,
    None,
    "",
    [],
    {},
    [[[[[]]]]],
    "\ud800",
    "\x00",
    ["\udfff"],
    "x" * 3000,
    -0.0,
]
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | broken | st.sampled_from(HURTING),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KNOWN) | broken, inner, max_size=3)
    ),
    max_leaves=5,
)


def changed(draw: Any, body: dict[str, Any]) -> dict[str, Any]:
    """Replace, add or remove something in a body, or leave it as it is."""
    for _ in range(draw(st.integers(0, 2))):
        holder, key = draw(st.sampled_from(list(places_in(body))))
        change = draw(st.sampled_from(["other", "gone", "more"]))
        if change == "gone":
            holder.pop(key)
        elif change == "more" and isinstance(holder, dict):
            holder[draw(st.sampled_from(KNOWN) | broken)] = copy.deepcopy(draw(anything))
        else:
            holder[key] = copy.deepcopy(draw(anything))
    return body


@st.composite
def bodies(draw: Any) -> dict[str, Any]:
    """Draw a request that is probably valid, or one with something changed."""
    names = draw(st.lists(st.sampled_from(sorted(RIGHT)), max_size=4, unique=True))
    if "tool_choice" in names or "parallel_tool_calls" in names:
        names.append("tools")
    options = {name: draw(st.sampled_from(RIGHT[name])) for name in names}
    body = copy.deepcopy(
        {"model": "specfuse", "messages": draw(conversations | st.just(QUESTION)), **options}
    )
    return changed(draw, body)


ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Why is the sky blue?"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Why?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "function_call", "call_id": "c", "name": "add", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "3"},
]
RESPONSE_OPTIONS: dict[str, Any] = {
    "instructions": "Be brief.",
    "max_output_tokens": 5,
    "tools": [{"type": "function", "name": "add", "parameters": ADD}],
    "text": {"format": {"type": "json_schema", "name": "s", "schema": ADD}},
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "stream": True,
}


@st.composite
def response_bodies(draw: Any) -> dict[str, Any]:
    """Draw a request for a response, as ``bodies`` does."""
    names = draw(st.lists(st.sampled_from(sorted(RESPONSE_OPTIONS)), max_size=4, unique=True))
    items = draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4))
    options = {name: RESPONSE_OPTIONS[name] for name in names}
    return changed(draw, copy.deepcopy({"model": "specfuse", "input": items, **options}))


def poster(endpoint: Endpoint) -> Callable[..., httpx2.Response]:
    """Send bodies over one connection."""
    client, headers = endpoint.http(), {"content-type": "application/json"}
    return lambda body, path=PATH: client.post(
        endpoint.url + path, content=json.dumps(body).encode(), headers=headers
    )


@pytest.fixture(scope="module")
def post():
    """Post to an endpoint that must work as before after all tests."""
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(BLUE.upper(), name="b")]
    with serving() as start:
        endpoint = start(
            ensemble(*members), limits=Limits(max_body_bytes=200_000, max_answer_tokens=100)
        )
        yield poster(endpoint)
        assert endpoint.idle()
        assert endpoint.ask().json()["choices"][0]["message"]["content"] == BLUE


def refused(response: httpx2.Response) -> None:
    assert 400 <= response.status_code < 500, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert 0 < len(error["message"]) < 10_000 and isinstance(error["code"], str)


def well_formed(response: httpx2.Response) -> str | None:
    """Return the text and calls of an answer in OpenAI's form, or None for an error in OpenAI's
    form."""
    if response.status_code != 200:
        refused(response)
        return None
    if not response.headers["content-type"].startswith("text/event-stream"):
        answer = ChatCompletion.model_validate(response.json(), strict=True)
        (choice,) = answer.choices
        assert answer.usage is not None and choice.finish_reason in ("stop", "length", "tool_calls")
        assert choice.message.content is not None or choice.message.tool_calls
        parts = [choice.message]
    else:
        *data, last = events(response)
        assert last == "[DONE]" and "error" not in data[-1]
        choices = [
            choice
            for event in data
            for choice in ChatCompletionChunk.model_validate(event, strict=True).choices
        ]
        assert len([choice for choice in choices if choice.finish_reason]) == 1
        assert choices[0].delta.role == "assistant"
        parts = [choice.delta for choice in choices]
    text = "".join(part.content or "" for part in parts)
    functions = [call.function for part in parts for call in part.tool_calls or ()]
    calls = [f"{function.name or ''}{function.arguments or ''}" for function in functions]
    return text + "".join(calls)


quick = settings(
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quick
@given(body=bodies())
def test_streamed_or_whole_it_is_the_same_answer_or_the_same_refusal(
    post: Any, body: dict[str, Any]
) -> None:
    options = {
        name: value for name, value in body.items() if name not in ("stream", "stream_options")
    }
    whole, streamed = (post({**options, "stream": stream}) for stream in (False, True))
    assert well_formed(whole) == well_formed(streamed)
    assert whole.status_code == streamed.status_code
    if whole.status_code != 200:
        assert whole.json() == streamed.json()
    well_formed(post(body))


@quick
@given(body=response_bodies())
def test_a_response_or_a_refusal_answers_any_request_for_a_response(
    post: Any, body: dict[str, Any]
) -> None:
    response = post(body, "/v1/responses")
    if response.status_code != 200:
        refused(response)
        return
    answer = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        *_, last = answer.strip().split("\n\n")
        answer = json.dumps(json.loads(last.partition("\ndata: ")[2])["response"])
    assert Response.model_validate_json(answer).status in ("completed", "incomplete")


@quick
@given(
    text=pieced
    | st.sampled_from(["data: [DONE]\n\ndata: {}", "\u2028\u2029 </script>", "\x1b[31m red"])
)
def test_any_text_comes_back_unchanged_streamed_or_whole(echo: Any, text: str) -> None:
    body = {"model": "specfuse", "messages": [{"role": "user", "content": text}]}
    assert [well_formed(echo({**body, "stream": stream})) for stream in (False, True)] == [
        text,
        text,
    ]


@pytest.fixture(scope="module")
def echo():
    """Start an endpoint that repeats the question."""
    with serving() as start:
        llm = ensemble(lambda query: query.turns[-1].text, max_tokens=1000, segment_tokens=16)
        yield poster(start(llm))
