"""What do traces cost? What a round costs at each depth of traces, with the real LangSmith client.

Members are scripted and answer at once; traces are sent to a process next door. All depths give the
same answer.

    python benchmarks/tracing.py [--repeats 10] [--tiny]
"""

from __future__ import annotations

import subprocess
import sys
import time
from statistics import median

from common import arguments, percentile, report
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel

MEASURES = ("chat/model.py", "chat/report.py", "chat/callbacks.py")
"""The parts of the package that decide these figures."""

QUESTION = "Tell a long story about two sisters and an old clock."
DEPTHS = ("off", "rounds")
ROUNDS, SEGMENT = 40, 10
WORDS = [" ".join(f"{name}{n}" for n in range(ROUNDS * SEGMENT)) for name in ("ann", "bob")]
SINK = """
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
INFO = {"batch_ingest_config": {"use_multipart_endpoint": True, "size_limit": 100, "size_limit_bytes": 20000000,
    "scale_up_qsize_trigger": 1000, "scale_up_nthreads_limit": 4, "scale_down_nempty_trigger": 4},
    "instance_flags": {"zstd_compression_enabled": True}}
class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.say(200, json.dumps(INFO).encode())
    def do_POST(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
        else:
            self.rfile.read(int(self.headers["Content-Length"]))
        self.say(202, b"{}")
    def say(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
print(server.server_address[1], flush=True)
server.serve_forever()
"""
"""A LangSmith endpoint that accepts everything, as a process of its own."""


def per_round(client: Client, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a round at each depth: of the caller, and of the processor until everything
    is sent."""
    members = [ScriptedMember(text, name=text.split("0")[0]) for text in WORDS]
    llm = SpecFuseChatModel(
        members=members,
        max_tokens=ROUNDS * SEGMENT,
        method=Method.named("specem", segment_tokens=SEGMENT),
    )
    tracer = LangChainTracer(client=client, project_name="benchmark")
    runs: dict[str, list[tuple[float, float]]] = {depth: [] for depth in DEPTHS}
    answers = set()
    for _ in range(repeats + 1):
        for depth, some in runs.items():
            wall, busy = time.perf_counter(), time.process_time()
            answers.add(llm.invoke(QUESTION, {"callbacks": [tracer]}, trace=depth).text)
            wall = time.perf_counter() - wall
            client.flush()
            some.append((wall * 1000 / ROUNDS, (time.process_time() - busy) * 1000 / ROUNDS))
    assert len(answers) == 1, "tracing changed the answer"
    found = {}
    for depth, some in runs.items():
        walls, busies = zip(*some[1:], strict=True)  # the first warms up
        found[depth] = {
            "p50_ms": median(walls),
            "p90_ms": percentile(walls, 90),
            "processor_ms": median(busies),
        }
    return {
        depth: {key: round(value, 3) for key, value in one.items()} for depth, one in found.items()
    }


def main() -> None:
    given = arguments(__file__, __doc__, tiny={"repeats": 2}, repeats=10).parse_args()
    with subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            client = Client(
                api_url=f"http://127.0.0.1:{sink.stdout.readline().strip()}", api_key="not-a-key"
            )
            report(__file__, given, MEASURES, {"per_round": per_round(client, given.repeats)})
            client.close()
        finally:
            sink.terminate()


if __name__ == "__main__":
    main()
