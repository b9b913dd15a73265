"""How much of a round is not the slowest member's own answer, and what do many questions at once gain? Real engines.

*Overhead*: two members on one engine write answers, one question at a time. A round must wait for a draft and a vote
of the slowest member; what a round takes beyond the engine's own replies to that member, from one round's begin to the
next one's, is the overhead. It should be at most a tenth and a round trip.

*Crowd*: one member; questions one at a time, then many at once, in turn, several times; both in tokens per second.

    SPECFUSE_LLAMA_SERVER=... SPECFUSE_VLLM_PYTHON=... python benchmarks/serving_rounds.py [--engines vllm]

An engine that is not installed is left out, with a line that says so. Results that are not measured again stay.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from common import about, answered, arguments, http_requests, query, question, round_trip, save

from langchain_specfuse import ServerMember
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Round
from langchain_specfuse.engine import Ensemble

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.members import engines

SETTINGS = Settings(segment_tokens=10, max_tokens=48, method=Method(exit="never"))
SUBJECTS = ("the sea", "a lighthouse", "bread", "the moon", "a long train", "rain", "an old clock", "honey")
TEXTS = [
    f"Tell me something about {one} in {place}." for place in ("Rome", "Oslo", "Lima", "Cairo") for one in SUBJECTS
]
CROWDS = {"vllm": 32, "llama.cpp": 4}
"""llama.cpp keeps as many contexts as it has slots (4 here): more questions would push each other out."""
PARTS = ("overhead_local", "overhead_server", "crowd")
Span = tuple[float, float]


def busy_s(spans: Sequence[Span], since: float, until: float) -> float:
    """Seconds of this time in which at least one of the spans lies."""
    whole, end = 0.0, since
    for a, b in sorted((max(a, since), min(b, until)) for a, b in spans if a < until and b > since):
        whole, end = whole + max(0.0, b - max(a, end)), max(end, b)
    return whole


def overheads(rounds: Sequence[Round], spans: Sequence[Sequence[Span]]) -> Iterator[Span]:
    """(seconds of a round, seconds of the slowest member's own replies in it), but for the last round."""
    for this, following in zip(rounds, rounds[1:], strict=False):
        own = sum(
            max(busy_s(mine, began, began + this.seconds[phase]) for mine in spans)
            for phase, began in this.began.items()
        )
        yield following.began["draft"] - this.began["draft"], own


def overhead(url: str, tokenizer: Any, repeats: int) -> dict[str, Any]:
    """Two members that differ by their system prompt. Their API keys tell their requests apart."""
    members = []
    for name, prompt in (("ann", None), ("bob", "You are a poet.")):
        os.environ[f"KEY_{name}"] = name
        members.append(
            ServerMember(
                url,
                engines.MODEL,
                name=name,
                system_prompt=prompt,
                tokenizer=tokenizer,
                api_key_env=f"KEY_{name}",
            )
        )
    ensemble, found, voted = Ensemble(members), [], 0
    for turn in range(repeats + 1):  # the first warms up
        for text in TEXTS[:4]:
            with http_requests() as requests:
                rounds = answered(ensemble, question(text), SETTINGS)
            if turn:
                mine = [[(began, end) for _, key, began, end in requests if key == one.name] for one in members]
                found += list(overheads(rounds, mine))
                voted += sum("verify" in round.seconds for round in rounds)
    for member in members:
        member.unload()
    trip = round_trip(url)
    percent = [100 * (whole - own) / own for whole, own in found]
    return {
        "rounds": len(found),
        "voted": voted,
        "round_ms": round(1000 * median(whole for whole, _ in found), 1),
        "own_ms": round(1000 * median(own for _, own in found), 1),
        "trip_ms": round(1000 * trip, 2),
        "overhead_ms": round(1000 * median(whole - own for whole, own in found), 2),
        "overhead_percent": round(median(percent), 2),
        "nine_of_ten_percent": round(quantiles(percent, n=10)[-1], 2),
        "beyond_a_trip_percent": round(median(100 * (whole - own - trip) / own for whole, own in found), 2),
    }


async def tokens_per_second(ensemble: Ensemble, texts: Sequence[str]) -> float:
    """Agreed tokens per second for these questions together."""

    async def one(text: str) -> int:
        rounds = [r async for r in ensemble.arounds(query(question(text)), SETTINGS)]
        return sum(len(r.drafts[r.winner].tokens) for r in rounds)

    since = time.perf_counter()
    tokens = await asyncio.gather(*(one(text) for text in texts))
    return sum(tokens) / (time.perf_counter() - since)


def crowd(url: str, tokenizer: Any, size: int, repeats: int) -> dict[str, Any]:
    """One member; a few questions one at a time, then many together, in turn."""
    member = ServerMember(url, engines.MODEL, name="alone", tokenizer=tokenizer, max_concurrency=size)
    ensemble = Ensemble([member])
    ensemble.loaded().result()
    pairs = []
    for turn in range(repeats + 1):  # the first warms up
        alone = median(asyncio.run(tokens_per_second(ensemble, [text])) for text in TEXTS[:4])
        many = asyncio.run(tokens_per_second(ensemble, TEXTS[:size]))
        pairs += [(alone, many)] if turn else []
        print(f"  one at a time {alone:.1f} tokens per second, {size} at once {many:.1f}", flush=True)
    member.unload()
    gains = [many / one for one, many in pairs]
    return {
        "at_once": size,
        "one_at_a_time_tokens_per_s": round(median(one for one, _ in pairs), 1),
        "at_once_tokens_per_s": round(median(many for _, many in pairs), 1),
        "gain": round(median(gains), 2),
        "gain_each": [round(gain, 2) for gain in gains],
    }


def part(name: str, engine: str, url: str, repeats: int) -> dict[str, Any]:
    if name == "crowd":
        return crowd(url, engines.folder(), CROWDS[engine], repeats)
    return overhead(url, engines.folder() if name == "overhead_local" else None, repeats)


def main() -> None:
    parser = arguments(__file__, __doc__, repeats=3)
    parser.add_argument("--engines", nargs="+", default=list(engines.FOUND), choices=list(engines.FOUND))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    given = parser.parse_args()
    kept = {one["engine"]: one for one in json.loads(given.out.read_text())} if given.out.exists() else {}
    for engine in given.engines:
        if engines.FOUND[engine]() is None:
            print(f"{engine} is left out: {engines.MISSING[engine]}")
            continue
        with tempfile.TemporaryDirectory() as logs, engines.running(engine, Path(logs) / "log") as one:
            for name in given.parts:
                found = kept.setdefault(engine, {"engine": engine})
                found |= {name: part(name, engine, one.url, given.repeats), **about(given)}
                print(engine, name, json.dumps(found[name]), flush=True)
                save(given.out, [kept[e] for e in engines.FOUND if e in kept])


if __name__ == "__main__":
    main()
