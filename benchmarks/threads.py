"""How fast one model writes beside other work, by the number of its threads.

The larger model of a demo ensemble answers one question. Meanwhile, from none to ``--busy`` other
processes keep one core busy each. Measured are the tokens a second with each number of threads and
with the default, which finds the number by measuring. Ways run in turn, in processes of their own;
each process loads the model once.

    python benchmarks/threads.py [--repeats 3] [--tokens 56] [--busy 1] [--small] [--tiny]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from common import STORY, apart, arguments, query, question, report

from langchain_specfuse import LlamaCppMember
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.demo import ENSEMBLES, file_of
from langchain_specfuse.members.llamacpp.threads import most_threads

MEASURES = ("members/local", "members/llamacpp")
"""The parts of the package that decide these figures."""


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that keep a core busy each."""
    spin = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for other in others:
            assert other.stdout is not None
            other.stdout.readline()  # it is busy now
        yield
    finally:
        for other in others:
            with other:
                other.kill()


def answers(size: str, use: int | None, tokens: int, busy: int) -> list[dict[str, Any]]:
    """The speed and the text of an answer beside none to ``busy`` processes. ``use``: a number of
    threads; None: it is measured, anew for each answer."""
    if use is None:
        os.environ.pop("OMP_NUM_THREADS", None)
    else:
        os.environ["OMP_NUM_THREADS"] = str(use)
    one = max(ENSEMBLES[size], key=lambda weights: weights.size)
    member = LlamaCppMember(file_of(one), n_gpu_layers=0)
    member.probe()
    assert member.cache is not None
    weights = member.cache.weights  # they stay in memory
    found = []
    for count in range(busy + 1):
        member.unload()
        member.probe()
        assert member.cache.weights is weights
        with beside(count):
            found.append(answer(member, tokens))
    return found


def answer(member: LlamaCppMember, tokens: int) -> dict[str, Any]:
    job = DraftJob(query(question(STORY)), (), tokens, tokens, Sampling())
    since = time.perf_counter()
    (draft,) = member.draft([job])
    return {
        "tokens_per_s": len(draft.tokens) / (time.perf_counter() - since),
        "text": draft.text,
    }


def main() -> None:
    parser = arguments(
        __file__, __doc__, repeats=3, tokens=56, busy=1, tiny={"repeats": 1, "tokens": 12}
    )
    parser.add_argument("--small", action="store_true", help="the larger model of the small demo")
    given = parser.parse_args()
    size = "small" if given.small or getattr(given, "tiny", False) else "default"
    ways: dict[str, int | None] = {f"threads={n}": n for n in range(1, most_threads() + 1)}
    ways["default"] = None
    runs: list[dict[str, list[float]]] = [defaultdict(list) for _ in range(given.busy + 1)]
    texts: set[str] = set()
    for _ in range(given.repeats):
        for name, use in ways.items():
            some = apart(answers, size, use, given.tokens, given.busy)
            for speeds, run in zip(runs, some, strict=True):
                speeds[name].append(run["tokens_per_s"])
                texts.add(run["text"])
    found: dict[str, Any] = {}
    for count, speeds in enumerate(runs):
        middle = {name: round(median(some), 2) for name, some in speeds.items()}
        fixed = max(value for name, value in middle.items() if name != "default")
        found[f"{count} busy"] = {
            "tokens_per_s": middle,
            "default_to_best_fixed": round(middle["default"] / fixed, 3),
        }
    found["texts"] = len(texts)
    report(__file__, given, MEASURES, found)


if __name__ == "__main__":
    main()
