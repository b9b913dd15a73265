"""Does a lead lose nothing by being corrected? Rules for when and by what evidence, on the demo's
two models.

The strong member (Qwen2.5-Coder-1.5B) leads, the weak one (SmolLM2-135M) is consulted. Every rule
answers the same questions; all replies are kept in a bank, so a rule that differs in few places
costs little. Reported are wins and losses against the lead alone, in total and on each set.

    python studies/lead.py --data FOLDER --sets math code --part tune --questions 20 \\
        --rules lead 0.4@0.5 vote

``questions.py`` lists the packages and files that the questions need. ``--table`` runs nothing; it
only compares existing results.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from common import commit, machine
from questions import PARTS, SETS, asked, graded
from side_by_side import SideBySide

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.demo import demo_members
from langchain_specfuse.evaluation import Plan, Results, Task, run
from langchain_specfuse.evaluation.bank import Bank, banked
from langchain_specfuse.evaluation.results import Result
from langchain_specfuse.evaluation.running import Progress, identity
from langchain_specfuse.evaluation.statistics import mcnemar
from langchain_specfuse.evaluation.systems import System

BALLOT = "ballot-"


def system_of(rule: str, members: Sequence[str], usual: Settings) -> System:
    """``lead``: the lead alone; ``vote``: all are equals; ``samples``: up to five whole answers of
    the lead, the most frequent number wins; ``SURE@MARGIN``; or ``ballot-SURE@MARGIN``, with drafts
    compared side by side."""
    lead = members[0]
    if rule == "samples":
        return System(rule, (lead,), replace(usual, result="number", samples=5))
    if rule == "vote":
        return System(rule, tuple(members), replace(usual, lead=None))
    method = Method(margin=math.inf)
    if rule != "lead":
        sure, margin = rule.removeprefix(BALLOT).split("@")
        method = Method(sure=float(sure), margin=float(margin))
    return System(rule, tuple(members), replace(usual, lead=lead, method=method))


def table(found: Sequence[Result], rules: Sequence[str], base: str) -> Iterator[dict[str, Any]]:
    """A row per rule and set, against the lead alone; the last row of each rule covers all sets."""
    by = {rule: {r.question: r for r in found if r.system == rule} for rule in rules}
    for rule, mine in by.items():
        both = [(one, by[base][question]) for question, one in mine.items() if question in by[base]]
        for kind in (*SETS, ""):
            pairs = [pair for pair in both if pair[0].question.startswith(kind)]
            if pairs:
                yield {"rule": rule, "set": kind or "all", **row(pairs)}


def row(pairs: Sequence[tuple[Result, Result]]) -> dict[str, Any]:
    wins = sum(a.score > b.score for a, b in pairs)
    losses = sum(a.score < b.score for a, b in pairs)
    rounds = max(sum(a.rounds for a, _ in pairs), 1)
    return {
        "questions": len(pairs),
        "right": sum(a.score for a, _ in pairs),
        "wins": wins,
        "losses": losses,
        "p": mcnemar(wins, losses),
        "changed": sum(a.answer != b.answer for a, b in pairs),
        "consulted": sum(a.open for a, _ in pairs) / rounds,
        "replaced": sum(a.replaced for a, _ in pairs) / rounds,
        "passes": sum(a.passes for a, _ in pairs) / max(sum(b.passes for _, b in pairs), 1),
        "seconds": math.fsum(a.work_s for a, _ in pairs)
        / max(math.fsum(b.work_s for _, b in pairs), 1e-9),
    }


def show(rows: Iterable[dict[str, Any]], out: Path | None) -> None:
    rows = list(rows)
    if out:
        about = {"commit": commit(), "date": f"{date.today()}", "machine": machine()}
        out.write_text(json.dumps([{**about, "rows": rows}], indent=1) + "\n")
    for one in rows:
        shown = {
            name: f"{value:.3f}" if isinstance(value, float) else value
            for name, value in one.items()
        }
        print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PARTS, default="tune")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--questions", type=int, default=60, help="of each set, at most")
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder of the sets that are not made here"
    )
    parser.add_argument("--rules", nargs="+", default=["lead", "0.4@0.5"])
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study"))
    parser.add_argument(
        "--table", action="store_true", help="only compare the answers that are there"
    )
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    given = parser.parse_args()
    base = "lead" if "lead" in given.rules else given.rules[0]
    if given.table:
        found = [
            one
            for file in given.folder.rglob("results.jsonl")
            for one in Results(file.parent).found()
        ]
        return show(table(found, given.rules, base), given.out)
    members = {member.name: member for member in demo_members()}
    bank = Bank(given.folder / "bank.sqlite")
    known: dict[str, Any] = banked(
        members, bank, {name: identity(member) for name, member in members.items()}
    )
    ballots = {rule.startswith(BALLOT) for rule in given.rules if rule != "lead"}
    if len(ballots) > 1:
        parser.error(
            "rules with a ballot and rules with scores need a run each; both may use one folder"
        )
    if ballots == {True}:
        known = {name: SideBySide(member) for name, member in known.items()}
    task = Task(
        "lead", asked(given.sets, given.part, given.questions, given.data), graded, "sets 1"
    )
    systems = [system_of(rule, list(members), Settings(max_tokens=256)) for rule in given.rules]
    with Results(given.folder / given.part) as results:
        found = run(
            Plan(task, tuple(systems), known, at_once=1), results, seen=Progress(sys.stderr)
        )
    return show(table(found, given.rules, base), given.out)


if __name__ == "__main__":
    main()
