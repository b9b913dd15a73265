"""What does the endpoint cost? The same answers over HTTP and from the chat model, in processor time.

A server process holds scripted members (which cost almost nothing), the chat model and the endpoint; this process asks
over loopback. The endpoint's cost of a segment is the server's processor time for an answer over HTTP minus that of the
chat model's own stream. They are measured in pairs in alternating order, with one stream and with many. Every answer
is compared with the chat model's own.

    python benchmarks/serve.py [--segments 100] [--streams 32] [--repeats 9]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

import httpx2
from common import about, arguments, save

QUESTION = "Tell me a long story."
SEGMENT = 10
MOST_MS = 2.0
"""The bound for one segment."""


def serve(segments: int) -> None:
    """The server process: the endpoint, and two more paths for processor seconds and the chat model's own streams."""
    from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    from langchain_specfuse.serve import Limits, app_of
    from langchain_specfuse.serve.server import listening, server_of

    words = segments * SEGMENT
    members = [ScriptedMember(" ".join(f"{name}{k}" for k in range(words - 1)), name=name) for name in "ab"]
    llm = SpecFuseChatModel(members=members, segment_tokens=SEGMENT, max_tokens=words)
    app = app_of(llm, limits=Limits(max_answer_tokens=words))

    async def own() -> str:
        return "".join([chunk.text async for chunk in llm.astream(QUESTION)])

    @app.get("/own/{streams}")
    async def own_streams(streams: int) -> list[str]:
        return await asyncio.gather(*(own() for _ in range(streams)))

    @app.get("/processor")
    async def processor() -> float:
        return time.process_time()

    with listening("127.0.0.1", 0) as listener:
        print(listener.getsockname()[1], flush=True)
        server_of(app).run([listener])


class Client:
    """A client of that process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx2.AsyncClient(timeout=300, limits=httpx2.Limits(max_connections=None))

    async def processor_s(self) -> float:
        return float((await self._http.get(f"{self._url}/processor")).text)

    async def ready(self) -> None:
        while (await self._http.get(f"{self._url}/ready")).status_code != 200:
            await asyncio.sleep(0.05)

    async def own(self, streams: int) -> list[str]:
        answers: list[str] = (await self._http.get(f"{self._url}/own/{streams}")).json()
        return answers

    async def over_http(self, streams: int) -> list[str]:
        return await asyncio.gather(*(self._stream() for _ in range(streams)))

    async def _stream(self) -> str:
        body = {"model": "specfuse", "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
        async with self._http.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        return "".join(delta.get("content", "") for delta in deltas)


async def measured(client: Client, streams: int, segments: int, repeats: int) -> dict[str, Any]:
    answers: set[str] = set()
    pairs: list[dict[str, tuple[float, float]]] = []
    for number in range(repeats + 1):  # the first warms up
        pair = {}
        for way in ("own", "over_http") if number % 2 else ("over_http", "own"):
            processor_s, clock_s = await client.processor_s(), time.perf_counter()
            answers.update(await getattr(client, way)(streams))
            clock_s = time.perf_counter() - clock_s
            pair[way] = (await client.processor_s() - processor_s, clock_s)
        pairs.append(pair)
    assert len(answers) == 1, "the endpoint changed an answer"

    def ms(seconds: list[float]) -> float:
        return round(1e3 * statistics.median(seconds) / (streams * segments), 3)

    return {
        "streams": streams,
        "pairs": repeats,
        "endpoint_ms_per_segment": ms([one["over_http"][0] - one["own"][0] for one in pairs[1:]]),
        "chat_model_ms_per_segment": ms([one["own"][0] for one in pairs[1:]]),
        "endpoint_ms_per_segment_each": [ms([one["over_http"][0] - one["own"][0]]) for one in pairs[1:]],
        "clock_ms_per_segment": {way: ms([one[way][1] for one in pairs[1:]]) for way in ("own", "over_http")},
    }


async def run(url: str, segments: int, streams: int, repeats: int) -> list[dict[str, Any]]:
    client = Client(url)
    await client.ready()
    return [
        await measured(client, 1, segments, repeats),
        await measured(client, streams, segments, max(3, repeats // 3)),
    ]


def main() -> None:
    parser = arguments(__file__, __doc__, repeats=9)
    parser.add_argument("--segments", type=int, default=100)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(given.segments)
    command = [sys.executable, __file__, "--serve", "--segments", str(given.segments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        found = asyncio.run(run(url, given.segments, given.streams, given.repeats))
    finally:
        server.terminate()
        server.wait()
    packages = {name: metadata.version(name) for name in ("fastapi", "uvicorn")}
    shared = {**about(given), **packages, "segments": given.segments, "most_ms": MOST_MS}
    results = [{**shared, **one, "kept": one["endpoint_ms_per_segment"] <= MOST_MS} for one in found]
    print(json.dumps(results, indent=2))
    save(given.out, results)


if __name__ == "__main__":
    main()
