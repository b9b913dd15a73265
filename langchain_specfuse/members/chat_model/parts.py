"""The parts of a provider's reply, as LangChain's chunks."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk

from ...core.values import ToolCall


def as_chunk(message: BaseMessage) -> AIMessageChunk:
    """The message as a chunk. Models that do not stream return whole messages.

    >>> from langchain_core.messages import AIMessage
    >>> message = AIMessage("", tool_calls=[{"name": "add", "args": {"a": 1}, "id": "1"}])
    >>> as_chunk(message).tool_call_chunks[0]["args"]
    '{"a": 1}'
    """
    if isinstance(message, AIMessageChunk):
        return message
    fields = {
        name: getattr(message, name)
        for name in ("content", "additional_kwargs", "response_metadata", "id", "name")
    }
    pieces = [
        tool_call_chunk(
            name=call.name or None, args=call.arguments, id=call.id or None, index=index
        )
        for index, call in enumerate(calls_in([message]))
    ]
    usage = getattr(message, "usage_metadata", None)
    return AIMessageChunk(**fields, usage_metadata=usage, tool_call_chunks=pieces)


def joined(chunks: Sequence[AIMessageChunk]) -> AIMessageChunk:
    """All of these chunks as one."""
    return functools.reduce(operator.add, chunks)


def calls_in(messages: Sequence[BaseMessage]) -> tuple[ToolCall, ...]:
    """The tool calls in these messages; arguments that are not JSON as they are."""
    found = []
    for message in messages:
        for call in getattr(message, "tool_calls", ()):
            arguments = json.dumps(call["args"], ensure_ascii=False, default=str)
            found.append(ToolCall(call["name"], arguments, call["id"] or ""))
        for broken in getattr(message, "invalid_tool_calls", ()):
            name, text = broken["name"] or "", broken["args"] or ""
            found.append(ToolCall(name, text, broken["id"] or ""))
    return tuple(found)


def is_call_unfinished(chunks: Sequence[AIMessageChunk]) -> bool:
    """Whether the arguments of a call in these chunks are not a whole JSON text.

    LangChain completes them: ``{"city": "Par`` is read as a call for the city "Par". Providers may
    leave out the arguments of a tool that has none.

    >>> piece = {"name": "find", "args": '{"city": "Par', "id": "1", "index": 0}
    >>> is_call_unfinished([AIMessageChunk("", tool_call_chunks=[tool_call_chunk(**piece)])])
    True
    """
    for chunk in chunks:
        for piece in chunk.tool_call_chunks:
            try:
                json.loads(piece["args"] or "{}", strict=False)
            except ValueError:
                return True
    return False


def with_text(chunk: AIMessageChunk, text: str) -> AIMessageChunk:
    """The chunk with this text in the place of its own.

    >>> with_text(AIMessageChunk([{"type": "text", "text": "Hi!", "index": 0}]), "Hi").content
    [{'type': 'text', 'text': 'Hi', 'index': 0}]
    """
    if isinstance(chunk.content, str):
        return chunk.model_copy(update={"content": text})
    blocks: list[Any] = []
    rest = text
    for block in chunk.content:
        if isinstance(block, str):
            block = {"type": "text", "text": block}
        if block.get("type") != "text":
            blocks.append(block)
        elif rest:
            blocks.append({**block, "text": rest})
            rest = ""
    if rest:
        blocks.append({"type": "text", "text": rest})
    return chunk.model_copy(update={"content": blocks})


def split(chunk: AIMessageChunk, at: int) -> tuple[AIMessageChunk, AIMessageChunk]:
    """The chunk with the first characters of its text, and the rest of its text alone."""
    text = chunk.text
    first = with_text(chunk, text[:at])
    rest: list[Any] | str = text[at:]
    if not isinstance(chunk.content, str):
        last = next(
            (block for block in reversed(chunk.content) if is_text(block)), {"type": "text"}
        )
        kept = {key: value for key, value in last.items() if key != "annotations"}
        rest = [{**kept, "text": text[at:]}]
    return first, AIMessageChunk(content=rest, response_metadata=provider_of(chunk))


def provider_of(chunk: BaseMessage) -> dict[str, Any]:
    """What LangChain needs to read the chunk's content."""
    kept = ("model_provider", "output_version")
    metadata = chunk.response_metadata
    return {name: metadata[name] for name in kept if name in metadata}


def is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text"
