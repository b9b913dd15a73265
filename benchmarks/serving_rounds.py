"""How much of a round is not the slowest member's own answer, and what does a crowd gain? On real engines, here.

*Overhead*: two members on one engine write answers, one question at a time. A round must wait for a draft and a vote
of the slowest member; what a round takes beyond the engine's own answers to that member (measured around the HTTP
question), from one round's beginning to the next one's, is the overhead. It should be at most a tenth and a round
trip.

*Crowd*: one member; questions one at a time, then many at once, in turn, several times. Both are counted in tokens a
second of the whole. It should be four times as much on vLLM.

    SPECFUSE_LLAMA_SERVER=... SPECFUSE_VLLM_PYTHON=... python benchmarks/serving_rounds.py [--engines vllm]

An engine that cannot be had is left out, with a line that says so. Results that are not measured anew stay as they are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from latency import machine  # noqa: E402

from langchain_specfuse.core.values import Query, Round, Settings, Turn  # noqa: E402
from langchain_specfuse.engine import Ensemble  # noqa: E402
from langchain_specfuse.members.server import ServerMember  # noqa: E402
from tests.members import engines  # noqa: E402

SETTINGS = Settings(segment_tokens=10, max_tokens=48, exit="never")
SUBJECTS = ("the sea", "a lighthouse", "bread", "the moon", "a long train", "rain", "an old clock", "honey")
PLACES = ("Rome", "Oslo", "Lima", "Cairo")
CROWDS = {"vllm": 32, "llama.cpp": 4}
"""llama.cpp keeps as many contexts as it has slots (4 here): with more questions than that they push each other out."""


def questions(count: int) -> list[str]:
    """So many that all differ."""
    told = [f"Tell me something about {subject} in {place}." for place in PLACES for subject in SUBJECTS]
    return told[:count]


def query(text: str, turn: object) -> Query:
    return Query(f"{text}-{turn}", (Turn("user", text),))


class Watched(ServerMember):
    """Keeps from when until when each question was at the engine."""

    def probe(self) -> Any:
        told = super().probe()
        wire = self._wire
        assert wire is not None
        if not hasattr(wire, "plain_post"):
            self.spans: list[tuple[float, float]] = []
            wire.plain_post = wire.post  # type: ignore[attr-defined]
            wire.post = self._timed  # type: ignore[method-assign]
        return told

    def _timed(self, path: str, body: Any, final: Any = ()) -> Any:
        since = time.time()
        try:
            return self._wire.plain_post(path, body, final)  # type: ignore[union-attr]
        finally:
            self.spans.append((since, time.time()))

    def busy_s(self, since: float, until: float) -> float:
        """How long the engine was at work for this member in that time."""
        inside = sorted((max(a, since), min(b, until)) for a, b in self.spans if a < until and b > since)
        whole, end = 0.0, since
        for a, b in inside:
            whole, end = whole + max(0.0, b - max(a, end)), max(end, b)
        return whole


def overheads(rounds: Sequence[Round], members: Sequence[Watched]) -> Iterator[tuple[float, float]]:
    """(seconds of a round, seconds of the slowest member's own answers in it), but for the last round."""
    for this, following in zip(rounds, rounds[1:], strict=False):
        own = sum(
            max(member.busy_s(began, began + this.seconds[phase]) for member in members)
            for phase, began in this.began.items()
        )
        yield following.began["draft"] - this.began["draft"], own


def trip_s(member: ServerMember) -> float:
    """A question without any work."""
    spans = []
    for _ in range(20):
        since = time.perf_counter()
        member._wire.get("/v1/models")  # type: ignore[union-attr]
        spans.append(time.perf_counter() - since)
    return statistics.median(spans)


def overhead(url: str, tokenizer: Any, repeats: int) -> dict[str, Any]:
    """Two members, who differ by what they are told to be."""
    told = {"ann": None, "bob": "You are a poet."}
    members = [Watched(url, engines.MODEL, name=n, system_prompt=p, tokenizer=tokenizer) for n, p in told.items()]
    ensemble = Ensemble(members)
    found, voted = [], 0
    for turn in range(repeats + 1):  # the first warms up
        for text in questions(4):
            rounds = list(ensemble.rounds(query(text, turn), SETTINGS))
            found += list(overheads(rounds, members)) if turn else []
            voted += sum("verify" in round.seconds for round in rounds) if turn else 0
    trip = trip_s(members[0])
    for member in members:
        member.unload()
    percent = [100 * (whole - own) / own for whole, own in found]
    beyond = [100 * (whole - own - trip) / own for whole, own in found]
    return {
        "rounds": len(found),
        "voted": voted,
        "round_ms": round(1000 * statistics.median(whole for whole, _ in found), 1),
        "own_ms": round(1000 * statistics.median(own for _, own in found), 1),
        "trip_ms": round(1000 * trip, 2),
        "overhead_ms": round(1000 * statistics.median(whole - own for whole, own in found), 2),
        "overhead_percent": round(statistics.median(percent), 2),
        "nine_of_ten_percent": round(statistics.quantiles(percent, n=10)[-1], 2),
        "beyond_a_trip_percent": round(statistics.median(beyond), 2),
    }


async def at_once(ensemble: Ensemble, texts: Sequence[str], turn: object) -> tuple[float, int]:
    """(seconds, agreed tokens) for these questions together."""

    async def one(text: str) -> int:
        rounds = [r async for r in ensemble.arounds(query(text, turn), SETTINGS)]
        return sum(len(r.drafts[r.winner].tokens) for r in rounds)

    since = time.perf_counter()
    tokens = await asyncio.gather(*(one(text) for text in texts))
    return time.perf_counter() - since, sum(tokens)


def crowd(url: str, tokenizer: Any, size: int, repeats: int) -> dict[str, Any]:
    """One member; a few questions one at a time, then many together, in turn."""
    member = ServerMember(url, engines.MODEL, name="alone", tokenizer=tokenizer, parallel=size)
    ensemble, texts = Ensemble([member]), questions(size)
    ready: Future[Any] = ensemble.loaded()
    ready.result()
    pairs = []
    for turn in range(repeats + 1):  # the first warms up
        one_by_one = [asyncio.run(at_once(ensemble, [text], f"{turn}a")) for text in texts[:4]]
        alone = sum(tokens for _, tokens in one_by_one) / sum(seconds for seconds, _ in one_by_one)
        seconds, tokens = asyncio.run(at_once(ensemble, texts, f"{turn}b"))
        pairs += [(alone, tokens / seconds)] if turn else []
        print(f"  one at a time {alone:.1f} tokens a second, {size} at once {tokens / seconds:.1f}", flush=True)
    member.unload()
    gains = [many / one for one, many in pairs]
    return {
        "at_once": size,
        "one_at_a_time_tokens_per_s": round(statistics.median(one for one, _ in pairs), 1),
        "at_once_tokens_per_s": round(statistics.median(many for _, many in pairs), 1),
        "gain": round(statistics.median(gains), 2),
        "gain_each": [round(gain, 2) for gain in gains],
    }


PARTS = ("overhead_local", "overhead_server", "crowd")


def part(name: str, engine: str, url: str, repeats: int) -> dict[str, Any]:
    if name == "crowd":
        return crowd(url, engines.folder(), CROWDS[engine], repeats)
    return overhead(url, engines.folder() if name == "overhead_local" else None, repeats)


def measure(which: Sequence[str], parts: Sequence[str], repeats: int) -> None:
    """What was asked for; what was found before stays, but for that."""
    file = Path(__file__).with_suffix(".json")
    kept = {one["engine"]: one for one in json.loads(file.read_text())} if file.exists() else {}
    for engine in which:
        if engines.FOUND[engine]() is None:
            print(f"{engine} is left out: {engines.MISSING[engine]}")
            continue
        with tempfile.TemporaryDirectory() as logs, engines.running(engine, Path(logs) / "log") as one:
            for name in parts:
                told = kept.setdefault(engine, {"engine": engine, "machine": machine()})
                told[name] = part(name, engine, one.url, repeats)
                print(engine, name, json.dumps(told[name]), flush=True)
                file.write_text(json.dumps([kept[e] for e in engines.FOUND if e in kept], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", nargs="+", default=list(engines.FOUND), choices=list(engines.FOUND))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    given = parser.parse_args()
    measure(given.engines, given.parts, given.repeats)


if __name__ == "__main__":
    main()
