"""The report of an evaluation: a row for each system, comparisons of each ensemble with each member
alone, and the conclusions in words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .._version import __version__
from ..errors import amount
from ..show.terminal import visible
from .comparison import Comparison, by_system, compared, mean, scores_of
from .results import Graded
from .running import ENSEMBLE, Plan

SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Row:
    """One system's numbers."""

    system: str
    questions: int
    """Questions with a graded answer."""
    score: float
    failed: int
    """Answers that ended in an error."""
    empty: int
    tokens: float
    """Tokens per answer."""
    passes: float
    """Forward passes of all members, per answer."""
    seconds: float
    """Computing time of all members, per answer."""
    checks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """check -> the sums of ``passed``, ``rejected`` and ``ended`` over all answers."""


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a plan's graded answers."""

    task: str
    measure: str
    questions: int
    rows: tuple[Row, ...]
    comparisons: tuple[Comparison, ...]
    """Each system of several members against each member alone."""
    seeds: tuple[int, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    """Version, settings and members."""

    def row(self, system: str) -> Row | None:
        """The row of this system; None if it has no answer yet."""
        for row in self.rows:
            if row.system == system:
                return row
        return None

    def against_members(self, system: str) -> list[Comparison]:
        """This system against each member alone."""
        return [item for item in self.comparisons if item.system == system]

    def verdict(self, system: str) -> str:
        """``better`` than each member alone, ``worse`` than at least one, or ``open``.

        Better than each needs no correction for the number of members, because each comparison has
        to show it. Worse than one is corrected (Bonferroni).
        """
        comparisons = self.against_members(system)
        if comparisons and all(_gains(item) for item in comparisons):
            return "better"
        if any(_loses(item, len(comparisons)) for item in comparisons):
            return "worse"
        return "open"

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON."""
        systems = dict.fromkeys(item.system for item in self.comparisons)
        verdicts = {system: self.verdict(system) for system in systems}
        content: dict[str, Any] = plain({**asdict(self), "verdicts": verdicts})
        return content


# With graded scores, the mean may disagree with the majority of questions. Then the
# comparison shows nothing.


def _gains(comparison: Comparison) -> bool:
    """Whether the comparison shows that its system is better."""
    higher = comparison.wins > comparison.losses and comparison.difference.mean > 0
    return higher and comparison.p < SIGNIFICANT


def _loses(comparison: Comparison, count: int) -> bool:
    """Whether one of ``count`` comparisons shows that its system is worse."""
    lower = comparison.wins < comparison.losses and comparison.difference.mean < 0
    return lower and comparison.p < SIGNIFICANT / count


def plain(value: Any) -> Any:
    """The value without infinity and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and math.isnan(value):
        return None
    if value == math.inf:
        return "inf"
    return value


def summary(plan: Plan, answers: Sequence[Graded]) -> Report:
    """The report of a plan, from the graded answers that exist."""
    grouped = by_system(answers)
    present = [system for system in plan.systems if grouped[system.name]]
    singles = [system.name for system in present if system.alone]
    comparisons = [
        compared(grouped[system.name], grouped[single])
        for system in present
        if not system.alone
        for single in singles
    ]
    return Report(
        task=plan.task.name,
        measure=plan.task.measure,
        questions=len(plan.task.questions),
        rows=tuple(_row(system.name, grouped[system.name]) for system in present),
        comparisons=tuple(comparisons),
        seeds=plan.seeds,
        about=_about(plan),
    )


def _row(system: str, answers: Sequence[Graded]) -> Row:
    scores = scores_of(answers)
    return Row(
        system,
        questions=len(scores),
        score=mean(scores.values()),
        failed=sum(bool(graded.error) for graded in answers),
        empty=sum(not graded.error and not graded.answer.strip() for graded in answers),
        tokens=mean(graded.tokens for graded in answers),
        passes=mean(graded.passes for graded in answers),
        seconds=mean(graded.seconds for graded in answers),
        checks=_checks(answers),
    )


def _checks(answers: Sequence[Graded]) -> dict[str, dict[str, int]]:
    """Add up the counts of all answers."""
    sums: dict[str, Counter[str]] = {}
    for graded in answers:
        for name, counts in graded.checks.items():
            sums.setdefault(name, Counter(passed=0, rejected=0, ended=0)).update(counts)
    return {name: dict(counts) for name, counts in sums.items()}


def _about(plan: Plan) -> dict[str, Any]:
    members = {name: dict(getattr(member, "spec", {})) for name, member in plan.members.items()}
    return {
        "version": __version__,
        "at_once": plan.at_once,
        "members": members,
        "systems": {system.name: system.as_dict() for system in plan.systems},
    }


# --- as text --------------------------------------------------------------------------------------

COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "system": lambda row: row.system,
    "score": lambda row: f"{100 * row.score:.1f}",
    "failed": lambda row: str(row.failed),
    "empty": lambda row: str(row.empty),
    "tokens": lambda row: f"{row.tokens:.1f}",
    "passes": lambda row: f"{row.passes:.0f}",
    "seconds": lambda row: f"{row.seconds:.2f}",
}


def table(report: Report, *, conclusions: bool = True) -> str:
    """The rows as a table, and below it, unless ``conclusions`` is false, what the numbers show."""
    title = (
        f"{report.task}: {amount(report.questions, 'question')}, "
        f"score = {report.measure}, in percent"
    )
    cells = [list(COLUMNS), *([cell(row) for cell in COLUMNS.values()] for row in report.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    head, *rows = (_line(row, widths) for row in cells)
    lines = [title, "", head, "  ".join("-" * width for width in widths), *rows]
    counted = [line for row in report.rows for line in _check_lines(row)]
    if counted:
        lines += ["", *counted]
    if conclusions:
        lines += ["", *sentences(report)]
    return visible("\n".join(lines).rstrip())


def _check_lines(row: Row) -> list[str]:
    """One line for each check: how many of a system's drafts it passed and rejected."""
    lines = []
    for name, counts in row.checks.items():
        if counts.get("redacted"):
            lines.append(f"{row.system}: {name} replaced {amount(counts['redacted'], 'place')}")
            continue
        line = (
            f"{row.system}: the check {name!r} passed {amount(counts['passed'], 'draft')} and "
            f"rejected {counts['rejected']}"
        )
        if counts["ended"]:
            line += f"; it ended {amount(counts['ended'], 'answer')}"
        lines.append(line)
    return lines


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = zip(cells, widths, strict=True)
    padded = [name[0].ljust(name[1]), *(text.rjust(width) for text, width in numbers)]
    return "  ".join(padded).rstrip()


def sentences(report: Report) -> list[str]:
    """The conclusions from the numbers, one line each."""
    systems = dict.fromkeys(comparison.system for comparison in report.comparisons)
    comparisons = [against(comparison) for comparison in report.comparisons]
    conclusions = [_conclusion(report, system) for system in systems]
    return [*comparisons, *conclusions, *_warnings(report)]


def against(comparison: Comparison) -> str:
    """One comparison in words."""
    return (
        f"{comparison.system}: {comparison.wins} won, {comparison.losses} lost against "
        f"{comparison.other} alone, p = {comparison.p:.3g}, {comparison.difference.points()}; "
        f"{comparison.passes:.1f} times its passes, {comparison.seconds:.1f} times its seconds"
    )


def _conclusion(report: Report, system: str) -> str:
    comparisons = report.against_members(system)
    verdict = report.verdict(system)
    if verdict == "better":
        return f"{system} is better than each member alone."
    if verdict == "worse":
        better = [item.other for item in comparisons if _loses(item, len(comparisons))]
        return f"{system} is worse than {' and '.join(better)} alone."
    line = f"{system} is not shown to be better than each member alone, nor worse than one of them."
    # against the best member
    needed = min(comparisons, key=lambda item: item.difference.mean).needed
    if system == ENSEMBLE and needed > report.questions:
        line += f" About {needed} questions can show a difference of 5 points."
    return line


def _warnings(report: Report) -> list[str]:
    lines = []
    for row in report.rows:
        missing = report.questions - row.questions
        if row.failed:
            failed = amount(row.failed, "question")
            lines.append(f"{row.system}: {failed} failed (see results.jsonl) and count as wrong")
        if missing:
            lines.append(f"{row.system}: no result yet for {amount(missing, 'question')}")
    if len(report.rows) > 1 and {row.score for row in report.rows} in ({0.0}, {1.0}):
        lines.append("every system has the same score: these questions do not tell them apart")
    return lines
