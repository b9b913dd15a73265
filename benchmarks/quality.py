"""Does the ensemble help where the members are real? The two models of the demo on published sets and on our own.

Every cell is a set, a panel (who answers) and what differs from the defaults. Told are each question's score, how
answers ended, who wrote them, and, of some cells, every draft with what each verifier said of it, so that other ways to
choose can be tried on the same drafts (``quality_choices.py``).

    python benchmarks/quality.py [--parts main,whole,...] [--only TEXT...] [--keep FOLDER]

Results are kept in ``quality.json`` cell by cell: started again, it goes on. ``--page`` writes ``docs/study-real.md``;
``--show SET N...`` prints the rounds of some questions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from quality_cells import PARTS, Cell
from quality_choices import Choice, choices_of, contrasted, overheard
from quality_long import said_again
from quality_members import Members
from quality_page import page
from quality_tasks import Set, sets
from variants import COUNTS, REWARDS, varied

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import Query, Round, Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import drive
from langchain_specfuse.evaluation import Question, Task
from langchain_specfuse.evaluation.running import counted
from langchain_specfuse.evaluation.tasks import digest

HERE = Path(__file__)
RESULTS = HERE.with_suffix(".json")
PAGE = HERE.parents[1] / "docs" / "study-real.md"
AT_ONCE = 32


# --- asking -----------------------------------------------------------------------------------------------------


@dataclass
class Answered:
    """One question's rounds, and what the members replied on the way."""

    question: Question
    rounds: list[Round]
    heard: list[Any]

    @property
    def text(self) -> str:
        return "".join(one.text for one in self.rounds)


def asked(ensemble: Ensemble, question: Question, settings: Settings, how: tuple[str, str]) -> Answered:
    query = Query(f"{question.id}-{time.perf_counter_ns()}", question.turns)
    panel = Panel.of(ensemble.seats(ensemble.loaded().result()))
    loop = varied(query, settings, panel, COUNTS[how[0]], REWARDS[how[1]]) if how[0] else rounds(query, settings, panel)
    heard: list[Any] = []
    return Answered(question, list(drive(overheard(loop, heard), query.id, ensemble.members)), heard)


def all_asked(
    ensemble: Ensemble, questions: Sequence[Question], settings: Settings, how: tuple[str, str]
) -> list[Answered]:
    """So many at once: the engine makes batches of them."""
    room, told = threading.Semaphore(AT_ONCE), dict[str, Answered]()

    def one(question: Question) -> None:
        with room:
            told[question.id] = asked(ensemble, question, settings, how)

    threads = [threading.Thread(target=one, args=(question,)) for question in questions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [told[question.id] for question in questions]


def summed(task: Task, told: Sequence[Answered]) -> dict[str, Any]:
    """One cell in numbers; scores by question, so that cells can be compared in pairs."""
    runs = [counted(one.rounds) for one in told]
    count = sum(run["rounds"] for run in runs)
    wins: Counter[str] = Counter()
    left: Counter[str] = Counter()
    for run in runs:
        for name, member in run["members"].items():
            wins[name] += int(member["wins"])
            left[name] += int(member["left"])
    open_rounds = sum(run["open"] for run in runs)
    grades = {one.question.id: task.grade(one.question, one.text) for one in told}
    return {
        "scores": {question: round(grade.score, 3) for question, grade in grades.items()},
        "numbers": means([grade.numbers for grade in grades.values()]),
        "finish": dict(Counter(run["finish"] for run in runs)),
        "tokens": round(statistics.fmean(run["tokens"] for run in runs), 1),
        "rounds": round(count / len(runs), 2),
        "members_a_round": round(sum(run["drafting"] for run in runs) / count, 2),
        "coinciding": round(sum(run["shared"] for run in runs) / open_rounds, 3) if open_rounds else None,
        "wins": {name: round(wins[name] / count, 3) for name in wins},
        "left": dict(left),
        "last_weights": means([one.rounds[-1].weights for one in told]),
        "looped": round(sum(run["looped"] for run in runs) / count, 3),
        "said_again": round(statistics.fmean(said_again(one.text) for one in told), 3),
    }


def means(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """name -> mean over the rows; a name that a row lacks counts as 0 there."""
    names = sorted({name for row in rows for name in row})
    return {name: round(statistics.fmean(row.get(name, 0.0) for row in rows), 3) for name in names}


def measured(cell: Cell, asks: Set, members: Members, keep: Path | None) -> dict[str, Any]:
    began, cpu = time.perf_counter(), time.process_time()
    ensemble = Ensemble(members.of(cell.panel))
    questions = asks.task.questions[: cell.first]
    told = all_asked(ensemble, questions, cell.settings(asks.task.max_tokens), cell.how)
    found = summed(asks.task, told)
    found |= {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    if cell.listens:
        choices = [choice for one in told for choice in choices_of(asks.task, one.question, one.rounds, one.heard)]
        found["choices"] = [choice.as_dict() for choice in judged(cell, choices, ensemble)]
    if keep:
        kept(keep, cell, told)
    return found


def judged(cell: Cell, choices: list[Choice], ensemble: Ensemble) -> list[Choice]:
    """Whole answers are also scored as answers to nothing in particular."""
    return contrasted(choices, ensemble) if cell.chosen.get("segment_tokens") == "all" else choices


def kept(folder: Path, cell: Cell, told: Sequence[Answered]) -> None:
    """All rounds, for people to read; no number comes from here."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": one.question.id, "rounds": [r.as_dict() for r in one.rounds]}) for one in told]
    (folder / (cell.name.replace(" | ", "__").replace("/", "-").replace(" ", "_") + ".jsonl")).write_text(
        "\n".join(lines)
    )


def mark(cell: Cell, asks: Set, members: Members) -> str:
    """Changes with all that can change a cell's results, but for the code."""
    settings = cell.settings(asks.task.max_tokens)
    specs = [[member.name, *sorted((k, v) for k, v in member.spec.items() if k != "model")]
             for member in members.of(cell.panel)]  # fmt: skip
    asking = [asks.task.fingerprint(question) for question in asks.task.questions[: cell.first]]
    return digest([specs, repr(settings), cell.how, asking, cell.listens])


# --- the call ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="default: %(default)s")
    parser.add_argument("--only", nargs="*", default=(), help="only cells whose names hold one of these")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write all rounds there, for people to read")
    parser.add_argument("--show", nargs="+", metavar=("SET", "ID"), help="print the rounds of these questions")
    parser.add_argument("--page", action="store_true", help="only write docs/study-real.md from the results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cells": {}}
    asks = sets()
    if given.show:
        show(asks[given.show[0]].task, given.show[1:], Members(given.dtype))
        return
    if not given.page:
        measure(results, asks, Members(given.dtype), given)
    PAGE.write_text(page(results, asks))


def measure(results: dict[str, Any], asks: Mapping[str, Set], members: Members, given: argparse.Namespace) -> None:
    """Fill in the cells that are not there or not as they are asked for now; save after each."""
    cells = [cell for part in given.parts.split(",") for cell in PARTS[part]()]
    results["dtype"] = given.dtype
    for cell in cells:
        if given.only and not any(text in cell.name for text in given.only):
            continue
        own = mark(cell, asks[cell.set], members)
        if results["cells"].get(cell.name, {}).get("mark") == own:
            continue
        found = measured(cell, asks[cell.set], members, given.keep)
        results["cells"][cell.name] = {"set": cell.set, "panel": cell.panel, "mark": own, **found}
        RESULTS.write_text(as_text(results))
        score = statistics.fmean(found["scores"].values())
        print(f"{cell.name}: {score:.3f}, {found['seconds']} s ({found['cpu_seconds']} s of processor)", flush=True)


def as_text(results: Mapping[str, Any]) -> str:
    """The results as JSON, a line for each cell.

    >>> as_text({"dtype": "float32", "cells": {"a": {"scores": {}}}}).split("\\n")
    ['{"dtype": "float32", "cells": {', '"a": {"scores": {}}', '}}', '']
    """
    cells = (f"{json.dumps(name)}: {json.dumps(cell, ensure_ascii=False)}" for name, cell in results["cells"].items())
    return f'{{"dtype": {json.dumps(results["dtype"])}, "cells": {{\n' + ",\n".join(cells) + "\n}}\n"


def show(task: Task, ids: Sequence[str], members: Members) -> None:
    """The rounds of some questions, to see what happens in them."""
    ensemble = Ensemble(members.of("both"))
    for question in (one for one in task.questions if one.id in ids):
        print(f"\n{question.text}")
        for r in asked(ensemble, question, Cell("").settings(task.max_tokens), ("", "")).rounds:
            print(f"round {r.number}: {r.winner} {r.segment.text!r}{' END' * r.segment.ended}")
            for name, draft in r.drafts.items():
                scores = {judge: f"{row[name]:.2f}" for judge, row in r.scores.items() if name in row}
                print(f"   {name:14} {draft.text!r:60}{' END' * draft.ended} total {r.totals[name]:.3f} {scores}")


if __name__ == "__main__":
    main()
