"""The command ``specfuse eval``: members alone, the ensemble and its variants on a task, and what that shows.

Knows arguments and files; the work is done in ``evaluation``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ._command_choices import CODES, Parser, add_choices, members_of, prior_of, settings_of
from .errors import UsageError, advised, amount


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="specfuse eval",
        description="Does the ensemble help on these questions? Runs every member alone, the ensemble, and whatever "
        "else --systems names; can be stopped and started again at any time.",
        epilog="for example: specfuse eval gsm8k --members A B C --limit 50. " + CODES,
        allow_abbrev=False,
    )
    made.add_argument("task", metavar="TASK", help="gsm8k, ifeval, humaneval, or a JSONL file (input, reference)")
    made.add_argument("--checker", metavar="C", help="of a JSONL file: exact, number, contains, regex, choice, rouge1, "
                      "rouge2, rougeL, bleu, chrf, or FILE.py:FUNCTION")  # fmt: skip
    made.add_argument("--data", metavar="FILE", help="the file of gsm8k or ifeval, as it is published")
    made.add_argument("--limit", type=int, metavar="N", help="only the first N questions")
    made.add_argument(
        "--systems",
        nargs="+",
        metavar="S",
        default=["singles", "ensemble"],
        help="what is compared: singles, ensemble, ablations, a member's name, an ablation's name (no-feedback, "
        "no-exit, segment-4 ...), or NAME:key=value,key=value (default: singles ensemble)",
    )
    made.add_argument("--seeds", type=int, nargs="+", metavar="N", default=[0], help="ask everything once per seed")
    made.add_argument("--out", metavar="DIR", help="where results and reports are kept (default: specfuse-eval/TASK)")
    made.add_argument("--again", action="store_true", help="ask questions that failed again")
    made.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_choices(made)
    return made


def run(argv: Sequence[str], members: Sequence[Any] | None, out: TextIO) -> bool:
    """Evaluate; whether any question could be answered and no checker raised.

    ``members`` stand in for the demo ensemble, for tests.
    """
    from .evaluation import Plan, Results, chosen, page, summary, table, task_named
    from .evaluation import run as asked
    from .evaluation.progress import progress

    given = parser().parse_args(argv)
    task = task_named(given.task, data=given.data, checker=given.checker)
    if given.limit is not None and given.limit < 1:
        raise advised(UsageError(f"--limit must be at least 1, got {given.limit}"), "leave it out for all questions")
    task = task.first(given.limit)
    settings = settings_of(given, task.max_tokens)
    known, writing, voting = members_of(given, members)
    systems = chosen(given.systems, writing, settings, voting, prior_of(given, list(known)))
    if len(set(given.seeds)) > 1 and not any(system.settings.sampling.temperature for system in systems):
        raise advised(UsageError("several seeds, but nothing is left to chance"), "add --temperature, or one seed")
    plan = Plan(task, tuple(systems), known, tuple(dict.fromkeys(given.seeds)), given.at_once, given.timeout)
    folder = Path(given.out or f"specfuse-eval/{task.name}")
    if not given.quiet:
        asked_of = f"{amount(len(task.questions), 'question')} of {task.name}, {amount(len(systems), 'system')}"
        _say(f"{asked_of}, results in {folder}")
    if task.note and not given.quiet:
        _say(f"note: {task.note}")
    with Results(folder) as results:
        total = sum(len(plan.keys(system)) for system in systems)
        with progress(total, sys.stderr, quiet=given.quiet) as seen:
            found = asked(plan, results, seen=seen, again=given.again)
    report = summary(plan, found)
    (folder / "report.json").write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
    (folder / "report.html").write_text(page(report, found, task), encoding="utf-8")
    print(json.dumps(report.as_dict()) if given.json else table(report), file=out)
    if not given.quiet:
        _say(f"the same as a page: {folder / 'report.html'}")
    return any(not result.error for result in found) and not any(result.unchecked for result in found)


def _say(text: str) -> None:
    print(f"specfuse: {text}", file=sys.stderr, flush=True)
