"""Hands the chunks of a provider's reply on as they came, for the text that the rounds release."""

from __future__ import annotations

from collections import deque
from typing import Any

from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata, add_usage

from ..core.round import Round
from ..members.chat_model.parts import is_text, joined, provider_of, split, with_text

AT_ONCE = frozenset({"logprobs", "model_provider", "output_version"})
"""Metadata that belong to a chunk. The rest describes the whole reply and comes with its end."""
REASONING = frozenset({"reasoning", "thinking", "reasoning_content", "redacted_thinking"})
"""Types of content blocks, and keys of fields, that contain reasoning."""
CALLS = ("tool_call", "tool_call_chunk")
"""Types of content blocks that are calls."""


class Shown:
    """The form of the content that was handed on. Another reply that continues it takes this form,
    because LangChain joins blocks of the same index, and the names of two providers."""

    def __init__(self) -> None:
        self._provider: dict[str, Any] = {}
        self._has_blocks = False
        self._last = -1
        """The highest index of a block."""
        self._text = -1
        """The index of the last block of text."""

    def add(self, chunk: AIMessageChunk) -> None:
        self._provider = self._provider or provider_of(chunk)
        # An empty list, too: LangChain drops a text that is added to it.
        self._has_blocks = self._has_blocks or isinstance(chunk.content, list)
        for block in chunk.content if isinstance(chunk.content, list) else ():
            index = block.get("index") if isinstance(block, dict) else None
            if isinstance(index, int):
                self._last = max(self._last, index)
                if is_text(block):
                    self._text = index

    def continued(self, chunk: AIMessageChunk) -> AIMessageChunk:
        """The chunk of another reply in this form. Blocks that only its provider knows are dropped
        if that is another one; the calls in them stay in ``tool_call_chunks``."""
        metadata = {**chunk.response_metadata, **self._provider}
        content: str | list[Any] = str(chunk.text)
        calls = chunk.tool_call_chunks
        if self._has_blocks:
            content = self._blocks(chunk)
            calls = [_shifted(call, self._last + 2) for call in calls]  # as their blocks
        changes = {"content": content, "response_metadata": metadata, "tool_call_chunks": calls}
        return chunk.model_copy(update=changes)

    def _blocks(self, chunk: AIMessageChunk) -> list[Any]:
        text: dict[str, Any] = {"type": "text", "index": self._text}
        if self._text < max(self._last, 0):
            text["index"] = self._last + 1
        if isinstance(chunk.content, str):
            return [{**text, "text": chunk.content}] if chunk.content else []
        name = "model_provider"
        is_same = chunk.response_metadata.get(name) == self._provider.get(name)
        blocks: list[Any] = []
        for block in chunk.content:
            if isinstance(block, str):
                blocks.append({**text, "text": block})
            elif is_text(block):
                kept = {key: value for key, value in block.items() if key != "id"}
                blocks.append({**kept, **text})
            elif is_same and isinstance(block.get("index"), int):
                blocks.append(_shifted(block, self._last + 2))
        return blocks


def _shifted(part: Any, by: int) -> Any:
    """The block or call, with its index after those of others."""
    index = part.get("index")
    return {**part, "index": index + by} if isinstance(index, int) else part


class Passthrough:
    """The chunks of one answer that are not handed on yet, in order."""

    def __init__(self, *, reasoning: bool) -> None:
        self._reasoning = reasoning
        self._waiting: deque[AIMessageChunk] = deque()
        self._known = 0
        """How much text these chunks have."""
        self._agreed = 0
        """How much of that is agreed, and not released."""
        self.is_all = True
        """Whether providers wrote the whole answer."""
        self.has_content = False
        """Whether anything that is not empty was handed on."""
        self._has_answered = False
        """Whether anything but reasoning was handed on."""
        self.shown = Shown()
        self._is_continued = False
        """Whether this reply continues another one."""
        self._run = ""
        """LangChain's id of the request."""
        self._has_begun = False
        self._author = ""
        self._metadata: dict[str, Any] = {}
        self.usage: UsageMetadata | None = None
        """What providers have reported."""

    def metadata_of(self, member: str) -> dict[str, Any]:
        """What this member's provider has said about its reply as a whole, if it wrote last."""
        return self._metadata if member == self._author else {}

    def of(self, round: Round) -> list[AIMessageChunk] | None:
        """The chunks for the text that this round releases; None if they do not have it."""
        draft = round.drafts[round.winner]
        is_other = round.member != self._author
        self.is_all = self.is_all and bool(draft.parts or not is_other)
        self._withdraw(len(round.withdrawn))
        if is_other and (draft.parts or self._author):
            reasons = self._reasoning and not (self._has_answered or self._agreed)
            self._begin_reply(round.member)
            self._reasoning = self._reasoning or reasons  # Anthropic needs that before a call
            self._run = ""
            if not draft.parts:  # it is no chat model
                self._clear()
        if not draft.parts and not self._waiting:
            return None
        is_refused = bool(draft.thought) and round.winner not in round.thoughts
        for part in draft.parts:
            self._add(without_reasoning(part) if is_refused else part)
        self._agreed += len(round.segment.text)
        if round.finish is not None:
            self._agreed = max(self._agreed, len(round.text))
        return self._taken(round)

    def _begin_reply(self, author: str) -> None:
        """Drop what came in another reply and nobody agreed on."""
        self._author = author
        self._drop_from(self._agreed)
        self._metadata = {}
        if self.has_content or self._waiting:
            self._is_continued = True
            self._reasoning = False  # that of the first reply was shown

    def _clear(self) -> None:
        self._waiting.clear()
        self._known = self._agreed = 0

    def _withdraw(self, length: int) -> None:
        if length:
            self._agreed = max(self._agreed - length, 0)
            self._drop_from(self._agreed)

    def _drop_from(self, size: int) -> None:
        """Drop all text but the first characters."""
        while self._waiting and self._known > size:
            last = self._waiting.pop()
            length = len(last.text)
            self._known -= length
            if self._known < size:
                self._append(split(last, size - self._known)[0])
                return

    def _append(self, chunk: AIMessageChunk) -> None:
        self._waiting.append(chunk)
        self._known += len(chunk.text)

    def _add(self, part: AIMessageChunk) -> None:
        run = part.id or ""
        if not run.startswith("lc_run--"):
            run = ""  # the provider's own id, which may be only in one chunk of a reply
        if run and self._run and run != self._run:  # its author was asked again
            self._begin_reply(self._author)
        self._run = run or self._run
        metadata = part.response_metadata
        at_once = {name: value for name, value in metadata.items() if name in AT_ONCE}
        if later := {name: value for name, value in metadata.items() if name not in AT_ONCE}:
            self._metadata = {**self._metadata, **later}
        if part.usage_metadata:
            self.usage = add_usage(self.usage, part.usage_metadata)
        changes: dict[str, Any] = {
            "response_metadata": at_once,
            "usage_metadata": None,
            "chunk_position": None,
        }
        if run:
            changes["id"] = None
        chunk = part.model_copy(update=changes)
        if self._is_continued:
            chunk = self.shown.continued(chunk)
        self._append(chunk if self._reasoning else without_reasoning(chunk))

    def _taken(self, round: Round) -> list[AIMessageChunk] | None:
        """The chunks up to the end of the released text; at the end, all of them."""
        text = round.text
        taken: list[AIMessageChunk] = []
        size = 0
        while self._waiting:
            first = self._waiting[0]
            length = len(first.text)
            if size + length > len(text):
                break
            self._waiting.popleft()
            taken.append(first)
            size += length
        if size < len(text) and self._waiting:
            first, rest = split(self._waiting.popleft(), len(text) - size)
            self._waiting.appendleft(rest)
            taken.append(first)
            size = len(text)
        self._known -= size
        self._agreed -= size
        if round.finish in ("stop_string", "check"):
            self._waiting.clear()
        if "".join(chunk.text for chunk in taken) != text:
            if round.finish == "stop":
                taken += self._waiting  # perhaps with calls
            return self._rewritten(taken, text)
        kept = [chunk for chunk in taken if not is_empty(chunk)]
        self.has_content = self.has_content or bool(kept)
        self._has_answered = self._has_answered or bool(
            text or any(chunk.tool_call_chunks for chunk in kept)
        )
        if taken and not self._has_begun:
            self._has_begun = True
            kept = [taken[0], *(chunk for chunk in kept if chunk is not taken[0])]
        if not self._is_continued:
            for chunk in kept:
                self.shown.add(chunk)
        return merged(kept)

    def _rewritten(self, taken: list[AIMessageChunk], text: str) -> list[AIMessageChunk]:
        """These chunks with another text, because the answer has it in another form."""
        self._clear()
        self.has_content = True
        whole = with_text(joined(taken) if taken else AIMessageChunk(content=""), text)
        return [self.shown.continued(whole) if self._is_continued else whole]


def merged(chunks: list[AIMessageChunk]) -> list[AIMessageChunk]:
    """The chunks, with neighbours that are nothing but text as one. LangChain's work for a chunk
    does not depend on its length."""
    if len(chunks) < 2:
        return chunks
    found: list[AIMessageChunk] = []
    for chunk in chunks:
        last = found[-1] if found else None
        if last is not None and is_plain(last) and is_plain(chunk):
            found[-1] = with_text(last, str(last.content) + str(chunk.content))
        else:
            found.append(chunk)
    return found


def is_plain(chunk: AIMessageChunk) -> bool:
    """Whether a chunk is nothing but text."""
    return isinstance(chunk.content, str) and not has_more(chunk)


_INDEXES: dict[str, Any] = {"text": 0, "reasoning": "lc_reasoning"}
"""The indexes of blocks that have none. LangChain joins blocks of one index."""


def in_blocks(chunk: AIMessageChunk) -> AIMessageChunk:
    """The chunk with LangChain's standard content blocks."""
    metadata = chunk.response_metadata
    if metadata.get("output_version") == "v1":
        return chunk
    blocks: list[Any] = [
        {"index": _INDEXES[block["type"]], **block} if block["type"] in _INDEXES else block
        for block in chunk.content_blocks
        if not (isinstance(chunk.content, str) and block["type"] in CALLS)
    ]
    if not any(block["type"] in CALLS for block in blocks):
        # With their own indexes, LangChain merges the first call with the text.
        for call in chunk.tool_call_chunks:
            block = {**call, "type": "tool_call_chunk", "index": f"lc_tc_{call['index']}"}
            blocks.append(block)
    changes = {"content": blocks, "response_metadata": {**metadata, "output_version": "v1"}}
    return chunk.model_copy(update=changes)


def is_empty(chunk: AIMessageChunk) -> bool:
    """Whether a chunk adds nothing to the answer."""
    return not chunk.content and not has_more(chunk)


def has_more(chunk: AIMessageChunk) -> bool:
    """Whether a chunk has more than its content."""
    metadata = chunk.response_metadata.keys() - {"model_provider", "output_version"}
    return bool(chunk.additional_kwargs or chunk.tool_call_chunks or metadata)


def without_reasoning(chunk: AIMessageChunk) -> AIMessageChunk:
    fields = chunk.additional_kwargs
    content = chunk.content
    changes: dict[str, Any] = {}
    if fields.keys() & REASONING:
        changes["additional_kwargs"] = {
            key: value for key, value in fields.items() if key not in REASONING
        }
    if isinstance(content, list):
        changes["content"] = [
            block
            for block in content
            if not (isinstance(block, dict) and block.get("type") in REASONING)
        ]
    return chunk.model_copy(update=changes) if changes else chunk
