"""What does the front door cost? The same answers through the door and from the chat model, in processor time.

A process of its own holds scripted members (they cost almost nothing), the chat model and the door; this one asks over
loopback. For every pair of neighbours, first one then the other, the server's processor seconds for an answer through
the door, less those of the chat model's own stream, over the segments: that is the door. Once with one stream at a
time, once with many. Every answer is compared with the chat model's own. Times as a client sees them are beside it.

    python benchmarks/door.py [--segments 100] [--streams 32] [--repeats 9]
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
from pathlib import Path
from typing import Any

import httpx
from latency import machine

QUESTION = "Tell me a long story."
SEGMENT = 10
MOST_MS = 2.0
"""What a segment may cost."""


# --- the server's process ---------------------------------------------------------------------------------------


def serve(segments: int) -> None:
    """The door, and two paths more: the processor seconds until now, and the chat model's own streams."""
    from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    from langchain_specfuse.door import Limits, app_of, port

    words = segments * SEGMENT
    members = [ScriptedMember(" ".join(f"{name}{k}" for k in range(words - 1)), name=name) for name in "ab"]
    llm = SpecFuseChatModel(members=members, segment_tokens=SEGMENT, max_tokens=words)
    app = app_of(llm, limits=Limits(at_once=256, most_tokens=words))

    async def own() -> str:
        return "".join([chunk.text async for chunk in llm.astream(QUESTION)])

    @app.get("/own/{streams}")
    async def streamed(streams: int) -> list[str]:
        return await asyncio.gather(*(own() for _ in range(streams)))

    @app.get("/spent")
    async def spent() -> float:
        return time.process_time()

    with port.opened("127.0.0.1", 0) as here:
        print(here.getsockname()[1], flush=True)
        port.server_of(app, port.Certificate(), 1).run([here])


# --- the client's ------------------------------------------------------------------------------------------------


class Asking:
    """A client of that process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None))

    async def spent(self) -> float:
        return float((await self._client.get(f"{self._url}/spent")).text)

    async def ready(self) -> None:
        while (await self._client.get(f"{self._url}/ready")).status_code != 200:
            await asyncio.sleep(0.05)

    async def own(self, streams: int) -> list[str]:
        told: list[str] = (await self._client.get(f"{self._url}/own/{streams}")).json()
        return told

    async def through_the_door(self, streams: int) -> list[str]:
        return await asyncio.gather(*(self._streamed() for _ in range(streams)))

    async def _streamed(self) -> str:
        messages = [{"role": "user", "content": QUESTION}]
        body = {"model": "specfuse", "stream": True, "messages": messages}
        async with self._client.stream("POST", f"{self._url}/v1/chat/completions", json=body) as response:
            lines = [line.removeprefix("data: ") async for line in response.aiter_lines() if line]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
        return "".join(delta.get("content", "") for delta in deltas)


async def taken(asking: Asking, way: str, streams: int, answers: set[str]) -> tuple[float, float]:
    """The server's processor seconds, and those of the clock."""
    spent, clock = await asking.spent(), time.perf_counter()
    answers.update(await getattr(asking, way)(streams))
    clock = time.perf_counter() - clock
    return await asking.spent() - spent, clock


async def measured(asking: Asking, streams: int, segments: int, repeats: int) -> dict[str, Any]:
    answers: set[str] = set()
    ways = ("own", "through_the_door")
    told: list[dict[str, tuple[float, float]]] = []
    for number in range(repeats + 1):  # the first warms up
        order = ways if number % 2 else ways[::-1]
        told.append({way: await taken(asking, way, streams, answers) for way in order})
    assert len(answers) == 1, "the door changed an answer"
    rounds = streams * segments
    return {
        "streams": streams,
        "pairs": repeats,
        "door_ms_per_segment": _middle([(one[ways[1]][0] - one[ways[0]][0]) / rounds for one in told[1:]]),
        "chat_model_ms_per_segment": _middle([one[ways[0]][0] / rounds for one in told[1:]]),
        "door_ms_per_segment_each": [_ms((one[ways[1]][0] - one[ways[0]][0]) / rounds) for one in told[1:]],
        "clock_ms_per_segment": {way: _middle([one[way][1] / rounds for one in told[1:]]) for way in ways},
    }


def _middle(seconds: list[float]) -> float:
    return _ms(statistics.median(seconds))


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 3)


async def run(url: str, segments: int, streams: int, repeats: int) -> list[dict[str, Any]]:
    asking = Asking(url)
    await asking.ready()
    return [
        await measured(asking, 1, segments, repeats),
        await measured(asking, streams, segments, max(3, repeats // 3)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=100)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        return serve(told.segments)
    command = [sys.executable, __file__, "--serve", "--segments", str(told.segments)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        found = asyncio.run(run(url, told.segments, told.streams, told.repeats))
    finally:
        server.terminate()
        server.wait()
    packages = {name: metadata.version(name) for name in ("fastapi", "uvicorn")}
    about = {"machine": machine(), **packages, "segments": told.segments, "most_ms": MOST_MS}
    results = [about | one | {"kept": one["door_ms_per_segment"] <= MOST_MS} for one in found]
    print(json.dumps(results, indent=2))
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
