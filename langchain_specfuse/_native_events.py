"""LangChain's v3 stream events, made from our own chunks: every segment keeps its author there too.

LangChain's bridge from chunks to events keeps, of what a text block is annotated with, only what came last. A core
that does not know the two hooks below never calls them, and its bridge does the work. Knows content blocks and the
events' shape; nothing of rounds or members.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, closing
from typing import Any, cast

from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.utils.utils import LC_ID_PREFIX

from ._numbers import read_json

Event = dict[str, Any]
_GROWING = {"text": "text", "reasoning": "reasoning", "tool_call_chunk": "args"}
"""What is told piece by piece, and under which key."""


class NativeEvents:
    """The part of a chat model that tells v3 events itself."""

    def _stream_chat_model_events(
        self, messages: list[BaseMessage], *, stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[Event]:
        told = Telling(run_manager)
        with closing(self._annotated()._stream(messages, stop, run_manager, **kwargs)) as chunks:
            for chunk in chunks:
                yield from told.of(chunk)
        yield from told.end()

    async def _astream_chat_model_events(
        self, messages: list[BaseMessage], *, stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[Event]:
        told = Telling(run_manager)
        async with aclosing(self._annotated()._astream(messages, stop, run_manager, **kwargs)) as chunks:
            async for chunk in chunks:
                for event in told.of(chunk):
                    yield event
        for event in told.end():
            yield event

    def _annotated(self) -> Any:
        """This chat model as it answers in content blocks: v3 events have no other content."""
        model = cast("Any", self)
        return model if model.output_version == "v1" else model.model_copy(update={"output_version": "v1"})


class Telling:
    """One message as it is told: its blocks grow chunk by chunk."""

    def __init__(self, run_manager: Any) -> None:
        self._id = f"{LC_ID_PREFIX}-{run_manager.run_id}" if run_manager else ""
        self._blocks: dict[Any, tuple[int, Event]] = {}
        """A block's own index -> its place in the message, and all of it so far."""
        self._metadata: dict[str, Any] = {}
        self._kwargs: dict[str, Any] = {}
        self._usage: Mapping[str, Any] | None = None
        self._begun = False

    def of(self, chunk: ChatGenerationChunk) -> Generator[Event, None, None]:
        """The events of one chunk."""
        message = chunk.message
        if not self._begun:
            yield self._start(message.response_metadata)
        self._metadata |= message.response_metadata
        self._kwargs |= message.additional_kwargs
        self._usage = getattr(message, "usage_metadata", None) or self._usage
        for block in message.content:
            if isinstance(block, dict):
                yield from self._grown(block)

    def end(self) -> Generator[Event, None, None]:
        """The blocks whole, then the message's end. Nothing for a message that never began."""
        if not self._begun:
            return
        for place, block in self._blocks.values():
            yield {"event": "content-block-finish", "index": place, "content": _finished(block)}
        finish: Event = {"event": "message-finish", "metadata": dict(self._metadata)}
        if self._usage:
            finish["usage"] = json.loads(json.dumps(self._usage))  # the listener's own copy
        yield {**finish, "additional_kwargs": dict(self._kwargs)} if self._kwargs else finish

    def _start(self, metadata: Mapping[str, Any]) -> Event:
        self._begun = True
        told = {"provider": metadata.get("model_provider"), "model": metadata.get("model_name")}
        return {"event": "message-start", "role": "ai", "id": self._id, "metadata": told}

    def _grown(self, block: Event) -> Generator[Event, None, None]:
        kind = block["type"]
        key = block.get("index", kind)
        growing = _GROWING.get(kind)
        if key not in self._blocks:
            place = len(self._blocks)
            self._blocks[key] = place, dict(block)
            yield {"event": "content-block-start", "index": place, "content": _opening(block)}
        else:
            place, whole = self._blocks[key]
            self._blocks[key] = place, _joined(whole, block)
        if growing and block.get(growing):
            yield {"event": "content-block-delta", "index": place, "delta": _delta(kind, block[growing])}


def _opening(block: Event) -> Event:
    """The block as it begins: what it is, without what is yet to come."""
    empty = {_GROWING[block["type"]]: ""} if block["type"] in _GROWING else {}
    left_out = {"annotations"} if block["type"] == "tool_call_chunk" else {"annotations", "index"}
    return {key: value for key, value in block.items() if key not in left_out} | empty


def _delta(kind: str, piece: str) -> Event:
    if kind == "tool_call_chunk":
        return {"type": "tool-call-delta", "args": piece}
    return {"type": f"{kind}-delta", kind: piece}


def _joined(whole: Event, block: Event) -> Event:
    """The block with its new piece. What is not the next piece of the same takes its place."""
    growing = _GROWING.get(block["type"])
    if growing is None or whole["type"] != block["type"]:
        return dict(block)
    joined = whole | {key: value for key, value in block.items() if value is not None}
    joined[growing] = (whole.get(growing) or "") + (block.get(growing) or "")
    if "annotations" in whole:
        joined["annotations"] = [*whole["annotations"], *block.get("annotations", [])]
    return joined


def _finished(block: Event) -> Event:
    """The block as it stays: a call that can be read has arguments, one that cannot says so."""
    if block["type"] != "tool_call_chunk":
        return block
    call = {"id": block.get("id") or "", "name": block.get("name") or ""}
    call |= {"extras": block["extras"]} if "extras" in block else {}  # who wrote it, and how sure the others were
    raw = block.get("args") or ""
    try:
        arguments = read_json(raw or "{}")
    except ValueError as error:
        return {"type": "invalid_tool_call", **call, "args": raw, "error": f"its arguments are no JSON: {error}"}
    return {"type": "tool_call", **call, "args": arguments}
