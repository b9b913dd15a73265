"""How much load does an ensemble bear, and what becomes of what is beyond it?

Questions arrive by chance (Poisson), whoever is still waiting: an open loop. Found by bisection: the highest rate at
which the 99th percentile of the time to the first segment stays under twice that of questions asked one by one. Then
twice as many come as can be answered, with a line that is bounded, one that is not, and with every tenth question
urgent. And one question of 8,000 tokens comes while others are answered, read in pieces and all at once.

Time is the processor time of this process: it stands still while others use the machine, and jumps to the next arrival
when there is nothing to do. Rates are told in answers per time that one answer takes alone. Members are random models
of a few million weights (or, with --demo, those of the demo), which never end by themselves.

    python benchmarks/load.py [--arrivals 200] [--seed 0] [--demo] [--only load|line|long]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import transformers
from latency import NOTES, machine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from langchain_specfuse import BusyError, SpecFuseChatModel
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import task
from langchain_specfuse.members.transformers import TransformersMember

TOKENS = 30
"""Of one answer: three rounds."""
LONG = 8000
BOUND = 2.0
AT_ONCE, WAITING = 8, 8
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


class Clock:
    """Processor seconds, without those in which there was nothing to do."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def now(self) -> float:
        return time.process_time() + self._skipped

    async def until(self, when: float, idle: Any) -> None:
        while (left := when - self.now()) > 0:
            if idle():
                self._skipped += left
            await asyncio.sleep(0.002)


def random_members() -> list[TransformersMember]:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1000, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([NOTES], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<s>", chat_template=TEMPLATE)
    return [TransformersMember(_model(seed, len(fast)), fast, name=f"random {seed}") for seed in (1, 2)]


def _model(seed: int, vocabulary: int) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(vocab_size=vocabulary, max_position_embeddings=2 * LONG, **sizes, **heads)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3.0)  # sharp: no near-ties
    return model


def question(chance: random.Random) -> str:
    words = NOTES.split()
    at, size = chance.randrange(len(words) - 80), chance.randint(5, 50)
    return " ".join(words[at : at + size])


@dataclass
class Seen:
    """What became of the questions of one run."""

    first: list[float] = field(default_factory=list)
    urgent: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    refused: int = 0
    hints: list[float] = field(default_factory=list)
    most_waiting: int = 0
    seconds: float = 0.0


class Crowd:
    """Questions to one ensemble, and a clock."""

    def __init__(self, members: Sequence[TransformersMember], seed: int) -> None:
        self.llm = SpecFuseChatModel(members=list(members), max_tokens=TOKENS, exit="never", trace="off")
        self.clock, self.seed = Clock(), seed

    async def segments(self, text: str, **options: Any) -> AsyncIterator[float]:
        """When each segment of the answer came."""
        async for chunk in self.llm.astream(text, **options):
            if chunk.text:
                yield self.clock.now()

    async def alone(self, count: int) -> Seen:
        chance, seen = random.Random(self.seed), Seen()
        for _ in range(count):
            since = self.clock.now()
            times = [at async for at in self.segments(question(chance))]
            seen.first.append(times[0] - since)
            seen.whole.append(self.clock.now() - since)
        return seen

    async def arriving(self, rate: float, count: int, *, urgent: float = 0.0, **options: Any) -> Seen:
        """So many questions, ``rate`` a second on average."""
        chance, seen, under_way = random.Random(self.seed), Seen(), set[Any]()
        line = self.llm._held.line if self.llm._held else None
        began = when = self.clock.now()
        for _ in range(count):
            when += chance.expovariate(rate)
            await self.clock.until(when, lambda: not under_way)
            first = chance.random() < urgent
            asked = asyncio.create_task(self._one(seen, when, question(chance), first, options))
            under_way.add(asked)
            asked.add_done_callback(under_way.discard)
            await asyncio.sleep(0)
            seen.most_waiting = max(seen.most_waiting, line.waiting if line else 0)
        await asyncio.gather(*under_way)
        seen.seconds = self.clock.now() - began
        return seen

    async def _one(self, seen: Seen, since: float, text: str, urgent: bool, options: dict[str, Any]) -> None:
        try:
            times = [at async for at in self.segments(text, **options, priority=1000 if urgent else 0)]
        except BusyError as error:
            seen.refused += 1
            seen.hints.append(error.retry_after_s)
            return
        (seen.urgent if urgent else seen.first).append(times[0] - since)
        seen.whole.append(times[-1] - since)


def at(share: float, values: Sequence[float]) -> float:
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


# --- the highest rate -------------------------------------------------------------------------------------------------


async def highest(crowd: Crowd, arrivals: int) -> dict[str, Any]:
    """By bisection, to a twentieth of what one answer after another allows."""
    lone = await crowd.alone(max(arrivals // 2, 20))
    whole, most = mean(lone.whole), BOUND * at(0.99, lone.first)
    told: list[dict[str, Any]] = []

    async def bears(rate: float) -> bool:
        seen = await crowd.arriving(rate / whole, arrivals)
        ratio = at(0.99, seen.first) / at(0.99, lone.first)
        row = {
            "rate": round(rate, 3),
            "p50_to_alone": round(median(seen.first) / median(lone.first), 2),
            "p99_to_alone": round(ratio, 2),
            "answers_per_lone_answer": round(arrivals * whole / seen.seconds, 2),
        }
        print(row, flush=True)
        told.append(row)
        return at(0.99, seen.first) < most

    low, high = 0.0, 1.0
    while await bears(high) and high < 16:
        low, high = high, 2 * high
    while high - low > 0.05:
        middle = (low + high) / 2
        low, high = (middle, high) if await bears(middle) else (low, middle)
    told.sort(key=lambda row: row["rate"])
    return {
        "lone_answer_s": round(whole, 4),
        "lone_first_p50_s": round(median(lone.first), 4),
        "lone_first_p99_s": round(at(0.99, lone.first), 4),
        "highest_rate": round(low, 3),
        "rates": told,
    }


async def capacity(crowd: Crowd, arrivals: int) -> float:
    """Answers a second when there is always enough to do."""
    seen = await crowd.arriving(1e6, arrivals)
    return arrivals / seen.seconds


async def overload(crowd: Crowd, arrivals: int, lone_s: float, lone_first_s: float) -> dict[str, Any]:
    """Twice as many as can be answered."""
    most = await capacity(crowd, arrivals // 2)
    ways: dict[str, dict[str, Any]] = {
        "no bounds": {"at_once": 10**6},
        "bounded": {"at_once": AT_ONCE, "max_waiting": WAITING},
        "bounded, a tenth urgent": {"at_once": AT_ONCE, "max_waiting": WAITING, "urgent": 0.1},
    }
    told: dict[str, Any] = {"capacity": round(most * lone_s, 2), "at_once": AT_ONCE, "max_waiting": WAITING, "ways": {}}
    for name, options in ways.items():
        seen = await crowd.arriving(2 * most, arrivals, **options)
        told["ways"][name] = {
            "answered": len(seen.whole),
            "refused": seen.refused,
            "most_waiting": seen.most_waiting,
            "p50_to_alone": round(median(seen.first) / lone_first_s, 1),
            "p99_to_alone": round(at(0.99, seen.first) / lone_first_s, 1),
            "urgent_p99_to_alone": round(at(0.99, seen.urgent) / lone_first_s, 1) if seen.urgent else None,
            "answers_per_lone_answer": round(len(seen.whole) * lone_s / seen.seconds, 2),
            "hint_in_lone_answers": round(median(seen.hints) / lone_s, 1) if seen.hints else None,
        }
        print(name, told["ways"][name], flush=True)
    return told


# --- one long question ------------------------------------------------------------------------------------------------


@contextmanager
def read_at_once() -> Iterator[None]:
    """As if nothing were ever read in pieces."""
    told, task._job = task._job, lambda one: one.job
    yield
    task._job = told


def long_text(member: TransformersMember, tokens: int) -> str:
    text = ""
    while len(member.token_ids(text)) < tokens:
        text += " " + NOTES
    words = text.split()
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(member.token_ids(" ".join(words[:middle]))) <= tokens else (low, middle - 1)
    return " ".join(words[:low])


async def gaps(crowd: Crowd, bystanders: int, text: str | None, count: int) -> tuple[list[float], float]:
    """The times between segments of others, while the long question is on its way to its first segment."""
    chance, told, over = random.Random(crowd.seed), [], asyncio.Event()
    ended = [float("inf")]

    def end() -> None:
        ended[0] = min(ended[0], crowd.clock.now())
        over.set()

    async def bystander() -> None:
        while not over.is_set():
            before = None
            async for now in crowd.segments(question(chance), max_tokens=100):
                if before is not None and before < ended[0]:
                    told.append(now - before)
                before = now
                if text is None and len(told) >= count:
                    end()

    async def long() -> float:
        if text is None:
            await over.wait()
            return 0.0
        while len(told) < 3 * bystanders:  # they are in the middle of it
            await asyncio.sleep(0.005)
        told.clear()
        first, since = 0.0, crowd.clock.now()
        async for now in crowd.segments(text, max_tokens=10):
            first = first or now - since
        end()
        return first

    asked = [asyncio.create_task(bystander()) for _ in range(bystanders)]
    first = await long()
    await asyncio.gather(*asked)
    return told, first


async def stalled(crowd: Crowd, member: TransformersMember, bystanders: int) -> dict[str, Any]:
    text = long_text(member, LONG)
    tokens = crowd.llm.get_num_tokens(text)
    calm, _ = await gaps(crowd, bystanders, None, 40 * bystanders)
    told: dict[str, Any] = {"tokens": tokens, "bystanders": bystanders, "segments": {"calm": len(calm)}}
    for way in ("in pieces", "at once"):
        member.drop_prefixes()
        for one in crowd.llm.members:
            one.drop_prefixes()
        if way == "at once":
            with read_at_once():
                seen, first = await gaps(crowd, bystanders, text, 0)
        else:
            seen, first = await gaps(crowd, bystanders, text, 0)
        told["segments"][way] = len(seen)
        told[way] = {
            "median": round(median(seen) / median(calm), 2),
            "p99": round(at(0.99, seen) / median(calm), 2),
            "longest": round(max(seen) / median(calm), 2),
            "first_segment_of_the_long_one": round(first / median(calm), 1),
        }
        print(way, told[way], flush=True)
    told["calm"] = {"p99": round(at(0.99, calm) / median(calm), 2), "longest": round(max(calm) / median(calm), 2)}
    return told


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--arrivals", type=int, default=200)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--demo", action="store_true")
    made.add_argument("--only", choices=("load", "line", "long"))
    made.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    given = made.parse_args()
    torch.set_num_threads(1)
    members = demo_members() if given.demo else random_members()
    crowd = Crowd(members, given.seed)
    report = json.loads(given.out.read_text())[0] if given.only and given.out.exists() else {}
    report |= {"machine": machine(), "clock": "processor seconds", "arrivals": given.arrivals, "seed": given.seed}
    report["members"] = [member.name for member in members]

    def kept() -> None:
        given.out.write_text(json.dumps([report], indent=1) + "\n")

    async def measured() -> None:
        await crowd.alone(3)  # warm up
        if given.only in (None, "load"):
            report["load"] = await highest(crowd, given.arrivals)
            kept()
        if given.only in (None, "line"):
            load = report["load"]
            report["line"] = await overload(crowd, given.arrivals, load["lone_answer_s"], load["lone_first_p50_s"])
            kept()
        if given.only in (None, "long"):
            report["long"] = {}
            for bystanders in (1, 4):
                report["long"][str(bystanders)] = await stalled(crowd, members[0], bystanders)
                kept()

    asyncio.run(measured())


if __name__ == "__main__":
    main()
