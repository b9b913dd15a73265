"""How each provider's models are asked to continue a text, and takeovers at any byte.

The servers are fakes that follow the documentation of each provider; ``ways.py`` names the sources.
"""

from __future__ import annotations

import itertools
import json
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_deepseek import ChatDeepSeek
from langchain_openai import ChatOpenAI

from langchain_specfuse import (
    ChatModelMember,
    EnsembleError,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
)
from langchain_specfuse.core.values import Failure, Segment

from .continued import ASKED
from .contract import draft_job, drafted
from .fake_provider import FakeProvider, Kind, Reply, Text, Thought
from .test_native import chat_model, text_of, turns_of

STORY = "The sky is blue because air scatters blue light more than red light."
BEGUN = "The sky is blue because"
REST = STORY[len(BEGUN) :]
PREFILL = (
    "This model does not support assistant message prefill. The conversation must end with a user "
    "message."
)
"""What Anthropic's API answers for Claude 4.6 and later (langchain-ai/deepagents#1585)."""
NO_PREFIX = (
    "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant"
)
"""What Mistral's API answers (portkey.ai/error-library/response-role-error-10573)."""


def said_in(body: Any) -> str:
    """What the last assistant message of a request says."""
    said = [text_of(turn) for turn in turns_of(body) if turn.get("role") == "assistant"]
    return said[-1] if said else ""


def last_of(body: Any) -> Any:
    return turns_of(body)[-1]


def asks_for_rest(body: Any) -> bool:
    return last_of(body)["role"] == "user" and ASKED in json.dumps(last_of(body))


def asks_anew(body: Any) -> bool:
    return "The answer was interrupted" in json.dumps(last_of(body))


def writes(whole: str) -> Callable[[Any], Reply]:
    """Follows instructions, and does not know assistant messages at the end."""

    def reply(body: Any) -> Reply:
        begun = said_in(body) if asks_for_rest(body) else ""
        return Reply([Text(*in_pieces(whole[len(begun) :]))])

    return reply


def continues(whole: str) -> Callable[[Any], Reply]:
    """Continues an assistant message at the end."""

    def reply(body: Any) -> Reply:
        begun = said_in(body) if last_of(body)["role"] == "assistant" else ""
        return Reply([Text(*in_pieces(whole[len(begun) :]))])

    return reply


def in_pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.fixture
def server_of() -> Iterator[Callable[..., FakeProvider]]:
    servers: list[FakeProvider] = []

    def make(kind: Kind, *replies: Any, **owners: str) -> FakeProvider:
        servers.append(FakeProvider(kind, *replies))
        servers[-1].owners = owners
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def rest_of(model: BaseChatModel, begun: str = BEGUN) -> str:
    job = draft_job(answer=(Segment(begun),), segment_tokens=60)
    return drafted(ChatModelMember(model, name="a"), job).text


# --- each provider ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openai", "responses"])
def test_openais_models_are_asked_for_the_rest(server_of: Any, kind: Kind) -> None:
    server = server_of(kind, writes(STORY))
    assert rest_of(chat_model(kind, server.url)) == REST
    (body,) = server.asked
    assert asks_for_rest(body) and said_in(body) == BEGUN


def test_a_claude_model_continues_the_last_message(server_of: Any) -> None:
    server = server_of("anthropic", continues(STORY))
    assert rest_of(chat_model("anthropic", server.url)) == REST
    (body,) = server.asked
    assert last_of(body) == {"role": "assistant", "content": BEGUN}


def refuses_prefill(body: Any) -> Reply:
    if last_of(body)["role"] == "assistant":
        return Reply(status=400, error=PREFILL)
    return writes(STORY)(body)


def test_a_claude_model_that_refuses_the_last_message_is_asked_for_the_rest(
    server_of: Any,
) -> None:
    """The refusal costs nothing, and is remembered until the member is unloaded."""
    server = server_of("anthropic", refuses_prefill)
    member = ChatModelMember(chat_model("anthropic", server.url), name="a")
    for number, asked in enumerate((2, 3)):
        job = draft_job(id=f"q{number}", answer=(Segment(BEGUN),), segment_tokens=60)
        draft = drafted(member, job)
        assert draft.text == REST and draft.effort.requests == 1
        assert len(server.asked) == asked
    assert asks_for_rest(server.asked[-1])
    member.unload()
    assert drafted(member, draft_job(id="q2", answer=(Segment(BEGUN),))).text
    assert len(server.asked) == 5


def test_if_all_ways_are_refused_the_error_says_so_and_none_is_remembered(server_of: Any) -> None:
    """The request has another fault, which the last message tells."""
    server = server_of("anthropic", Reply(status=400, error="no credit"))
    member = ChatModelMember(chat_model("anthropic", server.url), name="a")
    for asked in (2, 4):
        (reply,) = member.draft([draft_job(answer=(Segment(BEGUN),))])
        assert isinstance(reply, Failure) and reply.effort.requests == 0
        assert reply.message.startswith("it cannot continue a given text")
        assert "no credit" in reply.message and len(server.asked) == asked
        assert ".gguf" in str(reply.cause)


def test_mistrals_models_get_the_field_prefix(server_of: Any) -> None:
    """With it, the reply begins with the text."""

    def reply(body: Any) -> Reply:
        last = last_of(body)
        if last["role"] == "assistant" and not last.get("prefix"):
            return Reply(status=400, error=NO_PREFIX)
        return Reply([Text(*in_pieces(STORY))])

    server = server_of("mistral", reply)
    assert rest_of(chat_model("mistral", server.url)) == REST
    (body,) = server.asked
    assert last_of(body) == {"role": "assistant", "content": BEGUN, "prefix": True}


@tool
def look(place: str) -> str:
    """Look there."""
    return "blue"


def test_deepseeks_models_get_the_field_prefix_at_the_beta_address(server_of: Any) -> None:
    """langchain-deepseek 1.1.1 leaves it out of messages. Other addresses do not have it."""

    def reply(body: Any) -> Reply:
        if last_of(body).get("prefix"):
            return Reply([Text(*in_pieces(REST))])
        return writes(STORY)(body)

    server = server_of("openai", reply)
    called = AIMessage("I look.", tool_calls=[{"name": "look", "args": {"place": "up"}, "id": "1"}])
    messages = [
        SystemMessage("Be brief."),
        HumanMessage([{"type": "text", "text": "Why?"}]),
        called,
        ToolMessage("blue", tool_call_id="1"),
    ]
    for path, last in (("beta", "assistant"), ("v1", "user")):
        model = ChatDeepSeek(
            model="deepseek-chat", api_key="key", api_base=f"{server.url}/{path}", max_retries=0
        )
        lead = ScriptedMember(STORY, name="lead", fails_in=2)
        llm = SpecFuseChatModel(members=[lead, model], lead="lead", method=Method(segment_tokens=5))
        assert llm.bind_tools([look]).invoke(messages).text == STORY
        body = server.asked[-1]
        assert server.paths[-1] == f"/{path}/chat/completions"
        assert last_of(body)["role"] == last
        assert said_in(body) == BEGUN and body["tools"]
        roles = [turn["role"] for turn in body["messages"]]
        assert roles[:4] == ["system", "user", "assistant", "tool"]
        assert body["messages"][2]["tool_calls"][0]["function"]["name"] == "look"


OPEN = {"continue_final_message": True, "add_generation_prompt": False}


@pytest.mark.parametrize(
    ("owner", "asked"),
    [
        ("vllm", OPEN),
        ("sglang", OPEN),
        ("llamacpp", {}),
        ("library", {}),
        ("organization_owner", {}),
        ("Meta", None),
        ("", None),
    ],
)
def test_what_stands_behind_chat_openai_says_its_list_of_models(
    server_of: Any, owner: str, asked: dict[str, bool] | None
) -> None:
    def reply(body: Any) -> Reply:
        if (asked is not None) is asks_for_rest(body):
            return Reply([Text("Wrong way.")])
        return (writes if asked is None else continues)(STORY)(body)

    owners = {"m": owner, "other": "vllm"} if owner else {}
    server = server_of("openai", reply, **owners)
    model = chat_model("openai", server.url, model="m", extra_body={"top_k": 5})
    member = ChatModelMember(model, name="a")
    for number in range(2):
        job = draft_job(id=f"q{number}", answer=(Segment(BEGUN),), segment_tokens=60)
        assert drafted(member, job).text == REST
    body = server.asked[-1]
    assert {name: body[name] for name in OPEN if name in body} == (asked or {})
    assert body["top_k"] == 5, "the chat model's own setting"


def test_a_server_that_does_not_list_its_models_is_not_waited_for() -> None:
    """For example behind a proxy that does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        since = time.monotonic()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        model = ChatOpenAI(model="m", base_url=url, api_key="key", max_retries=0, timeout=0.2)
        (reply,) = ChatModelMember(model).draft([draft_job(answer=(Segment(BEGUN),))])
        assert isinstance(reply, Failure) and reply.kind == "timeout"
        assert time.monotonic() - since < 30


# --- takeovers --------------------------------------------------------------------------------------


def test_requests_whose_replies_start_over_are_counted(server_of: Any) -> None:
    def reply(body: Any) -> Reply:
        return Reply([Text(STORY if asks_anew(body) else "The reason is the air.")])

    server = server_of("openai", reply)
    member = ChatModelMember(chat_model("openai", server.url), name="a", price=(1, 1))
    draft = drafted(member, draft_job(answer=(Segment(BEGUN),), segment_tokens=60))
    assert draft.text == REST
    # the first reply is cancelled before it reports its usage, so its words are counted
    assert draft.effort.requests == 2 and draft.effort.estimated_requests == 1
    assert draft.effort.output_tokens >= 9 + 2
    lead = ScriptedMember(STORY, name="lead", fails_in=2)
    llm = SpecFuseChatModel(
        members=[lead, member], lead="lead", method=Method(segment_tokens=5), max_calls=1
    )
    with pytest.raises(EnsembleError, match="budget") as raised:
        llm.invoke("Why?")
    assert raised.value.text == BEGUN
    assert len(server.asked) == 3, "no further request after the budget was spent"


def test_an_answer_that_the_caller_has_begun_goes_on_in_the_reserve(server_of: Any) -> None:
    """ "Continue this message": the conversation ends with an assistant message, which is the
    lead's. The reserve gets it with what the lead has added."""
    begun = "I think that"
    written = " the sky is blue because air scatters blue light."
    lead = server_of("anthropic", Reply([Text(*in_pieces(written))], cut=8))
    for kind, reply in (
        ("anthropic", continues(begun + written)),
        ("mistral", continues(begun + written)),
        ("openai", writes(begun + written)),
        ("openai", lambda body: Reply([Text(begun + written)])),
        ("openai", lambda body: Reply([Text("Of course! " + (begun + written))])),
    ):
        reserve = server_of(kind, reply)
        members = [chat_model("anthropic", lead.url), chat_model(kind, reserve.url)]
        messages = [HumanMessage("Why?"), AIMessage(begun)]
        message = SpecFuseChatModel(members=members).invoke(messages)
        assert message.text == written
        assert last_of(lead.asked[-1]) == {"role": "assistant", "content": begun}
        (body,) = reserve.asked
        said = said_in(body)
        assert said.startswith(f"{begun} the sky") and (begun + written).startswith(said)
        roles = [turn["role"] for turn in turns_of(body)]
        assert roles[:2] == ["user", "assistant"] and roles.count("assistant") == 1


OBJECT = '{"city": "Zürich", "degrees": 21}'


@pytest.mark.parametrize(
    "again", [f"```json\n{OBJECT}\n```", '{"city": "Bern", "degrees": 3}'], ids=["fence", "other"]
)
def test_an_object_that_starts_over_is_asked_for_anew_in_its_form(
    server_of: Any, again: str
) -> None:
    """The rest of an object is asked for without its form, and models put objects in code fences
    then."""

    def reply(body: Any) -> Reply:
        return Reply([Text(*in_pieces(OBJECT if asks_anew(body) else again))])

    lead = server_of("openai", Reply([Text('{"city": ', '"Zürich", ', '"degrees"')], cut=4))
    reserve = server_of("openai", reply)
    members = [chat_model("openai", server.url) for server in (lead, reserve)]
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"type": "object"}}}
    chunks = SpecFuseChatModel(members=members).stream("Where?", response_format=form)
    assert "".join(chunk.text for chunk in chunks) == OBJECT
    (asked,) = lead.asked
    assert [body.get("response_format") for body in reserve.asked] == [
        None,
        asked["response_format"],
    ]


@pytest.mark.parametrize("kind", ["openai", "anthropic", "mistral"])
def test_reasoning_that_was_shown_is_no_part_of_the_text(server_of: Any, kind: Kind) -> None:
    thought = Thought("Let me", " think.")
    lead = server_of("anthropic", Reply([thought, Text(*in_pieces(STORY))], cut=14))
    way = writes(STORY) if kind == "openai" else continues(STORY)

    def reply(body: Any) -> Reply:
        return Reply([Thought("Hm", "."), *way(body).parts])

    reserve = server_of(kind, reply)
    members = [chat_model("anthropic", lead.url), chat_model(kind, reserve.url)]
    message = SpecFuseChatModel(members=members).invoke("Why?")
    assert message.text == STORY
    (body,) = reserve.asked
    assert "think" not in json.dumps(body) and STORY.startswith(said_in(body)) and said_in(body)


def test_the_next_text_comes_at_once(server_of: Any) -> None:
    """Beside a reserve that answers at once, also if it refuses the first way and starts over."""

    def reply(body: Any) -> Reply:
        if last_of(body)["role"] == "assistant":
            return Reply(status=400, error=PREFILL)
        return Reply([Text(*in_pieces(STORY if asks_anew(body) else f"Sure! {STORY[:7]} looks."))])

    lead = server_of("openai", Reply([Text(*in_pieces(STORY))], cut=6))
    reserve = server_of("anthropic", reply)
    gaps = []
    for _ in range(3):
        members = [chat_model("openai", lead.url), chat_model("anthropic", reserve.url)]
        since, gap, text = time.monotonic(), 0.0, ""
        for chunk in SpecFuseChatModel(members=members).stream("Why?"):
            if chunk.text:
                gap = max(gap, time.monotonic() - since) if text else 0.0
                since, text = time.monotonic(), text + chunk.text
        assert text == STORY
        gaps.append(gap)
    assert min(gaps) < 0.5, "on a busy machine, some may be late"
    assert len(reserve.asked) == 9


# --- cuts at any byte -------------------------------------------------------------------------------

WHOLE = """\
Zürich liegt am See. It has **four** rivers:

1. die Limmat,
2. die Sihl,
3. 天空是蓝色的，
4. and one more – the Glatt 🙂.

| a | b |
| a | b |
| a | b |

So that's all. That's all, folks!"""
OTHER_WORDS = "Zürich liegt am Ende eines Sees. Durch die Stadt fließt die Limmat."
Manner: TypeAlias = Literal["continues", "refuses", "over", "opener", "words"]
MANNERS: list[Manner] = ["continues", "refuses", "over", "opener", "words"]


def behaving(manner: Manner, rng: random.Random, **cut: Any) -> Callable[[Any], Reply]:
    """A reserve that continues in the way that it is asked, refuses the first way, or starts over:
    exactly, after an opener, or in other words. ``cut``: where its replies break off."""

    def reply(body: Any) -> Reply:
        is_last = last_of(body)["role"] == "assistant"
        if manner == "refuses" and is_last:
            return Reply(status=400, error=PREFILL)
        begun = said_in(body) if is_last or asks_for_rest(body) else ""
        text = WHOLE[len(begun) :]
        if begun and manner == "over":
            text = WHOLE
        elif begun and manner == "opener":
            text = f"Of course! Here is the whole text:\n\n{WHOLE}"
        elif begun and manner == "words":
            text = OTHER_WORDS
        return Reply([Text(*in_pieces(text, rng.choice([1, 4, 9, 99])))], **cut)

    return reply


@pytest.fixture(scope="module")
def cut_servers() -> Iterator[dict[Kind, list[FakeProvider]]]:
    kinds: list[Kind] = ["openai", "responses", "anthropic", "mistral"]
    made = {kind: [FakeProvider(kind) for _ in range(3)] for kind in kinds}
    yield made
    for server in itertools.chain(*made.values()):
        server.stop()


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 20))]
)
def test_a_cut_at_any_byte_loses_and_repeats_nothing(cut_servers: Any, seed: int) -> None:
    """The lead is cut by FIN or by RST; reserves of all protocols continue or start over."""
    rng = random.Random(seed)
    kinds = list(cut_servers)
    for number in range(20):
        first, second = kinds[number % 4], rng.choice(kinds)
        manner = MANNERS[number % 5]
        lead, reserve = cut_servers[first][0], cut_servers[second][1]
        cut = rng.randrange(10_000 if first == "responses" else 6000)
        lead.begin(
            Reply(
                [Text(*in_pieces(WHOLE, rng.choice([3, 11])))],
                cut_bytes=cut,
                is_reset=rng.random() < 0.5,
            )
        )
        reserve.begin(behaving(manner, rng))
        members = [chat_model(first, lead.url), chat_model(second, reserve.url)]
        text = ""
        try:
            for chunk in SpecFuseChatModel(members=members).stream("Zürich?"):
                text += chunk.text
        except EnsembleError as error:
            raise AssertionError((seed, number, first, second, manner, cut, text)) from error
        # What was shown may be the beginning of both.
        wholes = (WHOLE, OTHER_WORDS) if manner == "words" else (WHOLE,)
        assert text in wholes, (seed, number, first, second, manner, cut)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 8))]
)
def test_a_cut_of_the_lead_and_of_its_reserve_loses_and_repeats_nothing(
    cut_servers: Any, seed: int
) -> None:
    """Also if the reserve dies while its first words are held."""
    rng = random.Random(seed)
    for number in range(10):
        kinds = [rng.choice(list(cut_servers)) for _ in range(3)]
        servers = [cut_servers[kind][place] for place, kind in enumerate(kinds)]
        for server, manner in zip(servers[:2], ("continues", rng.choice(MANNERS[:4])), strict=True):
            cut, is_reset = rng.randrange(5000), rng.random() < 0.5
            server.begin(behaving(manner, rng, cut_bytes=cut, is_reset=is_reset))  # type: ignore[arg-type]
        servers[2].begin(behaving(rng.choice(MANNERS[:4]), rng))
        members = [
            chat_model(kind, server.url) for kind, server in zip(kinds, servers, strict=True)
        ]
        chunks = SpecFuseChatModel(members=members).stream("Zürich?")
        assert "".join(chunk.text for chunk in chunks) == WHOLE, (seed, number, kinds)
