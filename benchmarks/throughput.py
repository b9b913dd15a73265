"""How much do eight queries at once gain over the same eight one after another?

Measured in turn in one run, as a ratio; beside it what the bare forward passes would allow (one decode step of eight
rows against eight steps of one row, with the members' own weights). The answers are compared too.

    python benchmarks/throughput.py [--dtype bfloat16] [--queries 8] [--max-tokens 64] [--cpu-time]
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import torch
from latency import CLOCK, clock, machine, reported, settled
from transformers import DynamicCache

from langchain_specfuse.core.values import Query, Settings, Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.engine import Ensemble

QUESTIONS = tuple(
    f"Tell me a long story about {hero}. Use many sentences."
    for hero in ("a miller", "a fox", "two sisters", "a storm", "the sea", "an old clock", "a dragon", "a lost dog")
)
"""Stories, so that every answer uses its whole budget: an answer that ends early leaves the batch smaller."""


def asked(ensemble: Ensemble, which: int, settings: Settings, answers: dict[int, str]) -> None:
    turns = (Turn("user", QUESTIONS[which % len(QUESTIONS)]),)
    query = Query(f"{which}-{time.perf_counter_ns()}", turns)
    answers[which] = "".join(r.text for r in ensemble.rounds(query, settings))


def one_after_another(ensemble: Ensemble, queries: int, settings: Settings) -> tuple[float, dict[int, str]]:
    answers: dict[int, str] = {}
    since = clock()
    for which in range(queries):
        asked(ensemble, which, settings, answers)
    return clock() - since, answers


def at_once(ensemble: Ensemble, queries: int, settings: Settings) -> tuple[float, dict[int, str]]:
    answers: dict[int, str] = {}
    threads = [threading.Thread(target=asked, args=(ensemble, i, settings, answers)) for i in range(queries)]
    since = clock()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return clock() - since, answers


@torch.inference_mode()
def bare_gain(model: Any, rows: int, width: int = 150, steps: int = 20) -> float:
    """Eight decode steps of one row over one decode step of eight rows, through the model alone."""

    def spent(batch: int) -> float:
        cache = DynamicCache(config=model.config)
        model(
            input_ids=torch.ones((batch, width), dtype=torch.long, device=model.device),
            past_key_values=cache,
            logits_to_keep=1,
        )
        token = torch.ones((batch, 1), dtype=torch.long, device=model.device)
        model(input_ids=token, past_key_values=cache)
        settled()
        since = clock()
        for _ in range(steps):
            model(input_ids=token, past_key_values=cache)
        settled()
        return clock() - since

    return rows * spent(1) / spent(rows)


def measured(dtype: str, queries: int, max_tokens: int) -> dict[str, Any]:
    members = demo_members(dtype=dtype)
    for member in members:
        member.prefix_cache = False  # the same questions come twice: both times their prompts are read
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    settings = Settings(max_tokens=max_tokens, exit="never", loop_guard=False)
    at_once(ensemble, queries, Settings(max_tokens=8))  # warm up
    apart, alone = one_after_another(ensemble, queries, settings)
    together, crowd = at_once(ensemble, queries, settings)
    bare = {m.name: round(bare_gain(m.store.read.model, queries), 2) for m in members}
    return {
        "dtype": dtype,
        "machine": machine(),
        "clock": CLOCK["name"],
        "torch": torch.__version__,
        "members": [m.name for m in members],
        "queries": queries,
        "max_tokens": max_tokens,
        "same_answers": sum(alone[i] == crowd[i] for i in range(queries)),
        "seconds_one_after_another": round(apart, 2),
        "seconds_at_once": round(together, 2),
        "gain": round(apart / together, 2),
        "bare_decode_gain": bare,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["bfloat16"])
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--cpu-time", action="store_true")
    told = parser.parse_args()
    reported(__file__, told, lambda dtype: measured(dtype, told.queries, told.max_tokens))


if __name__ == "__main__":
    main()
