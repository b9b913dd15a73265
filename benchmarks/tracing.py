"""What do traces cost? The same answers with and without, by the real LangSmith client, sent to a process next door.

With the demo's members: wall clock and processor seconds of this process (LangSmith's own thread included) with traces
over without, as ratios of neighbours in one run. With scripted members, which answer at once: what one round costs at
each depth of traces, beside the length of a round of the demo's members. All depths give the same answer (checked).

    python benchmarks/tracing.py [--dtype bfloat16] [--repeats 5] [--max-tokens 24]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from typing import Any

from common import arguments, demo, reported
from langchain_core.tracers import LangChainTracer
from langsmith import Client

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, TraceCallbackHandler

QUESTION = "Tell me a long story about two sisters and an old clock. Use many sentences."
DEPTHS = ("off", "summary", "rounds", "members")
WORDS = [" ".join(f"{name}{n}" for n in range(400)) for name in ("ann", "bob")]
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


def spent(llm: SpecFuseChatModel, depth: str, client: Client, answers: set[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one answer; the latter until everything is sent."""
    tracer = LangChainTracer(client=client, project_name="benchmark")
    wall, busy = time.perf_counter(), time.process_time()
    answers.add(llm.invoke(QUESTION, {"callbacks": [tracer]}, trace=depth).text)
    wall = time.perf_counter() - wall
    client.flush()
    return wall, time.process_time() - busy


def ratios(llm: SpecFuseChatModel, depth: str, client: Client, repeats: int) -> dict[str, Any]:
    """With traces over without, neighbour by neighbour; which goes first changes each time."""
    answers: set[str] = set()
    wall, busy = [], []
    for number in range(repeats):
        order = (depth, "off") if number % 2 else ("off", depth)
        found = {which: spent(llm, which, client, answers) for which in order}
        wall.append(found[depth][0] / found["off"][0])
        busy.append(found[depth][1] / found["off"][1])
    assert len(answers) == 1, "tracing changed the answer"
    return {
        "wall_clock": round(statistics.median(wall), 4),
        "processor_seconds": round(statistics.median(busy), 4),
        "wall_clock_each": [round(one, 3) for one in wall],
        "processor_seconds_each": [round(one, 3) for one in busy],
    }


def per_round(client: Client, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of a round by scripted members at each depth: of the caller, and of the processor with sending."""
    members = [ScriptedMember(text, name=name) for text, name in zip(WORDS, ("ann", "bob"), strict=True)]
    llm = SpecFuseChatModel(members=members, max_tokens=400, method="specem")
    runs: dict[str, list[tuple[float, float]]] = {depth: [] for depth in DEPTHS}
    for _ in range(max(repeats, 2) * 4):
        for depth, some in runs.items():
            some.append(spent(llm, depth, client, set()))
    rounds = 400 / 10
    return {
        depth: {
            "median": round(1e6 * statistics.median(wall for wall, _ in some) / rounds),
            "nine_of_ten": round(1e6 * statistics.quantiles([wall for wall, _ in some], n=10)[8] / rounds),
            "processor_with_sending": round(1e6 * statistics.median(busy for _, busy in some) / rounds),
        }
        for depth, some in runs.items()
    }


def measured(dtype: str, repeats: int, max_tokens: int, client: Client) -> dict[str, Any]:
    members = demo(dtype)
    llm = SpecFuseChatModel(members=members, max_tokens=max_tokens)
    handler = TraceCallbackHandler()
    llm.invoke(QUESTION, {"callbacks": [handler]})  # it warms up, too
    rounds = handler.trace.rounds
    return {
        "members": [member.name for member in members],
        "max_tokens": max_tokens,
        "rounds": len(rounds),
        "round_ms": round(1e3 * statistics.median(sum(one["seconds"].values()) for one in rounds), 1),
        "repeats": repeats,
        "with_traces_over_without": {depth: ratios(llm, depth, client, repeats) for depth in DEPTHS[2:]},
        "microseconds_per_round": per_round(client, repeats),
    }


def main() -> None:
    parser = arguments(__file__, __doc__, dtype=["bfloat16"], repeats=5)
    parser.add_argument("--max-tokens", type=int, default=24)
    given = parser.parse_args()
    sink = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        client = Client(api_url=f"http://127.0.0.1:{sink.stdout.readline().strip()}", api_key="not-a-key")
        reported(given, lambda dtype: measured(dtype, given.repeats, given.max_tokens, client))
        client.close()
    finally:
        sink.terminate()


if __name__ == "__main__":
    main()
