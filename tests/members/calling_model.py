"""A fake chat model that calls tools as the models of providers do: beside its text, in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool

from .continued import begun_in


class CallingModel(BaseChatModel):
    """Streams its replies, one for each request, and records each request with its arguments in
    ``asked``. It continues a text that it is given to continue."""

    replies: list[Any]
    """Texts, or messages with tool calls. The last one answers all further requests."""
    fails_after: int | None = None
    """The connection breaks after this many pieces of a reply."""
    asked: list[tuple[list[BaseMessage], dict[str, Any]]]

    @property
    def _llm_type(self) -> str:
        return "calling"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **options)

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        begun = begun_in(messages)
        self.asked.append((messages, options))
        reply = self.replies[min(len(self.asked), len(self.replies)) - 1]
        if isinstance(reply, str):
            reply = AIMessage(reply)
        parts = [AIMessageChunk(text) for text in pieces(reply.text.removeprefix(begun))]
        for index, call in enumerate(reply.tool_calls):
            texts = pieces(json.dumps(call["args"], ensure_ascii=False))
            begun_call = tool_call_chunk(name=call["name"], args="", id=call["id"], index=index)
            more = [tool_call_chunk(args=text, index=index) for text in texts]
            parts += [AIMessageChunk("", tool_call_chunks=[part]) for part in (begun_call, *more)]
        for at, part in enumerate(parts):
            if at == self.fails_after:
                raise ConnectionError("peer closed connection without sending complete message")
            yield ChatGenerationChunk(message=part)
        reason = {"finish_reason": "tool_calls" if reply.tool_calls else "stop"}
        yield ChatGenerationChunk(message=AIMessageChunk("", response_metadata=reason))


def pieces(text: str) -> list[str]:
    """A text in pieces of up to four characters."""
    return re.findall(r"\s*\S{1,4}|\s+$", text)


def call_of(name: str, text: str = "", **arguments: Any) -> AIMessage:
    """A message with a call of this tool."""
    call = {"name": name, "args": arguments, "id": f"call_{name}", "type": "tool_call"}
    return AIMessage(text, tool_calls=[call])
