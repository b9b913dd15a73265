"""One answer as a client reads it. Each protocol is a subclass of :class:`Reply`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata, add_usage

from ..chat.report import ROUND_EVENT
from .errors import ApiError


def to_json(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # a response repeats options, which may contain lone surrogates
    return text.encode(errors="replace")


@dataclass(frozen=True, slots=True)
class CallPiece:
    """A piece of a tool call. The first piece of a call has its name and its id."""

    index: int
    """Which call of the answer it belongs to, from 0."""
    name: str
    id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What a chunk adds to the answer."""

    text: str
    reasoning: str
    refusal: str
    calls: tuple[CallPiece, ...]
    logprobs: list[dict[str, Any]]

    def __bool__(self) -> bool:
        return bool(self.text or self.reasoning or self.refusal or self.calls or self.logprobs)


class Reply(BaseCallbackHandler):
    """One answer, built from the chat model's chunks: the events of a stream, or the whole.

    As a callback handler, it learns from each round who writes.
    """

    run_inline = True
    prefix: ClassVar[str]
    """What the id begins with."""
    end: ClassVar[bytes] = b""
    """What comes after the last event of a stream."""

    def __init__(self, model: str) -> None:
        self.id = f"{self.prefix}{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = model
        """The member that wrote the last text; before that, the name of the endpoint's model."""
        self.pieces: list[Piece] = []
        # These are set by the last chunks.
        self.finish: str | None = None
        """The finish reason, as OpenAI's chat completions name it."""
        self.usage: UsageMetadata | None = None
        self.summary: dict[str, Any] = {}
        """The ensemble's summary of the answer: rounds, weights, shares."""
        self._has_text = False
        self._calls: dict[Any, int] = {}
        """The chat model's index or id of a tool call -> which call of the answer it is."""

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == ROUND_EVENT and (data["segment"] or not self._has_text):
            self._has_text = bool(data["segment"])
            self.model = data["samples"].get(data["winner"], data["winner"])

    def read(self, chunk: AIMessageChunk) -> Piece:
        """Read the next chunk of the answer."""
        metadata = chunk.response_metadata
        thought, refusal = _beside_text(chunk)
        piece = Piece(
            str(chunk.text),
            thought,
            refusal,
            tuple(self._call(call) for call in chunk.tool_call_chunks),
            (metadata.get("logprobs") or {}).get("content") or [],
        )
        self.pieces.append(piece)
        if chunk.usage_metadata:
            self.usage = add_usage(self.usage, chunk.usage_metadata)
        if "specfuse" in metadata:
            self.summary = dict(metadata["specfuse"])
            self.summary["exits"] = exits_without_reasons(self.summary["exits"])
            self.finish = self._finish()
            self.usage = self.usage or _estimate(self.summary)
        if self.usage and self.finish:
            self.summary["tokens"] = dict(self.usage.get("output_token_details", {}))
        return piece

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        """Add a chunk. Returns its events for a stream."""
        raise NotImplementedError

    def closing(self) -> Iterator[dict[str, Any]]:
        """The last events of a stream."""
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """The body of a response without a stream, once every chunk has been added."""
        raise NotImplementedError

    def encoded(self, event: Mapping[str, Any]) -> bytes:
        """A server-sent event. It is one line, because JSON escapes line breaks."""
        return b"data: " + to_json(event) + b"\n\n"

    def failed(self, error: ApiError) -> bytes:
        """The last event of a stream that fails."""
        return b"data: " + error.body + b"\n\n"

    def _call(self, call: Mapping[str, Any]) -> CallPiece:
        key = call["id"] if call["index"] is None else call["index"]
        index = self._calls.setdefault(key, len(self._calls))
        return CallPiece(index, call["name"] or "", call["id"] or "", call["args"] or "")

    def _finish(self) -> str:
        finish: str = self.summary["finish"]
        if finish in ("stop", "stop_string"):
            return "tool_calls" if self._calls else "stop"
        return finish if finish == "length" else "content_filter"


def _estimate(summary: Mapping[str, Any]) -> UsageMetadata:
    """The usage of an answer whose provider has reported none: the members' own estimates."""
    used = summary.get("usage", {}).values()
    read = sum(usage["input_tokens"] for usage in used)
    written = sum(usage["output_tokens"] for usage in used)
    return UsageMetadata(input_tokens=read, output_tokens=written, total_tokens=read + written)


def _beside_text(chunk: AIMessageChunk) -> tuple[str, str]:
    """The reasoning and the refusal in a chunk, which providers' packages put into blocks or beside
    the content."""
    extra = chunk.additional_kwargs
    thought, refusal = extra.get("reasoning_content") or "", extra.get("refusal") or ""
    if isinstance(chunk.content, str):
        return thought, refusal
    blocks: list[Mapping[str, Any]] = [*chunk.content_blocks]
    if not thought:
        thought = "".join(
            block.get("reasoning", "") for block in blocks if block["type"] == "reasoning"
        )
    if not refusal:
        refusal = "".join(_refusal(block) for block in chunk.content)
    return thought, refusal


def _refusal(block: Any) -> str:
    is_refusal = isinstance(block, Mapping) and block.get("type") == "refusal"
    return str(block["refusal"]) if is_refusal else ""


def exits_without_reasons(exits: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The members that left. The reason of a failure is left out, because it may quote what the
    member raised."""
    public = []
    for departure in exits:
        shown = dict(departure)
        if shown.get("kind") != "exit":
            shown.pop("reason", None)
        public.append(shown)
    return public
