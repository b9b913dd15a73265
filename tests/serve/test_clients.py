"""OpenAI's client and LangChain's read from the endpoint what the chat model answers."""

from __future__ import annotations

import json

import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion
from pydantic import BaseModel

from langchain_specfuse import ScriptedMember

from .conftest import BLUE, QUESTION, ensemble, events

CALL = ScriptedMember.call("get_weather", city="Rome")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
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


def ask(client, **options):
    return client.chat.completions.create(**{"model": "specfuse", "messages": QUESTION, **options})


def test_an_answer_is_the_chat_models_whole_and_streamed(serve):
    endpoint = serve(model="our/own")
    client = endpoint.client()
    answer = ask(client, model="our/own")
    expected = endpoint.llm.invoke("Why is the sky blue?")
    assert answer.choices[0].message.content == expected.text == BLUE
    assert answer.choices[0].finish_reason == "stop" and answer._request_id == answer.id
    assert answer.usage.completion_tokens == expected.usage_metadata["output_tokens"]
    assert answer.usage.prompt_tokens == expected.usage_metadata["input_tokens"]
    segments = [chunk.text for chunk in endpoint.llm.stream("Why is the sky blue?") if chunk.text]
    *chunks, last = list(ask(client, model="our/own", stream=True))
    assert [chunk.choices[0].delta.content for chunk in chunks] == segments and len(segments) > 2
    assert {chunk.choices[0].finish_reason for chunk in chunks} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert (
        chunks[0].choices[0].delta.role == "assistant" and chunks[1].choices[0].delta.role is None
    )
    assert len({chunk.id for chunk in [*chunks, last]}) == 1 and {
        chunk.usage for chunk in chunks
    } == {None}
    summary = last.model_extra["specfuse"]
    assert summary["rounds"] == len(segments) and sum(summary["weights"].values()) == pytest.approx(
        1
    )
    *_, usage = ask(client, model="our/own", stream=True, stream_options={"include_usage": True})
    assert usage.choices == [] and usage.usage.total_tokens == answer.usage.total_tokens
    assert [model.id for model in client.models.list()] == ["our/own"]
    assert client.models.retrieve("our/own").owned_by == "langchain-specfuse"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_options_reach_the_chat_model(serve):
    client = serve().client()
    assert ask(client, max_tokens=3).choices[0].message.content == " ".join(BLUE.split()[:3])
    assert ask(client, max_completion_tokens=3).choices[0].finish_reason == "length"
    stopped = ask(client, stop=" air")
    assert stopped.choices[0].message.content == BLUE.partition(" air")[0]
    assert stopped.choices[0].finish_reason == "stop"
    sampled = ask(client, temperature=0.7, top_p=0.9, seed=7, n=1, user="somebody")
    assert sampled.model_extra["specfuse"]["seed"] == 7
    chosen = ask(
        serve(ensemble("positive", "positively")).client(),
        extra_body={"choice": ["positive", "negative"]},
    )
    assert chosen.choices[0].message.content == "positive"


def test_a_clients_schema_is_enforced_by_a_grammar_and_not_checked_afterwards(serve):
    """A client could write a schema whose check never ends."""
    named = {"type": "object", "properties": {"name": {"type": "string"}}}
    either = {"oneOf": [{**named, "required": ["name"]}, {"type": "object", "properties": {}}]}
    double = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    parameters = {
        "type": "object",
        "properties": {"to": either, "n": {"$ref": "#/$defs/d0"}},
        "required": ["to", "n"],
        "$defs": {**double, "d40": {"type": "integer"}},
    }
    tool = {"type": "function", "function": {"name": "tag", "parameters": parameters}}
    call = ScriptedMember.call("tag", to={"name": "ann"}, n=1)
    answer = ask(serve(ensemble(call, call)).client(), tools=[tool]).choices[0]
    (tool_call,) = answer.message.tool_calls
    assert json.loads(tool_call.function.arguments) == {"to": {"name": "ann"}, "n": 1}


def test_a_clients_schema_beyond_grammars_is_refused(serve):
    parameters = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
    tool = {"type": "function", "function": {"name": "tag", "parameters": parameters}}
    with pytest.raises(openai.BadRequestError, match=r"tags\.uniqueItems is not supported"):
        ask(serve().client(), tools=[tool])


def test_a_call_in_a_fence_is_a_call_unless_the_client_wants_strict_ones(serve):
    fenced = '```json\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n```'
    client = serve(ensemble(fenced, fenced)).client()
    (call,) = ask(client, tools=[TOOL]).choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
    assert ask(client, tools=[strict]).choices[0].message.content == fenced


def test_log_probabilities_come_in_openais_shape(serve):
    client = serve().client()
    choice = ask(client, logprobs=True, top_logprobs=0).choices[0]
    assert "".join(entry.token for entry in choice.logprobs.content) == BLUE
    assert all(entry.logprob < 0 and entry.top_logprobs == [] for entry in choice.logprobs.content)
    chunks = list(ask(client, logprobs=True, stream=True))
    listed = [chunk.choices[0].logprobs for chunk in chunks]
    entries = [entry for logprobs in listed if logprobs for entry in logprobs.content]
    assert "".join(entry.token for entry in entries) == BLUE
    assert ask(client).choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="top_logprobs"):
        ask(client, logprobs=True, top_logprobs=2)


def test_calls_arrive_complete_or_in_pieces_and_stay_separate(serve):
    both = "\n".join([CALL, ScriptedMember.call("get_weather", city="Oslo")])
    client = serve(ensemble(both, both)).client()
    whole = ask(client, tools=[TOOL]).choices[0]
    calls = whole.message.tool_calls
    assert [json.loads(call.function.arguments)["city"] for call in calls] == ["Rome", "Oslo"]
    assert len({call.id for call in calls}) == 2
    assert whole.message.content is None and whole.finish_reason == "tool_calls"
    chunks = list(ask(client, tools=[TOOL], parallel_tool_calls=False, stream=True))
    pieces = [piece for chunk in chunks for piece in chunk.choices[0].delta.tool_calls or ()]
    assert [piece.function.name for piece in pieces if piece.function.name] == ["get_weather"]
    assert json.loads("".join(piece.function.arguments for piece in pieces)) == {"city": "Rome"}
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    cut = ask(client, tools=[TOOL], max_tokens=4).choices[0]
    assert cut.finish_reason == "length"
    with pytest.raises(ValueError, match=r"Expecting|Extra data|Unterminated"):
        json.loads(cut.message.tool_calls[0].function.arguments)


def test_a_call_can_be_forced_and_needs_no_parameters(serve):
    now = {"type": "function", "function": {"name": "now"}}
    client = serve(ensemble("no call", ScriptedMember.call("now"))).client()
    for choice in ("required", {"type": "function", "function": {"name": "now"}}):
        (call,) = ask(client, tools=[now], tool_choice=choice).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("now", {})


def test_a_response_format_is_kept(serve):
    client = serve(ensemble(JOKE, JOKE)).client()
    parsed = client.chat.completions.parse(
        model="specfuse", messages=QUESTION, response_format=Joke
    )
    assert parsed.choices[0].message.parsed == Joke(**JOKE)
    loose = ask(client, response_format={"type": "json_object"})
    assert json.loads(loose.choices[0].message.content) == JOKE


def test_a_failure_within_a_stream_is_an_error_after_its_text_without_an_end(serve):
    endpoint = serve(
        ensemble(ScriptedMember(BLUE, fails_in=3, error=RuntimeError("the secret is 42")))
    )
    received = []
    with pytest.raises(openai.APIError, match="no member is left") as raised:
        received.extend(
            chunk.choices[0].delta.content for chunk in ask(endpoint.client(), stream=True)
        )
    assert BLUE.startswith("".join(received)) and len(received) == 2
    assert "secret" not in str(raised.value.body)
    data = events(serve(ensemble(ScriptedMember(BLUE, fails_in=2))).ask(stream=True))
    assert "choices" in data[0] and data[-1]["error"]["code"] == "members_failed"


# --- langchain-openai -----------------------------------------------------------------------------


def langchain(endpoint):
    return ChatOpenAI(
        model="specfuse", base_url=f"{endpoint.url}/v1", api_key="none", http_client=endpoint.http()
    )


def test_langchains_client_reads_answers_streams_and_objects(serve):
    remote = langchain(serve())
    assert remote.invoke("Why is the sky blue?").text == BLUE
    chunks = list(remote.stream("Why is the sky blue?"))
    assert "".join(chunk.text for chunk in chunks) == BLUE
    assert sum(chunks[1:], chunks[0]).response_metadata["finish_reason"] == "stop"
    for method, script in (
        ("json_schema", JOKE),
        ("function_calling", ScriptedMember.call("Joke", **JOKE)),
    ):
        remote = langchain(serve(ensemble(script, script))).with_structured_output(
            Joke, method=method
        )
        assert remote.invoke("A joke, as JSON?") == Joke(**JOKE)


def test_lm_evaluation_harness_reads_the_chat_models_answer(serve):
    endpoint = serve()
    client = LocalChatCompletion(
        base_url=f"{endpoint.url}/v1/chat/completions", model="specfuse", num_concurrent=2
    )
    asked = client.apply_chat_template(QUESTION)
    options = {"until": ["\n\n"], "max_gen_toks": 64, "do_sample": False}
    instances = [Instance("generate_until", {}, (asked, options), number) for number in range(3)]
    assert client.generate_until(instances) == [BLUE] * 3


def test_a_refusal_has_openais_form_whole_and_streamed(serve):
    no = ScriptedMember.refusal("I cannot help.")
    client = serve(ensemble(no, no)).client()
    (choice,) = ask(client).choices
    assert choice.finish_reason == "content_filter"
    assert (choice.message.content, choice.message.refusal) == ("", "I cannot help.")
    chunks = [chunk.choices[0] for chunk in ask(client, stream=True)]
    assert "".join(chunk.delta.refusal or "" for chunk in chunks) == "I cannot help."
    assert chunks[-1].finish_reason == "content_filter"
