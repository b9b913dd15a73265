"""The parts of a provider's reply, as LangChain's chunks."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from pydantic import BaseModel

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


# --- what is redacted -----------------------------------------------------------------------------

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of fields and of content blocks whose texts are reasoning."""
_NAMES = ("type", "id", "index", "name", "signature", "encrypted_content")
"""Keys of content blocks whose texts nobody reads."""


def rewritten(
    parts: Sequence[AIMessageChunk],
    size: int,
    edits: Sequence[tuple[int, int, str]],
    text: str,
    redacted: Callable[[Any], Any],
    thought: str | None,
    is_last: bool,
) -> tuple[list[AIMessageChunk], list[AIMessageChunk]]:
    """The chunks of the first ``size`` characters with these edits, and the other chunks.

    ``text`` is the edited text, ``redacted`` redacts other values, and ``thought`` is the reasoning
    if it was redacted. ``is_last``: there are no other chunks.

    >>> chunks = [AIMessageChunk("Call Ann"), AIMessageChunk(" Lee now")]
    >>> rewritten(chunks, 12, [(5, 12, "[name]")], "Call [name]", str, None, False)[0][0].text
    'Call [name]'
    """
    done: list[AIMessageChunk] = []
    rest = list(parts)
    here = 0
    while rest and (is_last or here + len(rest[0].text) <= size):
        chunk = rest.pop(0)
        done.append(_edited(chunk, here, edits))
        here += len(chunk.text)
    if rest and here < size:
        first, rest[0] = split(rest[0], size - here)
        done.append(_edited(first, here, edits))
    if done and "".join(chunk.text for chunk in done) != text:
        # The answer has it in another form.
        done, rest = [with_text(joined([*done, *rest]), text)], []
    done = [_scrubbed(chunk, redacted) for chunk in done]
    return _with_thought(done, thought) if thought is not None else done, rest


def _edited(chunk: AIMessageChunk, start: int, edits: Sequence[tuple[int, int, str]]) -> Any:
    """A chunk whose text begins at this place, with the edits that concern it."""
    text = chunk.text
    end = start + len(text)
    pieces, here = [], start
    for first, last, with_ in edits:
        if last <= start or first >= end:
            continue
        pieces.append(text[here - start : max(first, start) - start])
        if first >= start:
            pieces.append(with_)
        here = min(last, end)
    if not pieces:
        return chunk
    changed = with_text(chunk, "".join([*pieces, text[here - start :]]))
    metadata = {key: item for key, item in chunk.response_metadata.items() if key != "logprobs"}
    return changed.model_copy(update={"response_metadata": metadata})


def _scrubbed(chunk: AIMessageChunk, redacted: Callable[[Any], Any]) -> AIMessageChunk:
    """The chunk with everything but its text redacted: calls, citations, fields."""
    changes: dict[str, Any] = {}
    if isinstance(chunk.content, list):
        changes["content"] = [
            {
                key: item if key in _NAMES or (key == "text" and is_text(block)) else redacted(item)
                for key, item in block.items()
            }
            if isinstance(block, dict)
            else block
            for block in chunk.content
        ]
    if fields := dict(chunk.additional_kwargs):
        parsed = fields.get("parsed")  # OpenAI's client reads the original text into an object
        if isinstance(parsed, BaseModel):
            values = parsed.model_dump(mode="json")
            if redacted(values) != values:
                del fields["parsed"]
        changes["additional_kwargs"] = redacted(fields)
    if chunk.tool_call_chunks:
        pieces: list[Any] = [
            {**call, "args": redacted(call["args"] or "")} for call in chunk.tool_call_chunks
        ]
        calls = AIMessageChunk(content="", tool_call_chunks=pieces)
        for name in ("tool_call_chunks", "tool_calls", "invalid_tool_calls"):
            changes[name] = getattr(calls, name)
    return chunk.model_copy(update=changes) if changes else chunk


def _with_thought(chunks: Sequence[AIMessageChunk], thought: str) -> list[AIMessageChunk]:
    """The chunks with this reasoning, in the place of the first piece of their own."""
    left = [thought]

    def new(fields: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: (left.pop() if left else "")
            if key in _THOUGHTS and isinstance(item, str)
            else item
            for key, item in fields.items()
            if key != "signature"
        }

    changed = []
    for chunk in chunks:
        content: Any = chunk.content
        if isinstance(content, list):
            content = [
                new(block) if isinstance(block, dict) and block.get("type") in _THOUGHTS else block
                for block in content
            ]
        changes = {"content": content, "additional_kwargs": new(chunk.additional_kwargs)}
        changed.append(chunk.model_copy(update=changes))
    return changed
