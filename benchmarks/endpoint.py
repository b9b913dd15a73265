"""What does the endpoint cost? The same answers over HTTP and from the chat model, in processor
time.

A server process holds scripted members (which cost almost nothing), the chat model and the
endpoint; this process asks over loopback. The endpoint's cost of a segment is the server's
processor time for an answer over HTTP minus that of the chat model's own stream. They are measured
in pairs in alternating order, with one stream and with many. Every answer is compared with the chat
model's own.

    python benchmarks/endpoint.py [--segments 100] [--streams 32] [--repeats 5] [--tiny]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import httpx2
from common import arguments, report

MEASURES = ("serve", "chat/model.py", "chat/chunks.py")
"""The parts of the package that decide these figures."""

QUESTION = "Tell me a long story."
SEGMENT = 10


def serve(segments: int) -> None:
    """The server process: the endpoint, and two more paths for processor seconds and the chat
    model's own streams."""
    from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel
    from langchain_specfuse.serve import Limits, app_of
    from langchain_specfuse.serve.server import listening, server_of

    words = segments * SEGMENT
    members = [
        ScriptedMember(" ".join(f"{name}{k}" for k in range(words - 1)), name=name) for name in "ab"
    ]
    llm = SpecFuseChatModel(
        members=members, method=Method(segment_tokens=SEGMENT), max_tokens=words
    )
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
        body = {
            "model": "specfuse",
            "stream": True,
            "messages": [{"role": "user", "content": QUESTION}],
        }
        async with self._http.stream(
            "POST", f"{self._url}/v1/chat/completions", json=body
        ) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        return "".join(delta.get("content", "") for delta in deltas)


async def measured(client: Client, streams: int, segments: int, repeats: int) -> dict[str, Any]:
    answers: set[str] = set()
    pairs: list[dict[str, float]] = []
    for number in range(repeats + 1):  # the first warms up
        pair = {}
        for way in ("own", "over_http") if number % 2 else ("over_http", "own"):
            since = await client.processor_s()
            answers.update(await getattr(client, way)(streams))
            pair[way] = await client.processor_s() - since
        pairs.append(pair)
    assert len(answers) == 1, "the endpoint changed an answer"

    def ms(seconds: list[float]) -> float:
        return round(1e3 * statistics.median(seconds) / (streams * segments), 3)

    return {
        "streams": streams,
        "endpoint_ms_per_segment": ms([one["over_http"] - one["own"] for one in pairs[1:]]),
        "chat_model_ms_per_segment": ms([one["own"] for one in pairs[1:]]),
    }


async def run(url: str, segments: int, streams: int, repeats: int) -> list[dict[str, Any]]:
    client = Client(url)
    await client.ready()
    return [
        await measured(client, 1, segments, repeats),
        await measured(client, streams, segments, max(3, repeats // 3)),
    ]


def main() -> None:
    tiny = {"repeats": 1, "segments": 5, "streams": 2}
    parser = arguments(__file__, __doc__, tiny=tiny, repeats=5, segments=100, streams=32)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve(given.segments)
    command = [sys.executable, __file__, "--serve", "--segments", str(given.segments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
            found = asyncio.run(run(url, given.segments, given.streams, given.repeats))
        finally:
            server.terminate()
    report(__file__, given, MEASURES, {"streams": found})


if __name__ == "__main__":
    main()
