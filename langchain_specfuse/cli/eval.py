"""``langchain-specfuse eval``: is the ensemble better on these questions than each member alone?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ..core.options import Settings
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

if TYPE_CHECKING:
    from ..evaluation import System

GRADERS = "exact, number, contains, regex, choice, or FILE.py:FUNCTION"
SYSTEMS = ("singles", "ensemble")


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "eval",
        "Does the ensemble help on these questions? Asks every member alone and the ensemble, and "
        "compares them: wins, losses, exact p, cost. You can stop it at any time; "
        "the next run continues where it stopped.",
        f"for example: {PROGRAM} eval questions.jsonl --grader contains --members A B C. {CODES}",
    )
    parser.add_argument(
        "task",
        metavar="FILE.jsonl",
        help="the questions, one JSON object per line: input, reference",
    )
    add_grader(parser, f"{GRADERS}; for lines without one")
    parser.add_argument("--limit", type=whole, metavar="N", help="only the first N questions")
    parser.add_argument(
        "--systems",
        nargs="+",
        metavar="S",
        default=["singles", "ensemble"],
        help="what to ask: singles (each member alone), ensemble (both by default)",
    )
    parser.add_argument(
        "--seeds",
        type=whole,
        nargs="+",
        metavar="N",
        default=[0],
        help="ask everything once per seed",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder of the graded answers (default: specfuse-eval/FILE)"
    )
    add_common(parser)
    return parser


def add_grader(parser: argparse.ArgumentParser, meaning: str) -> None:
    """The grader of the questions, and the flag that lets their file name code."""
    parser.add_argument("--grader", metavar="G", help=meaning)
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="run a FILE.py:FUNCTION that a line of the questions names as its grader",
    )


def add_common(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``eval`` and ``doctor``."""
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_members(parser)
    add_answer(parser, "max_concurrency", "timeout", max_tokens="the task's")


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Evaluate. Returns whether any question could be answered."""
    from ..evaluation import Plan, Results, jsonl, summary, table
    from ..evaluation import run as evaluate
    from ..evaluation.running import Progress

    if arguments.limit is not None and arguments.limit < 1:
        raise advised(
            UsageError(f"--limit must be at least 1, got {arguments.limit}"),
            "leave it out for all questions",
        )
    _check_systems(arguments.systems)
    task = jsonl(arguments.task, arguments.grader, allow_code=arguments.allow_code).first(
        arguments.limit
    )
    settings = Settings(**options_of(arguments, max_tokens=task.max_tokens, seed=0))
    seeds = tuple(dict.fromkeys(arguments.seeds))
    if len(seeds) > 1 and not settings.temperature:
        raise advised(
            UsageError("several seeds, but nothing is sampled"),
            "add --temperature, or give one seed",
        )
    members = ensemble_of(arguments).members
    names, writers = list(members), len(members) - len(arguments.verifiers or ())
    systems = _systems(arguments.systems, names[:writers], names[writers:], settings)
    plan = Plan(task, systems, members, seeds, settings.max_concurrency)
    folder = Path(arguments.out or f"specfuse-eval/{task.name}")
    if not arguments.quiet:
        questions = amount(len(task.questions), "question")
        count = amount(len(systems), "system")
        say(f"{questions} of {task.name}, {count}, results in {folder}")
    with Results(folder) as results:
        names_of_systems = [system.name for system in systems]
        watch = None if arguments.quiet else Progress(sys.stderr, names_of_systems)
        answers = evaluate(plan, results, watch=watch)
    report = summary(plan, answers)
    print(json.dumps(report.as_dict()) if arguments.json else table(report), file=out)
    if not arguments.quiet:
        say(f"every answer with its grade: {results.path}")
    return any(not graded.error for graded in answers)


def _check_systems(names: Sequence[str]) -> None:
    for name in names:
        if name not in SYSTEMS:
            error = UsageError(f"--systems must be among {', '.join(SYSTEMS)}, got {name!r}")
            raise advised(error, "change the ensemble with --lead, --method and others")


def _systems(
    names: Sequence[str], members: Sequence[str], verifiers: Sequence[str], settings: Settings
) -> tuple[System, ...]:
    """The systems that ``--systems`` names."""
    from ..evaluation import alone_and_together

    return tuple(
        system
        for system in alone_and_together(members, settings, verifiers)
        if ("singles" if system.alone else "ensemble") in names
    )
