"""How do speed, memory and answers change when an ensemble may take less of one device's memory than it would like?

Four members with weights of their own (the demo's two, and each once more from a folder of its own, with a system
prompt; ``--small``: the smaller one three times), several questions at once. What the ensemble would like is measured
first, with all the memory there is: all weights, and the most that its caches ever held. Then it gets 100, 75 and 50%
of that. Every budget has a process of its own, so that the system's own high-water mark of its memory can be read; what
the process took before any weights were loaded is told beside it. Speed is tokens a processor second (one thread), told
as a ratio: on a machine that others use it is noisy, the tokens that had to be read again are not.

    python benchmarks/memory.py [--dtype float32 bfloat16] [--questions 4] [--tokens 24] [--small]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from langchain_specfuse.core.values import Query, Settings, Turn

QUESTIONS = (
    "Who invented the lamp with a hollow wick?",
    "How did the keepers spend their time?",
    "What does a red sector tell a captain?",
    "Why were there rhythms of light?",
)
ROOMY = 10**12


def status() -> dict[str, int]:
    """The system's own account of this process, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "VmRSS:")}


VOICES = ("Answer in one short sentence.", "Answer with an example.")


def members(dtype: str, copies: Path, small: bool) -> list[Any]:
    """The demo's two, and each once more with weights of its own; or its smaller one, three times."""
    from langchain_specfuse.demo import demo_members
    from langchain_specfuse.members.transformers import TransformersMember

    found = demo_members(dtype=dtype)[: 1 if small else 2]
    for number, one in enumerate(found * (2 if small else 1)):
        folder = copies / f"{Path(one.source.model).name}-{number}"
        if not folder.exists():
            folder.symlink_to(one.source.model)
        found.append(
            TransformersMember(
                str(folder),
                name=f"{one.name}, copy {number + 1}",
                dtype=dtype,
                chat_template=one.chat_template,
                repetition_penalty=one.repetition_penalty,
                system_prompt=VOICES[number],
            )
        )
    return found


def asked(total: int, given: argparse.Namespace) -> dict[str, Any]:
    """One budget, in this process: what was answered, how fast, and what it took."""
    import torch
    from latency import NOTES, machine

    from langchain_specfuse.engine import Ensemble
    from langchain_specfuse.members._budget import Budget

    torch.set_num_threads(1)
    budget = Budget(total)
    some = members(given.dtype[0], Path(given.copies), given.small)
    for one in some:
        one.within(budget)
    bare = status()["VmRSS"]
    ensemble = Ensemble(some)
    ensemble.loaded().result()
    paragraphs = NOTES.strip().split("\n\n")
    told: dict[int, list[Any]] = {}
    most = {"weights": 0, "caches": 0, "together": 0}

    def ask(k: int) -> None:
        text = f"{paragraphs[k % len(paragraphs)]}\n\n{QUESTIONS[k % len(QUESTIONS)]}"
        told[k] = []
        for item in ensemble.rounds(Query(f"q{k}", (Turn("user", text),)), Settings(max_tokens=given.tokens)):
            told[k].append(item)
            weights, caches = budget.held["cpu"]
            for name, size in (("weights", weights), ("caches", caches), ("together", weights + caches)):
                most[name] = max(most[name], size)

    since, wall = time.process_time(), time.perf_counter()
    threads = [threading.Thread(target=ask, args=(k,)) for k in range(given.questions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.process_time() - since
    drawn = sum(len(item.drafts[item.winner].tokens) for rounds in told.values() for item in rounds)
    allowance = budget.on("cpu")
    assert allowance is not None
    return {
        "machine": machine(),
        "torch": torch.__version__,
        "members": [one.name for one in some],
        "answers": ["".join(item.text for item in told[k]) for k in sorted(told)],
        "tokens": drawn,
        "processor_seconds": round(seconds, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "weights_of_all": sum(one._weights.shelf.size for one in some),
        "most_held": most,
        "weights_moved": allowance.moves,
        "tokens_read": sum(
            effort.read
            for rounds in told.values()
            for r in rounds
            for by in r.efforts.values()
            for effort in by.values()
        ),
        "bare_process": bare,
        "high_water_mark": status()["VmHWM"],
    }


def in_its_own_process(total: int, given: argparse.Namespace, dtype: str, copies: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(total), "--dtype", dtype, "--copies", copies]
    command += ["--questions", str(given.questions), "--tokens", str(given.tokens)]
    command += ["--small"] if given.small else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    held = found["most_held"]["together"] / 1e6
    print(
        f"{dtype}, {total / 1e6:.0f} MB: held {held:.0f} MB, high water {found['high_water_mark'] / 1e6:.0f} MB, "
        f"{found['tokens']} tokens in {found['processor_seconds']} processor seconds, {found['weights_moved']} moves",
        flush=True,
    )
    return found


def measured(given: argparse.Namespace, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as copies:
        free = in_its_own_process(ROOMY, given, dtype, copies)
        budgets = {share: int(share * wanted(free)) for share in given.shares}
        found = {share: in_its_own_process(total, given, dtype, copies) for share, total in budgets.items()}
    return summary(dtype, free, found)


def wanted(free: dict[str, Any]) -> int:
    """What the ensemble takes with all the memory there is, in bytes."""
    return int(free["weights_of_all"] + free["most_held"]["caches"])


def summary(dtype: str, free: dict[str, Any], found: dict[float, dict[str, Any]]) -> dict[str, Any]:
    """A row for each budget, by its share of what the ensemble would like."""
    speeds = {share: one["tokens"] / one["processor_seconds"] for share, one in found.items()}
    rows = [
        {
            "share": share,
            "budget_mb": round(share * wanted(free) / 1e6),
            "most_held_mb": round(one["most_held"]["together"] / 1e6),
            "most_weights_mb": round(one["most_held"]["weights"] / 1e6),
            "most_caches_mb": round(one["most_held"]["caches"] / 1e6),
            "high_water_over_bare_process_mb": round((one["high_water_mark"] - one["bare_process"]) / 1e6),
            **{name: one[name] for name in ("tokens", "tokens_read", "processor_seconds", "weights_moved")},
            "speed": round(speeds[share] / speeds[max(speeds)], 2),
            "same_answers": sum(a == b for a, b in zip(one["answers"], free["answers"], strict=True)),
        }
        for share, one in found.items()
    ]
    return {
        "dtype": dtype,
        **{name: free[name] for name in ("machine", "torch", "members")},
        "questions": len(free["answers"]),
        "weights_mb": round(free["weights_of_all"] / 1e6),
        "caches_mb": round(free["most_held"]["caches"] / 1e6),
        "budgets": rows,
        "answers": free["answers"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--shares", type=float, nargs="*", default=[1.0, 0.75, 0.5])
    parser.add_argument(
        "--small", action="store_true", help="the smaller of the demo's models three times, not four members"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--copies", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(asked(given.one, given)))
        return
    results = [measured(given, dtype) for dtype in given.dtype]
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
