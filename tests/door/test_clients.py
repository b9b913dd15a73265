"""The clients that people use, pointed at the door: what they get is what the chat model says."""

from __future__ import annotations

import json

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from langchain_specfuse import ScriptedMember

from .conftest import ASKED, BLUE, WIDE, ensemble, events

CALL = ScriptedMember.call("get_weather", city="Rome")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Joke(BaseModel):
    """A joke."""

    setup: str
    punchline: str


JOKE = {"setup": "Why is the sky blue?", "punchline": "The sea was sold out."}


@tool
def get_weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"It is sunny in {city}."


def asked(client, **options):
    return client.chat.completions.create(**{"model": "specfuse", "messages": ASKED, **options})


# --- openai -----------------------------------------------------------------------------------------------------


def test_an_answer_is_the_chat_models(door):
    here = door()
    answer = asked(here.client())
    own = here.llm.invoke("Why is the sky blue?")
    assert answer.choices[0].message.content == own.text == BLUE
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == own.usage_metadata["output_tokens"]
    assert answer.usage.prompt_tokens == own.usage_metadata["input_tokens"]
    assert answer._request_id == answer.id


def test_a_stream_has_one_event_for_each_segment(door):
    here = door()
    own = [chunk.text for chunk in here.llm.stream("Why is the sky blue?") if chunk.text]
    chunks = list(asked(here.client(), stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks[:-1]] == own
    assert len(own) > 2
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * len(own) + ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[1].choices[0].delta.role is None
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_first_segment_is_sent_before_the_last_is_made(door):
    import threading

    gate = threading.Event()

    class Gated(ScriptedMember):
        def draft(self, jobs):
            if self.draft_calls:
                assert gate.wait(10)
            return super().draft(jobs)

    stream = asked(door(ensemble(Gated(BLUE))).client(), stream=True)
    first = next(iter(stream))
    assert BLUE.startswith(first.choices[0].delta.content)
    gate.set()
    rest = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert first.choices[0].delta.content + rest == BLUE


def test_usage_comes_last_and_on_request_only(door):
    here = door()
    assert all(chunk.usage is None for chunk in asked(here.client(), stream=True))
    *others, last = asked(here.client(), stream=True, stream_options={"include_usage": True})
    assert last.choices == [] and last.usage.total_tokens == asked(here.client()).usage.total_tokens
    assert all(chunk.usage is None for chunk in others)


def test_the_last_event_of_an_answer_tells_who_wrote_it(door):
    chunks = list(asked(door().client(), stream=True))
    told = chunks[-1].model_extra["specfuse"]
    assert told["rounds"] == len(chunks) - 1
    assert told["members"] == ["a", "b"] and sum(told["weights"].values()) == pytest.approx(1)


def test_options_are_the_chat_models(door):
    client = door().client()
    assert asked(client, max_tokens=3).choices[0].message.content == " ".join(BLUE.split()[:3])
    assert asked(client, max_completion_tokens=3).choices[0].finish_reason == "length"
    stopped = asked(client, stop=" air")
    assert stopped.choices[0].message.content == BLUE.partition(" air")[0]
    assert stopped.choices[0].finish_reason == "stop"
    sampled = asked(client, temperature=0.7, top_p=0.9, seed=7, n=1, user="somebody")
    assert sampled.model_extra["specfuse"]["seed"] == 7


def test_options_that_openai_does_not_have_come_as_extra_body(door):
    answer = asked(door(ensemble("positive", "positively")).client(), extra_body={"choice": ["positive", "negative"]})
    assert answer.choices[0].message.content == "positive"


def test_a_call_comes_whole_and_in_pieces(door):
    client = door(ensemble(CALL, CALL)).client()
    whole = asked(client, tools=[TOOL])
    (call,) = whole.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    assert whole.choices[0].message.content is None and whole.choices[0].finish_reason == "tool_calls"
    chunks = list(asked(client, tools=[TOOL], stream=True))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert [piece.function.name for piece in pieces if piece.function.name] == ["get_weather"]
    assert json.loads("".join(piece.function.arguments for piece in pieces)) == {"city": "Rome"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_can_be_forced(door, choice):
    answer = asked(door(ensemble("no call", CALL)).client(), tools=[TOOL], tool_choice=choice)
    assert answer.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_a_tool_without_parameters_takes_none(door):
    call = ScriptedMember.call("now")
    answer = asked(door(ensemble(call)).client(), tools=[{"type": "function", "function": {"name": "now"}}])
    assert json.loads(answer.choices[0].message.tool_calls[0].function.arguments) == {}


def test_several_calls_keep_apart(door):
    both = "\n".join([CALL, ScriptedMember.call("get_weather", city="Oslo")])
    client = door(ensemble(both, both)).client()
    calls = asked(client, tools=[TOOL]).choices[0].message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Rome", "Oslo"]
    assert len({call.id for call in calls}) == 2
    one = asked(client, tools=[TOOL], parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls) == 1


def test_what_a_tool_said_reaches_the_members(door):
    here = door(ensemble(lambda query: query.turns[-1].text if query.turns[-1].role == "tool" else CALL))
    client = here.client()
    first = asked(client, tools=[TOOL]).choices[0].message
    said = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "It is sunny in Rome."}
    last = asked(client, tools=[TOOL], messages=[*ASKED, first, said])
    assert last.choices[0].message.content == "It is sunny in Rome."


def test_a_call_that_the_budget_cuts_is_no_json(door):
    long = ScriptedMember.call("get_weather", city="a town with a very long name indeed in Wales")
    answer = asked(door(ensemble(long, long)).client(), tools=[TOOL], max_tokens=5)
    assert answer.choices[0].finish_reason == "length"
    with pytest.raises(ValueError, match=r"Expecting|Extra data"):
        json.loads(answer.choices[0].message.tool_calls[0].function.arguments)


def test_a_class_is_parsed(door):
    client = door(ensemble(JOKE, JOKE)).client()
    parsed = client.chat.completions.parse(model="specfuse", messages=ASKED, response_format=Joke)
    assert parsed.choices[0].message.parsed == Joke(**JOKE)
    loose = asked(client, response_format={"type": "json_object"})
    assert json.loads(loose.choices[0].message.content) == JOKE


def test_the_models_are_listed(door):
    client = door(model="our/own").client()
    assert [one.id for one in client.models.list()] == ["our/own"]
    assert client.models.retrieve("our/own").owned_by == "langchain-specfuse"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("options", "kind", "code"),
    [
        ({"model": "gpt-5"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": -1}, openai.BadRequestError, "invalid_value"),
        ({"n": 2}, openai.BadRequestError, "unsupported_parameter"),
        ({"logprobs": True}, openai.BadRequestError, "unsupported_parameter"),
        ({"messages": []}, openai.BadRequestError, "invalid_value"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "invalid_value"),
    ],
)
def test_what_cannot_be_is_an_error_of_openais(door, options, kind, code):
    with pytest.raises(kind) as raised:
        asked(door().client(), **options)
    assert raised.value.body["code"] == code
    assert "->" in raised.value.body["message"]


def test_trouble_in_the_middle_of_a_stream_is_an_error_after_what_was_said(door):
    broken = ScriptedMember(BLUE, fails_in=3, error=RuntimeError("the secret is 42"))
    stream = asked(door(ensemble(broken)).client(), stream=True)
    said = []
    with pytest.raises(openai.APIError, match="nobody is left") as raised:
        said.extend(chunk.choices[0].delta.content for chunk in stream)
    assert BLUE.startswith("".join(said)) and len(said) == 2
    assert "secret" not in str(raised.value.body)


def test_a_stream_that_broke_off_is_not_marked_as_done(door):
    broken = ScriptedMember(BLUE, fails_in=2)
    told = events(door(ensemble(broken)).asked(stream=True))
    assert "[DONE]" not in told
    assert told[-1]["error"]["code"] == "members_failed" and "choices" in told[0]


# --- langchain-openai -------------------------------------------------------------------------------------------


def langchain(here, **options):
    given = {"model": "specfuse", "base_url": f"{here.url}/v1", "api_key": "none", "http_client": here.http()}
    return ChatOpenAI(**{**given, **options})


def test_langchain_gets_answers_and_streams(door):
    here = door()
    far = langchain(here, stream_usage=True)
    assert far.invoke("Why is the sky blue?").text == BLUE
    chunks = list(far.stream("Why is the sky blue?"))
    assert "".join(chunk.text for chunk in chunks) == BLUE
    whole = sum(chunks[1:], chunks[0])
    assert whole.usage_metadata["output_tokens"] == here.llm.invoke("Why?").usage_metadata["output_tokens"]
    assert whole.response_metadata["finish_reason"] == "stop"


def test_langchain_calls_tools_and_tells_what_they_said(door):
    here = door(ensemble([CALL, "It is sunny in Rome."]))
    bound = langchain(here).bind_tools([get_weather], strict=True)
    question = HumanMessage("How is the weather in Rome?")
    message = bound.invoke([question])
    assert [(call["name"], call["args"]) for call in message.tool_calls] == [("get_weather", {"city": "Rome"})]
    streamed = list(bound.stream([question]))
    assert sum(streamed[1:], streamed[0]).tool_calls[0]["args"] == {"city": "Rome"}
    last = bound.invoke([question, message, ToolMessage("sunny", tool_call_id=message.tool_calls[0]["id"])])
    assert last.text == "It is sunny in Rome."


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_gets_objects(door, method):
    script = ScriptedMember.call("Joke", **JOKE) if method == "function_calling" else JOKE
    far = langchain(door(ensemble(script, script))).with_structured_output(Joke, method=method)
    assert far.invoke("A joke, as JSON?") == Joke(**JOKE)


def test_an_agent_of_langchains_works_through_the_door(door):
    from langchain.agents import create_agent

    here = door(ensemble([CALL, "It is sunny in Rome."], ["", WIDE]))
    agent = create_agent(langchain(here), [get_weather])
    last = agent.invoke({"messages": [HumanMessage("How is the weather in Rome?")]})["messages"]
    assert [message.type for message in last] == ["human", "ai", "tool", "ai"]
    assert last[-1].text == "It is sunny in Rome."


def test_a_conversation_that_is_too_long_is_langchains_overflow(door):
    from langchain_core.exceptions import ContextOverflowError

    from langchain_specfuse.core.values import Failure

    class Full(ScriptedMember):
        def draft(self, jobs):
            return [Failure("overflow", "the prompt has 9000 tokens, at most 8192 fit") for _ in jobs]

    here = door(ensemble(Full(BLUE)))
    with pytest.raises(openai.BadRequestError) as raised:
        asked(here.client(), stream=True)
    assert raised.value.code == "context_length_exceeded"
    with pytest.raises(ContextOverflowError):
        langchain(here).invoke("Why?")
