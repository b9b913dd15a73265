"""An endpoint whose lead is a provider's model: its clients send and read what they would send to
the provider and read from it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from members.fake_provider import Call, FakeProvider, Reply, Text, Thought
from openai import OpenAI

from langchain_specfuse import SpecFuseChatModel

from .conftest import BLUE, QUESTION, ensemble
from .test_clients import TOOL

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
CALLS = [
    Call("get_weather", ('{"city": ', '"Rome"}'), "call_rome"),
    Call("get_weather", ('{"city": "Oslo"}',), "call_oslo"),
]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def provider(serve) -> Iterator:
    """Return a function that starts a provider with this reply, and an endpoint in front of it. It
    returns the provider, a client of the endpoint, and a client of the provider."""
    running = []

    def model_of(name, kind, reply, **options):
        fake = FakeProvider(kind, reply)
        running.append(fake)
        common = {"model": name, "api_key": "k", "max_retries": 0, "stream_usage": True, **options}
        if kind == "anthropic":
            return fake, ChatAnthropic(**common, base_url=fake.url)
        return fake, ChatOpenAI(**common, base_url=f"{fake.url}/v1")

    def start(reply, *, kind="openai", reserve=None, **options):
        fake, lead = model_of("gpt", kind, reply, **options)
        _, other = model_of("reserve", kind, reserve or reply)
        endpoint = serve(SpecFuseChatModel(members=[lead, other]))
        direct = OpenAI(
            base_url=f"{fake.url}/v1", api_key="k", max_retries=0, http_client=endpoint.http()
        )
        return fake, endpoint.client(), direct

    yield start
    for fake in running:
        fake.stop()


def whole_and_streamed(client, model, **options):
    """Return the message, the finish reason and the log-probabilities, whole and from a stream."""
    asked = {"model": model, "messages": QUESTION, **options}
    (choice,) = client.chat.completions.create(**asked).choices
    parts = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
    return [
        _read([choice.message], [choice.finish_reason], [choice.logprobs]),
        _read(
            [part.delta for part in parts],
            [part.finish_reason for part in parts],
            [part.logprobs for part in parts],
        ),
    ]


def _read(messages, finishes, logprobs):
    calls = {}
    for message in messages:
        for place, call in enumerate(message.tool_calls or ()):
            call_id, name, arguments = calls.get(getattr(call, "index", place), ("", "", ""))
            calls[getattr(call, "index", place)] = (
                call_id or call.id,
                name or call.function.name,
                arguments + call.function.arguments,
            )
    return {
        "text": "".join(message.content or "" for message in messages),
        "thoughts": "".join(
            (message.model_extra or {}).get("reasoning_content", "") for message in messages
        ),
        "calls": list(calls.values()),
        "finish": [finish for finish in finishes if finish],
        "logprobs": [
            entry.token for logprob in logprobs if logprob for entry in logprob.content or ()
        ],
    }


@pytest.mark.parametrize(
    ("reply", "options"),
    [
        (Reply([Text("It is", " blue.")]), {}),
        (Reply([Text("It is", " blue.")]), {"logprobs": True}),
        (Reply([Text("It is")], finish="length"), {"max_completion_tokens": 2}),
        (Reply(CALLS), {"tools": [TOOL]}),
        (Reply([Text("I look."), *CALLS]), {"tools": [TOOL], "tool_choice": "required"}),
        (Reply(CALLS[:1]), {"tools": [TOOL], "parallel_tool_calls": False}),
        (
            Reply([Text('{"name": ', '"Ann"}')]),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "person", "schema": SCHEMA, "strict": True},
                }
            },
        ),
    ],
)
def test_a_clients_request_and_the_providers_reply_pass_through(provider, reply, options):
    fake, client, direct = provider(reply)
    answers = [
        answer
        for answering, model in ((direct, "gpt"), (client, "specfuse"))
        for answer in whole_and_streamed(answering, model, **options)
    ]
    assert answers == answers[:1] * 4
    wanted, *_ = [body for body in fake.asked if "stream" not in body]
    sent = fake.asked[-1]
    for name in ("tools", "tool_choice", "parallel_tool_calls", "response_format", "logprobs"):
        assert sent.get(name) == wanted.get(name), name
    assert len(fake.asked) == 4


def test_a_conversation_with_images_and_results_of_tools_reaches_the_provider(provider):
    fake, client, _ = provider(Reply([Text("Sunny.")]))
    calls = [
        {
            "id": "call_rome",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
        }
    ]
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "This one?"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {
            "role": "tool",
            "tool_call_id": "call_rome",
            "content": [{"type": "text", "text": "A photo:"}, IMAGE],
        },
    ]
    answer = client.chat.completions.create(
        model="specfuse", messages=conversation, tools=[TOOL], reasoning_effort="low"
    )
    assert (answer.choices[0].message.content, answer.model) == ("Sunny.", "gpt")
    (body,) = fake.asked
    assert body["reasoning_effort"] == "low"
    assert body["messages"] == conversation
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (26, 9)
    assert usage.prompt_tokens_details.cached_tokens == 5
    assert usage.completion_tokens_details.reasoning_tokens == 3


def test_reasoning_and_calls_of_another_provider_come_in_openais_form(provider):
    reply = Reply([Thought("It is", " asked."), Text("I look."), *CALLS])
    _, client, _ = provider(reply, kind="anthropic")
    for answer in whole_and_streamed(client, "specfuse", tools=[TOOL]):
        assert (answer["thoughts"], answer["text"]) == ("It is asked.", "I look.")
        assert [call_id for call_id, *_ in answer["calls"]] == ["call_rome", "call_oslo"]
        assert answer["finish"] == ["tool_calls"]
    response = client.responses.create(
        model="specfuse",
        input="Rome?",
        tools=[{"type": "function", **TOOL["function"]}],
        stream=True,
    )
    *_, last = response
    items = last.response.output
    assert [item.type for item in items] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    assert items[0].summary[0].text == "It is asked."
    assert json.loads(items[2].arguments) == {"city": "Rome"}


def test_an_answer_without_a_limit_of_its_own_has_that_of_the_endpoint(provider):
    fake, client, _ = provider(Reply([Text("Sunny.")]))
    client.chat.completions.create(model="specfuse", messages=QUESTION)
    client.chat.completions.create(model="specfuse", messages=QUESTION, max_tokens=7)
    assert [body["max_completion_tokens"] for body in fake.asked] == [4096, 7]


def test_a_usage_that_the_provider_does_not_report_is_estimated(provider):
    _, client, _ = provider(Reply([Text("It is", " sunny.")]), stream_usage=False)
    usage = client.chat.completions.create(model="specfuse", messages=QUESTION).usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert client.responses.create(model="specfuse", input="Why?").usage.total_tokens > 0


def test_a_call_that_broke_off_comes_whole_from_the_reserve(provider):
    """The stream ends after the first piece of the arguments."""
    _, client, _ = provider(Reply(CALLS[:1], cut=3), reserve=Reply(CALLS[1:]))
    for answer in whole_and_streamed(client, "specfuse", tools=[TOOL]):
        assert answer["calls"] == [("call_oslo", "get_weather", '{"city": "Oslo"}')]
        assert answer["finish"] == ["tool_calls"]
    answer = client.responses.create(
        model="specfuse", input="Oslo?", tools=[{"type": "function", **TOOL["function"]}]
    )
    assert [item.call_id for item in answer.output] == ["call_oslo"]
    assert answer.model == "reserve"


def test_a_text_that_a_reserve_finished_names_it_and_counts_both(provider):
    """Failover Bench (S16): cost dashboards gave a fallback's tokens to the model that had failed."""
    dies = Reply([Text("It", " is", " warm", " and", " sunny.")], cut=3)
    _, client, _ = provider(dies, reserve=Reply([Text(" is warm and sunny.")]))
    asked = {"messages": QUESTION, "stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="specfuse", **asked))
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == "It is warm and sunny."  # the last word of the lead may be unfinished
    assert chunks[-2].model == "reserve"
    usage = chunks[-1].usage
    assert usage.prompt_tokens > 26 and usage.completion_tokens > 9, "those of the reserve alone"


OPENAIS = {"user": "ann", "service_tier": "flex", "prompt_cache_key": "tenant-7"}


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_what_only_openai_reads_reaches_it_alone(provider, kind):
    """Anthropic's client refuses an argument that it does not know."""
    fake, client, _ = provider(Reply([Text("Sunny.")]), kind=kind)
    client.chat.completions.create(model="specfuse", messages=QUESTION, **OPENAIS)
    client.responses.create(model="specfuse", input="Why?", **OPENAIS)
    for body in fake.asked:
        expected = OPENAIS if kind == "openai" else {}
        assert {name: body[name] for name in OPENAIS if name in body} == expected
    assert len(fake.asked) == 2


def test_local_members_ignore_the_effort_of_reasoning(serve):
    client = serve(ensemble()).client()
    answer = client.chat.completions.create(
        model="specfuse", messages=QUESTION, reasoning_effort="low", **OPENAIS
    )
    assert answer.choices[0].message.content == BLUE


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_provider_reaches_the_client_with_its_reason(provider, stream):
    """As Azure OpenAI refuses a question."""
    fake, client, direct = provider(Reply(status=400, code="content_filter"))
    for asked, model in ((direct, "gpt"), (client, "specfuse")):
        with pytest.raises(openai.BadRequestError, match="not now") as raised:
            list(asked.chat.completions.create(model=model, messages=QUESTION, stream=stream))
        assert raised.value.code == "content_filter"
    assert len(fake.asked) == 2
