"""``langchain-specfuse doctor``: are these members healthy, which one leads, and do the others
help?"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, TextIO

from ..core.options import Settings
from ..errors import UsageError, advised, amount
from . import decisions
from .choices import ensemble_of, new_parser, options_of, say
from .eval import GRADERS, add_common, add_grader

MARKS = {"good": "ok   ", "watch": "watch", "bad": "BAD  "}


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "doctor",
        "Are these members good together? Loads each, checks templates, stop tokens, scores and "
        "seams, measures each alone and together, and says which helps and which to leave out.",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        help="JSONL with input and reference, 20 lines or more (default: built-in short questions)",
    )
    add_grader(parser, f"for --prompts: {GRADERS}")
    parser.add_argument(
        "--decisions",
        metavar="FILE",
        help="fit decisions to labelled examples instead: JSONL with input and label, 20 lines or "
        "more; fits a bias for each label and a temperature, for "
        "SpecFuseDecisionModel(calibration=FILE)",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        default="specfuse-doctor",
        help="folder of the graded answers (default: specfuse-doctor)",
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        help="also write the calibration (who leads which questions, what helps), for "
        "SpecFuseChatModel(calibration=FILE); with --decisions, for SpecFuseDecisionModel",
    )
    add_common(parser)
    return parser


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Diagnose. Returns whether all is well."""
    from ..evaluation import Results, jsonl
    from ..evaluation.doctor import diagnosed, own_task, phases, refuse_few
    from ..evaluation.running import Progress
    from ..show.terminal import one_line

    _check(arguments)
    if arguments.decisions:
        return decisions.run(arguments, out)
    task = own_task()
    if arguments.prompts:
        task = jsonl(arguments.prompts, arguments.grader, allow_code=arguments.allow_code)
    refuse_few(task)
    settings = Settings(**options_of(arguments, max_tokens=task.max_tokens, seed=0))
    members = ensemble_of(arguments).members
    folder = Path(arguments.out)
    watch = None
    if not arguments.quiet:
        say(f"{amount(len(task.questions), 'prompt')}, results in {folder}")
        watch = Progress(sys.stderr, phases(list(members), settings, task))
    with Results(folder) as results:
        diagnosis = diagnosed(
            task,
            members,
            settings,
            results,
            watch=watch,
            progress=None if arguments.quiet else say,
            at_once=settings.max_concurrency,
        )
    if arguments.calibration and diagnosis.calibration:
        diagnosis.calibration.save(arguments.calibration)
    elif arguments.calibration:
        needs = "it needs two members that can be loaded, and at least one answer"
        say(f"{arguments.calibration} is not written: {needs}")
    print(json.dumps(diagnosis.as_dict()) if arguments.json else text(diagnosis), file=out)
    if arguments.calibration and diagnosis.calibration and not arguments.json:
        file = one_line(arguments.calibration)
        print(f"\nWrote {file}. With the same members, use it as", file=out)
        print("\n".join(_uses(file, is_demo=not arguments.members)), file=out)
    bad = any(finding.verdict == "bad" for finding in diagnosis.findings)
    return not bad and any(not graded.error for graded in diagnosis.results)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse arguments that the doctor cannot use, before any member is loaded."""
    from ..chat.calibration import content_of

    for name in ("verifiers", "lead"):
        if getattr(arguments, name) not in (None, [], "auto"):
            raise advised(
                UsageError(f"the doctor takes no --{name}"),
                "it measures members that write, from scratch",
            )
    if arguments.decisions and (arguments.prompts or arguments.grader):
        raise advised(
            UsageError("--decisions takes neither --prompts nor --grader"),
            "run the doctor twice; both runs can write to the same calibration file",
        )
    if arguments.grader and not arguments.prompts:
        raise advised(
            UsageError("--grader is for --prompts"), "the built-in prompts have their own graders"
        )
    file = arguments.calibration
    if file and not Path(file).absolute().parent.is_dir():
        error = UsageError(f"--calibration {file}: there is no folder {Path(file).parent}")
        raise advised(error, "make the folder, or name a file in another one")
    if file:
        content_of(file)


def _uses(file: str, *, is_demo: bool) -> list[str]:
    """How to use this calibration file in Python and in the command."""
    flag = f"--calibration {shlex.quote(file)}"
    if not is_demo:
        in_python = f"SpecFuseChatModel(members=[...], calibration={file!r})"
        command = f'langchain-specfuse "..." --members ... {flag}'
        return [f"  {in_python}", f"  {command}"]
    size = os.environ.get("DEMO") or ""
    members = f"demo_members({size!r})" if size else "demo_members()"
    in_python = f"SpecFuseChatModel(members={members}, calibration={file!r})"
    command = f'langchain-specfuse "..." {flag}'
    if size:
        command = f"DEMO={size} {command}"
    return [
        "  from langchain_specfuse import SpecFuseChatModel, demo_members",
        f"  {in_python}",
        f"  {command}",
    ]


def text(diagnosis: Any) -> str:
    """The diagnosis as text."""
    from ..evaluation import table
    from ..evaluation.doctor import MEANINGS
    from ..show.terminal import one_line, visible

    lines = [f"Verdict: {diagnosis.verdict}. {MEANINGS[diagnosis.verdict]}", "", "Members"]
    for name in dict.fromkeys(finding.member for finding in diagnosis.findings):
        lines.append(f"  {one_line(name)}")
        for finding in diagnosis.findings:
            if finding.member == name:
                line = visible(f"{finding.check}: {finding.text}", margin="      ")
                lines.append(f"    {MARKS[finding.verdict]} {line}")
    if diagnosis.report:
        lines += ["", table(diagnosis.report, conclusions=False)]
    lines += ["", "Advice"]
    lines += [f"  - {visible(line, margin='    ')}" for line in diagnosis.advice]
    return "\n".join(lines)
