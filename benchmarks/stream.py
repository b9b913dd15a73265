"""What does a lead's stream cost, compared with the client that people would use instead?

A server in a process of its own writes one prepared answer to everybody, at 120 tokens/s per stream.
Two clients in this process read it in turn, never at the same time: our chat model, and a reference.
``server``: a ``ServerMember`` beside a plain asyncio client that reads server-sent events.
``chat``: a ``ChatOpenAI`` as a member beside the same ``ChatOpenAI`` alone. Both are read with
``astream``. If the reference cannot deliver 95% of the server's rate, the server writes slower.

    python benchmarks/stream.py [--repeats 3] [--tokens 256] [--rate 120] [--tiny]
        [--at-once 1 32 96] [--pairs server chat]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from common import NOTES, QUESTIONS, arguments, report
from prepared import BEGIN, END, MODEL
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from langchain_specfuse import ServerMember, SpecFuseChatModel

MEASURES = (
    "core",
    "engine",
    "members/server",
    "members/chat_model",
    "members/text/words.py",
    "chat",
)
"""The parts of the package that decide these figures."""
AT_ONCE, TINY = (1, 32, 96), (1, 2)
FIRST_S = 0.05
"""The server's time to the first token."""
RATES = (1, 3 / 4, 1 / 2, 3 / 8, 1 / 4, 1 / 6, 1 / 8, 1 / 12, 1 / 16, 1 / 24)
"""Shares of the asked rate that are tried, one after another."""
ENOUGH = 0.95
"""The share of the server's rate that a reference must deliver."""
RATIO = {1: 0.97, 8: 0.97, 32: 0.95, 96: 0.85}
"""What is expected: tokens/s over those of the reference, by the number of answers at once."""
MOST_CPU_MS = {"server": 200.0}
"""CPU time of 1,000 tokens."""
MOST_CPU_RATIO = {"chat": 1.5}
"""CPU time over that of the reference."""
FIRST_TIMES, FIRST_MORE_S = 1.2, 0.005
"""The time to the first text: at most so many times that of the reference, plus this much."""
MOST_AT_ONCE = 256

Ask = Callable[[str], AsyncIterator[str]]


# --- the server -----------------------------------------------------------------------------------


def byte_level() -> Tokenizer:
    """A byte-level tokenizer, trained here."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=[BEGIN, END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([NOTES, *QUESTIONS], trainer)
    return tokenizer


@dataclass
class Prepared:
    """A running server, and what it writes."""

    url: str
    tokenizer: Tokenizer
    ids: Sequence[int]
    text: str
    rate: float
    """Tokens/s of each stream."""

    def asked(self) -> dict[str, float]:
        """How many answers and other things were requested, and the server's CPU time."""
        return self._request("/asked", {})

    def set_rate(self, rate: float) -> None:
        self._request("/rate", {"tokens_per_s": rate})
        self.rate = rate

    def _request(self, path: str, body: dict[str, float]) -> dict[str, float]:
        connection = HTTPConnection(self.url.removeprefix("http://"))
        with closing(connection):
            connection.request("POST", path, json.dumps(body))
            return dict(json.loads(connection.getresponse().read()))

    def tokens_per_s(self, at_once: int) -> float:
        """What a client can receive: the end of a turn takes the time of a token, too."""
        return at_once * len(self.ids) / (FIRST_S + len(self.ids) / self.rate)


@contextmanager
def prepared(tokens: int, rate: float) -> Iterator[Prepared]:
    tokenizer = byte_level()
    ids = tokenizer.encode(NOTES).ids[:tokens]
    given = {
        "tokenizer": tokenizer.to_str(),
        "answer": ids,
        "first_s": FIRST_S,
        "tokens_per_s": rate,
    }
    command = [sys.executable, str(Path(__file__).with_name("prepared.py"))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps(given), file=process.stdin, flush=True)
            url = f"http://127.0.0.1:{int(process.stdout.readline())}"
            yield Prepared(url, tokenizer, ids, tokenizer.decode(ids), rate)
        finally:
            process.terminate()


# --- clients --------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two ways to read the same answer."""

    reference: Ask
    ours: Ask


@asynccontextmanager
async def server_pair(server: Prepared) -> AsyncIterator[Pair]:
    limits = httpx2.Limits(max_connections=MOST_AT_ONCE)
    client = httpx2.AsyncClient(limits=limits, timeout=60.0)
    member = ServerMember(f"{server.url}/v1", MODEL, max_concurrency=MOST_AT_ONCE)

    async def plain(question: str) -> AsyncIterator[str]:
        prompt = f"{BEGIN}user\n{question}{END}\n{BEGIN}assistant\n"
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 1024, "stream": True}
        async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))["choices"][0]["text"]

    yield Pair(plain, asked(SpecFuseChatModel(members=[member], max_tokens=1024)))
    member.unload()
    await client.aclose()


@asynccontextmanager
async def chat_pair(server: Prepared) -> AsyncIterator[Pair]:
    from langchain_openai import ChatOpenAI

    alone, inside = (
        ChatOpenAI(
            model=MODEL,
            base_url=f"{server.url}/v1",
            api_key="none",  # type: ignore[arg-type]
            max_tokens=1024,  # type: ignore[call-arg]
            stream_usage=True,
            # langchain-openai keeps one client for an address for the life of the process; with an
            # object as its limit, a model has a client of its own, which may be closed
            timeout=httpx2.Timeout(600.0),  # type: ignore[call-arg]
        )
        for _ in range(2)
    )
    llm = SpecFuseChatModel(members=[inside], max_tokens=1024)
    yield Pair(asked(alone), asked(llm))
    llm.unload()
    for model in (alone, inside):
        model.root_client.close()
        await model.root_async_client.close()


def asked(llm: Any) -> Ask:
    async def ask(question: str) -> AsyncIterator[str]:
        async for chunk in llm.astream(question):
            yield chunk.text

    return ask


PAIRS = {"server": server_pair, "chat": chat_pair}


# --- measured -------------------------------------------------------------------------------------


@dataclass
class Wave:
    """Answers that were asked for at the same time, by one client."""

    tokens_per_s: float
    cpu_ms: float
    """CPU time of this process for 1,000 tokens."""
    first_s: Sequence[float]
    """When the first text of each answer came."""
    requests: float
    """Requests for tokens per answer."""
    other_requests: float


async def wave(server: Prepared, ask: Ask, at_once: int) -> Wave:
    before = server.asked()
    since, busy = time.perf_counter(), time.process_time()
    first_s = await asyncio.gather(*(_read(server, ask, number) for number in range(at_once)))
    wall, busy = time.perf_counter() - since, time.process_time() - busy
    count = at_once * len(server.ids)
    more = {key: value - before[key] for key, value in server.asked().items()}
    return Wave(
        tokens_per_s=count / wall,
        cpu_ms=1000 * busy / (count / 1000),
        first_s=first_s,
        requests=more["answers"] / at_once,
        other_requests=more["other"] / at_once,
    )


async def _read(server: Prepared, ask: Ask, number: int) -> float:
    """The time to the first text of an answer. Raises unless its text is the prepared one."""
    since, first_s, texts = time.perf_counter(), 0.0, []
    async for text in ask(f"{number}. {QUESTIONS[number % len(QUESTIONS)]}"):
        if text and not first_s:
            first_s = time.perf_counter() - since
        texts.append(text)
    if (received := "".join(texts)) != server.text:
        raise AssertionError(f"received {received!r}, expected {server.text!r}")
    return first_s


async def at_width(
    server: Prepared, name: str, at_once: int, pair: Pair, repeats: int, rate: float, enough: float
) -> dict[str, Any]:
    """The figures for one number of answers at once, at the highest rate at which the reference
    delivers enough."""
    for share in RATES:
        server.set_rate(rate * share)
        trials = [await wave(server, pair.reference, at_once) for _ in range(2)]  # one warms up
        best = max(trial.tokens_per_s for trial in trials)
        if best < enough * server.tokens_per_s(at_once):
            continue
        await wave(server, pair.ours, at_once)  # warm up
        runs = []
        for number in range(repeats):
            if number % 2:
                ours = await wave(server, pair.ours, at_once)
                reference = await wave(server, pair.reference, at_once)
            else:
                reference = await wave(server, pair.reference, at_once)
                ours = await wave(server, pair.ours, at_once)
            runs.append((reference, ours))
        delivered = median(reference.tokens_per_s for reference, _ in runs)
        if delivered >= enough * server.tokens_per_s(at_once):
            break
    else:
        raise RuntimeError(f"no rate is low enough for the reference of {name} at {at_once}")
    return figures(server, name, at_once, runs)


def figures(
    server: Prepared, name: str, at_once: int, runs: Sequence[tuple[Wave, Wave]]
) -> dict[str, Any]:
    sides = dict(zip(("reference", "specfuse"), zip(*runs, strict=True), strict=True))
    found: dict[str, Any] = {
        "pair": name,
        "at_once": at_once,
        "rate": round(server.rate, 1),
        "server_tokens_per_s": round(server.tokens_per_s(at_once), 1),
    }
    for side, waves in sides.items():
        first_s = [one for item in waves for one in item.first_s]
        found[side] = {
            "tokens_per_s": round(median(item.tokens_per_s for item in waves), 1),
            "cpu_ms_per_1000_tokens": round(median(item.cpu_ms for item in waves), 1),
            "first_ms": round(1000 * median(first_s), 1),
            "slowest_first_ms": round(1000 * max(first_s), 1),
        }
    found["ratio"] = round(median(b.tokens_per_s / a.tokens_per_s for a, b in runs), 3)
    found["cpu_ratio"] = round(median(b.cpu_ms / a.cpu_ms for a, b in runs), 2)
    found["requests"] = median(item.requests for item in sides["specfuse"])
    found["other_requests"] = median(item.other_requests for item in sides["specfuse"])
    found["missed"] = missed(found)
    return found


def missed(found: dict[str, Any]) -> list[str]:
    """The expectations that these figures do not meet."""
    name, reference, ours = found["pair"], found["reference"], found["specfuse"]
    expected = {
        "ratio": found["ratio"] >= RATIO.get(found["at_once"], 0.0),
        "cpu": ours["cpu_ms_per_1000_tokens"] <= MOST_CPU_MS.get(name, float("inf")),
        "cpu_ratio": found["cpu_ratio"] <= MOST_CPU_RATIO.get(name, float("inf")),
        "requests": found["requests"] == 1,
    }
    for key in ("first_ms", "slowest_first_ms"):
        expected[key] = ours[key] <= FIRST_TIMES * reference[key] + 1000 * FIRST_MORE_S
    return [key for key, is_met in expected.items() if not is_met]


HEADS = (
    f"{'pair':7}{'at once':>8}{'rate':>7}{'server':>9}{'reference':>11}{'specfuse':>10}{'ratio':>7}"
    f"{'CPU ms/1,000':>16}{'CPU ratio':>11}{'first, slowest ms':>20}{'requests':>10}{'other':>7}"
    "  missed"
)


def row(found: dict[str, Any]) -> str:
    reference, ours = found["reference"], found["specfuse"]
    cpu = f"{reference['cpu_ms_per_1000_tokens']:.0f} {ours['cpu_ms_per_1000_tokens']:.0f}"
    first = " ".join(
        f"{side[key]:.0f}" for key in ("first_ms", "slowest_first_ms") for side in (reference, ours)
    )
    return (
        f"{found['pair']:7}{found['at_once']:8}{found['rate']:7g}"
        f"{found['server_tokens_per_s']:9.0f}{reference['tokens_per_s']:11.0f}"
        f"{ours['tokens_per_s']:10.0f}{found['ratio']:7.3f}{cpu:>16}{found['cpu_ratio']:11.2f}"
        f"{first:>20}{found['requests']:10g}{found['other_requests']:7g}"
        f"  {', '.join(found['missed'])}"
    )


async def measured(
    pairs: Sequence[str],
    widths: Sequence[int],
    repeats: int,
    tokens: int,
    rate: float,
    enough: float = ENOUGH,
) -> list[dict[str, Any]]:
    found = []
    print(HEADS, flush=True)
    with prepared(tokens, rate) as server:
        for name in pairs:
            async with PAIRS[name](server) as pair:
                for at_once in widths:
                    found.append(await at_width(server, name, at_once, pair, repeats, rate, enough))
                    print(row(found[-1]), flush=True)
    return found


def main() -> None:
    tiny = {"repeats": 1, "tokens": 10, "rate": 1000}
    parser = arguments(__file__, __doc__, tiny=tiny, repeats=3, tokens=256, rate=120)
    parser.add_argument("--at-once", type=int, nargs="+", default=AT_ONCE)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=tuple(PAIRS))
    given = parser.parse_args()
    widths, enough = (TINY, 0.0) if given.tiny else (given.at_once, ENOUGH)
    found = asyncio.run(
        measured(given.pairs, widths, given.repeats, given.tokens, given.rate, enough)
    )
    report(__file__, given, MEASURES, {"streams": found})


if __name__ == "__main__":
    main()
