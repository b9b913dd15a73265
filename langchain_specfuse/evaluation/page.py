"""A report as one HTML page: self-contained, no scripts, no network, light and dark, readable by ear.

Knows reports and results. Everything that a member or a task wrote is escaped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape as escaped

from ..errors import amount
from ..show.terminal import visible
from .report import cells, lines_by_part, told
from .results import Result
from .summary import Report
from .tasks import Task

SHOWN = 60
"""So many questions are shown with their answers: first those on which systems differ."""
CUT = 4000
"""An answer is shown up to this many characters."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fff; --line: #c9ced6; --bar: #2f6fb2; --good: #17702f;
  --bad: #a3261d; --soft: #5a6069 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e9eb; --paper: #16181b; --line: #444a53; --bar: #7db3ea;
  --good: #6fce87; --bad: #ff8f84; --soft: #a6adb8 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 76rem; padding: 0 1rem }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { text-align: left; color: var(--soft) } th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line);
  text-align: right; white-space: nowrap } th:first-child, td:first-child { text-align: left }
.scale { position: relative; display: inline-block; width: 12rem; height: 1rem; border-left: 1px solid var(--line);
  border-right: 1px solid var(--line); vertical-align: middle }
.scale i { position: absolute; top: .4rem; height: .2rem; background: var(--bar) }
.scale b { position: absolute; top: .15rem; width: .7rem; height: .7rem; margin-left: -.35rem; border-radius: 50%;
  background: var(--bar) }
details { border-bottom: 1px solid var(--line); padding: .4rem 0 } summary { cursor: pointer }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border-left: 3px solid var(--line); padding-left: .8rem }
.right { color: var(--good) } .wrong { color: var(--bad) } .soft { color: var(--soft) }
"""


_UNSEEN = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)), 0xFFFD)
"""What turns the text around it, and halves of characters, which no file holds."""


def page(report: Report, results: Sequence[Result] = (), task: Task | None = None, *, first: Sequence[str] = ()) -> str:
    """The whole page. ``first`` are sentences to begin with."""
    parts = [
        f"<h1>{escape(report.task)}</h1>",
        f"<p>{amount(report.questions, 'question')}. Score: {escape(report.measure)}, in percent.</p>",
        "<h2>What it says</h2>",
        "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in (*first, *told(report))) + "</ul>",
        "<h2>Systems</h2>",
        _table(report),
        _parts(report),
        _answers(results, task) if task else "",
        f'<p class="soft">Made by langchain-specfuse {escape(str(report.about.get("version", "")))}.</p>',
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(report.task)}: systems compared</title><style>{STYLE}</style>"
    )
    body = "\n".join(part for part in parts if part)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body><main>\n{body}\n</main></body></html>\n'


def escape(text: str) -> str:
    """Somebody's text as HTML; what would command a terminal, or turn the text around, is shown as a picture."""
    return escaped(visible(text).translate(_UNSEEN))


def _table(report: Report) -> str:
    head, rows = cells(report)
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in (*head[:1], "0 to 100", *head[1:]))
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th><td>{_scale(one.score.low, one.score.mean, one.score.high)}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for one, row in zip(report.rows, rows, strict=True)
    )
    caption = "Every system, with the 95% interval of its score"
    return (
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _scale(low: float, mean: float, high: float) -> str:
    told = f"{100 * mean:.1f}, between {100 * low:.1f} and {100 * high:.1f}"
    return (
        f'<span class="scale" role="img" aria-label="{told}"><i style="left:{100 * low:.1f}%;'
        f'width:{100 * (high - low):.1f}%"></i><b style="left:{100 * mean:.1f}%"></b></span>'
    )


def _parts(report: Report) -> str:
    systems = [row.system for row in report.rows if row.by_part]
    if not systems:
        return ""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("instruction", *systems))
    body = "".join(
        f'<tr><th scope="row">{escape(kind)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for kind, *row in lines_by_part(report, systems)
    )
    return (
        "<h2>By instruction</h2>"
        f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _answers(results: Sequence[Result], task: Task) -> str:
    by_question: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_question[result.question].append(result)
    questions = [question for question in task.questions if by_question[question.id]]
    questions.sort(key=lambda question: len({result.score for result in by_question[question.id]}) < 2)
    shown = "".join(_answered(q.id, q.text, q.reference, by_question[q.id]) for q in questions[:SHOWN])
    count = f"{min(SHOWN, len(questions))} of {len(questions)}, those on which systems differ first"
    return f'<h2>Answers</h2><p class="soft">{count}.</p>{shown}' if shown else ""


def _answered(name: str, text: str, reference: object, results: Iterable[Result]) -> str:
    told = list(results)
    marks = ", ".join(f"{escape(one.system)} {'?' if one.unchecked else round(100 * one.score)}" for one in told)
    answers = "".join(
        f"<h3>{escape(one.system)} {_mark(one)}</h3><pre>{escape(one.answer[:CUT]) or '(nothing)'}</pre>"
        for one in told
    )
    wanted = "" if reference is None else f"<p>Reference: {escape(str(reference)[:CUT])}</p>"
    return (
        f"<details><summary>{escape(name)}: {escape(' '.join(text.split())[:90])} "
        f'<span class="soft">({marks})</span></summary><pre>{escape(text[:CUT])}</pre>{wanted}{answers}</details>'
    )


def _mark(result: Result) -> str:
    kind, word = ("right", "right") if result.score == 1 else ("wrong", "wrong" if result.score == 0 else "")
    if result.unchecked:
        return f'<span class="soft">not checked: the checker raised {escape(result.unchecked)}</span>'
    note = result.error or result.note
    return f'<span class="{kind}">{100 * result.score:.0f} {word}</span> <span class="soft">{escape(note)}</span>'
