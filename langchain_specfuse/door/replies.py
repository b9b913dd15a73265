"""The chat model's chunks in OpenAI's words: as the events of a stream, or as one completion. One reading serves both.

Knows both forms; nothing of HTTP, of clients or of how long anything takes.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk

DONE = b"data: [DONE]\n\n"
_FINISHES = {"stop_string": "stop"}
"""Ours to OpenAI's, where they differ."""


class Reply:
    """One answer as it is told.

    >>> reply = Reply("specfuse")
    >>> [event["choices"][0]["delta"] for event in reply.events(AIMessageChunk("The sky"))]
    [{'role': 'assistant', 'content': 'The sky'}]
    """

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._model = model
        self._with_usage = with_usage
        self._created = int(time.time())
        self._begun = False
        self._message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
        self._calls: dict[int, dict[str, Any]] = {}
        self.finish: str | None = None
        self.summary: dict[str, Any] = {}
        """What the ensemble tells of this answer: rounds, weights, shares."""
        self.usage: dict[str, Any] = {}

    # --- as a stream --------------------------------------------------------------------------------------------

    def events(self, chunk: AIMessageChunk) -> Iterator[dict[str, Any]]:
        """The events of one chunk: what it adds; nothing if it adds nothing."""
        delta = self._read(chunk)
        if delta:
            role = {} if self._begun else {"role": "assistant"}
            self._begun = True
            yield self._event([{"index": 0, "delta": role | delta, "logprobs": None, "finish_reason": None}])

    def closing(self) -> Iterator[dict[str, Any]]:
        """The events that end the stream."""
        role = {} if self._begun else {"role": "assistant", "content": ""}
        last = {"index": 0, "delta": role, "logprobs": None, "finish_reason": self.finish}
        yield {**self._event([last]), "specfuse": self.summary}
        if self._with_usage:
            yield {**self._event([]), "usage": self.usage}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"usage": None} if self._with_usage else {}
        return {**self._head("chat.completion.chunk"), "choices": choices, **usage}

    # --- as a whole ---------------------------------------------------------------------------------------------

    def whole(self) -> dict[str, Any]:
        """The completion, once every chunk has been read."""
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        elif message["content"] is None:
            message["content"] = ""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish}
        told = {"choices": [choice], "usage": self.usage, "specfuse": self.summary}
        return {**self._head("chat.completion"), **told}

    def read(self, chunk: AIMessageChunk) -> None:
        """Take a chunk without telling it."""
        self._read(chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self._created, "model": self._model}

    # --- reading ------------------------------------------------------------------------------------------------

    def _read(self, chunk: AIMessageChunk) -> dict[str, Any]:
        """What this chunk adds, as a delta; it is part of the whole from now on."""
        delta: dict[str, Any] = {}
        if text := chunk.text:
            delta["content"] = str(text)
        if thought := chunk.additional_kwargs.get("reasoning_content"):
            delta["reasoning_content"] = thought
        for key, value in delta.items():
            self._message[key] = (self._message.get(key) or "") + value
        if chunk.tool_call_chunks:
            delta["tool_calls"] = [self._piece(piece) for piece in chunk.tool_call_chunks]
        self._note(chunk)
        return delta

    def _piece(self, piece: Any) -> dict[str, Any]:
        """A piece of a call: name and id where it begins, arguments as they come."""
        index, arguments = piece["index"], piece["args"] or ""
        if piece["name"]:
            function = {"name": piece["name"], "arguments": arguments}
            call = {"id": piece["id"], "type": "function", "function": function}
            self._calls[index] = {**call, "function": dict(function)}
            return {"index": index, **call}
        self._calls[index]["function"]["arguments"] += arguments
        return {"index": index, "function": {"arguments": arguments}}

    def _note(self, chunk: AIMessageChunk) -> None:
        metadata = chunk.response_metadata
        if "finish_reason" in metadata:
            self.finish = _FINISHES.get(metadata["finish_reason"], metadata["finish_reason"])
            self.summary = _summary(metadata.get("specfuse", {}))
        if chunk.usage_metadata:
            self.usage = _usage(chunk.usage_metadata)
            self.summary["tokens"] = dict(chunk.usage_metadata.get("output_token_details", {}))


def _summary(told: Mapping[str, Any]) -> dict[str, Any]:
    """The summary without the reasons of those who left: they may quote what a member raised."""
    exits = [{key: one[key] for key in ("member", "kind", "round") if key in one} for one in told.get("exits", ())]
    return {**told, "exits": exits}


def _usage(told: Mapping[str, Any]) -> dict[str, Any]:
    cached = told.get("input_token_details", {}).get("cache_read", 0)
    return {
        "prompt_tokens": told["input_tokens"],
        "completion_tokens": told["output_tokens"],
        "total_tokens": told["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def encoded(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()


def event_bytes(told: Mapping[str, Any]) -> bytes:
    """One server-sent event. JSON has no line breaks of its own, so it is one line."""
    return b"data: " + encoded(told) + b"\n\n"
