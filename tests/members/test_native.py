"""A hosted lead is the provider's own: beside the chat model alone, the same requests reach the
provider, and the same message comes out. Providers are fakes of their protocols.

A lead always streams, so that a reserve can continue where it fails. ``invoke`` of the chat model
alone streams with ``streaming=True``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_anthropic import ChatAnthropic
from langchain_core.caches import InMemoryCache
from langchain_core.exceptions import ModelRefusalError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import tool
from langchain_mistralai import ChatMistralAI
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from langchain_specfuse import ChatModelMember, ScriptedMember, SpecFuseChatModel, checks
from langchain_specfuse.core.values import DraftJob, Query, Sampling, Turn

from .fake_provider import SIGNATURE, Call, Cited, FakeProvider, Kind, Refusal, Reply, Text, Thought

KINDS: list[Kind] = ["openai", "responses", "anthropic", "mistral"]
pytestmark = pytest.mark.filterwarnings(
    # langchain-openai, where it streams an object of a class
    "ignore:Pydantic serializer warnings:UserWarning"
)
WAYS = ["invoke", "stream", "ainvoke", "astream"]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = {"type": "image", "base64": PIXEL, "mime_type": "image/png"}
STORY = ["The sky is blue", " because air", " scatters blue light", " more than red light."]
HEADERS_OF_A_CLIENT = {"host", "user-agent", "x-stainless-async"}
"""Headers that name the server, or the kind of client: a lead is asked in a thread."""


class Weather(BaseModel):
    """What the weather is like."""

    city: str
    degrees: int


FACTS = {"city": "Zürich", "degrees": 21}
OBJECT = Text('{"city": "Z', 'ürich", ', '"degrees": 21}')


@tool
def weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"sunny in {city} for {days} days"


@tool
def chart(city: str) -> list[Any]:
    """A chart of the weather in a city."""
    return [{"type": "text", "text": f"The chart of {city}:"}, IMAGE]


def each_with_two_ways(cases: Iterable[Any]) -> list[tuple[Any, str]]:
    """Each case with a way that blocks and one that does not: one of them streams."""
    pairs = itertools.cycle([("invoke", "astream"), ("stream", "ainvoke")])
    return [(case, way) for case, ways in zip(cases, pairs, strict=False) for way in ways]


CALL = Call("weather", ('{"ci', 'ty": "Par', 'is"}'))
CALLS = [CALL, Call("weather", ('{"city": ', '"Rome", "days": 2}'), id="call_0002")]


def chat_model(kind: Kind, url: str, **fields: Any) -> BaseChatModel:
    """The provider's own chat model, asked once, of this server."""
    if kind == "anthropic":
        return ChatAnthropic(
            **{"model": "claude-sonnet-4-6", "max_retries": 0, **fields},
            base_url=url,
            api_key="key",
        )
    if kind == "mistral":
        return ChatMistralAI(
            **{"model": "mistral-large-latest", "max_retries": 1, **fields},
            endpoint=f"{url}/v1",
            api_key="key",
        )
    return ChatOpenAI(
        **{"model": "gpt-4.1", "max_retries": 0, "stream_usage": True, **fields},
        use_responses_api=kind == "responses",
        base_url=f"{url}/v1",
        api_key="key",
    )


@dataclass
class Beside:
    """A chat model alone, and the same one as the lead before a reserve, with servers that answer
    the same."""

    kind: Kind
    alone_server: FakeProvider
    lead_server: FakeProvider
    reserve_server: FakeProvider
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.alone = chat_model(self.kind, self.alone_server.url, streaming=True, **self.fields)
        lead = chat_model(self.kind, self.lead_server.url, **self.fields)
        reserve = chat_model(self.kind, self.reserve_server.url, **self.fields)
        self.led = SpecFuseChatModel(members=[lead, reserve])

    async def compare(
        self,
        bound: Callable[[BaseChatModel], Any],
        messages: Any,
        way: str,
        **options: Any,
    ) -> tuple[Any, Any]:
        """Ask both. Their requests and their answers are the same. Returns what each answered."""
        expected = await answered(bound(self.alone), messages, way, **options)
        found = await answered(bound(self.led), messages, way, **options)
        self.same_requests()
        assert plain(found) == plain(expected)
        return expected, found

    def same_requests(self) -> None:
        assert self.lead_server.asked == self.alone_server.asked
        assert self.reserve_server.asked == []
        lead, alone = map(own_headers, (self.lead_server, self.alone_server))
        assert lead == alone


def own_headers(server: FakeProvider) -> list[dict[str, str]]:
    return [
        {name: value for name, value in headers.items() if name not in HEADERS_OF_A_CLIENT}
        for headers in server.headers
    ]


async def answered(asked: Any, messages: Any, way: str, **options: Any) -> Any:
    """The answer, from whatever this way returns."""
    if way == "invoke":
        return asked.invoke(messages, **options)
    if way == "ainvoke":
        return await asked.ainvoke(messages, **options)
    if way == "stream":
        pieces = list(asked.stream(messages, **options))
    else:
        pieces = [piece async for piece in asked.astream(messages, **options)]
    return merged(pieces)


def merged(pieces: list[Any]) -> Any:
    """The whole of a stream: of messages, of objects, or of dicts that hold both."""
    if isinstance(pieces[0], BaseMessage):
        return reduce(add, pieces)
    if isinstance(pieces[0], dict) and "raw" in pieces[0]:
        keys = {key: None for piece in pieces for key in piece}
        return {key: merged([piece[key] for piece in pieces if key in piece]) for key in keys}
    return pieces[-1]


def plain(answer: Any) -> Any:
    """The answer without what may differ: the id of a message, and what we add to it."""
    if isinstance(answer, dict):
        return {key: plain(value) for key, value in answer.items()}
    if not isinstance(answer, BaseMessage):
        return repr(answer) if isinstance(answer, Exception) else answer
    data = answer.model_dump(exclude={"id"})
    data["response_metadata"].pop("specfuse", None)
    data["content_blocks"] = answer.content_blocks
    return data


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Kind, list[FakeProvider]]]:
    """Three for each protocol. Clients are created once for an address."""
    made = {kind: [FakeProvider(kind) for _ in range(3)] for kind in KINDS}
    yield made
    for server in itertools.chain(*made.values()):
        server.stop()


@pytest.fixture
def beside(servers: Any) -> Callable[..., Beside]:
    """Makes a pair of models whose servers give these replies."""

    def make(kind: Kind, *replies: Reply, **fields: Any) -> Beside:
        for server in servers[kind]:
            server.begin(*replies)
        return Beside(kind, *servers[kind], fields)

    return make


def itself(model: BaseChatModel) -> BaseChatModel:
    return model


# --- text -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_text_is_asked_for_and_answered_as_by_the_model_alone(
    beside: Any, kind: Kind, way: str
) -> None:
    both = beside(kind, Reply([Text(*STORY)]))
    _, found = await both.compare(itself, "Why is the sky blue?", way)
    assert found.text == "".join(STORY) and len(both.lead_server.asked) == 1


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_messages_go_as_they_are(beside: Any, kind: Kind, way: str) -> None:
    both = beside(kind, Reply([Text("Sunny", " too.")]))
    call = {"name": "chart", "args": {"city": "Paris"}, "id": "call_0001", "type": "tool_call"}
    text = [{"type": "text", "text": text} for text in ("This one", "or that", "one?")]
    chart_of_paris = [{"type": "text", "text": "The chart of Paris:"}, IMAGE]
    messages = [
        SystemMessage("Be brief."),
        HumanMessage([text[0], IMAGE, text[1], IMAGE, text[2]], name="ann"),
        AIMessage("I look at it.", tool_calls=[call]),
        ToolMessage(chart_of_paris, tool_call_id="call_0001"),
        AIMessage("It is sunny."),
        HumanMessage("And tomorrow?"),
    ]
    await both.compare(lambda model: model.bind_tools([chart]), messages, way)


PDF = {"base64": "JVBERi0xLjQKJUVPRgo=", "mime_type": "application/pdf", "filename": "a.pdf"}
CACHED = {"cache_control": {"type": "ephemeral"}}
FAILED: Any = {"name": "weather", "args": {"city": "Paris"}, "id": "call_0001", "type": "tool_call"}
USE = {"type": "tool_use", "id": "call_0001", "name": "weather", "input": {"city": "Paris"}}
EMPTY = ToolMessage("", tool_call_id="call_0001")
LATE = SystemMessage("Three.")


MESSAGES: dict[str, list[BaseMessage]] = {
    "openai: a file": [HumanMessage([{"type": "file", **PDF}])],
    "openai: an address": [
        HumanMessage([{"type": "image_url", "image_url": {"url": "https://a/b.png"}}])
    ],
    "openai: names": [AIMessage("", name="ann", tool_calls=[FAILED]), EMPTY],
    "openai: a late system message": [SystemMessage("One."), HumanMessage("Two."), LATE],
    "openai: two in a row": [HumanMessage("One."), HumanMessage("Two."), AIMessage("Three.")],
    "anthropic: a cached prompt": [
        SystemMessage([{"type": "text", "text": "Be brief.", **CACHED}]),
        HumanMessage("?"),
    ],
    "anthropic: a cached file": [
        HumanMessage([{"type": "file", **PDF, **CACHED}, {"type": "text", "text": "?"}])
    ],
    "anthropic: its own blocks": [
        HumanMessage("?"),
        AIMessage([{"type": "text", "text": "I look."}, USE], tool_calls=[FAILED]),
        ToolMessage("no network", tool_call_id="call_0001", status="error"),
    ],
    "mistral: an address": [HumanMessage([{"type": "image_url", "image_url": "https://a/b.png"}])],
    "mistral: a prefix": [
        HumanMessage("?"),
        AIMessage("The sky", additional_kwargs={"prefix": True}),
    ],
}


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("name", MESSAGES)
async def test_what_only_one_provider_reads_reaches_it(beside: Any, name: str, way: str) -> None:
    both = beside(name.partition(":")[0], Reply([Text("Yes", ".")]))
    messages = MESSAGES[name]
    await both.compare(lambda model: model.bind_tools([weather]), messages, way)


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("openai", [Text("Sunny", ".")]),
        ("openai", [Text("I look."), *CALLS]),
        ("anthropic", [Thought("Let me", " see."), Text("I look", "."), *CALLS]),
        ("mistral", [Thought("Let me", " see."), Text("Sunny", ".")]),
        ("mistral", CALLS[:1]),
    ],
)
@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_an_answer_goes_back_into_the_conversation_as_it_came(
    beside: Any, kind: Kind, way: str, parts: Any
) -> None:
    both = beside(kind, Reply(parts), Reply([Text("Done.")]))
    question = HumanMessage("How is the weather?")

    def bound(model: Any) -> Any:
        return model.bind_tools([weather])

    replies = await both.compare(bound, [question], way)
    for model, reply in zip((both.alone, both.led), replies, strict=True):
        results = [
            ToolMessage("sunny", tool_call_id=call["id"], id="1") for call in reply.tool_calls
        ]
        await answered(bound(model), [question, reply, *results, question], way)
    both.same_requests()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {"stop": ["\n\n"]},
        {"temperature": 0.3},
        {"max_tokens": 77},
        {"top_p": 0.5},
    ],
    ids=str,
)
async def test_settings_of_a_call_reach_the_provider(
    beside: Any, kind: Kind, options: dict[str, Any]
) -> None:
    both = beside(kind, Reply([Text(*STORY)]))
    await both.compare(itself, "Why?", "stream", **options)
    await both.compare(lambda model: model.bind(**options), "Why?", "invoke")


@pytest.mark.parametrize(
    "options",
    [
        {"extra_headers": {"x-tenant": "7"}},
        {"prompt_cache_key": "tenant-7"},
        {"reasoning_effort": "low"},
        {"extra_body": {"service": "fast"}},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "user": "ann", "seed": 7},
        {"stream_usage": True},
    ],
    ids=str,
)
async def test_further_arguments_of_a_call_reach_openai(
    beside: Any, options: dict[str, Any]
) -> None:
    both = beside("openai", Reply([Text(*STORY)]))
    await both.compare(itself, "Why?", "stream", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"extra_headers": {"x-tenant": "7"}},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048},
        {"top_k": 5},
        {"cache_control": {"type": "ephemeral"}},
    ],
    ids=str,
)
async def test_further_arguments_of_a_call_reach_anthropic(
    beside: Any, options: dict[str, Any]
) -> None:
    both = beside("anthropic", Reply([Text(*STORY)]))
    await both.compare(itself, "Why?", "stream", **options)


@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_log_probabilities_are_the_providers(beside: Any, way: str) -> None:
    both = beside("openai", Reply([Text(*STORY)]), logprobs=True)
    _, found = await both.compare(itself, "Why?", way)
    tokens = found.response_metadata["logprobs"]["content"]
    assert [token["token"] for token in tokens] == STORY
    called = beside("openai", Reply([Text(*STORY)]))
    await called.compare(itself, "Why?", way, logprobs=True, top_logprobs=2)


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_reasoning_and_interleaved_blocks_keep_their_places(
    beside: Any, kind: Kind, way: str
) -> None:
    parts: list[Any] = [Thought("Let me", " see."), Text("Blue", ".")]
    if kind == "anthropic":
        parts = [
            *parts,
            Thought("And", " green."),
            Cited("Grass", " is green."),
            Text(" So."),
            CALL,
        ]
    both = beside(kind, Reply(parts))
    _, found = await both.compare(lambda model: model.bind_tools([weather]), "Why?", way)
    assert found.text.startswith("Blue.")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_a_field_that_a_server_adds_to_openais_protocol_is_as_alone(
    beside: Any, key: str
) -> None:
    both = beside("openai", Reply([Thought("Let me", " see."), Text("Blue", ".")], thought_key=key))
    await both.compare(itself, "Why?", "stream")


@pytest.mark.parametrize("output_version", ["v0", "v1"])
@pytest.mark.parametrize("kind", KINDS)
async def test_content_has_the_version_of_the_provider(
    beside: Any, kind: Kind, output_version: str
) -> None:
    # langchain-openai 1.7.4 merges the text and the first call of a stream in one block of v1.
    calls = [] if (kind, output_version) == ("openai", "v1") else [CALL]
    both = beside(kind, Reply([Text("I look", "."), *calls]), output_version=output_version)
    await both.compare(lambda model: model.bind_tools([weather]), "Why?", "stream")


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_standard_blocks_have_the_text_and_each_call_once(
    servers: Any, kind: Kind, way: str
) -> None:
    servers[kind][0].begin(Reply([Text(*STORY), *CALLS]))
    members = [chat_model(kind, server.url) for server in servers[kind][:2]]
    model = SpecFuseChatModel(members=members, output_version="v1").bind_tools([weather])
    found = await answered(model, "The weather?", way)
    blocks = [(block["type"], block.get("id")) for block in found.content_blocks]
    assert [kind for kind, _ in blocks] == ["text", "tool_call", "tool_call"]
    assert [id for _, id in blocks[1:]] == ["call_0001", "call_0002"]
    assert [call["args"] for call in found.tool_calls] == [
        {"city": "Paris"},
        {"city": "Rome", "days": 2},
    ]


class Reasoner(BaseChatModel):
    """Streams its reasoning in a field, as ChatOllama and ChatDeepSeek do."""

    _llm_type = "reasoner"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=tools)

    def _generate(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def _stream(self, *_: Any, **__: Any) -> Iterator[ChatGenerationChunk]:
        call = tool_call_chunk(name="weather", args='{"city": "Paris"}', id="1", index=0)
        for fields in (
            {"content": "", "additional_kwargs": {"reasoning_content": "Let me"}},
            {"content": "", "additional_kwargs": {"reasoning_content": " see."}},
            {"content": "I"},
            {"content": " look."},
            {"content": "", "tool_call_chunks": [call]},
        ):
            message = AIMessageChunk(response_metadata={"model_provider": "ollama"}, **fields)
            yield ChatGenerationChunk(message=message)


@pytest.mark.parametrize("way", WAYS)
async def test_text_calls_and_reasoning_have_blocks_of_their_own(way: str) -> None:
    """LangChain joins blocks of one index; providers of plain text give them none."""
    model = SpecFuseChatModel(members=[Reasoner()], output_version="v1")
    found = await answered(model.bind_tools([weather]), "The weather?", way)
    kinds = ["reasoning", "text", "tool_call"]
    assert [block["type"] for block in found.content_blocks] == kinds
    assert found.content_blocks[0]["reasoning"] == "Let me see."
    assert found.text == "I look."
    assert found.content_blocks[2]["args"] == {"city": "Paris"}


@pytest.mark.parametrize("way", WAYS)
async def test_a_refusal_of_openai_is_its_own(beside: Any, way: str) -> None:
    both = beside("openai", Reply([Refusal("I cannot", " help.")]))
    await both.compare(itself, "How?", way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "finish"),
    [
        ("openai", "length"),
        ("responses", "max_output_tokens"),
        ("anthropic", "max_tokens"),
        ("mistral", "length"),
    ],
)
async def test_a_limit_reached_is_reported_as_by_the_provider(
    beside: Any, kind: Kind, finish: str, way: str
) -> None:
    both = beside(kind, Reply([Text("The sky", " is")], finish=finish), max_tokens=2)
    await both.compare(itself, "Why?", way)


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_max_tokens_are_the_providers_own_tokens(beside: Any, kind: Kind, way: str) -> None:
    """In Chinese, a token of OpenAI's has more than one character."""
    both = beside(kind, Reply([Text("天空是蓝色的，", "因为空气散射蓝光", "多于散射红光。")]))
    _, found = await both.compare(itself, "为什么？", way, max_tokens=12)
    assert found.text.endswith("红光。")


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("pieces", [('{"city": ', '"Par'), ('{"city": ', '"Paris"}')])
@pytest.mark.parametrize("kind", ["openai", "mistral"])
async def test_a_limit_reached_in_a_call_is_reported_as_by_the_provider(
    beside: Any, kind: Kind, pieces: tuple[str, ...], way: str
) -> None:
    both = beside(kind, Reply([Call("weather", pieces)], finish="length"))
    await both.compare(lambda model: model.bind_tools([weather]), "The weather?", way)


@pytest.mark.parametrize("way", WAYS)
async def test_text_that_a_filter_cuts_is_the_providers(beside: Any, way: str) -> None:
    both = beside("openai", Reply([Text(*STORY)], finish="content_filter"))
    await both.compare(itself, "Why?", way)


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_has_the_providers_details(beside: Any, kind: Kind) -> None:
    both = beside(kind, Reply([Text(*STORY)]))
    _, found = await both.compare(itself, "Why?", "stream")
    assert found.usage_metadata["total_tokens"] == 35
    if kind != "mistral":
        assert found.usage_metadata["input_token_details"]["cache_read"] == 5


async def test_usage_is_none_where_the_provider_reports_none(beside: Any) -> None:
    both = beside("openai", Reply([Text(*STORY)]), stream_usage=False)
    _, found = await both.compare(itself, "Why?", "stream")
    assert found.usage_metadata is None


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_invoke_reports_usage_as_openais_chat_model_does(beside: Any, way: str) -> None:
    """It asks another server for the usage of a stream only if ``stream_usage`` is set."""
    both = beside("openai", Reply([Text(*STORY)]), stream_usage=None)
    found = await answered(both.led, "Why?", way)
    assert found.usage_metadata["total_tokens"] == 35
    assert both.lead_server.asked[0]["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_usage_of_a_stream_that_we_close_is_an_estimate(
    beside: Any, kind: Kind, way: str
) -> None:
    """This server does not know stop strings."""
    both = beside(kind, Reply([Text(*STORY)]))
    found = await answered(both.led, "Why?", way, stop=[" light"])
    assert found.text == "The sky is blue because air scatters blue"
    usage = found.usage_metadata
    (used,) = found.response_metadata["specfuse"]["usage"].values()
    assert used["estimated"] and used["requests"] == 1
    assert usage["input_tokens"] == used["input_tokens"] > 0
    assert usage["output_tokens"] == used["output_tokens"] >= len(found.text.split())


async def test_an_estimate_of_usage_counts_the_words_of_calls(beside: Any) -> None:
    """ChatOpenAI asks other servers for no usage of a stream. A user's calls had 0 output tokens, and
    ``max_cost`` counted nothing for them."""
    both = beside("openai", Reply(CALLS), stream_usage=False)
    lead = ChatModelMember(both.led.members[0], price=(0, 1e6))
    bound = SpecFuseChatModel(members=[lead]).bind_tools([weather])
    found = await answered(bound, "?", "stream")
    (used,) = found.response_metadata["specfuse"]["usage"].values()
    assert len(found.tool_calls) == 2 and used["estimated"]
    words = ["weather", '{"city":', '"Paris"}', "weather", '{"city":', '"Rome",', '"days":', "2}"]
    assert used["output_tokens"] == used["cost"] == len(words)


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_model_with_a_cache_of_its_own_is_asked_once(
    beside: Any, kind: Kind, way: str
) -> None:
    """LangChain caches no streams, so such a model does not stream where nobody reads along."""
    both = beside(kind, Reply([Text("I look", " at it."), CALL]))
    both.alone, lead = [
        chat_model(kind, server.url, cache=InMemoryCache())
        for server in (both.alone_server, both.lead_server)
    ]
    both.led = SpecFuseChatModel(members=[lead, chat_model(kind, both.reserve_server.url)])
    for _ in range(2):
        expected, found = [
            await answered(model.bind_tools([weather]), "How is the weather?", way)
            for model in (both.alone, both.led)
        ]
        both.same_requests()
        for answer in (expected, found):
            answer.usage_metadata.pop("total_cost", None)
        assert plain(found) == plain(expected)
    assert len(both.lead_server.asked) == 1


# --- tools ------------------------------------------------------------------------------------------


def dict_choice(kind: Kind) -> dict[str, Any]:
    if kind == "responses":
        return {"type": "function", "name": "weather"}
    if kind == "anthropic":
        return {"type": "tool", "name": "weather"}
    return {"type": "function", "function": {"name": "weather"}}


CHOICES: dict[str, Callable[[Kind], dict[str, Any]]] = {
    "nothing": lambda _: {},
    "auto": lambda _: {"tool_choice": "auto"},
    "any": lambda _: {"tool_choice": "any"},
    "a name": lambda _: {"tool_choice": "weather"},
    "a dict": lambda kind: {"tool_choice": dict_choice(kind)},
    "strict": lambda kind: {} if kind == "mistral" else {"strict": True},
    "one at a time": lambda _: {"tool_choice": "any", "parallel_tool_calls": False},
}


@pytest.mark.parametrize(("choice", "way"), list(zip(CHOICES, itertools.cycle(WAYS), strict=False)))
@pytest.mark.parametrize("kind", KINDS)
async def test_tools_are_bound_and_called_as_with_the_model_alone(
    beside: Any, kind: Kind, choice: str, way: str
) -> None:
    both = beside(kind, Reply(CALLS))
    options = CHOICES[choice](kind)
    _, found = await both.compare(
        lambda model: model.bind_tools([weather, chart], **options), "The weather?", way
    )
    assert [call["id"] for call in found.tool_calls] == ["call_0001", "call_0002"]
    assert found.tool_calls[1]["args"] == {"city": "Rome", "days": 2}


@pytest.mark.parametrize("choice", ["none", "required", True])
@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_further_choices_of_openai(beside: Any, choice: Any, way: str) -> None:
    both = beside("openai", Reply([Text("No", ".")] if choice == "none" else CALLS))
    await both.compare(
        lambda model: model.bind_tools([weather], tool_choice=choice), "The weather?", way
    )


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_text_before_a_call(beside: Any, kind: Kind, way: str) -> None:
    both = beside(kind, Reply([Text("I look", " at it."), CALL]))
    await both.compare(lambda model: model.bind_tools([weather]), "The weather?", way)


async def test_tools_of_the_provider_itself(beside: Any) -> None:
    both = beside("anthropic", Reply([Text("Sunny.")]))
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    await both.compare(lambda model: model.bind_tools([search]), "The weather?", "stream")


@pytest.mark.parametrize("kind", ["openai", "mistral"])
@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_arguments_that_are_no_json_are_invalid_as_alone(
    beside: Any, kind: Kind, way: str
) -> None:
    both = beside(kind, Reply([Call("weather", ('{"city": ', "Paris"))]))
    await both.compare(lambda model: model.bind_tools([weather]), "The weather?", way)


# --- objects ----------------------------------------------------------------------------------------

METHODS = [
    ("openai", "json_schema"),
    ("openai", "function_calling"),
    ("openai", "json_mode"),
    ("responses", "json_schema"),
    ("responses", "function_calling"),
    ("anthropic", "json_schema"),
    ("anthropic", "function_calling"),
    ("mistral", "json_schema"),
    ("mistral", "function_calling"),
    ("mistral", "json_mode"),
]


SCHEMAS = {"a class": Weather, "a dict": Weather.model_json_schema()}


@pytest.mark.parametrize(
    ("schema", "include_raw", "way"),
    [
        ("a class", False, "invoke"),
        ("a class", True, "stream"),
        ("a dict", True, "ainvoke"),
        ("a dict", False, "astream"),
    ],
)
@pytest.mark.parametrize(("kind", "method"), METHODS)
async def test_an_object_is_asked_for_and_parsed_as_by_the_model_alone(
    beside: Any, kind: Kind, method: str, schema: str, include_raw: bool, way: str
) -> None:
    is_call = method == "function_calling"
    asked_for: Any = SCHEMAS[schema]
    both = beside(kind, Reply([Call("Weather", OBJECT.pieces) if is_call else OBJECT]))
    _, found = await both.compare(
        lambda model: model.with_structured_output(
            asked_for, method=method, include_raw=include_raw
        ),
        "The weather as JSON?",
        way,
    )
    parsed = found["parsed"] if include_raw else found
    assert parsed == (Weather(**FACTS) if schema == "a class" else FACTS)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
async def test_an_object_is_asked_for_strictly(beside: Any, method: str) -> None:
    is_call = method == "function_calling"
    both = beside("openai", Reply([Call("Weather", OBJECT.pieces) if is_call else OBJECT]))
    await both.compare(
        lambda model: model.with_structured_output(Weather, method=method, strict=True),
        "?",
        "invoke",
    )


PROVIDERS_FORMAT = ProviderStrategy(Weather).to_model_kwargs()
FORMATS = {
    "as an agent gives it": PROVIDERS_FORMAT["response_format"],
    "a class": Weather,
    "strict": ProviderStrategy(Weather, strict=True).to_model_kwargs()["response_format"],
}


@pytest.mark.parametrize(("format", "way"), each_with_two_ways(FORMATS))
@pytest.mark.parametrize("parts", [[OBJECT], [CALL]], ids=["object", "call"])
async def test_a_format_beside_tools_of_openai(
    beside: Any, format: str, parts: Any, way: str
) -> None:
    both = beside("openai", Reply(parts))
    await both.compare(
        lambda model: model.bind_tools([weather], response_format=FORMATS[format]), "Weather?", way
    )


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("parts", [[OBJECT], [CALL]], ids=["object", "call"])
async def test_a_format_beside_tools_of_anthropic(beside: Any, parts: Any, way: str) -> None:
    both = beside("anthropic", Reply(parts))
    await both.compare(
        lambda model: model.bind_tools([weather], **PROVIDERS_FORMAT), "Weather?", way
    )


@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
async def test_a_refused_object_is_refused_as_alone(beside: Any, way: str) -> None:
    both = beside("openai", Reply([Refusal("I cannot", " help.")]))
    expected, found = [
        await answered(model.with_structured_output(Weather, include_raw=True), "How?", way)
        for model in (both.alone, both.led)
    ]
    both.same_requests()
    assert plain(found["raw"]) == plain(expected["raw"])
    for answer in (expected, found):
        assert isinstance(answer["parsing_error"], ModelRefusalError) and answer["parsed"] is None


# --- agents -----------------------------------------------------------------------------------------


def run(model: BaseChatModel, tools: Any, response_format: Any, way: str) -> dict[str, Any]:
    agent = create_agent(model, tools, system_prompt="Be brief.", response_format=response_format)
    question = {"messages": [HumanMessage("How is the weather in Paris?", id="1")]}
    if way == "invoke":
        return agent.invoke(question)
    *_, state = (
        state
        for mode, state in agent.stream(question, stream_mode=["values", "messages"])
        if mode == "values"
    )
    return state


def compare_agents(both: Beside, tools: Any, response_format: Any, way: str) -> dict[str, Any]:
    expected, found = (run(model, tools, response_format, way) for model in (both.alone, both.led))
    both.same_requests()
    assert [plain(message) for message in found["messages"]] == [
        plain(message) for message in expected["messages"]
    ]
    assert found.get("structured_response") == expected.get("structured_response")
    return found


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_calls_a_tool_that_returns_an_image(beside: Any, kind: Kind, way: str) -> None:
    call = Call("chart", ('{"city": ', '"Paris"}'))
    both = beside(kind, Reply([Text("I look."), call]), Reply([Text("It is", " sunny.")]))
    found = compare_agents(both, [chart, weather], None, way)
    assert found["messages"][-1].text == "It is sunny."


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_agent_returns_an_object_by_a_tool(beside: Any, kind: Kind, way: str) -> None:
    last = Call("Weather", OBJECT.pieces, id="call_0002")
    both = beside(kind, Reply([CALL]), Reply([last]))
    found = compare_agents(both, [weather], ToolStrategy(Weather), way)
    assert found["structured_response"] == Weather(**FACTS)


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_an_agent_returns_an_object_in_the_providers_format(
    beside: Any, kind: Kind, way: str
) -> None:
    both = beside(kind, Reply([CALL]), Reply([OBJECT]))
    found = compare_agents(both, [weather], ProviderStrategy(Weather), way)
    assert found["structured_response"] == Weather(**FACTS)


# --- takeover ---------------------------------------------------------------------------------------

TO_TEXT = {"openai": 3, "responses": 5, "anthropic": 5, "mistral": 3}
"""The events of a reply that end with the second piece of its first part."""
TO_CALL = {"openai": 4, "responses": 4, "anthropic": 5}
"""The same where that is a call, which begins with an event of its own in OpenAI's protocol."""
BEYOND = {"openai": 2, "responses": 7, "anthropic": 4, "mistral": 2}
"""The events of reasoning of two pieces before it."""
BEFORE_CALL = {"openai": 1, "responses": 6, "anthropic": 3}
"""The events of a text of one piece before it."""


def turns_of(body: Any) -> list[Any]:
    turns: list[Any] = body["input"] if "input" in body else body["messages"]
    return turns


def is_first(body: Any) -> bool:
    """Whether nothing was called yet."""
    return not any("call_0001" in json.dumps(turn) for turn in turns_of(body))


def text_of(message: dict[str, Any]) -> str:
    content = message["content"] or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def goes_on(whole: str, *calls: Call) -> Callable[[Any], Reply]:
    """Continues what the conversation says that it has written of this text; else writes it. Then
    it makes these calls."""

    def reply(body: Any) -> Reply:
        said = [text_of(turn) for turn in turns_of(body) if turn.get("role") == "assistant"]
        written = said[-1] if said and whole.startswith(said[-1]) else ""
        return Reply([Text(*whole[len(written) :].partition(" because")), *calls])

    return reply


@pytest.fixture
def failing(
    servers: Any,
) -> Callable[..., tuple[SpecFuseChatModel, FakeProvider, FakeProvider]]:
    """Makes a model whose lead gives the first reply, and the reserve the second."""

    def make(
        kind: Kind, first: Any, second: Any
    ) -> tuple[SpecFuseChatModel, FakeProvider, FakeProvider]:
        lead, reserve, _ = servers[kind]
        lead.begin(first)
        reserve.begin(second)
        members = [chat_model(kind, server.url) for server in (lead, reserve)]
        return SpecFuseChatModel(members=members), lead, reserve

    return make


DEATHS = {
    "before the first byte": {"cut": 0},
    "with an error": {"status": 503},
    "later": {"cut": 1},
}


@pytest.mark.parametrize(("death", "way"), each_with_two_ways(DEATHS))
@pytest.mark.parametrize("kind", KINDS)
async def test_a_reserve_is_asked_as_the_lead_was_if_nothing_was_shown(
    failing: Any, kind: Kind, death: str, way: str
) -> None:
    dies = Reply([Text(*STORY)], **DEATHS[death])
    model, lead, reserve = failing(kind, dies, Reply([Text("I look."), CALL]))
    messages = [SystemMessage("Be brief."), HumanMessage([{"type": "text", "text": "?"}, IMAGE])]
    bound = model.bind_tools([weather, chart], tool_choice="any")
    found = await answered(bound, messages, way)
    assert reserve.asked == lead.asked[:1]
    assert found.text == "I look." and found.invalid_tool_calls == []
    assert [(call["id"], call["args"]) for call in found.tool_calls] == [
        ("call_0001", {"city": "Paris"})
    ]


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_a_reserve_continues_text_with_the_same_tools(
    failing: Any, kind: Kind, way: str
) -> None:
    whole = "".join(STORY)
    dies = Reply([Text(*STORY)], cut=TO_TEXT[kind])
    model, lead, reserve = failing(kind, dies, goes_on(whole))
    found = await answered(model.bind_tools([weather]), "Why is the sky blue?", way)
    assert found.text == whole and found.tool_calls == []
    (request,) = reserve.asked
    assert request["tools"] == lead.asked[0]["tools"]
    turns = turns_of(lead.asked[0])
    assert turns_of(request)[: len(turns)] == turns


@pytest.mark.parametrize(("max_tokens", "words"), [(12, 12), (3, 6), (None, 14)])
@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_a_local_reserve_writes_what_is_left_of_max_tokens(
    servers: Any, way: str, max_tokens: Any, words: int
) -> None:
    """It writes one token at least."""
    whole = "".join(STORY)
    lead, *_ = servers["openai"]
    lead.begin(Reply([Text(*STORY)], cut=TO_TEXT["openai"]))
    members = [chat_model("openai", lead.url), ScriptedMember(whole, name="local")]
    model = SpecFuseChatModel(members=members)
    query = Query("q", (Turn("user", "Why is the sky blue?"),))
    found = await answered(model, "Why is the sky blue?", way, max_tokens=max_tokens)
    assert found.text.split() == whole.split()[:words]
    (of_lead,) = found.response_metadata["specfuse"]["usage"].values()
    prompt = members[1].draft([DraftJob(query, (), 1, 1, Sampling())])[0].effort.prompt
    assert found.usage_metadata["input_tokens"] == of_lead["input_tokens"] + prompt
    assert found.usage_metadata["output_tokens"] > of_lead["output_tokens"]
    finish = "length" if max_tokens else "stop"
    assert found.response_metadata["finish_reason"] == finish


@pytest.mark.parametrize(("finish", "max_tokens"), [("", None), ("length", 4)])
@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_what_a_check_refused_is_written_anew_in_one_request(
    servers: Any, kind: Kind, way: str, finish: str, max_tokens: Any
) -> None:
    """It goes on to the end of the answer, which is the provider's own limit too."""
    if finish and kind == "anthropic":
        finish = "max_tokens"

    def lead(body: Any) -> Reply:
        said = [text_of(turn) for turn in turns_of(body) if turn.get("role") == "assistant"]
        if said:
            return Reply([Text(" blue", " today", " and", " always.")], finish)
        return Reply([Text("The sky", " is", " purple", " today.")])

    servers[kind][0].begin(lead)
    model = SpecFuseChatModel(
        members=[chat_model(kind, servers[kind][0].url)], checks=[checks.forbids("purple")]
    )
    found = await answered(model, "Why?", way, max_tokens=max_tokens)
    assert found.text == "The sky is blue today and always."
    assert len(servers[kind][0].asked) == 2
    assert found.response_metadata["specfuse"]["finish"] == ("length" if finish else "stop")


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_streams_the_text_of_two_members_once(failing: Any, kind: Kind) -> None:
    whole = "".join(STORY)
    model, *_ = failing(kind, Reply([Text(*STORY)], cut=TO_TEXT[kind]), goes_on(whole))
    question = {"messages": ["Why is the sky blue?"]}
    parts = [part for part, _ in create_agent(model, []).stream(question, stream_mode="messages")]
    assert "".join(part.text for part in parts) == whole


@pytest.mark.parametrize("way", ["stream", pytest.param("invoke", marks=pytest.mark.long)])
@pytest.mark.parametrize("other", [*KINDS, "local"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_another_provider_continues_has_the_form_of_the_first(
    servers: Any, kind: Kind, other: Any, way: str
) -> None:
    """LangChain merges blocks of one index, such as the reasoning of one and the text of another,
    and joins the names of two providers."""
    whole = "".join(STORY)
    lead, reserve = servers[kind][0], servers.get(other, servers[kind])[1]
    lead.begin(Reply([Thought("Let me", " see."), Text(*STORY)], cut=TO_TEXT[kind] + BEYOND[kind]))
    reserve.begin(goes_on(whole, CALL))
    spare: Any = ScriptedMember(whole, name="spare")
    if other != "local":
        spare = chat_model(other, reserve.url)
    model = SpecFuseChatModel(members=[chat_model(kind, lead.url), spare])
    found = await answered(model.bind_tools([weather]), "Why is the sky blue?", way)
    assert found.text == whole
    assert "".join(block.get("text", "") for block in found.content_blocks) == whole
    assert found.response_metadata["model_provider"] == {
        "responses": "openai",
        "mistral": "mistralai",
    }.get(kind, kind)
    if isinstance(found.content, list):
        for block in found.content:
            assert isinstance(block, str) or not {"thinking", "text"} <= block.keys()
            assert isinstance(block, str) or not {"summary", "text"} <= block.keys()
    assert [call["args"] for call in found.tool_calls] == (
        [] if other == "local" else [{"city": "Paris"}]
    )


@pytest.mark.parametrize("reasoning", [None, True])
@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_reasoning_that_a_check_refuses_is_not_shown(
    failing: Any, kind: Kind, way: str, reasoning: Any
) -> None:
    """The words that it refuses come in two pieces."""
    reply = Reply([Thought("The pass", "word is Hg7."), Text("It is", " secret.")])
    model, *_ = failing(kind, reply, reply)
    for word, shows in [("password", False), ("nothing", True)]:
        asked = model.bind(checks=[checks.forbids(word)], reasoning=reasoning)
        found = await answered(asked, "What is it?", way)
        assert found.text == "It is secret."
        assert ("Hg7" in str(found)) is (shows and kind != "openai")


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_reasoning_of_a_lead_that_a_check_corrects_stays_its_first(
    failing: Any, kind: Kind, way: str
) -> None:
    """Anthropic refuses a signature that is joined of two."""

    def lead(body: Any) -> Reply:
        said = [text_of(turn) for turn in turns_of(body) if turn.get("role") == "assistant"]
        if said:
            return Reply([Thought("Again"), Text(" green", ".")])
        return Reply([Thought("Hm"), Text("The sky", " is", " purple", " today.")])

    model, *_ = failing(kind, lead, lead)
    asked = model.bind_tools([weather], checks=[checks.forbids("purple")])
    found = await answered(asked, "Why?", way)
    assert found.text == "The sky is green."
    data = json.dumps(found.content)
    assert "Again" not in data and data.count(SIGNATURE) == (1 if kind == "anthropic" else 0)


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(["openai", "responses", "anthropic"]))
async def test_a_call_that_breaks_off_is_begun_anew(failing: Any, kind: Kind, way: str) -> None:
    dies = Reply([CALL], cut=TO_CALL[kind])
    other = Call("weather", ('{"city"', ': "Paris"}'), id="call_0009")
    model, lead, reserve = failing(kind, dies, Reply([other]))
    found = await answered(model.bind_tools([weather], tool_choice="any"), "The weather?", way)
    (call,) = found.tool_calls
    assert (call["name"], call["args"], call["id"]) == ("weather", {"city": "Paris"}, "call_0009")
    assert found.text == "" and found.invalid_tool_calls == []
    assert reserve.asked == lead.asked[:1]


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(["openai", "responses", "anthropic"]))
async def test_a_call_that_breaks_off_after_text_is_made_once(
    failing: Any, kind: Kind, way: str
) -> None:
    said = "I look at it."
    dies = Reply([Text(said), CALL], cut=TO_CALL[kind] + BEFORE_CALL[kind])

    model, lead, reserve = failing(kind, dies, goes_on(said, CALL))
    found = await answered(model.bind_tools([weather]), "The weather?", way)
    assert found.text == said and found.invalid_tool_calls == []
    (call,) = found.tool_calls
    assert call["args"] == {"city": "Paris"}
    assert reserve.asked[-1]["tools"] == lead.asked[0]["tools"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("way", ["invoke", "ainvoke"])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
async def test_an_object_that_breaks_off_is_begun_anew(
    failing: Any, kind: Kind, way: str, method: str
) -> None:
    part = OBJECT if method == "json_schema" else Call("Weather", OBJECT.pieces)
    dies = Reply([part], cut=TO_TEXT[kind] if method == "json_schema" else TO_CALL[kind])
    model, lead, reserve = failing(kind, dies, Reply([part]))
    bound = model.with_structured_output(Weather, method=method)
    assert await answered(bound, "The weather?", way) == Weather(**FACTS)
    assert reserve.asked == lead.asked[:1]


@pytest.mark.parametrize("way", ["stream", "astream"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_that_was_shown_is_completed(failing: Any, kind: Kind, way: str) -> None:
    """As text: with the provider's format, a model begins another object."""
    model, _, reserve = failing(kind, Reply([OBJECT], cut=TO_TEXT[kind]), goes_on(OBJECT.whole))
    found = await answered(model.with_structured_output(Weather), "The weather?", way)
    assert found == Weather(**FACTS)
    assert not reserve.asked[-1].keys() & {"response_format", "text", "output_config"}


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_a_reserve_that_is_no_chat_model_makes_its_call(
    servers: Any, kind: Kind, way: str
) -> None:
    """The lead dies in the middle of a word, of which its provider has sent the beginning."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    lead, *_ = servers[kind]
    lead.begin(Reply([Text("I look", " at Par", "is.")], cut=TO_TEXT[kind]))
    reserve = ScriptedMember(f"I look at Paris. {call}", name="local")
    model = SpecFuseChatModel(members=[chat_model(kind, lead.url), reserve])
    found = await answered(model.bind_tools([weather]), "The weather?", way)
    assert found.text.strip() == "I look at Paris." and found.invalid_tool_calls == []
    texts = [block["text"] for block in found.content_blocks if block["type"] == "text"]
    assert "".join(texts) == found.text
    assert [call["args"] for call in found.tool_calls] == [{"city": "Paris"}]
    assert found.usage_metadata["output_tokens"] > 10


@pytest.mark.parametrize("version", [None, "v1"])
@pytest.mark.parametrize("kinds", [("openai", "anthropic"), ("anthropic", "openai")])
async def test_a_reserve_of_another_provider_goes_on_in_the_form_of_the_lead(
    servers: Any, kinds: Any, version: Any
) -> None:
    """OpenAI's content is text, Anthropic's are blocks where it has tools."""
    lead, reserve = [servers[kind][0] for kind in kinds]
    lead.begin(Reply([Text(*STORY)], cut=TO_TEXT[kinds[0]]))
    reserve.begin(goes_on("".join(STORY), CALL))
    members = [chat_model(kind, servers[kind][0].url) for kind in kinds]
    model = SpecFuseChatModel(members=members, output_version=version)
    found = await answered(model.bind_tools([weather]), "Why is the sky blue?", "stream")
    texts = [block["text"] for block in found.content_blocks if block["type"] == "text"]
    assert "".join(texts) == found.text == "".join(STORY)
    assert [call["args"] for call in found.tool_calls] == [{"city": "Paris"}]
    if kinds[0] == "openai":
        assert found.response_metadata["model_provider"] == "openai"


@pytest.mark.parametrize(("kind", "way"), each_with_two_ways(KINDS))
async def test_a_call_after_text_that_a_check_refused_is_made(
    servers: Any, kind: Kind, way: str
) -> None:
    """The provider has sent the beginning of a word that was refused."""

    def again(body: Any) -> Reply:
        return Reply([Text(" It is."), CALL])

    lead, *_ = servers[kind]
    lead.begin(Reply([Text("I look at it. Ba", "d it", " is.")]), again)
    model = SpecFuseChatModel(
        members=[chat_model(kind, lead.url)],
        checks=[checks.at("segment", lambda text: "bad" if "Bad" in text else None, name="bad")],
    )
    found = await answered(model.bind_tools([weather]), "The weather?", way)
    assert [call["args"] for call in found.tool_calls] == [{"city": "Paris"}]
    assert "Bad" not in found.text


@pytest.mark.parametrize("way", ["invoke", "stream"])
async def test_a_call_after_one_that_a_check_refused_has_a_block_of_its_own(
    servers: Any, way: str
) -> None:
    rome = Call("weather", ('{"city": "Rome"}',), id="call_0002")

    def again(body: Any) -> Reply:
        return Reply([rome])

    def no_paris(_: str, context: Any) -> str | None:
        return "Paris" if "Paris" in str(context.tool_calls) else None

    lead, *_ = servers["anthropic"]
    lead.begin(Reply([Text("I look."), CALL]), again)
    model = SpecFuseChatModel(
        members=[chat_model("anthropic", lead.url)], checks=[checks.at("call", no_paris)]
    )
    found = await answered(model.bind_tools([weather]), "The weather?", way)
    assert [block["type"] for block in found.content] == ["text", "tool_use"]
    assert [call["id"] for call in found.tool_calls] == ["call_0002"]


@pytest.mark.parametrize("way", ["invoke", "stream"])
@pytest.mark.parametrize("strategy", [ToolStrategy, ProviderStrategy])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_an_agent_whose_lead_dies_makes_each_call_once(
    failing: Any, kind: Kind, strategy: Any, way: str
) -> None:
    """The lead dies in each of its calls."""
    model, lead, _ = failing(
        kind,
        Reply([CALL], cut=TO_CALL[kind]),
        lambda body: Reply([CALL] if is_first(body) else [last]),
    )
    last: Any = OBJECT
    if strategy is ToolStrategy:
        last = Call("Weather", OBJECT.pieces, id="call_0002")
    state = run(model, [weather], strategy(Weather), way)
    assert state["structured_response"] == Weather(**FACTS)
    called = [call["name"] for message in state["messages"][1:2] for call in message.tool_calls]
    assert called == ["weather"] and lead.asked


@pytest.mark.parametrize("cut", [0, 1, 3, 5])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
def test_a_deep_agent_whose_lead_dies_makes_each_call_once(
    failing: Any, kind: Kind, cut: int
) -> None:
    def lead(body: Any) -> Reply:
        return Reply([CALL] if is_first(body) else [Text(*STORY)], cut=cut)

    def reserve(body: Any) -> Reply:
        return Reply([CALL]) if is_first(body) else told(body)

    told = goes_on("".join(STORY))
    model, _, _ = failing(kind, lead, reserve)
    agent = create_deep_agent(model, [weather])
    messages = agent.invoke({"messages": [("human", "Why is the sky blue?")]})["messages"]
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert [call["args"] for call in messages[1].tool_calls] == [{"city": "Paris"}]
    assert messages[-1].text == "".join(STORY)
