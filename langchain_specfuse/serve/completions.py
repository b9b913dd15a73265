"""Replies in OpenAI's chat completions protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_core.messages import AIMessageChunk

from .replies import CallPiece, Reply


class Completion(Reply):
    """A chat completion.

    >>> completion = Completion("specfuse")
    >>> [event["choices"][0]["delta"] for event in completion.add(AIMessageChunk("The sky"))]
    [{'role': 'assistant', 'content': 'The sky'}]
    >>> completion.whole()["choices"][0]["message"]["content"]
    'The sky'
    """

    prefix = "chatcmpl-"
    end = b"data: [DONE]\n\n"

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        super().__init__(model)
        self._with_usage = with_usage
        self._role = {"role": "assistant"}
        """The role, until the first event has been sent."""

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        piece = self.read(chunk)
        if not piece:
            return []
        delta: dict[str, Any] = {"content": piece.text} if piece.text else {}
        if piece.refusal:
            delta["refusal"] = piece.refusal
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.calls:
            delta["tool_calls"] = [_call_delta(call) for call in piece.calls]
        return [self._event(delta, logprobs=piece.logprobs)]

    def closing(self) -> Iterator[dict[str, Any]]:
        delta = {"content": ""} if self._role else {}
        yield {**self._event(delta, self.finish), "specfuse": self.summary}
        if self._with_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": self._counts()}

    def whole(self) -> dict[str, Any]:
        text = "".join(piece.text for piece in self.pieces)
        calls = self._whole_calls()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text or (None if calls else ""),
            "refusal": "".join(piece.refusal for piece in self.pieces) or None,
        }
        if thought := "".join(piece.reasoning for piece in self.pieces):
            message["reasoning_content"] = thought
        if calls:
            message["tool_calls"] = calls
        logprobs = [entry for piece in self.pieces for entry in piece.logprobs]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(logprobs),
            "finish_reason": self.finish,
        }
        body = {"choices": [choice], "usage": self._counts(), "specfuse": self.summary}
        return {**self._head("chat.completion"), **body}

    def _whole_calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for piece in self.pieces:
            for call in piece.calls:
                if call.index == len(calls):
                    calls.append(_call(call))
                else:
                    calls[call.index]["function"]["arguments"] += call.arguments
        return calls

    def _event(
        self, delta: dict[str, Any], finish: str | None = None, logprobs: Any = None
    ) -> dict[str, Any]:
        choice = {
            "index": 0,
            "delta": {**self._role, **delta},
            "logprobs": _logprobs(logprobs),
            "finish_reason": finish,
        }
        self._role = {}
        body = {**self._head("chat.completion.chunk"), "choices": [choice]}
        if self._with_usage:
            body["usage"] = None
        return body

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _counts(self) -> dict[str, Any]:
        usage = self.usage
        if usage is None:
            return {}
        cached = usage.get("input_token_details", {}).get("cache_read", 0)
        reasoning = usage.get("output_token_details", {}).get("reasoning", 0)
        return {
            "prompt_tokens": usage["input_tokens"],
            "completion_tokens": usage["output_tokens"],
            "total_tokens": usage["total_tokens"],
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning},
        }


def _logprobs(entries: list[dict[str, Any]] | None) -> dict[str, Any] | None:
    return {"content": entries, "refusal": None} if entries else None


def _call_delta(piece: CallPiece) -> dict[str, Any]:
    if piece.name:
        return {"index": piece.index, **_call(piece)}
    return {"index": piece.index, "function": {"arguments": piece.arguments}}


def _call(piece: CallPiece) -> dict[str, Any]:
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"id": piece.id, "type": "function", "function": function}
