"""The command ``specfuse doctor``: are these members good together, and which weights should they have?

Knows arguments and files; the work is done in ``evaluation``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ._command_choices import Parser, add_choices, members_of, settings_of
from .errors import UsageError, advised, amount

if TYPE_CHECKING:
    from .evaluation.doctor import Diagnosis
    from .evaluation.tasks import Task

MARKS = {"good": "ok   ", "watch": "watch", "bad": "BAD  "}


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="specfuse doctor",
        description="Are these members good together? Loads each, checks templates, stop tokens, scores and seams, "
        "measures each alone and together, and says which helps, which to leave out, and what weights to give.",
        epilog="exit codes: 0 fine, 1 a check failed, a checker raised or no question could be answered, "
        "2 a mistake in the call, 130 interrupted",
        allow_abbrev=False,
    )
    made.add_argument("--prompts", metavar="FILE", help="JSONL with input and reference, 20 lines or more (default: "
                      "built-in short questions)")  # fmt: skip
    made.add_argument("--checker", metavar="C", help="of --prompts: exact, number, contains, regex, choice, rouge1, "
                      "rouge2, rougeL, bleu, chrf, or FILE.py:FUNCTION")  # fmt: skip
    made.add_argument("--out", metavar="DIR", default="specfuse-doctor", help="where everything is kept (default: "
                      "specfuse-doctor): results, report.html, doctor.json, prior.json")  # fmt: skip
    made.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    made.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_choices(made)
    return made


def run(argv: Sequence[str], members: Sequence[Any] | None, out: TextIO) -> bool:
    """Diagnose; whether all is well. ``members`` stand in for the demo ensemble, for tests."""
    from .evaluation.doctor import answers_of, checked_task, diagnosed
    from .evaluation.progress import progress
    from .evaluation.results import Results

    given = parser().parse_args(argv)
    for name in ("verifiers", "prior"):
        if getattr(given, name):
            raise advised(UsageError(f"the doctor takes no --{name}"), "it measures members that write, from scratch")
    task = checked_task(_task(given))
    settings = settings_of(given, task.max_tokens)
    known, _, _ = members_of(given, members)
    folder = Path(given.out)
    if not given.quiet:
        print(f"specfuse: {amount(len(task.questions), 'prompt')}, results in {folder}", file=sys.stderr, flush=True)
    total = answers_of(len(known), len(task.questions))
    with Results(folder) as results, progress(total, sys.stderr, quiet=given.quiet) as seen:
        told = diagnosed(task, known, settings, results, seen=seen, at_once=given.at_once, timeout=given.timeout)
    _keep(told, task, folder)
    print(json.dumps(told.as_dict()) if given.json else text(told, folder), file=out)
    bad = any(finding.verdict == "bad" for finding in told.findings)
    unchecked = any(result.unchecked for result in told.results)
    return not bad and not unchecked and any(not result.error for result in told.results)


def _task(given: argparse.Namespace) -> Task:
    from .evaluation.builtin import jsonl, ungraded
    from .evaluation.prompts import prompts
    from .evaluation.tasks import questions_of

    if not given.prompts:
        if given.checker:
            raise advised(UsageError("--checker is for --prompts"), "the built-in prompts have their own checkers")
        return prompts()
    blank = not given.checker and not any(q.checker or q.reference is not None for q in questions_of(given.prompts))
    return ungraded(given.prompts) if blank else jsonl(given.prompts, given.checker)


def _keep(told: Diagnosis, task: Task, folder: Path) -> None:
    from .evaluation.page import page

    (folder / "doctor.json").write_text(json.dumps(told.as_dict(), indent=1) + "\n", encoding="utf-8")
    if told.prior:
        (folder / "prior.json").write_text(json.dumps(dict(told.prior), indent=1) + "\n", encoding="utf-8")
    if told.report:
        notes = [f"{f.member}, {f.check}: {f.text}" for f in told.findings if f.verdict != "good"]
        said = page(told.report, told.results, task, first=[*told.advice.lines, *notes])
        (folder / "report.html").write_text(said, encoding="utf-8")


def text(told: Diagnosis, folder: Path) -> str:
    """The diagnosis for people."""
    from .evaluation.report import table
    from .show.terminal import visible

    lines = ["Members"]
    for name in dict.fromkeys(finding.member for finding in told.findings):
        lines.append(f"  {name}")
        own = [finding for finding in told.findings if finding.member == name]
        lines += [f"    {MARKS[one.verdict]} {one.check}: {one.text}" for one in own]
    lines += ["", table(told.report, said=False)] if told.report else []
    lines += ["", "Advice", *(f"  - {line}" for line in told.advice.lines)]
    if told.prior:
        weights = ", ".join(f"{name} {weight:g}" for name, weight in told.prior.items())
        lines += ["", f"Prior (1 is neutral): {weights}; for prior=, and as {folder / 'prior.json'}"]
    return visible("\n".join(lines))
