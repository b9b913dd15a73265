"""How much faster are eight questions at once than the same eight one after another?

Measured in turn in one run, as a ratio; beside it what the bare forward passes would allow (one decoding step of eight
rows against eight steps of one row). The answers are compared too.

    python benchmarks/throughput.py [--dtype bfloat16] [--queries 8] [--max-tokens 64] [--cpu-time]
"""

from __future__ import annotations

from typing import Any

import torch
from common import answered, arguments, demo, forward_passes, question, reported, text_of, timed, together
from transformers import DynamicCache

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.engine import Ensemble

# Stories, so that every answer uses its whole budget: an answer that ends early leaves the batch smaller.
HEROES = ("a miller", "a fox", "two sisters", "a storm", "the sea", "an old clock", "a dragon", "a lost dog")
STORIES = tuple(question(f"Tell me a long story about {hero}. Use many sentences.") for hero in HEROES)


@torch.inference_mode()
def bare_gain(model: Any, rows: int, width: int = 150, steps: int = 20) -> float:
    """Decoding steps of one row over decoding steps of many rows, through the model alone."""

    def spent(batch: int) -> float:
        cache = DynamicCache(config=model.config)
        prompt = torch.ones((batch, width), dtype=torch.long, device=model.device)
        token = torch.ones((batch, 1), dtype=torch.long, device=model.device)
        model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
        model(input_ids=token, past_key_values=cache)

        def decode() -> None:
            for _ in range(steps):
                model(input_ids=token, past_key_values=cache)

        return timed(decode)[0]

    return rows * spent(1) / spent(rows)


def measured(dtype: str, queries: int, max_tokens: int) -> dict[str, Any]:
    members = demo(dtype, prefix_cache=False)  # the same questions come twice: their prompts are read both times
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    settings = Settings(max_tokens=max_tokens, method=Method(exit="never", loop_guard=False))

    def ask(which: int) -> str:
        return text_of(answered(ensemble, STORIES[which % len(STORIES)], settings))

    with forward_passes() as passes:  # it warms up, too
        answered(ensemble, STORIES[0], Settings(max_tokens=8))
    models = list({id(model): model for model, _ in passes}.values())
    apart, alone = timed(lambda: [ask(which) for which in range(queries)])
    at_once, crowd = timed(lambda: together(ask, queries))
    return {
        "members": [m.name for m in members],
        "queries": queries,
        "max_tokens": max_tokens,
        "same_answers": sum(a == b for a, b in zip(alone, crowd, strict=True)),
        "seconds_one_after_another": round(apart, 2),
        "seconds_at_once": round(at_once, 2),
        "gain": round(apart / at_once, 2),
        "bare_decode_gain": {type(model).__name__: round(bare_gain(model, queries), 2) for model in models},
    }


def main() -> None:
    parser = arguments(__file__, __doc__, dtype=["bfloat16"])
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    given = parser.parse_args()
    reported(given, lambda dtype: measured(dtype, given.queries, given.max_tokens))


if __name__ == "__main__":
    main()
