"""Bootstrap intervals of a score, and a system against the best of several members.

Scores that are only 0 and 1 need care in small sets: the plain bootstrap of twenty right answers
out of twenty is [100%, 100%]. So each resample is drawn from the answers and one imagined answer at
each end of the scale. Graded scores need no such help. The scores themselves show which of the two
they are. All randomness is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from langchain_specfuse.evaluation.comparison import two_sided

LEVEL = 0.95
RESAMPLES = 4000
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the range in which the true one lies at a level of confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def interval(scores: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The mean of scores from 0 to 1.

    >>> result = interval([1.0] * 16 + [0.0] * 4)
    >>> result.mean, 0.5 < result.low < 0.66, 0.9 < result.high < 0.98
    (0.8, True, True)
    """
    return _interval(scores, level, (0.0, 1.0))


def difference(
    scores: Sequence[float], others: Sequence[float], *, level: float = LEVEL
) -> Interval:
    """The mean of ``scores`` minus ``others`` on the same questions.

    >>> result = difference([1.0] * 20, [1.0] * 20)
    >>> result.mean, result.low < 0 < result.high
    (0.0, True)
    """
    return _interval(_gains(scores, others), level, (-1.0, 1.0))


def _gains(scores: Sequence[float], others: Sequence[float]) -> list[float]:
    return [score - other for score, other in zip(scores, others, strict=True)]


def _interval(values: Sequence[float], level: float, ends: tuple[float, float]) -> Interval:
    if not values:
        return Interval(math.nan, *ends)
    count = len(values)
    mean = math.fsum(values) / count
    graded = any(value not in (*ends, 0.0) for value in values)
    if graded and count == 1:
        return Interval(mean, *ends)
    imagined = () if graded else ends
    population = np.asarray([*values, *imagined], dtype=float)
    chance = np.random.default_rng(0)
    samples = (chance.integers(0, len(population), size=count) for _ in range(RESAMPLES))
    means = [population[sample].mean() for sample in samples]
    # Resamples of n answers vary as if there were n - 1, so they are widened by that factor. The
    # imagined answers do that already.
    factor = math.sqrt(count / (count - 1)) if graded else 1.0
    middle = float(population.mean())
    tails = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    low, high = (float(middle + factor * (tail - middle)) for tail in tails)
    return Interval(mean, max(ends[0], min(low, mean)), min(ends[1], max(high, mean)))


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One system against the best of several members, where the best is picked on the same
    questions."""

    best: str
    """The best member on these questions."""
    difference: Interval
    """How far the system is above the truly best member, whichever that is."""
    p_plain: float
    """The paired test against ``best`` as if it had been named beforehand."""
    p_better: float
    """The p-value of "it is not better than the truly best member"."""
    p_worse: float
    """The p-value of "it is not worse than the truly best member"."""
    wins: int = 0
    """Questions on which the system scored higher than ``best``."""
    losses: int = 0

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``open``."""
        if self.difference.mean > 0 and self.p_better < SIGNIFICANT:
            return "better"
        if self.difference.mean < 0 and self.p_worse < SIGNIFICANT:
            return "worse"
        return "open"


def against_best(
    system: Sequence[float], members: Mapping[str, Sequence[float]], systems: int = 1
) -> AgainstBest:
    """The system against the best of these members. ``systems``: the number of systems that are
    compared; p-values and intervals are corrected for it.

    Picking the best on the same questions flatters it. So: better than the best means better than
    *each* (the largest of the p-values counts, which needs no correction); worse than the best
    means worse than *one* of them (the smallest counts, times their number). The interval is [min,
    min] of the differences' intervals, each at the level 1 - (1 - level) / k.

    >>> result = against_best([1.0] * 30, {"a": [0.0, 1.0] * 15, "b": [0.0] * 30})
    >>> result.best, result.verdict
    ('a', 'better')
    """
    best = max(members, key=lambda name: math.fsum(members[name]))
    level = 1 - (1 - LEVEL) / len(members) / systems
    differences, counts, tests = {}, {}, {}
    better, worse = [], []
    for name, scores in members.items():
        gains = _gains(system, scores)
        wins, losses = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
        differences[name] = difference(system, scores, level=level)
        counts[name] = (wins, losses)
        tests[name] = two_sided(wins, losses)
        mean = differences[name].mean
        # The mean of graded scores and most questions may disagree: then nothing is shown.
        better.append(tests[name] if mean > 0 and wins > losses else 1.0)
        worse.append(tests[name] if mean < 0 and wins < losses else 1.0)
    low = min(item.low for item in differences.values())
    high = min(item.high for item in differences.values())
    return AgainstBest(
        best,
        Interval(differences[best].mean, low, high),
        tests[best],
        min(1.0, systems * max(better)),
        min(1.0, systems * len(members) * min(worse)),
        *counts[best],
    )
