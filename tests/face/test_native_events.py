"""LangChain's v3 stream events, told by the chat model itself: the message as ever, with every segment's author."""

from __future__ import annotations

import json
import warnings
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse._native_events import NativeEvents, Telling

from .conftest import BLUE

ROUNDS = 4
pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")


def events(llm: BaseChatModel, config: Any = None) -> tuple[list[dict[str, Any]], Any]:
    """The v3 events of an answer, and the message that LangChain makes of them."""
    stream = llm.stream_events("Why?", config, version="v3")
    return [dict(event) for event in stream], stream.output


async def aevents(llm: BaseChatModel, config: Any = None) -> tuple[list[dict[str, Any]], Any]:
    stream = await llm.astream_events("Why?", config, version="v3")
    return [dict(event) async for event in stream], await stream.output


def notes(message: Any) -> list[dict[str, Any]]:
    return [note["value"] for block in message.content_blocks for note in block.get("annotations", [])]


def whole(llm: SpecFuseChatModel) -> AIMessageChunk:
    """The answer of v2 as the sum of its chunks, in content blocks."""
    first, *others = list(llm.model_copy(update={"output_version": "v1"}).stream("Why?"))
    return sum(others, first)


def test_the_hooks_are_those_that_langchain_looks_for() -> None:
    """A core that calls them otherwise, or no more, would fall back to its bridge unseen: here it is seen."""
    import inspect

    source = inspect.getsource(BaseChatModel)
    for name in ("_stream_chat_model_events", "_astream_chat_model_events"):
        assert f'"{name}"' in source
        assert hasattr(SpecFuseChatModel, name)


@pytest.mark.parametrize("version", [None, "v0", "v1"])
def test_every_segment_keeps_its_author(ensemble: Any, version: str | None) -> None:
    llm = ensemble(output_version=version)
    told, message = events(llm)
    authors = notes(message)
    assert [author["round"] for author in authors] == [1, 2, 3, 4]
    assert "".join(message.text[author["start"] : author["end"]] for author in authors) == message.text == BLUE
    (finish,) = (event for event in told if event["event"] == "content-block-finish")
    assert len(finish["content"]["annotations"]) == ROUNDS


async def test_every_segment_keeps_its_author_in_asyncio(ensemble: Any) -> None:
    told, message = await aevents(ensemble())
    assert [author["round"] for author in notes(message)] == [1, 2, 3, 4]
    assert message.text == BLUE
    assert [event["event"] for event in told] == [event["event"] for event in events(ensemble())[0]]


def test_langchains_own_bridge_would_keep_only_the_last_author(ensemble: Any, monkeypatch: Any) -> None:
    """Why the hooks are there at all. When this fails they may go."""
    for name in ("_stream_chat_model_events", "_astream_chat_model_events"):
        monkeypatch.delattr(NativeEvents, name)
    assert [author["round"] for author in notes(events(ensemble(output_version="v1"))[1])] == [4]


def test_the_message_equals_that_of_v2(ensemble: Any) -> None:
    llm = ensemble()
    _, message = events(llm)
    same = whole(llm)
    assert message.text == same.text == llm.invoke("Why?").text
    assert message.content_blocks == same.content_blocks
    assert message.usage_metadata == same.usage_metadata
    assert message.response_metadata == same.response_metadata


def test_the_events_stand_in_the_order_of_the_protocol(ensemble: Any) -> None:
    told, message = events(ensemble())
    kinds = [event["event"] for event in told]
    deltas = ["content-block-delta"] * ROUNDS
    assert kinds == ["message-start", "content-block-start", *deltas, "content-block-finish", "message-finish"]
    assert told[0]["metadata"] == {"provider": "specfuse", "model": "a+b"}
    assert told[0]["id"] == message.id
    assert told[1]["content"] == {"type": "text", "text": ""}
    assert "".join(event["delta"]["text"] for event in told[2:6]) == BLUE
    assert json.loads(json.dumps(told)) == told


def test_handlers_and_tracers_hear_the_rounds_there_too(ensemble: Any) -> None:
    rounds: list[Any] = []
    tracer = RunCollectorCallbackHandler()
    events(ensemble(), {"callbacks": [SpecFuseCallbackHandler(on_round=rounds.append), tracer]})
    (run,) = tracer.traced_runs
    assert [event.number for event in rounds] == [1, 2, 3, 4]
    assert {event.run_id for event in rounds} == {run.id}
    assert [child.name for child in run.child_runs] == [f"round {n}" for n in (1, 2, 3, 4)]


def test_an_error_arrives_as_that_error(ensemble: Any) -> None:
    llm = ensemble(lambda query: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(Exception, match="ZeroDivisionError"):
            events(llm)


# --- the events of blocks, on their own -------------------------------------------------------------------------


def chunk(*blocks: dict[str, Any], **fields: Any) -> ChatGenerationChunk:
    metadata = {"output_version": "v1", **fields.pop("metadata", {})}
    return ChatGenerationChunk(message=AIMessageChunk(content=list(blocks), response_metadata=metadata, **fields))


def text(piece: str) -> dict[str, Any]:
    return {"type": "text", "text": piece, "index": 0}


def call(place: int, args: str, name: str | None = None) -> dict[str, Any]:
    return {"type": "tool_call_chunk", "id": name and f"id-{name}", "name": name, "args": args, "index": place}


THOUGHT = {"type": "reasoning", "reasoning": "Hm.", "extras": {"member": "a"}, "index": "lc_thought_0"}
CHUNKS = [
    chunk(THOUGHT, metadata={"model_name": "a+b", "model_provider": "specfuse"}),
    chunk(text("Let me ")),
    chunk(text("add."), call(1, "", "add")),
    chunk(call(1, '{"a": 1, '), call(2, '{"city": "Ro', "weather")),
    chunk(call(1, '"b": 2}'), metadata={"finish_reason": "length"}),
]


class Fixed(NativeEvents, BaseChatModel):
    """A chat model that streams the chunks above: thoughts, words, a call, and a call that is cut."""

    output_version: str | None = "v1"

    @property
    def _llm_type(self) -> str:
        return "fixed"

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield from CHUNKS

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for one in CHUNKS:
            yield one


def check(told: list[dict[str, Any]], message: Any) -> None:
    assert message.content_blocks[0] == THOUGHT
    assert message.text == "Let me add."
    assert [(one["name"], one["args"], one["id"]) for one in message.tool_calls] == [
        ("add", {"a": 1, "b": 2}, "id-add")
    ]
    (broken,) = message.invalid_tool_calls
    assert (broken["name"], broken["args"]) == ("weather", '{"city": "Ro')
    deltas = [event["delta"] for event in told if event["event"] == "content-block-delta"]
    assert [delta["type"] for delta in deltas].count("tool-call-delta") == 3
    starts = [event["content"]["type"] for event in told if event["event"] == "content-block-start"]
    assert starts == ["reasoning", "text", "tool_call_chunk", "tool_call_chunk"]
    assert message.response_metadata["finish_reason"] == "length"


def test_thoughts_words_calls_and_cut_calls_come_out_as_what_they_are() -> None:
    check(*events(Fixed()))


async def test_thoughts_words_calls_and_cut_calls_come_out_in_asyncio() -> None:
    check(*await aevents(Fixed()))


def test_a_call_arrives_while_it_is_written() -> None:
    stream = Fixed().stream_events("Why?", version="v3")
    pieces = [(piece["name"], piece["args"]) for piece in stream.tool_calls]
    assert pieces == [("add", '{"a": 1, '), ("weather", '{"city": "Ro'), ("add", '"b": 2}')]


def test_a_block_that_is_no_more_what_it_was_takes_its_place() -> None:
    told = Telling(None)
    cut = {"type": "invalid_tool_call", "id": "x", "name": "add", "args": "{", "error": "cut", "index": 1}
    list(told.of(chunk(call(1, "{", "add"))))
    list(told.of(chunk(cut)))
    finished = [event["content"] for event in told.end() if event["event"] == "content-block-finish"]
    assert finished == [cut]


def test_a_message_that_never_began_has_no_events() -> None:
    assert list(Telling(None).end()) == []


def test_a_call_keeps_its_author() -> None:
    members = [ScriptedMember(ScriptedMember.call("add", a=1), name="ann")]
    adding = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "add", "parameters": adding}}
    stream = SpecFuseChatModel(members=members).bind_tools([tool]).stream_events("Why?", version="v3")
    (call,) = [e["content"] for e in stream if e["event"] == "content-block-finish"]
    assert (call["type"], call["args"], call["extras"]["member"]) == ("tool_call", {"a": 1}, "ann")
