"""The rows of a study's table: what they compare, and how they are printed and written."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))

from common import commit, machine, save

from langchain_specfuse.evaluation.comparison import two_sided

Row: TypeAlias = dict[str, Any]
"""A line of a table, as plain JSON."""


class SignTest(NamedTuple):
    """Two ways on the same questions, by the exact sign test on those where they differ."""

    won: int
    lost: int
    p: float


def sign_test(pairs: Iterable[tuple[Any, Any]]) -> SignTest:
    """Compare the scores of two ways, given as a pair for each question.

    >>> sign_test(zip([1, 1, 1, 0], [0, 0, 1, 1]))
    SignTest(won=2, lost=1, p=1.0)
    """
    won = lost = 0
    for own, other in pairs:
        won += own > other
        lost += own < other
    return SignTest(won, lost, two_sided(won, lost))


def fisher(right: int, asked: int, right_before: int, asked_before: int) -> float:
    """The two-sided p of Fisher's exact test: two shares, of different questions.

    >>> round(fisher(3, 4, 1, 4), 3)
    0.486
    """
    both, all_right = asked + asked_before, right + right_before

    def ways(number: int) -> int:
        return math.comb(asked, number) * math.comb(asked_before, all_right - number)

    possible = range(max(0, all_right - asked_before), min(asked, all_right) + 1)
    as_rare = sum(ways(number) for number in possible if ways(number) <= ways(right))
    return as_rare / math.comb(both, all_right)


def about() -> Row:
    """Where and when rows are made."""
    return {"commit": commit(), "date": f"{date.today()}", "machine": machine()}


def show(rows: Sequence[Row], out: Path | None, label: str = "") -> None:
    """Print the rows and, if there is a file, write them to it. With a label, they are stored under
    it, and the rows of other labels stay in the file."""
    print_rows(rows)
    if out is None:
        return
    made = {**about(), "rows": list(rows)}
    if label:
        made = {**(json.loads(out.read_text()) if out.exists() else {}), label: made}
    save(out, made)


def print_rows(rows: Iterable[Row]) -> None:
    for row in rows:
        print(line_of(row), flush=True)


def line_of(row: Row) -> str:
    """A row for the terminal, without its empty values.

    >>> line_of({"way": "lead", "p": 0.03125, "passes": 1234.5, "logprob": None})
    'way lead  p 0.03125  passes 1234'
    """
    return "  ".join(
        f"{name} {_cell(value)}" for name, value in row.items() if value not in (None, {})
    )


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(one)}" for name, one in value.items())
    if not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
