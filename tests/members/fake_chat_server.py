"""A fake server in this process that only chats, as the documentation of Ollama (``/api/chat``,
lines of JSON) and of LM Studio (OpenAI's ``/v1/chat/completions``, server-sent events) describes
them. Says what a :class:`.Talker` says.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_core.messages import convert_to_messages

NOW = "2026-11-24T10:00:00.000000Z"


class FakeChatServer:
    """Records the body of every request in ``asked`` and every word sent before the client hung up
    in ``said``."""

    def __init__(self, kind: str, talker: Any, *, models: bool = True, key: str = "") -> None:
        """``key``: chats need this key. The list of models is public, as with many gateways."""
        self.kind, self.talker, self.models, self.key = kind, talker, models, key
        self.asked: list[Any] = []
        self.said: list[str] = []
        self.headers: Any = {}
        self.formatted: str | None = None
        """Ollama's reply to a request with a ``format``; None: as to any other."""
        self.format_error: str | None = None
        """Ollama's error for a request with a ``format``."""
        self.refusal = "Incorrect API key provided"
        """The error for a wrong key; ``{}`` in it is the header that came."""
        self.go_on = threading.Event()
        """Cleared: after three words the server waits, so that a client can hang up."""
        self.go_on.set()
        self.hung_up = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def stop(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def listed(self, path: str) -> Any:
        """Return what the server reports about itself; raise KeyError for unknown paths."""
        ollama = self.kind == "ollama"
        owner = "library" if self.kind == "ollama" else "organization_owner"
        name = "llama3.2:latest" if ollama else "my-model"
        models = None
        if self.models:
            models = [{"id": name, "object": "model", "created": 1, "owned_by": owner}]
        # LM Studio reports this error with status 200
        strange = {"error": f"Unexpected endpoint or method. (GET {path})"}
        return {
            "/v1/models": {"object": "list", "data": models},
            "/api/version": {"version": "0.12.11"} if ollama else strange,
        }[path]

    def lines(self, path: str, body: Any) -> Iterator[str]:
        """Yield the stream of one chat."""
        self.asked.append(body)
        messages = [
            {"role": message["role"], "content": message["content"]} for message in body["messages"]
        ]
        reply = self.talker._reply(convert_to_messages(messages))
        if body.get("format") and self.formatted is not None:
            reply = self.formatted
        words = re.findall(r"\s*\S+", reply)
        shape = _ollama if {"ollama": "/api/chat"}.get(self.kind) == path else _openai
        for at, word in enumerate([*words, ""]):
            if at == 3:
                self.go_on.wait(30)
            self.said.append(word)
            yield shape(body, word, at if at == len(words) else None)


def _ollama(body: Any, word: str, count: int | None) -> str:
    line = {
        "model": body["model"],
        "created_at": NOW,
        "message": {"role": "assistant", "content": word},
    }
    line |= {"done": count is not None}
    if body.get("logprobs") and word:
        line["logprobs"] = [{"token": word, "logprob": -0.05, "bytes": list(word.encode())}]
    if count is not None:
        line |= {
            "done_reason": "stop",
            "total_duration": 9,
            "load_duration": 1,
            "prompt_eval_count": 26,
        }
        line |= {"prompt_eval_duration": 3, "eval_count": count, "eval_duration": 5}
    return json.dumps(line) + "\n"


def _openai(body: Any, word: str, count: int | None) -> str:
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    delta = {
        "index": 0,
        "delta": {"content": word},
        "finish_reason": None if count is None else "stop",
    }
    events = [{**head, "choices": [delta]}]
    if count is not None and (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": 26, "completion_tokens": count, "total_tokens": 26 + count}
        events.append({**head, "choices": [], "usage": usage})
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    return text + ("data: [DONE]\n\n" if count is not None else "")


def _answering(server: FakeChatServer) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            try:
                listing = json.dumps(server.listed(self.path)).encode()
            except KeyError:
                return self.send_error(404)
            self._begin()
            self.wfile.write(listing)
            return None

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.headers = self.headers
            if server.key and self.headers["Authorization"] != f"Bearer {server.key}":
                return self._refuse(server.refusal.format(self.headers["Authorization"]), 401)
            if body.get("format") and server.format_error is not None:
                server.asked.append(body)
                return self._refuse(server.format_error)
            self._begin()
            try:
                for line in server.lines(self.path, body):
                    self.wfile.write(line.encode())
                    self.wfile.flush()
            except OSError:
                server.hung_up.set()
            return None

        def _refuse(self, error: str, status: int = 500) -> None:
            shape = error if server.kind == "ollama" else {"message": error}
            text = json.dumps({"error": shape}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _begin(self) -> None:
            self.send_response(200)
            self.send_header(
                "Content-Type", "application/json" if self.command == "GET" else "text/event-stream"
            )
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    return Answering
