"""A report as text, with what it says in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import amount
from ..show.terminal import visible
from .statistics import Interval
from .summary import Report, Row
from .systems import ENSEMBLE


def points_range(apart: Interval) -> str:
    """A difference of shares with its interval: ``+3.0 points [-1.0, +7.0]``."""
    return f"{100 * apart.mean:+.1f} points [{100 * apart.low:+.1f}, {100 * apart.high:+.1f}]"


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


COLUMNS: Mapping[str, Callable[[Row], str]] = {
    "system": lambda row: row.system,
    "score": lambda row: f"{100 * row.score.mean:.1f}",
    "95% interval": lambda row: f"{100 * row.score.low:.1f} to {100 * row.score.high:.1f}",
    "failed": lambda row: "-" if row.rounds is None else str(row.failed),
    "empty": lambda row: "-" if row.rounds is None else str(row.empty),
    "tokens/s": lambda row: _cell(row.tokens_per_second, "{:.1f}"),
    "first text": lambda row: _cell(row.first_s, "{:.2f} s"),
    "tokens": lambda row: _cell(row.tokens, "{:.1f}"),
    "rounds": lambda row: _cell(row.rounds, "{:.1f}"),
    "passes": lambda row: _cell(row.passes, "{:.0f}"),
    "work": lambda row: _cell(row.work_s, "{:.2f} s"),
}
"""The columns of a table."""


def table(report: Report, *, conclusions: bool = True) -> str:
    """The table as text, without columns that are empty for every system, and below it what it says
    in words (unless ``conclusions`` is false)."""
    columns = [[name, *(cell(row) for row in report.rows)] for name, cell in COLUMNS.items()]
    columns = [column for column in columns if any(cell != "-" for cell in column[1:])]
    widths = [max(map(len, column)) for column in columns]
    first, *others = (
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(pairs)
        ).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in zip(*columns, strict=True))
    )
    title = (
        f"{report.task}: {amount(report.questions, 'question')}, score = {report.measure}, in "
        "percent"
    )
    rule = "  ".join("-" * width for width in widths)
    words = ["", *sentences(report)] if conclusions else []
    return visible("\n".join([title, "", first, rule, *others, *words]))


def sentences(report: Report) -> list[str]:
    """What the numbers say, a sentence each."""
    pairs = [(f"{one.system} against {one.other}", one) for one in report.comparisons]
    others = [f"{who}: {points_range(one.apart)}, p = {one.p:.3g}" for who, one in pairs]
    return [*(_against_best(report, name) for name in report.best), *others, *_doubts(report)]


def _against_best(report: Report, name: str) -> str:
    one = report.best[name]
    verdicts = {
        "better": f"is better than its best member alone (p = {one.p_better:.3g})",
        "worse": f"is worse than its best member alone (p = {one.p_worse:.3g})",
        "open": "is neither shown better nor shown worse than its best member alone",
    }
    line = (
        f"{name}: {one.wins} won, {one.losses} lost against {one.best} alone (uncorrected p = "
        f"{one.p_plain:.3g}); it "
        f"{verdicts[one.verdict]}: {points_range(one.apart)}, corrected for the number of "
        "comparisons and for having "
        "picked the best member on these questions"
    )
    if (
        name == ENSEMBLE
        and one.verdict == "open"
        and report.needed
        and report.needed > report.questions
    ):
        line += f". About {report.needed} questions would show a difference of 5 points"
    return line


def _doubts(report: Report) -> list[str]:
    """What weakens the rest."""
    lines = []
    for row in report.rows:
        missing = report.questions - row.questions
        if row.failed:
            lines.append(
                f"{row.system}: {amount(row.failed, 'question')} failed (see results.jsonl): "
                "counted as wrong"
            )
        if missing and row.rounds is not None:
            lines.append(f"{row.system}: no result yet for {amount(missing, 'question')}")
    if len(report.rows) > 1 and {row.score.mean for row in report.rows} in ({0.0}, {1.0}):
        lines.append(
            "every system has the same score, all or nothing: this task does not tell them apart"
        )
    return lines
