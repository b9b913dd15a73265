"""Members that die where it is hardest: in their reasoning, after a check has withdrawn text, one
after another, and before many answers at once. Providers are fakes of their protocols.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_specfuse import EnsembleError, SpecFuseChatModel, checks

from .fake_provider import SIGNATURE, FakeProvider, Kind, Reply, Text, Thought
from .test_native import (
    CALL,
    KINDS,
    STORY,
    TO_TEXT,
    answered,
    chat_model,
    goes_on,
    weather,
)

WHOLE = "".join(STORY)
WAYS = ["invoke", "astream"]
TO_THOUGHT = {"openai": 2, "responses": 4, "anthropic": 4, "mistral": 2}
"""The events of a reply that end with the first piece of its reasoning."""
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Kind, list[FakeProvider]]]:
    made = {kind: [FakeProvider(kind) for _ in range(2)] for kind in KINDS}
    yield made
    for server in itertools.chain(*made.values()):
        server.stop()


def until_cut(reply: Callable[[Any], Reply], cut: int) -> Callable[[Any], Reply]:
    """What this writes, up to so many events."""
    return lambda body: replace(reply(body), cut=cut)


@pytest.mark.parametrize(
    ("kind", "other", "version"),
    [
        (kind, other, version)
        for (kind, other), version in zip(
            itertools.product(KINDS, ["openai", "anthropic", "mistral"]),
            itertools.cycle([None, "v1"]),
            strict=False,
        )
    ],
)
async def test_a_lead_that_dies_in_its_reasoning_is_replaced_and_the_conversation_goes_on(
    servers: Any, kind: Kind, other: Kind, version: Any
) -> None:
    """Anthropic refuses reasoning without a signature, and there is none where it breaks off. With
    tools, it needs that of the reply that called them."""
    lead, reserve = servers[kind][0], servers[other][1]
    lead.begin(Reply([Thought("Let me", " see."), Text(*STORY)], cut=TO_THOUGHT[kind]))
    reserve.begin(Reply([Thought("I think", " so."), Text("I look."), CALL]))
    models = [
        chat_model(each, server.url, **(THINKS if each == "anthropic" else {}))
        for each, server in ((kind, lead), (other, reserve))
    ]
    llm = SpecFuseChatModel(members=models, output_version=version)
    found = await answered(llm.bind_tools([weather]), "The weather?", "astream")
    (call,) = found.tool_calls
    assert found.text == "I look." and call["args"] == {"city": "Paris"}

    lead.begin(Reply([Text("It is sunny.")]))
    said = [HumanMessage("The weather?"), found, ToolMessage("sunny", tool_call_id=call["id"])]
    recovered = SpecFuseChatModel(members=models[:1]).bind_tools([weather])
    assert (await answered(recovered, said, "invoke")).text == "It is sunny."
    if kind == "anthropic":
        _, answer, _ = lead.asked[0]["messages"]
        thoughts = [block for block in answer["content"] if block["type"] == "thinking"]
        signed = [{"type": "thinking", "thinking": "I think so.", "signature": SIGNATURE}]
        assert thoughts == (signed if other == "anthropic" else [])


@pytest.mark.parametrize("version", [None, "v1"])
@pytest.mark.parametrize("lead_dies", [False, True])
async def test_what_another_account_wrote_goes_back_to_openai_without_its_ids(
    servers: Any, lead_dies: bool, version: Any
) -> None:
    """With ids, OpenAI looks for what it has stored itself, and refuses reasoning without the item
    that it sent after it. https://github.com/vercel/ai/issues/8379"""
    lead, reserve = servers["responses"]
    reply = Reply([Thought("Let me", " see."), Text("I ", "look."), CALL])
    lead.begin(replace(reply, cut=TO_THOUGHT["responses"]) if lead_dies else reply)
    reserve.begin(reply)
    models = [chat_model("responses", server.url) for server in (lead, reserve)]
    llm = SpecFuseChatModel(members=models, output_version=version).bind_tools([weather])
    found = await answered(llm, "The weather?", "astream")

    lead.begin(Reply([Text("It is sunny.")]))
    said = [HumanMessage("The weather?"), found, ToolMessage("sunny", tool_call_id="call_0001")]
    recovered = SpecFuseChatModel(members=models[:1]).bind_tools([weather])
    assert (await answered(recovered, said, "invoke")).text == "It is sunny."
    sent = lead.asked[0]["input"]
    kinds = ["message", "function_call"] if lead_dies else ["reasoning", "message", "function_call"]
    assert [item["type"] for item in sent[1:-1]] == kinds
    assert ["id" in item for item in sent[1:-1]] == [not lead_dies] * len(kinds)
    assert sent[-2]["call_id"] == sent[-1]["call_id"] == "call_0001"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_lead_that_dies_after_a_check_has_withdrawn_text_is_replaced_before_the_fault(
    servers: Any, kind: Kind, way: str
) -> None:
    lead, reserve = servers[kind]
    lead.begin(
        Reply([Text("The sky is", " purple", " because", " of lavender.")]), Reply(status=503)
    )
    reserve.begin(goes_on(WHOLE))
    llm = SpecFuseChatModel(
        members=[chat_model(kind, server.url) for server in (lead, reserve)],
        checks=[checks.forbids("purple")],
    )
    found = await answered(llm, "Why is the sky blue?", way)
    assert found.text == WHOLE and "purple" not in json.dumps(found.content)
    assert len(lead.asked) == 3, "the text, the rest after the fault, and that once more"
    assert len(found.response_metadata["specfuse"]["exits"]) == 1


ORDERS = [("openai", "anthropic", "mistral"), ("mistral", "responses", "anthropic")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", range(3))
@pytest.mark.parametrize("kinds", ORDERS)
async def test_a_third_member_finishes_where_a_reserve_dies_too(
    servers: Any, kinds: Any, more: int, way: str
) -> None:
    """The reserve dies before its first byte, after its first event, or in the next words."""
    first, second, third = (servers[kind][0] for kind in kinds)
    first.begin(Reply([Text(*STORY)], cut=TO_TEXT[kinds[0]]))
    cut = [0, 1, TO_TEXT[kinds[1]] - 1][more]
    second.begin(until_cut(goes_on(WHOLE), cut))
    third.begin(goes_on(WHOLE, *([] if kinds[2] == "mistral" else [CALL])))
    models = [chat_model(kind, servers[kind][0].url) for kind in kinds]
    llm = SpecFuseChatModel(members=models).bind_tools([weather])
    found = await answered(llm, "Why is the sky blue?", way)
    assert found.text == WHOLE and len(found.tool_calls) == (kinds[2] != "mistral")
    assert len(found.response_metadata["specfuse"]["exits"]) == 2


def test_an_answer_that_no_member_finishes_says_what_was_shown_and_who_failed(
    servers: Any,
) -> None:
    lead, reserve = servers["anthropic"]
    lead.begin(Reply([Text(*STORY)], cut=TO_TEXT["anthropic"]))
    reserve.begin(until_cut(goes_on(WHOLE), 4))
    models = [chat_model("anthropic", server.url) for server in (lead, reserve)]
    chunks = SpecFuseChatModel(members=models).stream("Why?")
    text = next(chunks).text
    with pytest.raises(EnsembleError) as raised:
        list(chunks)
    assert WHOLE.startswith(text) and raised.value.text.startswith(text) and text
    assert len(raised.value.failures) == 2


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_its_caller_has_begun_goes_on_after_the_lead_has_died(
    servers: Any, kind: Kind
) -> None:
    """The conversation ends with an assistant message: "continue this"."""
    lead, reserve = servers[kind]
    begun, rest = WHOLE[:11], WHOLE[11:]
    lead.begin(Reply([Text(rest[:12], rest[12:20], rest[20:])], cut=TO_TEXT[kind]))
    reserve.begin(goes_on(WHOLE))
    llm = SpecFuseChatModel(members=[chat_model(kind, server.url) for server in (lead, reserve)])
    found = await answered(llm, [HumanMessage("Why?"), AIMessage(begun)], "astream")
    assert found.text == rest


async def test_a_hundred_streams_survive_the_death_of_their_lead(servers: Any) -> None:
    """It dies before them, before their first byte, and in their middle."""
    deaths = itertools.cycle([{"cut": TO_TEXT["openai"]}, {"status": 503}, {"cut": 0}])
    lead, reserve = servers["openai"]
    lead.begin(lambda body: Reply([Text(*STORY)], **next(deaths)))  # type: ignore[arg-type]
    reserve.begin(goes_on(WHOLE))
    models = [chat_model("openai", server.url) for server in (lead, reserve)]
    llm = SpecFuseChatModel(members=models)

    async def read() -> str:
        return "".join([chunk.text async for chunk in llm.astream("Why is the sky blue?")])

    since = time.monotonic()
    texts = await asyncio.gather(*(read() for _ in range(100)))
    assert set(texts) == {WHOLE}
    assert time.monotonic() - since < 60
    asked = len(lead.asked)
    assert await read() == WHOLE and len(lead.asked) == asked, "it pauses"
