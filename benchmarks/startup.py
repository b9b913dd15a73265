"""How long does a start take, up to the first segment, against the time that reading the weights takes?

Everything is on disk and in the system's file cache already. Each start has a process of its own; the kinds take turns,
several times. Reported are medians of processor seconds on one thread. The kinds:

bytes      the weights' files read into memory, piece by piece, and nothing else
weights    tokenizers and models loaded with transformers alone, and every weight looked at once
plain      the same, and then ten tokens written by each model with ``generate``
first      the demo ensemble's first segment, where no result of the cache's self-test is kept yet
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

from common import about, answered, arguments, demo, question, save

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

    from langchain_specfuse.core.method import Settings
    from langchain_specfuse.engine import Ensemble

    torch.set_num_threads(1)
    ensemble = Ensemble(demo(dtype))
    mark("imports")
    ensemble.loaded().result()
    mark("loaded")
    answered(ensemble, question(QUESTION), Settings(max_tokens=10))
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
    folders = [Path(member.spec["model"]) for member in demo(dtype)]  # unpacked now, if they were not
    with tempfile.TemporaryDirectory() as place:
        cache = Path(place)
        for folder in folders:
            (cache / folder.name).symlink_to(folder)
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for _ in range(repeats):
            for kind in KINDS:
                runs[kind].append(started(kind, dtype, cache))
    middle = {k: {m: round(median(run[m] for run in some), 2) for m in some[0]} for k, some in runs.items()}
    size = sum(file.stat().st_size for folder in folders for file in folder.glob("*.safetensors"))
    return {
        "clock": "processor seconds, one thread",
        "repeats": repeats,
        "weights_mb": round(size / 1e6),
        "seconds": middle,
        "first_over_weights": round(middle["first"]["end"] / middle["weights"]["end"], 2),
        "again_over_weights": round(middle["again"]["end"] / middle["weights"]["end"], 2),
        "again_over_plain": round(middle["again"]["end"] / middle["plain"]["end"], 2),
    }


def main() -> None:
    parser = arguments(__file__, __doc__, repeats=3)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(one(given.kind, given.dtype[0])))
    else:
        save(given.out, [{"dtype": d, **about(given), **measured(d, given.repeats)} for d in given.dtype])


if __name__ == "__main__":
    main()
