"""A LangSmith endpoint on loopback that records what the real client sends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesParser
from email.policy import HTTP
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from langchain_core.tracers import LangChainTracer
from langsmith import Client

INFO = {
    "version": "0.12.0",
    "batch_ingest_config": {
        "use_multipart_endpoint": True,
        "scale_up_qsize_trigger": 1000,
        "scale_up_nthreads_limit": 4,
        "scale_down_nempty_trigger": 4,
        "size_limit": 100,
        "size_limit_bytes": 20_000_000,
    },
}


class Endpoint:
    """Records every request body, and rebuilds runs from their parts."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.runs: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.posts: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._answering())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def received(self) -> str:
        """Return everything that was sent, as one text."""
        return b"\n".join(self.bodies).decode()

    told = received

    @property
    def models(self) -> list[dict[str, Any]]:
        return [run for run in self.runs.values() if run["run_type"] == "llm"]

    @property
    def model(self) -> dict[str, Any]:
        (run,) = self.models
        return run

    def children(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        children = [
            child for child in self.runs.values() if child.get("parent_run_id") == run["id"]
        ]
        return sorted(children, key=lambda child: child["dotted_order"])

    def receive(self, kind: str, body: bytes) -> None:
        self.bodies.append(body)
        message = BytesParser(policy=HTTP).parsebytes(
            b"content-type: " + kind.encode() + b"\r\n\r\n" + body
        )
        for part in message.iter_parts():
            name = str(part.get_param("name", header="content-disposition"))
            event, run_id, *field = name.split(".")
            content = part.get_payload(decode=True)
            value = json.loads(content)  # type: ignore[arg-type]
            run = self.runs.setdefault(run_id, {})
            if not field:
                self.posts += [run_id] if event == "post" else []
                run.update(value)
            else:
                run[field[0]] = value

    def _answering(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
        class Answering(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                endpoint.asked.append(f"GET {self.path}")
                self._reply(200, INFO)

            def do_POST(self) -> None:
                endpoint.asked.append(f"POST {self.path}")
                body = b"".join(self._pieces())
                endpoint.receive(self.headers["Content-Type"], body)
                self._reply(202, {})

            do_PATCH = do_POST

            def _pieces(self) -> Iterator[bytes]:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
                    return
                while size := int(self.rfile.readline(), 16):
                    yield self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()

            def _reply(self, status: int, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        return Answering


@contextmanager
def recorded(**options: Any) -> Iterator[tuple[LangChainTracer, Endpoint]]:
    """Yield the tracer of a real client and its endpoint; on exit, everything has arrived."""
    endpoint = Endpoint()
    client = Client(api_url=endpoint.url, api_key="not-a-key", **options)
    try:
        yield LangChainTracer(client=client, project_name="tests"), endpoint
        client.flush()
    finally:
        client.cleanup()
        endpoint.close()
