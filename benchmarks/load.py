"""What happens to answers when many questions arrive, or a long one?

Questions arrive at random (Poisson), whether or not others still wait: an open loop. Rates are
questions in the time of one answer alone; times are multiples of those of questions asked one by
one. Then one question of thousands of tokens arrives while others are answered. The clock jumps to
the next arrival when there is nothing to do.

    python benchmarks/load.py [--arrivals 40] [--long 4000] [--seed 0] [--tiny]
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

from common import NOTES, arguments, demo, percentile, report

from langchain_specfuse import Method, SpecFuseChatModel

MEASURES = (
    "core",
    "engine",
    "members/local",
    "members/llamacpp",
    "members/text/words.py",
    "chat/model.py",
)
"""The parts of the package that decide these figures."""

RATES = (0.5, 1.0)
BYSTANDERS = 4


class Clock:
    """Seconds, without those in which there was nothing to do."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.perf_counter() + self._skipped

    async def until(self, when: float, idle: Any) -> None:
        while (left := when - self.now()) > 0:
            if idle():
                self._skipped += left
            await asyncio.sleep(0.002)


@dataclass
class Times:
    """Seconds to the first segments and to the ends of some answers."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


class Load:
    """Questions to one ensemble, and a clock."""

    def __init__(self, seed: int) -> None:
        self.llm = SpecFuseChatModel(
            members=demo("small"),
            max_tokens=20,
            method=Method(exit="never"),
            trace="off",
            max_concurrency=10**6,
        )
        self.clock, self.seed = Clock(), seed

    def text(self, chance: random.Random, words: int) -> str:
        """So many words of the notes, from a random place."""
        known = NOTES.split() * (1 + words // 200)
        at = chance.randrange(200)
        return " ".join(known[at : at + words])

    async def segments(self, text: str, **options: Any) -> AsyncIterator[float]:
        """When each segment of the answer came."""
        async for chunk in self.llm.astream(text, **options):
            if chunk.text:
                yield self.clock.now()

    async def arriving(self, rate: float, count: int) -> Times:
        """This many questions, ``rate`` a second on average; with a rate of 0 each waits for the
        answer before it."""
        chance, times, under_way = random.Random(self.seed), Times(), set[Any]()
        when = self.clock.now()
        for _ in range(count):
            if rate:
                when += chance.expovariate(rate)
                await self.clock.until(when, lambda: not under_way)
            else:
                await asyncio.gather(*under_way)
                when = self.clock.now()
            asked = asyncio.create_task(
                self._ask(times, when, self.text(chance, chance.randint(5, 50)))
            )
            under_way.add(asked)
            asked.add_done_callback(under_way.discard)
            await asyncio.sleep(0)
        await asyncio.gather(*under_way)
        return times

    async def _ask(self, times: Times, since: float, text: str) -> None:
        # an answer may be empty
        ends = [at async for at in self.segments(text)] or [self.clock.now()]
        times.first.append(ends[0] - since)
        times.whole.append(ends[-1] - since)


async def rates(load: Load, arrivals: int) -> list[dict[str, float]]:
    alone = await load.arriving(0, max(arrivals // 2, 2))
    rows = []
    for rate in RATES:
        first = (await load.arriving(rate / mean(alone.whole), arrivals)).first
        row = {"rate": rate, "p50_to_alone": median(first) / median(alone.first)}
        row["p95_to_alone"] = percentile(first, 95) / percentile(alone.first, 95)
        rows.append({key: round(value, 2) for key, value in row.items()})
        print(rows[-1], flush=True)
    return rows


class Bystanders:
    """Some who ask one question after another, and the times between the segments of each
    answer."""

    def __init__(self, load: Load) -> None:
        self._load, self._chance = load, random.Random(load.seed)
        self._tasks: list[asyncio.Task[None]] = []
        self.gaps: list[float] = []

    async def _ask(self) -> None:
        while True:
            before = None
            text = self._load.text(self._chance, 30)
            async for now in self._load.segments(text, max_tokens=100):
                if before is not None:
                    self.gaps.append(now - before)
                before = now

    async def __aenter__(self) -> Bystanders:
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(BYSTANDERS)]
        return self

    async def __aexit__(self, *_: Any) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def during(self, work: Callable[[], Awaitable[None]]) -> list[float]:
        """The times between segments while this work goes on."""
        self.gaps.clear()
        await work()
        return list(self.gaps)


async def stall(load: Load, count: int, tokens: int) -> dict[str, Any]:
    """Times between segments of some answers, before and while a long question is read."""
    text = load.text(random.Random(load.seed), tokens * 3 // 4)

    async def wait() -> None:
        while len(others.gaps) < count * BYSTANDERS:
            await asyncio.sleep(0.005)

    async def ask() -> None:
        async for _ in load.segments(text, max_tokens=10):  # one segment
            pass

    async with Bystanders(load) as others:
        calm = await others.during(wait)
        beside = await others.during(ask)
    found = {"tokens": load.llm.get_num_tokens(text), "bystanders": BYSTANDERS}
    for name, values in {"calm": calm, "beside": beside}.items():
        shares = {"p50": median(values), "p95": percentile(values, 95), "longest": max(values)}
        found[name] = {key: round(value / median(calm), 2) for key, value in shares.items()}
    return found


async def measured(load: Load, arrivals: int, tokens: int) -> dict[str, Any]:
    await load.arriving(0, 3)  # warm up
    return {
        "rates": await rates(load, arrivals),
        "long": await stall(load, max(arrivals // 3, 2), tokens),
    }


def main() -> None:
    tiny = {"arrivals": 2, "long": 300}
    given = arguments(__file__, __doc__, tiny=tiny, arrivals=40, long=4000, seed=0).parse_args()
    load = Load(given.seed)
    found = asyncio.run(measured(load, given.arrivals, given.long))
    report(
        __file__,
        given,
        MEASURES,
        {"members": [member.name for member in load.llm.members], **found},
    )


if __name__ == "__main__":
    main()
