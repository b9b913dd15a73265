"""Does a lead lose nothing by being corrected? Rules for when and by what evidence, on the demo's two models.

The strong member (Qwen2.5-Coder-1.5B) leads, the weak one (SmolLM2-135M) is consulted. Every rule answers the same
questions; all replies are kept in a bank, so a rule that differs in few places costs little. Reported are wins and
losses against the lead alone.

    python studies/lead.py --part tune [--questions 60] [--rules lead 0.4@0.5 vote]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.core.values import Turn
from langchain_specfuse.demo import demo_members
from langchain_specfuse.evaluation import Plan, Results, Task, run
from langchain_specfuse.evaluation.bank import Bank, banked
from langchain_specfuse.evaluation.checkers import Question, number
from langchain_specfuse.evaluation.results import Result
from langchain_specfuse.evaluation.running import Progress, identity
from langchain_specfuse.evaluation.statistics import mcnemar
from langchain_specfuse.evaluation.systems import System

ASKED = "{}\nThink step by step, briefly. Then write #### and the final number."
PARTS = ("tune", "calibrate", "sealed")


def part_of(text: str) -> str:
    """Questions are split by their hash: what one part holds depends on no other question."""
    return PARTS[int(hashlib.sha256(text.encode()).hexdigest(), 16) % 3]


def gsm8k(folder: Path) -> list[Question]:
    """The questions of the published training split that are at hand."""
    lines = [json.loads(line) for line in (folder / "gsm8k-train-sample.jsonl").read_text().splitlines()]
    return [_question(f"gsm8k {n}", line["question"], line["answer"]) for n, line in enumerate(lines)]


def procedural(count: int, seed: int = 7) -> list[Question]:
    """Grade-school problems made from templates (reasoning-gym)."""
    import reasoning_gym

    data = reasoning_gym.create_dataset("gsm_symbolic", size=count, seed=seed)
    return [_question(f"symbolic {n}", one["question"], one["answer"]) for n, one in enumerate(data)]


def _question(name: str, text: str, answer: str) -> Question:
    text = text.split(" Give the result")[0]
    return Question(name, (Turn("user", ASKED.format(text)),), str(answer).replace(",", ""))


def rule_of(name: str, lead: str, usual: Settings) -> Settings:
    """``lead``; ``vote``; or ``SURE@MARGIN``."""
    if name == "vote":
        return replace(usual, lead=None)
    if name == "lead":
        return replace(usual, lead=lead, method=Method(margin=math.inf))
    sure, margin = name.split("@")
    return replace(usual, lead=lead, method=Method(sure=float(sure), margin=float(margin)))


def table(found: Sequence[Result], rules: Sequence[str], base: str) -> list[dict[str, Any]]:
    """A row per rule, against the lead alone."""
    by = {rule: {r.question: r for r in found if r.system == rule} for rule in rules}
    rows = []
    for rule, mine in by.items():
        both = [(mine[q], by[base][q]) for q in mine if q in by[base]]
        wins = sum(a.score > b.score for a, b in both)
        losses = sum(a.score < b.score for a, b in both)
        count, rounds = len(both), sum(a.rounds for a, _ in both)
        rows.append({
            "rule": rule, "questions": count, "right": sum(a.score for a, _ in both), "wins": wins, "losses": losses,
            "p": mcnemar(wins, losses), "changed": sum(a.answer != b.answer for a, b in both),
            "consulted": sum(a.open for a, _ in both) / max(rounds, 1),
            "replaced": sum(a.replaced for a, _ in both) / max(rounds, 1),
            "passes": sum(a.passes for a, _ in both) / max(sum(b.passes for _, b in both), 1),
            "seconds": sum(a.work_s for a, _ in both) / max(math.fsum(b.work_s for _, b in both), 1e-9),
        })  # fmt: skip
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        shown = {name: f"{one:.3f}" if isinstance(one, float) else one for name, one in row.items()}
        print("  ".join(f"{name} {one}" for name, one in shown.items()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="tune")
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--data", type=Path, required=True, help="the folder of gsm8k-train-sample.jsonl")
    parser.add_argument("--rules", nargs="+", default=["lead", "0.4@0.5"])
    parser.add_argument("--folder", type=Path, default=Path("specfuse-study"))
    parser.add_argument("--at-once", type=int, default=1)
    given = parser.parse_args()
    sets = [q for pair in zip(gsm8k(given.data), procedural(186), strict=False) for q in pair]
    asked = [q for q in sets if part_of(q.text) == given.part][: given.questions]
    members = {member.name: member for member in demo_members()}
    bank = Bank(given.folder / "bank.sqlite")
    known = banked(members, bank, {name: identity(member) for name, member in members.items()})
    task = Task("lead", tuple(asked), number, "number")
    usual = Settings(max_tokens=256)
    lead = next(iter(members))
    systems = [System(rule, tuple(members), rule_of(rule, lead, usual)) for rule in given.rules]
    plan = Plan(task, tuple(systems), known, at_once=given.at_once)
    with Results(given.folder / given.part) as results:
        found = run(plan, results, seen=Progress(sys.stderr))
    show(table(found, given.rules, "lead" if "lead" in given.rules else given.rules[0]))


if __name__ == "__main__":
    main()
