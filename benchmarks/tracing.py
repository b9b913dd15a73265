"""What do traces cost? The same answers with and without, by the real LangSmith client, sent to a process next door.

Measured in turn in one run, as ratios of neighbours: wall clock, and processor seconds of this process (which counts
LangSmith's own thread too, and hardly minds what else the machine does). Beside it what one round costs, measured
alone: the thread that reads the answer, and the processor until all is sent. The answers of all depths are the same
(checked). A few short answers are quick to measure, but their ratios waver more than traces cost: the cost of a round
beside the length of a round (``round_ms``) says more.

    python benchmarks/tracing.py [--dtype bfloat16] [--repeats 5] [--max-tokens 24]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from langchain_core.messages import HumanMessage
from langchain_core.tracers import LangChainTracer
from langsmith import Client
from latency import machine

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse._tracing import RunScope
from langchain_specfuse.core.values import Query, Round, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble

QUESTION = "Tell me a long story about two sisters and an old clock. Use many sentences."
DEPTHS = ("summary", "rounds", "members")
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
"""A LangSmith endpoint that takes everything, as a process of its own."""


def spent(llm: SpecFuseChatModel, depth: str, client: Client, answers: set[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of one answer, everything sent."""
    tracer = LangChainTracer(client=client, project_name="benchmark")
    wall, busy = time.perf_counter(), time.process_time()
    answers.add(llm.invoke(QUESTION, {"callbacks": [tracer]}, trace=depth).text)
    wall = time.perf_counter() - wall
    client.flush()
    return wall, time.process_time() - busy


def ratios(llm: SpecFuseChatModel, depth: str, client: Client, repeats: int) -> dict[str, Any]:
    """With traces over without, neighbour by neighbour; who goes first changes each time."""
    answers: set[str] = set()
    wall, busy = [], []
    for number in range(repeats):
        order = (depth, "off") if number % 2 else ("off", depth)
        told = {which: spent(llm, which, client, answers) for which in order}
        wall.append(told[depth][0] / told["off"][0])
        busy.append(told[depth][1] / told["off"][1])
    assert len(answers) == 1, "tracing changed the answer"
    return {
        "wall_clock": round(statistics.median(wall), 4),
        "processor_seconds": round(statistics.median(busy), 4),
        "wall_clock_each": [round(one, 3) for one in wall],
        "processor_seconds_each": [round(one, 3) for one in busy],
    }


def microseconds(
    rounds: list[Round], names: list[str], depth: Any, client: Client, times: int = 20
) -> dict[str, float]:
    """What it costs the reading thread to tell of one round: the median over all rounds of an answer, many times."""
    tracer = LangChainTracer(client=client, project_name="benchmark")
    run_id = uuid4()
    tracer.on_chat_model_start({"name": "SpecFuseChatModel"}, [[HumanMessage(QUESTION)]], run_id=run_id)
    scope = RunScope(run_id, [tracer], [], {})
    taken, busy = [], time.process_time()
    with scope.answer(depth, members=names, verifiers=[], preset="robust") as account:
        for _ in range(times):
            for one in rounds:
                since = time.perf_counter()
                account.tell(one)
                taken.append(time.perf_counter() - since)
            client.flush()
    busy = (time.process_time() - busy) / len(taken)
    quantiles = statistics.quantiles(taken, n=10)
    told = {"median": quantiles[4], "nine_of_ten": quantiles[8], "processor_with_sending": busy}
    return {key: round(1e6 * value) for key, value in told.items()}


def measured(dtype: str, repeats: int, max_tokens: int, client: Client) -> dict[str, Any]:
    members = demo_members(dtype=dtype)
    llm = SpecFuseChatModel(members=members, max_tokens=max_tokens)
    llm.invoke(QUESTION, max_tokens=8)  # warm up
    query = Query("benchmark", (Turn("user", QUESTION),))
    rounds = list(Ensemble(members).rounds(query, Settings(max_tokens=max_tokens, min_members=2)))
    names = [member.name for member in members]
    return {
        "dtype": dtype,
        "machine": machine(),
        "torch": torch.__version__,
        "members": names,
        "max_tokens": max_tokens,
        "rounds": len(rounds),
        "round_ms": round(1e3 * statistics.median(sum(one.seconds.values()) for one in rounds), 1),
        "repeats": repeats,
        "with_traces_over_without": {depth: ratios(llm, depth, client, repeats) for depth in DEPTHS[1:]},
        "microseconds_per_round": {d: microseconds(rounds, names, d, client) for d in ("off", *DEPTHS)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["bfloat16"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=24)
    told = parser.parse_args()
    sink = subprocess.Popen([sys.executable, "-c", SINK], stdout=subprocess.PIPE, text=True)
    try:
        assert sink.stdout is not None
        client = Client(api_url=f"http://127.0.0.1:{sink.stdout.readline().strip()}", api_key="not-a-key")
        results = [measured(dtype, told.repeats, told.max_tokens, client) for dtype in told.dtype]
        client.close()
    finally:
        sink.terminate()
    print(json.dumps(results, indent=2))
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
