"""Nothing blocks the event loop: blockbuster raises if a call on its thread would."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster, BlockingError, blockbuster_ctx
from langchain_core.caches import InMemoryCache
from langchain_core.env import get_runtime_environment
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler
from pydantic import BaseModel

from langchain_specfuse import (
    ChatModelMember,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
)
from tests.members import tiny
from tests.members.fake_server import INST_END, FakeServer
from tests.methods import in_method

from .conftest import BLUE, WAYS, WIDE, asked
from .recording import recorded

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot score:UserWarning")


@pytest.fixture(autouse=True, scope="module")
def _the_system_is_known() -> None:
    """LangChain looks up the system once, in the first run of a tracer."""
    get_runtime_environment()


@pytest.fixture
def guarded() -> Iterator[BlockBuster]:
    with blockbuster_ctx() as guard:
        yield guard


def scripted(**options: Any) -> SpecFuseChatModel:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    return SpecFuseChatModel(**in_method(members=members, segment_tokens=4, **options))


def hosted() -> SpecFuseChatModel:
    members = [
        FakeListChatModel(responses=["A" if name == "ballot" else BLUE] * 50)
        for name in ("one", "ballot")
    ]
    return SpecFuseChatModel(
        members=[
            ChatModelMember(model, name=name) for model, name in zip(members, "ab", strict=True)
        ],
        lead="a",
        method=Method(segment_tokens=4),
    )


ASYNC = [way for way in WAYS if way.startswith("a")]


async def test_the_guard_detects_blocking_calls(guarded: BlockBuster, tmp_path: Path) -> None:
    with pytest.raises(BlockingError):
        (tmp_path / "x").write_text("x")


@pytest.mark.parametrize("way", ASYNC)
@pytest.mark.parametrize("make", [scripted, hosted], ids=lambda make: make.__name__)
async def test_no_way_of_asking_blocks(guarded: BlockBuster, make: Any, way: str) -> None:
    assert await asked(make(), way)


async def test_many_questions_at_once_do_not_block(guarded: BlockBuster) -> None:
    llm = scripted(max_concurrency=4)
    answers = await llm.abatch(["Why?"] * 40)
    assert {answer.text for answer in answers} == {BLUE}


class City(BaseModel):
    """A city."""

    name: str


@tool
def where(city: str) -> str:
    """Find a city."""
    return city


async def test_tools_and_structured_output_do_not_block(guarded: BlockBuster) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember({"name": "Rome"}, name=n) for n in "ab"])
    assert isinstance(await llm.with_structured_output(City).ainvoke("Where?"), City)
    saying = ScriptedMember.call("City", name="Rome")
    other = SpecFuseChatModel(members=[ScriptedMember(saying, name=n) for n in "ab"])
    called = other.with_structured_output(City, method="function_calling")
    assert isinstance(await called.ainvoke("Where?"), City)
    assert (await llm.ainvoke("Where?", response_format={"type": "json_object"})).text
    calling = [ScriptedMember(ScriptedMember.call("where", city="Rome"), name=n) for n in "ab"]
    message = await SpecFuseChatModel(members=calling).bind_tools([where]).ainvoke("Where?")
    assert message.tool_calls[0]["args"] == {"city": "Rome"}
    as_dict = llm.with_structured_output(City.model_json_schema())
    assert await as_dict.ainvoke("Where?") == {"name": "Rome"}
    assert [part async for part in as_dict.astream("Where?")][-1] == {"name": "Rome"}
    assert (
        await scripted(segment="answer", result="text").ainvoke([HumanMessage("Why?")])
    ).text == BLUE


async def test_a_function_as_result_does_not_block(guarded: BlockBuster) -> None:
    """The cache key of a function contains the text of its file."""
    cache = InMemoryCache()
    for _ in range(2):
        llm = scripted(segment="answer", result=lambda text: text[:1], cache=cache)
        assert (await llm.ainvoke("Why?")).text == BLUE
        assert [chunk async for chunk in llm.astream("Why?")]
        method = Method(segment="answer", result=len)
        assert (await scripted().ainvoke("Why?", method=method)).text == BLUE


async def test_a_call_in_plain_json_does_not_block(guarded: BlockBuster) -> None:
    """Run alone, this file is the first to import the library that checks the call."""
    saying = '```json\n{"name": "where", "arguments": {"city": "Rome"}}\n```'
    llm = SpecFuseChatModel(members=[ScriptedMember(saying, name=n) for n in "ab"])
    message = await llm.bind_tools([where]).ainvoke("Where?")
    assert message.tool_calls[0]["args"] == {"city": "Rome"}


async def test_traces_do_not_block(guarded: BlockBuster) -> None:
    collector = RunCollectorCallbackHandler()
    for depth in ("off", "rounds"):
        await scripted(trace=depth).ainvoke("Why?", {"callbacks": [collector]})
    assert len(collector.traced_runs) == 2


async def test_a_langsmith_trace_does_not_block() -> None:
    with recorded() as (tracer, endpoint):
        # LangSmith's client asks the system and git once, in the first run.
        await asyncio.to_thread(scripted().invoke, "Why?", {"callbacks": [tracer]})
        with blockbuster_ctx():
            await scripted().ainvoke("Why?", {"callbacks": [tracer]})
            async for _ in scripted().astream("Why?", {"callbacks": [tracer]}):
                pass
    assert len(endpoint.models) == 3


@pytest.fixture
def served() -> Iterator[ServerMember]:
    model, tokenizer = tiny.cached("llama", 1, chat_template=INST_END)
    server = FakeServer("vllm", model, tokenizer)
    member = ServerMember(server.url, tokenizer=tokenizer, name="served")
    yield member
    member.unload()
    server.stop()


async def test_a_member_on_a_server_does_not_block(served: ServerMember) -> None:
    with blockbuster_ctx():
        llm = SpecFuseChatModel(members=[served], max_tokens=12, method=Method(segment_tokens=4))
        assert (await llm.ainvoke("Why?")).text
        assert [chunk async for chunk in llm.astream("Why?")]


async def test_members_in_this_process_are_loaded_and_asked_without_blocking(
    tmp_path: Path,
) -> None:
    model, tokenizer = tiny.build("llama", 1)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with blockbuster_ctx():
        path = str(tmp_path / "model")
        llm = await asyncio.to_thread(SpecFuseChatModel, members=[path], max_tokens=8)
        assert (await llm.ainvoke("Why?")) is not None
        assert [chunk async for chunk in llm.astream("Why?")]
    await asyncio.to_thread(llm.unload)
