"""A fake server in this process that sends the given events, and then keeps the connection open."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EMPTY = b'data: {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": null}]}\n\n'


class StallingServer:
    def __init__(self, events: Sequence[bytes], *, keeps_alive: bool = False) -> None:
        """``keeps_alive``: it goes on to send empty chunks."""
        self.events, self.keeps_alive = events, keeps_alive
        self.stopped = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _answering(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def stop(self) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()


def _answering(server: StallingServer) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                self.wfile.write(b"".join(server.events))
                while not server.stopped.wait(0.1):
                    if server.keeps_alive:
                        self.wfile.write(EMPTY)
            except OSError:  # the client has hung up
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    return Answering
