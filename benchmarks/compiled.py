"""Does torch.compile pay for drafting on a CPU? The time that compiling takes, and what a step takes before and after.

The kindest case for it: the first layers of a real model, a cache of fixed size, one query, the same shapes at every
step, so that nothing is compiled twice. Processor seconds, those of the compiler's processes too. Steps of both
kinds take turns; told are medians.

    python benchmarks/compiled.py [--layers 6] [--dtype float32] [--steps 20] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from latency import machine
from transformers import AutoConfig, AutoModelForCausalLM, StaticCache

from langchain_specfuse.demo import demo_members

PROMPT, LENGTH = 200, 512


def seconds() -> float:
    """Processor seconds of this process and of those that it started and that have ended."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


class Drafting:
    """One text, a token at a time."""

    def __init__(self, model: Any, forward: Any) -> None:
        self.model, self.forward = model, forward
        self.cache = StaticCache(config=model.config, max_cache_len=LENGTH)
        self.at = PROMPT
        ids = torch.arange(PROMPT)[None] % 1000 + 50
        logits = model(input_ids=ids, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
        self.token = logits[:, -1].argmax(-1, keepdim=True)
        self.written: list[int] = []

    def step(self) -> None:
        where = torch.tensor([[self.at]])
        logits = self.forward(
            input_ids=self.token, position_ids=where, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        ).logits
        self.token = logits[:, -1].argmax(-1, keepdim=True)
        self.written.append(int(self.token))
        self.at += 1


@torch.inference_mode()
def measured(dtype: str, layers: int, steps: int, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    source = demo_members()[0].source.model
    config = AutoConfig.from_pretrained(source)
    config.num_hidden_layers = layers
    model = AutoModelForCausalLM.from_pretrained(source, config=config, dtype=getattr(torch, dtype)).eval()
    plain = Drafting(model, model.forward)
    fast = Drafting(model, torch.compile(model.forward, dynamic=False))
    plain.step()
    since = seconds()
    fast.step()
    fast.step()  # the second may compile once more
    compiling = seconds() - since
    plain.step()
    told: dict[str, list[float]] = {"plain": [], "compiled": []}
    for _ in range(rounds):
        for name, one in (("plain", plain), ("compiled", fast)):
            since = seconds()
            for _ in range(steps):
                one.step()
            told[name].append((seconds() - since) / steps)
    step = {name: median(some) for name, some in told.items()}
    saved = step["plain"] - step["compiled"]
    return {
        "dtype": dtype,
        "machine": machine(),
        "torch": torch.__version__,
        "model": Path(source).name,
        "layers": layers,
        "compile_seconds": round(compiling, 1),
        "plain_step_ms": round(step["plain"] * 1000, 1),
        "compiled_step_ms": round(step["compiled"] * 1000, 1),
        "faster": round(step["plain"] / step["compiled"], 2),
        "tokens_until_it_pays": round(compiling / saved) if saved > 0 else None,
        "same_tokens": plain.written == fast.written,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results = [measured(dtype, given.layers, given.steps, given.rounds) for dtype in given.dtype]
    print(json.dumps(results, indent=1))
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
