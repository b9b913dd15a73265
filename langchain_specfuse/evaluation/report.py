"""A report as text: the table, and in plain words what it says. Knows reports; decides nothing that is not in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ..errors import amount
from ..show.terminal import visible
from .summary import Report, Row
from .systems import ENSEMBLE, ORACLE

Cell = Callable[[Row], str]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"


def _number(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def points(value: float) -> str:
    """A difference of shares, in percentage points."""
    return f"{100 * value:+.1f}"


COLUMNS: Mapping[str, Cell] = {
    "system": lambda row: row.system,
    "score": lambda row: f"{100 * row.score.mean:.1f}",
    "95% interval": lambda row: f"{100 * row.score.low:.1f} to {100 * row.score.high:.1f}",
    "parts": lambda row: _share(row.followed),
    "failed": lambda row: str(row.failed) if row.rounds is not None else "-",
    "empty": lambda row: str(row.empty) if row.rounds is not None else "-",
    "unchecked": lambda row: str(row.unchecked) if row.unchecked else "-",
    "tokens/s": lambda row: _number(row.tokens_per_second),
    "first text": lambda row: "-" if row.first_s is None else f"{row.first_s:.2f} s",
    "tokens": lambda row: _number(row.tokens),
    "rounds": lambda row: _number(row.rounds),
    "members": lambda row: _number(row.members_per_round, 2),
    "same drafts": lambda row: _share(row.shared),
    "looped": lambda row: _share(row.looped),
}
"""What a table tells of every system. "members" is members per round, "same drafts" the share of coinciding rounds."""


def cells(report: Report) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table; columns in which nobody has anything are left out."""
    told = {name: [cell(row) for row in report.rows] for name, cell in COLUMNS.items()}
    for name in sorted({name for row in report.rows for name in row.numbers}):
        told[name] = [f"{100 * row.numbers[name]:.1f}" if name in row.numbers else "-" for row in report.rows]
    kept = {name: column for name, column in told.items() if any(cell != "-" for cell in column)}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def table(report: Report, *, said: bool = True) -> str:
    """The table as text, and below it what it says (unless ``said`` is false)."""
    head, rows = cells(report)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ["  ".join(_put(cell, widths[at], at) for at, cell in enumerate(row)).rstrip() for row in (head, *rows)]
    title = f"{report.task}: {amount(report.questions, 'question')}, score = {report.measure}, in percent"
    rule = "  ".join("-" * width for width in widths)
    return visible("\n".join([title, "", lines[0], rule, *lines[1:], *(["", *told(report)] if said else [])]))


def _put(cell: str, width: int, at: int) -> str:
    return cell.ljust(width) if at == 0 else cell.rjust(width)


def told(report: Report) -> list[str]:
    """What the numbers say, a sentence each."""
    lines = [_against_best(report, name) for name in report.best]
    for one in report.comparisons:
        label = "the oracle pick (the best single member for each question)" if one.other == ORACLE else one.other
        lines.append(
            f"{one.system} against {label}: {points(one.apart.mean)} points [{points(one.apart.low)}, "
            f"{points(one.apart.high)}], p = {one.p:.3g}"
        )
    lines += _doubts(report)
    return lines


def _against_best(report: Report, name: str) -> str:
    one = report.best[name]
    verdicts = {
        "better": f"is better than its best member alone (p = {one.p_better:.3g})",
        "worse": f"is worse than its best member alone (p = {one.p_worse:.3g})",
        "open": "is neither shown better nor shown worse than its best member alone",
    }
    line = (
        f"{name} {verdicts[one.verdict]}: {points(one.apart.mean)} points against {one.best} "
        f"[{points(one.apart.low)}, {points(one.apart.high)}], corrected for having picked the best on these "
        f"questions; uncorrected p = {one.p_plain:.3g}"
    )
    if name == ENSEMBLE and one.verdict == "open" and report.needed and report.needed > report.questions:
        line += f". About {report.needed} questions would show a difference of 5 points"
    return line


def _doubts(report: Report) -> list[str]:
    """What one must know before believing the rest."""
    lines = []
    for row in report.rows:
        if row.failed:
            counts = "counts" if row.failed == 1 else "count"
            failed = f"{amount(row.failed, 'question')} failed and {counts} as wrong"
            lines.append(f"{row.system}: {failed} (see results.jsonl)")
        if row.unchecked:
            counts = "counts" if row.unchecked == 1 else "count"
            unchecked = f"{amount(row.unchecked, 'answer')} could not be checked and {counts} as wrong"
            lines.append(f"{row.system}: {unchecked}: the checker raised {row.raised}")
        missing = report.questions - row.questions
        if missing and row.rounds is not None:
            lines.append(
                f"{row.system}: {amount(missing, 'question')} {'has' if missing == 1 else 'have'} no result yet"
            )
    if any(row.unchecked for row in report.rows):
        lines.append("nobody is called better or worse: mend the checker and run this again")
    elif len(report.rows) > 1 and {row.score.mean for row in report.rows} in ({0.0}, {1.0}):
        lines.append("every system has the same score, all or nothing: this task does not tell them apart")
    return lines


def lines_by_part(report: Report, systems: Sequence[str]) -> list[list[str]]:
    """Per kind of part (an IFEval instruction), the share that each system did."""
    rows = [row for row in report.rows if row.system in systems and row.by_part]
    kinds = sorted({kind for row in rows for kind in row.by_part})
    return [[kind, *(_done(row, kind) for row in rows)] for kind in kinds]


def _done(row: Row, kind: str) -> str:
    done, asked = row.by_part.get(kind, (0, 0))
    return f"{done}/{asked}" if asked else "-"
