"""A crowd of two hundred questions, a third of them cancelled, on members with real caches."""

from __future__ import annotations

import gc
import random
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.desk import IDLE_S

from . import tiny

WORDS = [
    "why",
    "does",
    "the",
    "sea",
    "sing",
    "when",
    "nobody",
    "hears",
    "it",
    "and",
    "who",
    "counts",
    "its",
    "waves",
    "at",
    "night",
]


def _question(number: int) -> Query:
    chance = random.Random(number)
    text = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    return Query(f"soak-{number}-{time.perf_counter_ns()}", (Turn("user", text),))


def _settings(number: int) -> Settings:
    return Settings(
        max_tokens=8 + number % 17, segment_tokens=4, exit="never", score=("mean_prob", "mean_logprob")[number % 2]
    )


def test_two_hundred_questions_a_third_cancelled_leave_nothing_behind_and_all_others_are_right():
    members = [tiny.member("llama", 1), tiny.member("gemma3", 2)]
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    kinds = {number % 34: number for number in range(34)}
    alone = {
        kind: "".join(r.text for r in ensemble.rounds(_question(number), _settings(number)))
        for kind, number in kinds.items()
    }

    def ask(number: int) -> str | None:
        rounds = ensemble.rounds(_question(number % 34), _settings(number % 34))
        if number % 3 == 0:
            for _ in range(number % 4):
                next(rounds, None)
            rounds.close()
            return None
        return "".join(r.text for r in rounds)

    def crowd(numbers: range) -> list[str | None]:
        with ThreadPoolExecutor(16) as pool:
            return list(pool.map(ask, numbers))

    told = crowd(range(100))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told += crowd(range(100, 200))
    wrong = [number for number, text in enumerate(told) if text is not None and text != alone[number % 34]]
    assert not wrong
    assert sum(text is None for text in told) == 67
    deadline = time.monotonic() + 30
    while any(t.name.startswith("specfuse") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("specfuse")], f"threads after {IDLE_S} s"
    gc.collect()
    for member in members:
        assert not member.store.rows
        assert not member._memos
        assert member.store.capacity == (0, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 50_000, f"memory grew by {grown} KB in the second hundred"
