"""How long from a process's start to the first segment, against the time that reading the weights takes?

Everything is on disk and in the system's file cache already. Each start has a process of its own; kinds take turns,
several times, and medians are told, in processor seconds on one thread (on a machine that others use, wall clock tells
mostly about them). The kinds:

bytes      the weights' files read into memory, piece by piece, and nothing else
weights    tokenizers and models loaded with transformers alone, and every weight looked at once
plain      the same, and then ten tokens written by each model with ``generate``
first      the demo ensemble's first segment, where no trial's verdict is kept yet
again      the demo ensemble's first segment, at every later start

    python benchmarks/startup.py [--dtype float32] [--repeats 3]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

QUESTION = "Why is the sky blue?"
KINDS = ("bytes", "weights", "plain", "first", "again")


class Marks:
    """Processor seconds since the process began, by what was done then."""

    def __init__(self) -> None:
        self.at: dict[str, float] = {}

    def __call__(self, name: str) -> None:
        self.at[name] = round(time.process_time(), 2)


def read_bytes(folders: list[Path], mark: Marks) -> None:
    mark("python")
    for file in (file for folder in folders for file in folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as opened:
            into = memoryview(bytearray(1 << 24))
            while opened.readinto(into):
                pass
    mark("end")


def loaded_plainly(folders: list[Path], dtype: str, mark: Marks, tokens: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    mark("imports")
    found = []
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        found.append((tokenizer, AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))))
        for weight in found[-1][1].parameters():
            weight.sum()
    mark("weights")
    if tokens:
        for tokenizer, model in found:
            ids = tokenizer(QUESTION, return_tensors="pt").input_ids
            model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
    mark("end")


def first_segment(dtype: str, mark: Marks) -> None:
    import torch

    from langchain_specfuse.core.values import Query, Settings, Turn
    from langchain_specfuse.demo import demo_members
    from langchain_specfuse.engine import Ensemble

    torch.set_num_threads(1)
    ensemble = Ensemble(demo_members(dtype=dtype))
    mark("imports")
    ensemble.loaded().result()
    mark("loaded")
    next(iter(ensemble.rounds(Query("q", (Turn("user", QUESTION),)), Settings(max_tokens=10))))
    mark("end")


def one(kind: str, dtype: str) -> dict[str, float]:
    """One start, in this process."""
    mark = Marks()
    if kind in ("first", "again"):
        first_segment(dtype, mark)
    else:
        folders = sorted(folder.parent for folder in Path(os.environ["SPECFUSE_CACHE"]).glob("*/config.json"))
        if kind == "bytes":
            read_bytes(folders, mark)
        else:
            loaded_plainly(folders, dtype, mark, 10 if kind == "plain" else 0)
    return mark.at


def started(kind: str, dtype: str, cache: Path) -> dict[str, float]:
    if kind == "first":
        for file in cache.glob("trials/*"):
            file.unlink()
    command = [sys.executable, __file__, "--kind", kind, "--dtype", dtype]
    env = os.environ | {"SPECFUSE_CACHE": str(cache), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    since = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    found["wall"] = round(time.perf_counter() - since, 2)
    print(f"  {kind}: {found}", flush=True)
    return found


def measured(dtype: str, repeats: int) -> dict[str, Any]:
    from langchain_specfuse.demo import cache_folder, demo_members

    names = [Path(member.source.model).name for member in demo_members()]  # unpacked now, if they were not
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for name in names:
            (cache / name).symlink_to(cache_folder() / name)
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(repeats):
            for kind in KINDS:
                runs[kind].append(started(kind, dtype, cache))
        size = sum(file.stat().st_size for name in names for file in (cache / name).glob("*.safetensors"))
    return summary(dtype, size, runs)


def summary(dtype: str, size: int, runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and starts as multiples of what the weights take."""
    middle = {k: {m: round(median(run[m] for run in some), 2) for m in some[0]} for k, some in runs.items()}
    from latency import machine

    return {
        "dtype": dtype,
        "machine": machine(),
        "clock": "processor seconds, one thread",
        "repeats": len(runs["again"]),
        "weights_mb": round(size / 1e6),
        "seconds": middle,
        "first_over_weights": round(middle["first"]["end"] / middle["weights"]["end"], 2),
        "again_over_weights": round(middle["again"]["end"] / middle["weights"]["end"], 2),
        "again_over_plain": round(middle["again"]["end"] / middle["plain"]["end"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(one(given.kind, given.dtype[0])))
        return
    results = [measured(dtype, given.repeats) for dtype in given.dtype]
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
