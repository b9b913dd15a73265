"""What does a constraint cost? Rounds under a JSON schema of 128 keys against rounds without one.

Both queries have the same prompt (the schema is told in it either way) and the same budget, and take turns in one run;
the first round of each answer, which reads the prompt, is left out. A round under a schema is often shorter (a draft
ends where forced text begins), so the cost of a token drawn is told beside the cost of a round.

    python benchmarks/constrained.py [--dtype float32 bfloat16] [--max-tokens 64] [--repeats 3] [--cpu-time]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from itertools import cycle, islice
from typing import Any

import torch
from common import demo
from latency import CLOCK, clock, machine, reported

from langchain_specfuse.constraints import referee_for
from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.referee import FREE
from langchain_specfuse.core.values import Constraint, Query, Round, Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.text.tools import instructions

KINDS = (
    {"type": "string", "maxLength": 60},
    {"type": "integer", "minimum": 0, "maximum": 9999},
    {"type": "boolean"},
    {"enum": ["low", "medium", "high"]},
    {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
    {"type": ["number", "null"]},
)
WORDS = ("name", "harbour", "height", "colour", "year", "keeper", "signal", "country")
KEYS = [f"{word}_{number}" for number in range(1, 17) for word in WORDS]
SCHEMA = {
    "type": "object",
    "properties": dict(zip(KEYS, islice(cycle(KINDS), len(KEYS)), strict=True)),
    "required": KEYS,
}
CONSTRAINT = Constraint("json_schema", json.dumps(SCHEMA))
TASK = "Make up a register of lighthouses and describe them."


def answered(ensemble: Ensemble, constraint: Constraint | None, budget: int) -> tuple[list[Round], list[float]]:
    """The rounds of one answer, and what each of them took."""
    turns = [Turn("user", TASK)]
    if constraint is None:
        turns.insert(0, Turn("system", instructions((), CONSTRAINT, native=False, own=None)))
    query = Query(f"{time.perf_counter_ns()}", tuple(turns), constraint=constraint)
    referee = referee_for(constraint) if constraint else FREE
    settings = Settings(max_tokens=budget, method=Method.named("robust", exit="never", loop_guard=False))
    rounds, seconds, since = [], [], clock()
    for round in ensemble.rounds(query, settings, referee=referee):
        now = clock()
        rounds.append(round)
        seconds.append(now - since)
        since = now
    return rounds, seconds


def costs(rounds: Sequence[Round], seconds: Sequence[float]) -> dict[str, float]:
    """Per round and per token drawn by all members, without the first round."""
    drawn = sum(len(draft.tokens) for round in rounds[1:] for draft in round.drafts.values())
    spent = sum(seconds[1:])
    return {"rounds": len(rounds) - 1, "drawn": drawn, "round": spent / (len(rounds) - 1), "token": spent / drawn}


def measured(dtype: str, budget: int, repeats: int) -> dict[str, Any]:
    ensemble = Ensemble(demo(dtype))
    ensemble.loaded().result()
    since = clock()
    answered(ensemble, CONSTRAINT, 8)  # warm up: vocabularies are read and the schema is compiled once
    first = clock() - since
    answered(ensemble, None, 8)
    bound, free = [], []
    for _ in range(repeats):
        bound.append(costs(*(told := answered(ensemble, CONSTRAINT, budget))))
        json.loads("".join(round.text for round in told[0]))
        free.append(costs(*answered(ensemble, None, budget)))
    best = {
        kind: {what: min(one[what] for one in runs) for what in runs[0]}
        for kind, runs in (("bound", bound), ("free", free))
    }
    return {
        "dtype": dtype,
        "machine": machine(),
        "clock": CLOCK["name"],
        "torch": torch.__version__,
        "keys": len(KEYS),
        "max_tokens": budget,
        "ms_per_round": {kind: round(told["round"] * 1000, 1) for kind, told in best.items()},
        "ms_per_token_drawn": {kind: round(told["token"] * 1000, 2) for kind, told in best.items()},
        "tokens_drawn_per_round": {kind: round(told["drawn"] / told["rounds"], 1) for kind, told in best.items()},
        "round_over_free": round(best["bound"]["round"] / best["free"]["round"], 3),
        "token_over_free": round(best["bound"]["token"] / best["free"]["token"], 3),
        "first_answer_seconds": round(first, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cpu-time", action="store_true")
    told = parser.parse_args()
    reported(__file__, told, lambda dtype: measured(dtype, told.max_tokens, told.repeats))


if __name__ == "__main__":
    main()
