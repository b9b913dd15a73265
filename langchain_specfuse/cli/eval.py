"""``langchain-specfuse eval``: members alone, the ensemble and its variants on a task, and what
that shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ..chat.options import settings
from ..errors import UsageError, advised, amount
from .choices import (
    CODES,
    PROGRAM,
    add_answer,
    add_members,
    ensemble_of,
    new_parser,
    options_of,
    say,
    whole,
)

CHECKERS = "exact, number, contains, regex, choice, or FILE.py:FUNCTION"


def parser() -> argparse.ArgumentParser:
    made = new_parser(
        "eval",
        "Does the ensemble help on these questions? Runs every member alone, the ensemble, and "
        "whatever else --systems "
        "names. Stop it at any time; started again, it continues.",
        f"for example: {PROGRAM} eval questions.jsonl --checker contains --members A B C. {CODES}",
    )
    made.add_argument(
        "task", metavar="FILE.jsonl", help="the questions: a line each, with input and reference"
    )
    made.add_argument("--checker", metavar="C", help=f"{CHECKERS}, for lines that name none")
    add_allow_code(made)
    made.add_argument("--limit", type=whole, metavar="N", help="only the first N questions")
    systems = (
        "singles, ensemble (both by default), a member, surest, synthesis, vote, lead-alone, "
        "NAME:key=value,..."
    )
    made.add_argument(
        "--systems", nargs="+", metavar="S", default=["singles", "ensemble"], help=systems
    )
    made.add_argument(
        "--seeds",
        type=whole,
        nargs="+",
        metavar="N",
        default=[0],
        help="ask everything once per seed",
    )
    made.add_argument(
        "--out", metavar="DIR", help="folder of results and reports (default: specfuse-eval/FILE)"
    )
    made.add_argument(
        "--record",
        metavar="FILE",
        help="keep all replies of the members in this "
        "file, and compute only "
        "those that it does not have",
    )
    add_common(made)
    return made


def add_allow_code(made: argparse.ArgumentParser) -> None:
    """The flag that lets a file of questions name code."""
    made.add_argument(
        "--allow-code",
        action="store_true",
        help="run a FILE.py:FUNCTION that a line of the questions names as its checker",
    )


def add_common(made: argparse.ArgumentParser) -> None:
    """Arguments of ``eval`` and ``doctor``."""
    made.add_argument("--json", action="store_true", help="print the report as JSON")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_members(made)
    add_answer(made, "max_concurrency", "timeout", max_tokens="the task's")


def run(given: argparse.Namespace, stand_ins: Sequence[Any] | None, out: TextIO) -> bool:
    """Evaluate; whether any question could be answered."""
    from ..evaluation import Plan, Results, chosen, jsonl, summary, table
    from ..evaluation import run as evaluate
    from ..evaluation.bank import Bank, banked
    from ..evaluation.running import Progress, identity
    from ..evaluation.statistics import numpy

    numpy()
    if given.limit is not None and given.limit < 1:
        raise advised(
            UsageError(f"--limit must be at least 1, got {given.limit}"),
            "leave it out for all questions",
        )
    task = jsonl(given.task, given.checker, allow_code=given.allow_code).first(given.limit)
    options = options_of(given, max_tokens=task.max_tokens, seed=0)
    members = ensemble_of(given, stand_ins).members
    names, writing = list(members), len(members) - len(given.verifiers or ())
    systems = chosen(given.systems, names[:writing], settings(options), names[writing:])
    if len(set(given.seeds)) > 1 and not any(
        system.settings.sampling.temperature for system in systems
    ):
        raise advised(
            UsageError("several seeds, but nothing is sampled"),
            "add --temperature, or give one seed",
        )
    seeds, at_once = tuple(dict.fromkeys(given.seeds)), options["max_concurrency"]
    if given.record:
        members = banked(
            members, Bank(given.record), {name: identity(one) for name, one in members.items()}
        )
    plan = Plan(task, tuple(systems), members, seeds, at_once, options["timeout"])
    folder = Path(given.out or f"specfuse-eval/{task.name}")
    if not given.quiet:
        what = (
            f"{amount(len(task.questions), 'question')} of {task.name}, "
            f"{amount(len(systems), 'system')}"
        )
        say(f"{what}, results in {folder}")
    with Results(folder) as results:
        seen = None if given.quiet else Progress(sys.stderr)
        found = evaluate(plan, results, seen=seen)
    report = summary(plan, found)
    (folder / "report.json").write_text(
        json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8"
    )
    print(json.dumps(report.as_dict()) if given.json else table(report), file=out)
    if not given.quiet:
        say(f"every answer with its grade: {results.path}")
    return any(not result.error for result in found)
