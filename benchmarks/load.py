"""How much load does an ensemble bear, and what happens beyond it?

Questions arrive at random (Poisson), whether or not others still wait: an open loop. By bisection: the highest rate at
which the 99th percentile of the time to the first segment stays below twice that of questions asked one by one. Then
twice as many arrive as can be answered, with and without bounds. And one question of 8,000 tokens arrives while others
are answered.

Time is the processor time of this process: it stands still while others use the machine, and jumps to the next arrival
when there is nothing to do. Rates are answers in the time of one answer alone. Members are random models of a few
million weights (or, with --demo, those of the demo), which never end by themselves.

    python benchmarks/load.py [--arrivals 200] [--seed 0] [--demo] [--only load|overload|long]
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from typing import Any

import torch
import transformers
from common import NOTES, about, arguments, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from langchain_specfuse import BusyError, Method, SpecFuseChatModel
from langchain_specfuse.chat.members import ensemble_for
from langchain_specfuse.demo import demo_members
from langchain_specfuse.members.transformers.member import TransformersMember

TOKENS = 30
"""Of one answer: three rounds."""
LONG = 8000
BOUND = 2.0
MAX_CONCURRENCY, MAX_WAITING = 8, 8
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


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


@dataclass
class Outcome:
    """What became of the questions of one run."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    hints: list[float] = field(default_factory=list)
    """What refused questions were told: when to ask again, in seconds."""
    most_waiting: int = 0
    seconds: float = 0.0


class Load:
    """Questions to one ensemble, and a clock."""

    def __init__(self, members: Sequence[TransformersMember], seed: int) -> None:
        self.llm = SpecFuseChatModel(
            members=list(members), max_tokens=TOKENS, method=Method(exit="never"), trace="off", max_concurrency=10**6
        )
        self.clock, self.seed = Clock(), seed

    def question(self, chance: random.Random) -> str:
        words = NOTES.split()
        at, size = chance.randrange(len(words) - 80), chance.randint(5, 50)
        return " ".join(words[at : at + size])

    async def segments(self, text: str, **options: Any) -> AsyncIterator[float]:
        """When each segment of the answer came."""
        async for chunk in self.llm.astream(text, **options):
            if chunk.text:
                yield self.clock.now()

    async def one_by_one(self, count: int) -> Outcome:
        chance, outcome = random.Random(self.seed), Outcome()
        for _ in range(count):
            await self._ask(outcome, self.clock.now(), self.question(chance), {})
        return outcome

    async def arriving(self, rate: float, count: int, **options: Any) -> Outcome:
        """This many questions, ``rate`` a second on average."""
        chance, outcome, under_way = random.Random(self.seed), Outcome(), set[Any]()
        admission = ensemble_for(self.llm.members).admission
        began = when = self.clock.now()
        for _ in range(count):
            when += chance.expovariate(rate)
            await self.clock.until(when, lambda: not under_way)
            asked = asyncio.create_task(self._ask(outcome, when, self.question(chance), options))
            under_way.add(asked)
            asked.add_done_callback(under_way.discard)
            await asyncio.sleep(0)
            outcome.most_waiting = max(outcome.most_waiting, admission.waiting)
        await asyncio.gather(*under_way)
        outcome.seconds = self.clock.now() - began
        return outcome

    async def _ask(self, outcome: Outcome, since: float, text: str, options: dict[str, Any]) -> None:
        try:
            times = [at async for at in self.segments(text, **options)]
        except BusyError as error:
            outcome.hints.append(error.retry_after_s)
            return
        outcome.first.append(times[0] - since)
        outcome.whole.append(times[-1] - since)


def quantile(share: float, values: Sequence[float]) -> float:
    ranked = sorted(values)
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


async def highest_rate(load: Load, arrivals: int) -> dict[str, Any]:
    """By bisection, to a twentieth of what one answer after another allows."""
    alone = await load.one_by_one(max(arrivals // 2, 20))
    whole_s, alone_p99 = mean(alone.whole), quantile(0.99, alone.first)
    rows: list[dict[str, Any]] = []

    async def bears(rate: float) -> bool:
        outcome = await load.arriving(rate / whole_s, arrivals)
        row = {
            "rate": round(rate, 3),
            "p50_to_alone": round(median(outcome.first) / median(alone.first), 2),
            "p99_to_alone": round(quantile(0.99, outcome.first) / alone_p99, 2),
            "answers_per_lone_answer": round(arrivals * whole_s / outcome.seconds, 2),
        }
        print(row, flush=True)
        rows.append(row)
        return quantile(0.99, outcome.first) < BOUND * alone_p99

    low, high = 0.0, 1.0
    while await bears(high) and high < 16:
        low, high = high, 2 * high
    while high - low > 0.05:
        middle = (low + high) / 2
        low, high = (middle, high) if await bears(middle) else (low, middle)
    return {
        "lone_answer_s": round(whole_s, 4),
        "lone_first_p50_s": round(median(alone.first), 4),
        "highest_rate": round(low, 3),
        "rates": sorted(rows, key=lambda row: row["rate"]),
    }


async def overload(load: Load, arrivals: int, lone_s: float, lone_first_s: float) -> dict[str, Any]:
    """Twice as many as can be answered."""
    rate = arrivals // 2 / (await load.arriving(1e6, arrivals // 2)).seconds
    bounds = {"max_concurrency": MAX_CONCURRENCY, "max_waiting": MAX_WAITING}
    found: dict[str, Any] = {"capacity": round(rate * lone_s, 2), **bounds, "ways": {}}
    for name, options in {"no bounds": {}, "bounded": bounds}.items():
        outcome = await load.arriving(2 * rate, arrivals, **options)
        found["ways"][name] = {
            "answered": len(outcome.whole),
            "refused": len(outcome.hints),
            "most_waiting": outcome.most_waiting,
            "p50_to_alone": round(median(outcome.first) / lone_first_s, 1),
            "p99_to_alone": round(quantile(0.99, outcome.first) / lone_first_s, 1),
            "answers_per_lone_answer": round(len(outcome.whole) * lone_s / outcome.seconds, 2),
            "hint_in_lone_answers": round(median(outcome.hints) / lone_s, 1) if outcome.hints else None,
        }
        print(name, found["ways"][name], flush=True)
    return found


def long_text(member: TransformersMember) -> str:
    """A text of about LONG tokens."""
    words = (NOTES + " ").split() * 100
    per_word = len(member.token_ids(" ".join(words[:1000]))) / 1000
    return " ".join(words[: int(LONG / per_word)])


async def gaps(load: Load, bystanders: int, text: str | None) -> tuple[list[float], float]:
    """The times between segments of other answers while a long question is on its way to its first segment."""
    chance, found, over = random.Random(load.seed), list[float](), asyncio.Event()

    async def bystander() -> None:
        while not over.is_set():
            before = None
            async for now in load.segments(load.question(chance), max_tokens=100):
                if before is not None and not over.is_set():
                    found.append(now - before)
                before = now

    others = [asyncio.create_task(bystander()) for _ in range(bystanders)]
    while len(found) < (3 if text else 40) * bystanders:  # they are in the middle of their answers
        await asyncio.sleep(0.005)
    first = 0.0
    if text:
        found.clear()
        since = load.clock.now()
        (first,) = [now - since async for now in load.segments(text, max_tokens=10)]  # one segment
    over.set()
    await asyncio.gather(*others)
    return found, first


async def stall(load: Load, text: str, bystanders: int) -> dict[str, Any]:
    calm, _ = await gaps(load, bystanders, None)
    beside, first = await gaps(load, bystanders, text)
    found: dict[str, Any] = {"tokens": load.llm.get_num_tokens(text), "bystanders": bystanders}
    for name, values in {"calm": calm, "beside": beside}.items():
        shares = {"median": median(values), "p99": quantile(0.99, values), "longest": max(values)}
        found[name] = {key: round(value / median(calm), 2) for key, value in shares.items()}
    return found | {"first_segment_of_the_long_one": round(first / median(calm), 1)}


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--arrivals", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--demo", action="store_true")
    parser.add_argument("--only", choices=("load", "overload", "long"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    members = demo_members() if given.demo else random_members()
    load = Load(members, given.seed)
    report = json.loads(given.out.read_text())[0] if given.only and given.out.exists() else {}
    report |= {**about(given), "clock": "processor seconds", "members": [member.name for member in members]}

    async def measure() -> None:
        await load.one_by_one(3)  # warm up
        if given.only in (None, "load"):
            report["load"] = await highest_rate(load, given.arrivals)
        if given.only in (None, "overload"):
            alone = report["load"]
            report["overload"] = await overload(load, given.arrivals, alone["lone_answer_s"], alone["lone_first_p50_s"])
        if given.only in (None, "long"):
            text = long_text(members[0])
            # Texts that begin differently, or the second would find the first one's cache.
            report["long"] = {str(count): await stall(load, f"{count} {text}", count) for count in (1, 4)}

    asyncio.run(measure())
    save(given.out, [report])


if __name__ == "__main__":
    main()
