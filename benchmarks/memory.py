"""How do speed, memory and answers change when an ensemble may use less of one device's memory than it would like?

Four members with weights of their own (the demo's two, and each once more from a folder of its own, with a system
prompt; ``--small``: the smaller one three times), several questions at once. What the ensemble takes without a budget
is measured first: the high-water mark of its process over what the process took before it loaded anything. Then it gets
100, 75 and 50% of that as ``memory_budget``. Every budget has a process of its own, because the system reports the
high-water mark of a process. Speed is tokens per processor second (one thread), as a ratio.

    python benchmarks/memory.py [--dtype float32 bfloat16] [--questions 4] [--tokens 24] [--small]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import NOTES, about, arguments, demo, save, together

QUESTIONS = (
    "Who invented the lamp with a hollow wick?",
    "How did the keepers spend their time?",
    "What does a red sector tell a captain?",
    "Why were there rhythms of light?",
)
PROMPTS = ("Answer in one short sentence.", "Answer with an example.")


def status() -> dict[str, int]:
    """The system's own account of this process, in bytes."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[0] in ("VmHWM:", "VmRSS:")}


def members(dtype: str, copies: Path, small: bool) -> list[Any]:
    """The demo's two, and each once more with weights of its own; or its smaller one, three times."""
    from langchain_specfuse import TransformersMember

    found = demo(dtype)[: 1 if small else 2]
    for number, one in enumerate(found * (2 if small else 1)):
        folder = copies / f"{Path(one.spec['model']).name}-{number}"
        if not folder.exists():
            folder.symlink_to(one.spec["model"])
        changes = {"model": str(folder), "name": f"{one.name}, copy {number + 1}", "system_prompt": PROMPTS[number]}
        found.append(TransformersMember(**{**one.spec, **changes}))
    return found


def asked(given: argparse.Namespace) -> dict[str, Any]:
    """One budget, in this process: what was answered, how fast, and what it took."""
    import torch

    from langchain_specfuse import SpecFuseChatModel, TraceCallbackHandler

    torch.set_num_threads(1)
    some = members(given.dtype[0], Path(given.copies), given.small)
    bare = status()["VmRSS"]
    llm = SpecFuseChatModel(members=some, max_tokens=given.tokens, memory_budget=given.budget or None)
    paragraphs = NOTES.strip().split("\n\n")
    handlers = [TraceCallbackHandler() for _ in range(given.questions)]

    def ask(k: int) -> str:
        text = f"{paragraphs[k % len(paragraphs)]}\n\n{QUESTIONS[k % len(QUESTIONS)]}"
        return llm.invoke(text, {"callbacks": [handlers[k]]}).text

    since = time.process_time()
    answers = together(ask, given.questions)
    rounds = [one for handler in handlers for one in handler.trace.rounds]
    return {
        "members": [one.name for one in some],
        "answers": answers,
        "tokens": sum(one["drafts"][one["winner"]]["tokens"] for one in rounds),
        "tokens_read": sum(effort["read"] for one in rounds for by in one["tokens"].values() for effort in by.values()),
        "processor_seconds": round(time.process_time() - since, 2),
        "bytes": status()["VmHWM"] - bare,
    }


def in_its_own_process(budget: int, given: argparse.Namespace, dtype: str, copies: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--budget", str(budget), "--dtype", dtype, "--copies", copies]
    command += ["--questions", str(given.questions), "--tokens", str(given.tokens), *["--small"] * given.small]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(f"{dtype}, budget {budget / 1e6:.0f} MB: {found['bytes'] / 1e6:.0f} MB, {found['tokens']} tokens in "
          f"{found['processor_seconds']} processor seconds", flush=True)  # fmt: skip
    return found


def measured(given: argparse.Namespace, dtype: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as copies:
        free = in_its_own_process(0, given, dtype, copies)
        runs = {s: in_its_own_process(int(s * free["bytes"]), given, dtype, copies) for s in given.shares}
    speed = free["tokens"] / free["processor_seconds"]
    rows = [
        {
            "share": share,
            "budget_mb": round(share * free["bytes"] / 1e6),
            "high_water_over_bare_process_mb": round(one["bytes"] / 1e6),
            **{name: one[name] for name in ("tokens", "tokens_read", "processor_seconds")},
            "speed": round(one["tokens"] / one["processor_seconds"] / speed, 2),
            "same_answers": sum(a == b for a, b in zip(one["answers"], free["answers"], strict=True)),
        }
        for share, one in runs.items()
    ]
    about_all = {"members": free["members"], "questions": len(free["answers"]), "free_mb": round(free["bytes"] / 1e6)}
    return {"dtype": dtype, **about(given), **about_all, "budgets": rows, "answers": free["answers"]}


def main() -> None:
    parser = arguments(__file__, __doc__)
    parser.add_argument("--dtype", nargs="*", default=["float32"])
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--shares", type=float, nargs="*", default=[1.0, 0.75, 0.5])
    parser.add_argument("--small", action="store_true", help="the smaller of the demo's models three times")
    parser.add_argument("--budget", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--copies", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.copies:
        print(json.dumps(asked(given)))
    else:
        save(given.out, [measured(given, dtype) for dtype in given.dtype])


if __name__ == "__main__":
    main()
