"""A fake server in this process that answers as scripted, in a protocol of OpenAI
(``/v1/chat/completions`` or ``/v1/responses``), of Anthropic (``/v1/messages``) or of Mistral
(``/v1/chat/completions``), as their documentation defines them: whole replies, and server-sent
events. It records the body and the headers of every request.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Kind = Literal["openai", "responses", "anthropic", "mistral"]


@dataclass(frozen=True)
class Part:
    """A part of a reply, in the pieces in which it is streamed."""

    pieces: tuple[str, ...]

    def __init__(self, *pieces: str) -> None:
        object.__setattr__(self, "pieces", pieces)

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


class Text(Part):
    pass


class Thought(Part):
    pass


class Refusal(Part):
    pass


class Cited(Part):
    """Text with a citation of the first document (Anthropic)."""


@dataclass(frozen=True)
class Call:
    """A call of a tool; ``pieces`` joined are the arguments."""

    name: str
    pieces: tuple[str, ...] = ("{}",)
    id: str = "call_0001"  # Mistral's have nine letters and digits

    @property
    def whole(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True)
class Reply:
    """What the server answers to one request."""

    parts: Sequence[Part | Call] = ()
    finish: str = ""
    """The finish reason; empty: the protocol's own for these parts."""
    cut: int | None = None
    """The connection is closed after this many events; 0: before the first byte."""
    cut_bytes: int | None = None
    """It is closed after this many bytes of the body of a stream."""
    is_reset: bool = False
    """Whether it is reset instead."""
    status: int = 200
    error: str = "not now"
    """The message of an error."""
    code: str = ""
    """The code of an error, as OpenAI's protocol has it."""
    retry_after: str = ""
    """The header of an error that says when to ask again."""
    thought_key: str = "reasoning_content"
    """The field with the reasoning, where servers extend OpenAI's protocol: ``reasoning_content``
    (DeepSeek, vLLM before 0.11) or ``reasoning`` (OpenRouter, Ollama, vLLM)."""


Answer = Reply | Callable[[Any], Reply]


class FakeProvider:
    """Answers the n-th request with the n-th reply, and all later ones with the last. A function
    among the replies gets the request's body and returns the reply."""

    def __init__(self, kind: Kind, *replies: Answer) -> None:
        self.kind = kind
        self.begin(*replies)
        self.owners: dict[str, str] = {}
        """The server's models, each with its owner; empty: it has no list of models."""
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def begin(self, *replies: Answer) -> None:
        """Answer with these replies from now on, and forget earlier requests."""
        self.replies = list(replies) or [Reply([Text("Hello", " there.")])]
        self.asked: list[dict[str, Any]] = []
        """The bodies of all requests."""
        self.headers: list[dict[str, str]] = []
        """Their headers, with names in lower case."""
        self.paths: list[str] = []

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def reply_to(self, path: str, body: dict[str, Any], headers: dict[str, str]) -> Reply:
        with self._lock:
            reply = self.replies[min(len(self.asked), len(self.replies) - 1)]
            self.asked.append(body)
            self.headers.append(headers)
            self.paths.append(path)
        return reply if isinstance(reply, Reply) else reply(body)


def _id(kind: str, body: dict[str, Any]) -> str:
    """The same for the same request."""
    return f"{kind}-{zlib.crc32(json.dumps(body).encode()):08x}"


# --- OpenAI's chat completions -----------------------------------------------------------------------


def _openai_usage() -> dict[str, Any]:
    return {
        "prompt_tokens": 26,
        "completion_tokens": 9,
        "total_tokens": 35,
        "prompt_tokens_details": {"cached_tokens": 5, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 3,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _openai_head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": _id("chatcmpl", body),
        "object": kind,
        "created": 1741570283,
        "model": f"{body['model']}-2026-08-06",
        "service_tier": "default",
        "system_fingerprint": "fp_50cad350e4",
    }


def _openai_finish(reply: Reply) -> str:
    has_call = any(isinstance(part, Call) for part in reply.parts)
    return reply.finish or ("tool_calls" if has_call else "stop")


def _openai_logprobs(body: dict[str, Any], pieces: Sequence[str], key: str) -> Any:
    if not body.get("logprobs"):
        return None
    tokens = [
        {
            "token": piece,
            "logprob": -0.25 * (at + 1),
            "bytes": list(piece.encode()),
            "top_logprobs": [],
        }
        for at, piece in enumerate(pieces)
    ]
    return {"content": None, "refusal": None, key: tokens}


def _openai_message(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    texts = [part for part in reply.parts if isinstance(part, Text)]
    refusals = [part.whole for part in reply.parts if isinstance(part, Refusal)]
    thoughts = [part.whole for part in reply.parts if isinstance(part, Thought)]
    calls = [part for part in reply.parts if isinstance(part, Call)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(text.whole for text in texts) if texts else None,
        "refusal": "".join(refusals) or None,
        "annotations": [],
    }
    if thoughts:
        message[reply.thought_key] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.whole},
            }
            for call in calls
        ]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _openai_logprobs(
            body, [piece for text in texts for piece in text.pieces], "content"
        ),
        "finish_reason": _openai_finish(reply),
    }
    head = _openai_head(body, "chat.completion")
    return {**head, "choices": [choice], "usage": _openai_usage()}


def _openai_deltas(reply: Reply, body: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each delta with its log-probabilities."""
    number = 0
    for part in reply.parts:
        if isinstance(part, Call):
            function = {"name": part.name, "arguments": ""}
            begin = {"index": number, "id": part.id, "type": "function", "function": function}
            yield {"tool_calls": [begin]}, None
            for piece in part.pieces:
                yield {"tool_calls": [{"index": number, "function": {"arguments": piece}}]}, None
            number += 1
            continue
        key = "content"
        if isinstance(part, Refusal):
            key = "refusal"
        elif isinstance(part, Thought):
            key = reply.thought_key
        for piece in part.pieces:
            logprobs = None
            if not isinstance(part, Thought):
                logprobs = _openai_logprobs(body, [piece], key)
            yield {key: piece}, logprobs


def _openai_events(reply: Reply, body: dict[str, Any]) -> Iterator[str]:
    head = _openai_head(body, "chat.completion.chunk")
    has_usage = bool((body.get("stream_options") or {}).get("include_usage"))

    def event(delta: dict[str, Any], logprobs: Any = None, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if has_usage else {}
        return _data({**head, "choices": [choice], **usage})

    yield event({"role": "assistant", "content": "", "refusal": None})
    for delta, logprobs in _openai_deltas(reply, body):
        yield event(delta, logprobs)
    yield event({}, finish=_openai_finish(reply))
    if has_usage:
        yield _data({**head, "choices": [], "usage": _openai_usage()})
    yield "data: [DONE]\n\n"


# --- OpenAI's responses ------------------------------------------------------------------------------


def _responses_item(part: Part | Call, index: int) -> dict[str, Any]:
    """An item of the output, complete."""
    if isinstance(part, Call):
        return {
            "id": f"fc_{index}",
            "type": "function_call",
            "status": "completed",
            "call_id": part.id,
            "name": part.name,
            "arguments": part.whole,
        }
    if isinstance(part, Thought):
        summary = [{"type": "summary_text", "text": part.whole}]
        return {"id": f"rs_{index}", "type": "reasoning", "summary": summary}
    content: dict[str, Any] = {"type": "output_text", "text": part.whole, "annotations": []}
    if isinstance(part, Refusal):
        content = {"type": "refusal", "refusal": part.whole}
    return {
        "id": f"msg_{index}",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [content],
    }


def _responses_message(
    reply: Reply, body: dict[str, Any], *, is_begin: bool = False
) -> dict[str, Any]:
    status = "in_progress" if is_begin else "completed"
    details = None
    if reply.finish and not is_begin:
        status, details = "incomplete", {"reason": reply.finish}
    usage = {
        "input_tokens": 26,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 35,
    }
    items = [_responses_item(part, index) for index, part in enumerate(reply.parts)]
    return {
        "id": _id("resp", body),
        "object": "response",
        "created_at": 1741476542,
        "status": status,
        "error": None,
        "incomplete_details": details,
        "instructions": None,
        "model": f"{body['model']}-2026-08-06",
        "output": [] if is_begin else items,
        "parallel_tool_calls": True,
        "service_tier": "default",
        "text": body.get("text", {"format": {"type": "text"}}),
        "tool_choice": body.get("tool_choice", "auto"),
        "tools": body.get("tools", []),
        "usage": None if is_begin else usage,
    }


def _responses_deltas(part: Part | Call, item: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The events of one item between its first and its last."""
    if isinstance(part, Call):
        for piece in part.pieces:
            yield "function_call_arguments.delta", {"delta": piece}
        yield "function_call_arguments.done", {"arguments": part.whole, "name": part.name}
        return
    kind, key, place = "output_text", "text", {"content_index": 0}
    begin, end = "content_part.added", "content_part.done"
    if isinstance(part, Refusal):
        kind, key = "refusal", "refusal"
    elif isinstance(part, Thought):
        kind, place = "reasoning_summary_text", {"summary_index": 0}
        begin, end = "reasoning_summary_part.added", "reasoning_summary_part.done"
    (whole,) = item.get("content") or item["summary"]
    yield begin, {**place, "part": {**whole, key: ""}}
    for piece in part.pieces:
        logprobs = {"logprobs": []} if kind == "output_text" else {}
        yield f"{kind}.delta", {**place, "delta": piece, **logprobs}
    yield f"{kind}.done", {**place, key: part.whole}
    yield end, {**place, "part": whole}


def _responses_events(reply: Reply, body: dict[str, Any]) -> Iterator[str]:
    number = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal number
        number += 1
        data = {"type": f"response.{kind}", "sequence_number": number, **fields}
        return f"event: {data['type']}\n" + _data(data)

    yield event("created", response=_responses_message(reply, body, is_begin=True))
    for index, part in enumerate(reply.parts):
        item = _responses_item(part, index)
        empty: dict[str, Any] = {"summary": []} if isinstance(part, Thought) else {"content": []}
        if isinstance(part, Call):
            empty = {"arguments": ""}
        begun = {**item, **empty, "status": "in_progress"}
        yield event("output_item.added", output_index=index, item=begun)
        for kind, fields in _responses_deltas(part, item):
            yield event(kind, output_index=index, item_id=item["id"], **fields)
        yield event("output_item.done", output_index=index, item=item)
    last = "incomplete" if reply.finish else "completed"
    yield event(last, response=_responses_message(reply, body))


# --- Mistral's chat completions ----------------------------------------------------------------------


def _mistral_content(parts: Sequence[Part | Call]) -> Any:
    """Text, or chunks of content where the model reasons."""
    if not any(isinstance(part, Thought) for part in parts):
        return "".join(part.whole for part in parts if isinstance(part, Text))
    chunks: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, Thought):
            thinking = [{"type": "text", "text": part.whole}]
            chunks.append({"type": "thinking", "thinking": thinking})
        elif isinstance(part, Text):
            chunks.append({"type": "text", "text": part.whole})
    return chunks


def _mistral_calls(reply: Reply) -> list[dict[str, Any]]:
    calls = [part for part in reply.parts if isinstance(part, Call)]
    return [
        {
            "id": call.id,
            "function": {"name": call.name, "arguments": call.whole},
            "index": number,
        }
        for number, call in enumerate(calls)
    ]


def _mistral_head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {
        "id": _id("cmpl", body),
        "object": kind,
        "created": 1741570283,
        "model": body["model"],
    }


MISTRAL_USAGE = {"prompt_tokens": 26, "completion_tokens": 9, "total_tokens": 35}


def _mistral_message(reply: Reply, body: dict[str, Any]) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": _mistral_content(reply.parts),
        "tool_calls": _mistral_calls(reply) or None,
    }
    choice = {"index": 0, "message": message, "finish_reason": _openai_finish(reply)}
    head = _mistral_head(body, "chat.completion")
    return {**head, "choices": [choice], "usage": MISTRAL_USAGE}


def _mistral_events(reply: Reply, body: dict[str, Any]) -> Iterator[str]:
    head = _mistral_head(body, "chat.completion.chunk")

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        usage = {"usage": MISTRAL_USAGE} if finish else {}
        return _data({**head, "choices": [choice], **usage})

    yield event({"role": "assistant", "content": ""})
    for part in reply.parts:
        if isinstance(part, Call):
            continue
        for piece in part.pieces:
            yield event({"content": _mistral_content([type(part)(piece)])})
    last: dict[str, Any] = {"content": ""}
    if calls := _mistral_calls(reply):  # they arrive whole, and together
        last["tool_calls"] = calls
    yield event(last, _openai_finish(reply))
    yield "data: [DONE]\n\n"


# --- Anthropic's messages ----------------------------------------------------------------------------

SIGNATURE = "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pkiMOYds"
CITATION = {
    "type": "char_location",
    "cited_text": "The grass is green.",
    "document_index": 0,
    "document_title": "Colours",
    "start_char_index": 0,
    "end_char_index": 20,
}


def _anthropic_usage(output: int) -> dict[str, Any]:
    return {
        "input_tokens": 21,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 5,
        "output_tokens": output,
    }


def _anthropic_block(part: Part | Call) -> dict[str, Any]:
    if isinstance(part, Call):
        arguments = json.loads(part.whole)
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments}
    if isinstance(part, Thought):
        return {"type": "thinking", "thinking": part.whole, "signature": SIGNATURE}
    if isinstance(part, Cited):
        return {"type": "text", "text": part.whole, "citations": [CITATION]}
    return {"type": "text", "text": part.whole}


def _anthropic_finish(reply: Reply) -> str:
    if reply.finish:
        return reply.finish
    if any(isinstance(part, Refusal) for part in reply.parts):
        return "refusal"
    if any(isinstance(part, Call) for part in reply.parts):
        return "tool_use"
    return "end_turn"


def _anthropic_message(
    reply: Reply, body: dict[str, Any], *, is_begin: bool = False
) -> dict[str, Any]:
    return {
        "id": _id("msg", body),
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [] if is_begin else [_anthropic_block(part) for part in reply.parts],
        "stop_reason": None if is_begin else _anthropic_finish(reply),
        "stop_sequence": None,
        "usage": _anthropic_usage(1 if is_begin else 9),
    }


def _anthropic_events(reply: Reply, body: dict[str, Any]) -> Iterator[str]:
    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\n" + _data({"type": kind, **fields})

    yield event("message_start", message=_anthropic_message(reply, body, is_begin=True))
    for index, part in enumerate(reply.parts):
        block: dict[str, Any] = {"type": "text", "text": ""}
        type_of_delta, key = "text_delta", "text"
        if isinstance(part, Call):
            block = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
            type_of_delta, key = "input_json_delta", "partial_json"
        elif isinstance(part, Thought):
            block = {"type": "thinking", "thinking": "", "signature": ""}
            type_of_delta, key = "thinking_delta", "thinking"
        elif isinstance(part, Cited):
            block["citations"] = []
        yield event("content_block_start", index=index, content_block=block)
        if index == 0:
            yield event("ping")
        deltas = [{"type": type_of_delta, key: piece} for piece in part.pieces]
        if isinstance(part, Thought):
            deltas.append({"type": "signature_delta", "signature": SIGNATURE})
        elif isinstance(part, Cited):
            deltas.insert(0, {"type": "citations_delta", "citation": CITATION})  # type: ignore[dict-item]
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    delta = {"stop_reason": _anthropic_finish(reply), "stop_sequence": None}
    yield event("message_delta", delta=delta, usage=_anthropic_usage(9))
    yield event("message_stop")


# --- the server --------------------------------------------------------------------------------------

_MESSAGES = {
    "openai": _openai_message,
    "responses": _responses_message,
    "mistral": _mistral_message,
    "anthropic": _anthropic_message,
}
_EVENTS = {
    "openai": _openai_events,
    "responses": _responses_events,
    "mistral": _mistral_events,
    "anthropic": _anthropic_events,
}


RESET = struct.pack("ii", 1, 0)
"""Closing a socket with this option resets its connection."""


def _data(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


class _Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        """Print nothing: clients close connections."""


def _answering(server: FakeProvider) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The list of models, in OpenAI's form."""
            models = [
                {"id": name, "object": "model", "created": 1, "owned_by": owner}
                for name, owner in server.owners.items()
            ]
            self._send({"object": "list", "data": models}, Reply(status=200 if models else 404))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = server.reply_to(self.path, body, headers)
            if reply.is_reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if reply.cut == 0:
                self.connection.close()
                self.close_connection = True
            elif reply.status != 200:
                error = {"type": "error", "message": reply.error, "code": reply.code or None}
                self._send({"type": "error", "error": error}, reply)
            elif body.get("stream"):
                self._stream(reply, _EVENTS[server.kind](reply, body))
            elif reply.cut is None:
                self._send(_MESSAGES[server.kind](reply, body), reply)
            else:
                self.close_connection = True

        def _send(self, message: dict[str, Any], reply: Reply) -> None:
            data = json.dumps(message).encode()
            self.send_response(reply.status)
            if reply.retry_after:
                self.send_header("Retry-After", reply.retry_after)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self._end_headers()
            self.wfile.write(data)

        def _stream(self, reply: Reply, events: Iterator[str]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self._end_headers()
            left = reply.cut_bytes
            try:
                for number, event in enumerate([*events, ""]):
                    if number == reply.cut:
                        return
                    data = event.encode()
                    part = f"{len(data):x}\r\n".encode() + data + b"\r\n"
                    self.wfile.write(part[:left])
                    self.wfile.flush()
                    if left is not None and (left := left - len(part)) <= 0:
                        self.connection.close()
                        self.close_connection = True
                        return
            except OSError:  # the client has hung up
                self.close_connection = True

        def _end_headers(self) -> None:
            """No connection is kept: a client's pool would hold it when its event loop is gone."""
            self.send_header("Connection", "close")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Answering
