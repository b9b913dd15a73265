"""A report as text, with what it says in words, and as an HTML page without scripts or links."""

from __future__ import annotations

import html
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ..errors import amount
from ..show.terminal import visible
from .checkers import Question
from .results import Result
from .statistics import Interval
from .summary import Report, Row
from .systems import ENSEMBLE, ORACLE
from .tasks import Task

SHOWN = 60
"""The page shows this many questions with their answers: first those on which systems differ."""
CUT = 4000
"""It shows an answer up to this many characters."""


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
    "unchecked": lambda row: str(row.unchecked or "-"),
    "tokens/s": lambda row: _cell(row.tokens_per_second, "{:.1f}"),
    "first text": lambda row: _cell(row.first_s, "{:.2f} s"),
    "tokens": lambda row: _cell(row.tokens, "{:.1f}"),
    "rounds": lambda row: _cell(row.rounds, "{:.1f}"),
    "members": lambda row: _cell(row.members_per_round, "{:.2f}"),
    "same drafts": lambda row: _cell(row.shared, "{:.0%}"),
    "looped": lambda row: _cell(row.looped, "{:.0%}"),
    "passes": lambda row: _cell(row.passes, "{:.0f}"),
    "work": lambda row: _cell(row.work_s, "{:.2f} s"),
}
"""The columns of a table. "members": per round; "same drafts": the share of rounds in which all drafts coincide."""


def cells(report: Report) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table, without columns that are empty for every system."""
    columns = {name: [cell(row) for row in report.rows] for name, cell in COLUMNS.items()}
    kept = {name: column for name, column in columns.items() if any(cell != "-" for cell in column)}
    return list(kept), [list(row) for row in zip(*kept.values(), strict=True)]


def table(report: Report, *, conclusions: bool = True) -> str:
    """The table as text, and below it what it says in words (unless ``conclusions`` is false)."""
    head, rows = cells(report)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    first, *others = (
        "  ".join(cell.rjust(width) if at else cell.ljust(width) for at, (cell, width) in enumerate(pairs)).rstrip()
        for pairs in (list(zip(row, widths, strict=True)) for row in (head, *rows))
    )
    title = f"{report.task}: {amount(report.questions, 'question')}, score = {report.measure}, in percent"
    rule = "  ".join("-" * width for width in widths)
    words = ["", *sentences(report)] if conclusions else []
    return visible("\n".join([title, "", first, rule, *others, *words]))


def sentences(report: Report) -> list[str]:
    """What the numbers say, a sentence each."""
    lines = [_against_best(report, name) for name in report.best]
    for one in report.comparisons:
        other = "the oracle pick (the best single member for each question)" if one.other == ORACLE else one.other
        lines.append(f"{one.system} against {other}: {points_range(one.apart)}, p = {one.p:.3g}")
    return lines + _doubts(report)


def _against_best(report: Report, name: str) -> str:
    one = report.best[name]
    verdicts = {
        "better": f"is better than its best member alone (p = {one.p_better:.3g})",
        "worse": f"is worse than its best member alone (p = {one.p_worse:.3g})",
        "open": "is neither shown better nor shown worse than its best member alone",
    }
    line = (
        f"{name}: {one.wins} won, {one.losses} lost against {one.best} alone (uncorrected p = {one.p_plain:.3g}); it "
        f"{verdicts[one.verdict]}: {points_range(one.apart)}, corrected for the number of comparisons and for having "
        "picked the best member on these questions"
    )
    if name == ENSEMBLE and one.verdict == "open" and report.needed and report.needed > report.questions:
        line += f". About {report.needed} questions would show a difference of 5 points"
    return line


def _doubts(report: Report) -> list[str]:
    """What weakens the rest."""
    lines = []
    for row in report.rows:
        missing = report.questions - row.questions
        if row.failed:
            lines.append(f"{row.system}: {amount(row.failed, 'question')} failed (see results.jsonl): counted as wrong")
        if row.unchecked:
            unchecked = amount(row.unchecked, "answer")
            lines.append(f"{row.system}: the checker raised on {unchecked} ({row.raised}): counted as wrong")
        if missing and row.rounds is not None:
            lines.append(f"{row.system}: no result yet for {amount(missing, 'question')}")
    if any(row.unchecked for row in report.rows):
        lines.append("so no system is called better or worse: mend the checker and run this again")
    elif len(report.rows) > 1 and {row.score.mean for row in report.rows} in ({0.0}, {1.0}):
        lines.append("every system has the same score, all or nothing: this task does not tell them apart")
    return lines


# --- the page ---------------------------------------------------------------------------------------------------

_INVISIBLE = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), 0xFFFD)
"""Characters that reverse the text around them, and halves of characters, which no file can hold."""


def page(report: Report, results: Sequence[Result] = (), task: Task | None = None, *, first: Sequence[str] = ()) -> str:
    """The report as one HTML page, with the answers to ``task``'s questions. ``first``: sentences to begin with."""
    title, style = escape(report.task), Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}: systems compared</title><style>{style}</style></head>
<body><main>
<h1>{title}</h1>
<p>{amount(report.questions, "question")}. Score: {escape(report.measure)}, in percent.</p>
<h2>What it says</h2>
<ul>{"".join(f"<li>{escape(line)}</li>" for line in (*first, *sentences(report)))}</ul>
<h2>Systems</h2>
{_table(report)}
{_answers(results, task) if task else ""}
<p class="soft">Made by langchain-specfuse {escape(str(report.about.get("version", "")))}.</p>
</main></body></html>
"""


def escape(text: str) -> str:
    """Foreign text as HTML. Control characters are shown as pictures."""
    return html.escape(visible(text).translate(_INVISIBLE))


def _table(report: Report) -> str:
    head, rows = cells(report)
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in (head[0], "0 to 100", *head[1:]))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{_bar(one.score)}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in numbers)
        + "</tr>"
        for one, (name, *numbers) in zip(report.rows, rows, strict=True)
    )
    caption = "<caption>Every system, with the 95% interval of its score</caption>"
    return f'<div class="wide"><table>{caption}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _bar(score: Interval) -> str:
    mean, low, high = (f"{100 * value:.1f}" for value in (score.mean, score.low, score.high))
    return (
        f'<span class="scale" role="img" aria-label="{mean}, between {low} and {high}"><i style="left:{low}%;'
        f'width:{100 * (score.high - score.low):.1f}%"></i><b style="left:{mean}%"></b></span>'
    )


def _answers(results: Sequence[Result], task: Task) -> str:
    by_question: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_question[result.question].append(result)
    questions = [question for question in task.questions if by_question[question.id]]
    questions.sort(key=lambda question: len({result.score for result in by_question[question.id]}) < 2)
    shown = "".join(_answers_to(question, by_question[question.id]) for question in questions[:SHOWN])
    count = f"{min(SHOWN, len(questions))} of {len(questions)}, those on which systems differ first"
    return f'<h2>Answers</h2><p class="soft">{count}.</p>{shown}' if shown else ""


def _answers_to(question: Question, results: Sequence[Result]) -> str:
    marks = ", ".join(f"{escape(one.system)} {'?' if one.unchecked else round(100 * one.score)}" for one in results)
    begins = escape(" ".join(question.text.split())[:90])
    wanted = "" if question.reference is None else f"<p>Reference: {escape(str(question.reference)[:CUT])}</p>"
    answers = "".join(
        f"<h3>{escape(one.system)} {_mark(one)}</h3><pre>{escape(one.answer[:CUT]) or '(nothing)'}</pre>"
        for one in results
    )
    return (
        f'<details><summary>{escape(question.id)}: {begins} <span class="soft">({marks})</span></summary>'
        f"<pre>{escape(question.text[:CUT])}</pre>{wanted}{answers}</details>"
    )


def _mark(result: Result) -> str:
    if result.unchecked:
        return f'<span class="soft">not checked: the checker raised {escape(result.unchecked)}</span>'
    kind = "right" if result.score == 1 else "wrong"
    word = kind if result.score in (0, 1) else ""
    note = escape(result.error or result.note)
    return f'<span class="{kind}">{100 * result.score:.0f} {word}</span> <span class="soft">{note}</span>'
