"""OpenAI's responses protocol: a request as one for a chat completion, and replies.

Nothing is stored, so a request contains its whole conversation.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import AIMessageChunk

from .errors import ApiError, invalid
from .replies import CallPiece, Piece, Reply
from .requests import NEUTRAL, OPENAI, SAMPLING, ChatRequest, Limits, checked, options_in

_SAME = {"model", "stream", "parallel_tool_calls", "stop", "regex", "choice", "grammar"}
_SAME |= {*SAMPLING, *OPENAI}
"""Options with the same name and meaning in a chat completion."""
USED = {"input", "instructions", "tools", "tool_choice", "text", "max_output_tokens"}
USED |= {"reasoning", "include", "stream_options", *_SAME}
STATELESS = {
    "store": False,
    "previous_response_id": None,
    "conversation": None,
    "prompt": None,
    "background": False,
    "truncation": "disabled",
    "top_logprobs": NEUTRAL["top_logprobs"],
}
"""Unsupported options, accepted only with a neutral value."""
_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_EXAMPLE = 'for example "input": "Why is the sky blue?"'
_LOGPROBS = "message.output_text.logprobs"


def read_response_request(body: Any, model: str, limits: Limits) -> ChatRequest:
    """The request in this body. Raises :class:`ApiError` if something is wrong with it."""
    if isinstance(body, dict) and body.get("previous_response_id") is not None:
        raise invalid(
            "previous_response_id is given, but this endpoint stores no responses",
            "send the whole conversation as input",
            param="previous_response_id",
            code="unsupported_parameter",
        )
    sent = options_in(body, USED, STATELESS, f'with at least "model" and "input": {_EXAMPLE}')
    chat = {name: value for name, value in sent.items() if name in _SAME}
    messages, places = _messages(sent)
    chat |= {"messages": messages, "tools": _tools(sent.get("tools"))}
    chat["tool_choice"] = _tool_choice(sent.get("tool_choice"))
    text = _fields(sent, "text")
    chat["response_format"] = _format(text.get("format"))
    chat["verbosity"] = text.get("verbosity")
    chat["reasoning_effort"] = _fields(sent, "reasoning").get("effort")
    include = sent.get("include")
    if isinstance(include, list) and _LOGPROBS in include:
        chat["logprobs"] = True
    chat["max_output_tokens"] = sent.get("max_output_tokens")
    given = {name: value for name, value in chat.items() if value is not None}
    return replace(checked(given, model, limits, places), sent=sent)


def _type_of(value: Any, default: str = "") -> str:
    """The type of an item, a part, a tool or a format; empty if it has none."""
    kind = value.get("type", default) if isinstance(value, dict) else ""
    return kind if isinstance(kind, str) else ""


def _fields(sent: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = sent.get(name, {})
    if not isinstance(value, dict):
        raise invalid(f"{name} must be an object, got {value!r:.80}", "leave it out", param=name)
    return value


def _messages(sent: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages of a chat completion, and where each of them is in the request."""
    messages: list[dict[str, Any]] = []
    places: list[str] = []
    if "instructions" in sent:
        messages.append({"role": "system", "content": sent["instructions"]})
        places.append("instructions")
    items = sent.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list) or not items:
        raise invalid(f"input cannot be {items!r:.80}", _EXAMPLE, param="input")
    for index, item in enumerate(items):
        place = f"input[{index}]"
        message = _message(item, place)
        if message is None:
            continue
        # The calls of one turn are one message.
        if "tool_calls" in message and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
            continue
        messages.append(message)
        places.append(place)
    return messages, places


def _message(item: Any, place: str) -> dict[str, Any] | None:
    """The message for an item; None for reasoning, which is not read again."""
    kind = _type_of(item, "message")
    if kind == "message":
        return {"role": item.get("role"), "content": _content(item.get("content"), place)}
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}
    if kind == "function_call_output":
        content = _content(item.get("output"), place)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind == "reasoning":
        return None
    items = "message, function_call, function_call_output and reasoning"
    message = f"{place} is of type {kind!r:.80}; the endpoint takes {items}"
    raise invalid(message, "leave it out, or write it as a message", param=place)


def _content(content: Any, place: str) -> Any:
    return [_part(part, place) for part in content] if isinstance(content, list) else content


def _part(part: Any, place: str) -> Any:
    kind = _type_of(part)
    if kind in _PARTS:
        name = _PARTS[kind]
        return {"type": name, name: part.get(name)}
    if kind != "input_image":
        message = f"{place} has a part of type {kind!r:.80}; the endpoint takes text and images"
        raise invalid(message, "describe files and sounds in words", param=place)
    fields = {"url": part.get("image_url"), "detail": part.get("detail")}
    image = {name: value for name, value in fields.items() if value is not None}
    return {"type": "image_url", "image_url": image}


def _tools(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools
    return [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)] or None


def _tool(tool: Any, place: str) -> dict[str, Any]:
    kind = _type_of(tool)
    if kind != "function":
        message = f"{place} is of type {kind!r:.80}; the endpoint takes functions"
        raise invalid(message, "leave it out, or describe it as a function", param="tools")
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _tool_choice(choice: Any) -> Any:
    if _type_of(choice) == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(format: Any) -> Any:
    kind = _type_of(format)
    if kind == "text":
        return None
    if kind != "json_schema":
        return format
    schema = {name: value for name, value in format.items() if name != "type"}
    return {"type": "json_schema", "json_schema": schema}


# --- replies --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of item in the output, which has one text."""

    item: str
    """The type of the item."""
    prefix: str
    """What its id begins with."""
    text: str
    """The field with the text, in the item's only part, or in the item if it has no parts."""
    events: str
    """The events of the text: this, and ``.delta`` or ``.done``."""
    part: str = ""
    """The type of the part."""
    parts: str = ""
    """The field with the list of parts."""
    part_events: str = ""


_TEXT = _Kind("message", "msg_", "text", "output_text", "output_text", "content", "content_part")
_REFUSAL = _Kind("message", "msg_", "refusal", "refusal", "refusal", "content", "content_part")
_THOUGHT = _Kind(
    "reasoning",
    "rs_",
    "text",
    "reasoning_summary_text",
    "summary_text",
    "summary",
    "reasoning_summary_part",
)
_CALL = _Kind("function_call", "fc_", "arguments", "function_call_arguments")


class _Item:
    """An item of the output."""

    def __init__(self, kind: _Kind, index: int, call: CallPiece | None) -> None:
        self.kind = kind
        self.call = call.index if call else None
        self.id = f"{kind.prefix}{uuid.uuid4().hex}"
        self.place: dict[str, Any] = {"output_index": index, "item_id": self.id}
        """Where its text is."""
        self.texts: list[str] = []
        self.logprobs: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {"type": kind.item, "id": self.id}
        if kind.item == "message":
            self._fields["role"] = "assistant"
        if call:
            self._fields |= {"call_id": call.id, "name": call.name}
        if kind.parts:
            self.place[kind.parts.removesuffix("s") + "_index"] = 0

    def text(self) -> dict[str, Any]:
        """Its text, by name."""
        text = {self.kind.text: "".join(self.texts)}
        return {**text, "logprobs": self.logprobs} if self.kind is _TEXT else text

    def part(self) -> dict[str, Any]:
        part = {"type": self.kind.part, **self.text()}
        return {**part, "annotations": []} if self.kind is _TEXT else part

    def as_dict(self, status: str) -> dict[str, Any]:
        fields = {**self._fields, "status": status}
        if not self.kind.parts:
            return {**fields, **self.text()}
        return {**fields, self.kind.parts: [self.part()] if self.texts else []}


_INCOMPLETE = {"length": "max_output_tokens", "check": "content_filter"}
"""Our finish reasons -> why a response is incomplete."""
_DEFAULTS: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "user": None,
}
"""Options that a response repeats."""


class Response(Reply):
    """A response. ``sent``: the options of the request.

    >>> response = Response("specfuse", {})
    >>> events = [*response.add(AIMessageChunk("Blue.")), *response.closing()]
    >>> for event in events:
    ...     print(event["type"])
    response.created
    response.in_progress
    response.output_item.added
    response.content_part.added
    response.output_text.delta
    response.output_text.done
    response.content_part.done
    response.output_item.done
    response.completed
    """

    prefix = "resp_"

    def __init__(self, model: str, sent: Mapping[str, Any]) -> None:
        super().__init__(model)
        self._echo = {name: sent.get(name, value) for name, value in _DEFAULTS.items()}
        self._done: list[dict[str, Any]] = []
        """The finished items of the output."""
        self._item: _Item | None = None
        """The item that is not finished."""
        self._events = 0

    def add(self, chunk: AIMessageChunk) -> list[dict[str, Any]]:
        piece = self.read(chunk)
        return list(self._written(piece)) if piece else []

    def closing(self) -> Iterator[dict[str, Any]]:
        status = self._status()
        yield from self._begin()
        yield from self._finish_item(status)
        yield self._event(status, response=self._response(status))

    def whole(self) -> dict[str, Any]:
        *_, last = self.closing()
        response: dict[str, Any] = last["response"]
        return response

    def encoded(self, event: Mapping[str, Any]) -> bytes:
        return f"event: {event['type']}\n".encode() + super().encoded(event)

    def failed(self, error: ApiError) -> bytes:
        failure = {"code": "server_error", "message": f"{error} ({error.code})"}
        response = {**self._response("failed"), "error": failure}
        return self.encoded(self._event("failed", response=response))

    # --- events -----------------------------------------------------------------------------------

    def _written(self, piece: Piece) -> Iterator[dict[str, Any]]:
        yield from self._begin()
        if piece.reasoning:
            yield from self._write(_THOUGHT, piece.reasoning)
        if piece.text or (piece.logprobs and self._item and self._item.kind is _TEXT):
            yield from self._write(_TEXT, piece.text, logprobs=piece.logprobs)
        if piece.refusal:
            yield from self._write(_REFUSAL, piece.refusal)
        for call in piece.calls:
            yield from self._write(_CALL, call.arguments, call)

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self._events:
            for name in ("created", "in_progress"):
                yield self._event(name, response=self._response("in_progress"))

    def _write(
        self,
        kind: _Kind,
        text: str,
        call: CallPiece | None = None,
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> Iterator[dict[str, Any]]:
        """Add text to the item under way if it is of this kind and call, otherwise to a new one."""
        item = self._item
        if item is None or item.kind is not kind or item.call != (call.index if call else None):
            yield from self._finish_item("completed")
            index = len(self._done)
            item = self._item = _Item(kind, index, call)
            added = item.as_dict("in_progress")
            yield self._event("output_item.added", output_index=index, item=added)
            if kind.parts:
                yield self._event(f"{kind.part_events}.added", **item.place, part=item.part())
        item.texts.append(text)
        item.logprobs = [*item.logprobs, *logprobs]
        delta = {"delta": text, "logprobs": logprobs} if kind is _TEXT else {"delta": text}
        yield self._event(f"{kind.events}.delta", **item.place, **delta)

    def _finish_item(self, status: str) -> Iterator[dict[str, Any]]:
        item, self._item = self._item, None
        if item is None:
            return
        kind, whole = item.kind, item.as_dict(status)
        self._done.append(whole)
        yield self._event(f"{kind.events}.done", **item.place, **item.text())
        if kind.parts:
            yield self._event(f"{kind.part_events}.done", **item.place, part=item.part())
        index = item.place["output_index"]
        yield self._event("output_item.done", output_index=index, item=whole)

    def _event(self, name: str, **fields: Any) -> dict[str, Any]:
        self._events += 1
        return {"type": f"response.{name}", "sequence_number": self._events - 1, **fields}

    # --- the response -----------------------------------------------------------------------------

    def _status(self) -> str:
        return "incomplete" if self.summary.get("finish") in _INCOMPLETE else "completed"

    def _response(self, status: str) -> dict[str, Any]:
        reason = _INCOMPLETE[self.summary["finish"]] if status == "incomplete" else None
        return {
            **self._echo,
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": self.model,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [*self._done],
            "usage": self._counts() if self.usage else None,
            "background": False,
            "previous_response_id": None,
            "store": False,
            "truncation": "disabled",
            "specfuse": self.summary,
        }

    def _counts(self) -> dict[str, Any]:
        usage: Any = self.usage
        read, written = (usage.get(f"{side}_token_details", {}) for side in ("input", "output"))
        return {
            "input_tokens": usage["input_tokens"],
            "input_tokens_details": {
                "cached_tokens": read.get("cache_read", 0),
                "cache_write_tokens": read.get("cache_creation", 0),
            },
            "output_tokens": usage["output_tokens"],
            "output_tokens_details": {"reasoning_tokens": written.get("reasoning", 0)},
            "total_tokens": usage["total_tokens"],
        }
