"""More ways to count a vote, beside those of ``variants.py``, and exits that are quicker: experiments.

Each is a few lines; what turns out well is a proposal for ``core``, not part of it. Knows scores and names only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from variants import COUNTS, Authors, Count, Memory, Rows

from langchain_specfuse.core import panel as panels
from langchain_specfuse.core import voting
from langchain_specfuse.core.voting import votes


def likely(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """The probability a token itself, not its share: who finds no draft probable, its own neither, hardly votes."""
    return {judge: [math.exp(min(score, 0.0)) for score in row] for judge, row in scores.items()}


def likelier(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """As ``likely``, of four tokens: between a vote and ``surest``, to which it comes as the power grows."""
    return {judge: [math.exp(min(4 * score, 0.0)) for score in row] for judge, row in scores.items()}


def pooled(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """Log-probabilities are averaged, not votes: a draft that one verifier finds impossible is out."""
    means = [statistics.fmean(column) for column in zip(*scores.values(), strict=True)]
    return {judge: votes(kind, means) for judge in scores}  # type: ignore[arg-type]


def sharp(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """Votes as of whole drafts, not of a mean token: differences count four times."""
    return {judge: votes(kind, [4 * score for score in row]) for judge, row in scores.items()}  # type: ignore[arg-type]


def by_others(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """Nobody votes for what it wrote itself: a verifier's votes go to the drafts of others."""

    def cast(judge: str, row: list[float]) -> list[float]:
        shares = [0.0 if judge in who else vote for vote, who in zip(votes(kind, row), authors, strict=True)]  # type: ignore[arg-type]
        whole = math.fsum(shares)
        return [share / whole for share in shares] if whole > 0 else [1 / len(shares)] * len(shares)

    return {judge: cast(judge, list(row)) for judge, row in scores.items()}


OWN: dict[str, Count] = {f.__name__: f for f in (likely, likelier, pooled, sharp, by_others)}
COUNTS.update(OWN)


# --- constants ------------------------------------------------------------------------------------------------------


@contextmanager
def constants(
    factor: float = panels.HEAT,
    patience: int = panels.PATIENCE,
    first: int = panels.FIRST_EXIT,
    spoken: int = voting.SPOKEN,
) -> Iterator[None]:
    """Other constants of the method: the studentized exit's ``factor`` of temperature, its rounds in a row, its first
    round; and how many tokens an assured voice is the probability of."""
    before = panels.HEAT, panels.PATIENCE, panels.FIRST_EXIT, voting.SPOKEN
    panels.HEAT, panels.PATIENCE, panels.FIRST_EXIT, voting.SPOKEN = factor, patience, first, spoken
    try:
        yield
    finally:
        panels.HEAT, panels.PATIENCE, panels.FIRST_EXIT, voting.SPOKEN = before
