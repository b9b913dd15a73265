"""How long does vLLM take to score two drafts of ten tokens, in each way?

Scores of one question, with contexts of several lengths, and of many questions at once. The contexts
are in the prefix cache, as after a draft. ``SPECFUSE_VLLM_PYTHON`` names an environment with vLLM.

    python benchmarks/scorers.py [--repeats 3] [--crowd 24]
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

from common import arguments, report

from langchain_specfuse import VllmMember
from langchain_specfuse.core.values import Sampling
from langchain_specfuse.demo import SMOLLM2
from langchain_specfuse.members.server.dialect import Draw, Path, Scorer
from tests.members import engines

MEASURES = ("members/server",)
"""The parts of the package that decide these figures."""
CONTEXTS = (100, 300, 1500)
"""Lengths of the context of one question, in tokens."""
CROWDED = 300
"""The length of the context of each of many questions."""
TEXT = " ".join(f"{number} is a number, and so is {number * number}." for number in range(999))


def seconds(scorer: Scorer, questions: list[list[Path]]) -> tuple[float, float]:
    """Seconds by the clock and of this process, for questions that are asked at once."""
    since, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(len(questions)) as pool:
        list(pool.map(partial(scorer, "q"), questions))
    return time.perf_counter() - since, time.process_time() - used


def scorers(repeats: int, crowd: int) -> dict[str, Any]:
    """scorer -> seconds."""
    member = VllmMember(engines.folder(SMOLLM2), engine_args={"max_model_len": 4096})
    session = member._tokens()
    ids = session.prompts.words.encode(TEXT)

    def paths(at: int, size: int, turn: int) -> list[Path]:
        """Drafts that no other turn has."""
        context, drafts = ids[at : at + size], (ids[2000 + 20 * turn :], ids[6000 + 20 * turn :])
        return [Path((*context, *draft[:10]), size) for draft in drafts]

    def warm(at: int, size: int) -> None:
        session.dialect.draw(Draw("q", ids[at : at + size], 1, Sampling()))

    found: dict[str, Any] = {}
    for turn, (name, scorer) in enumerate(session.known.items()):
        row = found[name] = {}
        for size in CONTEXTS:
            warm(0, size)
            times = [seconds(scorer, [paths(0, size, 10 * turn + k)]) for k in range(repeats)]
            row[f"1 question, {size} tokens"] = round(median(time for time, _ in times), 3)
        for at in range(crowd):
            warm(7 * at, CROWDED)
        asked = [paths(7 * at, CROWDED, 100 + crowd * turn + at) for at in range(crowd)]
        taken, used = seconds(scorer, asked)
        row[f"{crowd} questions, {CROWDED} tokens"] = round(taken, 2)
        row["CPU time here, a question"] = round(used / crowd, 4)
        print(name, row, flush=True)
    member.unload()
    return found


def main() -> None:
    given = arguments(__file__, __doc__, repeats=3, crowd=24).parse_args()
    report(__file__, given, MEASURES, {"scorers": scorers(given.repeats, given.crowd)})


if __name__ == "__main__":
    main()
