"""A fake OpenAI-compatible server in this process whose replies can break off: in the middle of a
character, with an error status, or never ending.

It writes its name, an umlaut and the number of each word, and continues the text of others at the
next number.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .continued import begun_in_body


class FailingServer:
    """Records the body of every request in ``asked``."""

    def __init__(
        self,
        name: str,
        *,
        fails_after: int | None = None,
        how: str = "cut",
        words: int = 24,
        spared: int = 0,
        first_s: float = 0.0,
        word_s: float = 0.0,
        script: Sequence[str] = (),
        bytes_sent: int | None = None,
        calls: str = "",
    ) -> None:
        """``fails_after``: words after which a reply breaks off; None: never. ``how``: ``cut`` in
        the middle of a character, ``end`` (the reply ends without a reason), ``hang``, or the
        status of an error instead of a reply. The first ``spared`` replies are whole. A
        reply begins after ``first_s``, and each word takes ``word_s``. ``script``: the pieces of
        its replies, in place of words. ``bytes_sent``: the connection is closed after this many
        bytes of a reply's body. ``calls``: a reply to a request with tools is a call of this tool;
        the script has its arguments."""
        self.name, self.fails_after, self.how, self.words = name, fails_after, how, words
        self.spared, self.first_s, self.word_s = spared, first_s, word_s
        self.script = list(script)
        self.bytes_sent = bytes_sent
        self.calls = calls
        self.failed_at = 0.0
        """When a reply broke off, in seconds of ``time.perf_counter()``."""
        self.asked: list[Any] = []
        self.hung_up: list[float] = []
        """When a client closed the connection before the end of its reply."""
        self.released = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def stop(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def texts(self, messages: list[dict[str, Any]]) -> list[str]:
        """The words of one reply."""
        if self.script:
            return self.script
        first = len(begun_in_body(messages).split())
        return [
            f"{' ' if number else ''}{self.name}ö{number}" for number in range(first, self.words)
        ]

    def deltas(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """What one reply adds, part by part. The first part names the role, as OpenAI's does."""
        texts = self.texts(body["messages"])
        parts: list[dict[str, Any]] = [{"content": text} for text in texts]
        if self.calls and "tools" in body:
            parts = [{"tool_calls": [_piece(text)]} for text in texts]
            parts[0] = {"tool_calls": [_piece(texts[0], id="call_1", name=self.calls)]}
        return [{"role": "assistant", **parts[0]}, *parts[1:]]


def _piece(arguments: str, id: str | None = None, **function: str) -> dict[str, Any]:
    """A piece of a tool call."""
    head = {"id": id, "type": "function"} if id else {}
    return {"index": 0, **head, "function": {**function, "arguments": arguments}}


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Print nothing: clients close the connection where a reply breaks off."""


def _answering(server: FailingServer) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.asked.append(body)
            fails_after = server.fails_after if len(server.asked) > server.spared else None
            if server.how.isdigit() and fails_after is not None:
                return self._refuse(int(server.how))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._stream(server.deltas(body), fails_after)
            except OSError:  # the client has hung up
                server.hung_up.append(time.monotonic())
                self.close_connection = True
            return None

        def _stream(self, deltas: list[dict[str, Any]], fails_after: int | None) -> None:
            time.sleep(server.first_s)
            if server.bytes_sent is not None:
                self._send_part(deltas, server.bytes_sent)
                return
            for at, delta in enumerate(deltas):
                time.sleep(server.word_s)
                if at == fails_after:
                    server.failed_at = time.perf_counter()
                event = self._event(delta, None)
                if at == fails_after and server.how == "cut":
                    self._send(event[: event.index("ö".encode()) + 1])
                    self.wfile.flush()
                    self.connection.close()
                    self.close_connection = True
                    return
                if at == fails_after and server.how == "end":
                    self._send(b"")
                    return
                if at == fails_after:
                    server.released.wait(30)
                self._send(event)
            self._send(self._event({}, "tool_calls" if "tool_calls" in deltas[0] else "stop"))
            self._send(b"data: [DONE]\n\n")
            self._send(b"")

        def _send_part(self, deltas: list[dict[str, Any]], count: int) -> None:
            """Send the first bytes of the reply, and close the connection."""
            events = [self._event(delta, None) for delta in deltas]
            body = b"".join([*events, self._event({}, "stop"), b"data: [DONE]\n\n"])
            if count:
                self._send(body[:count])
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

        def _event(self, delta: dict[str, Any], finish: str | None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            data = json.dumps({**head, "choices": [choice]}, ensure_ascii=False)
            return f"data: {data}\n\n".encode()

        def _send(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def _refuse(self, status: int) -> None:
            data = json.dumps({"error": {"message": "not now", "type": "x"}}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    return Answering
