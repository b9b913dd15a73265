"""How sure a number is: intervals by the bootstrap, paired tests, and the ensemble against the best of several.

Right-or-wrong scores get an honest interval in small sets: the plain bootstrap of twenty right answers out of twenty
says "100%, for certain". So each resample is drawn from the answers seen and one imagined answer at each end of the
scale. Graded scores need no such help, unless all of them lie at the ends. Knows numbers only. All chance is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UsageError, advised

LEVEL = 0.95
RESAMPLES = 4000
SIGNIFICANT = 0.05
BLOCK = 2_000_000
"""So many draws are held in memory at once."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where the true one lies, at this level of confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def _numpy() -> Any:
    try:
        import numpy
    except ModuleNotFoundError as error:
        missing = UsageError("the statistics of an evaluation need numpy, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[eval]"') from error
    return numpy


def interval(values: Sequence[float], *, level: float = LEVEL, graded: bool | None = False) -> Interval:
    """The mean of scores from 0 to 1. ``graded=None``: whether they are is told from the values.

    >>> told = interval([1.0] * 16 + [0.0] * 4)
    >>> told.mean, 0.5 < told.low < 0.66, 0.9 < told.high < 0.98
    (0.8, True, True)
    """
    return _interval(values, graded, level, (0.0, 1.0))


def difference(
    one: Sequence[float], other: Sequence[float], *, level: float = LEVEL, graded: bool | None = False
) -> Interval:
    """The mean of one's scores minus the other's on the same questions.

    >>> told = difference([1.0] * 20, [1.0] * 20)
    >>> told.mean, told.low < 0 < told.high
    (0.0, True)
    """
    apart = [a - b for a, b in zip(one, other, strict=True)]
    return _interval(apart, graded, level, (-1.0, 1.0))


def _interval(values: Sequence[float], graded: bool | None, level: float, ends: tuple[float, float]) -> Interval:
    if not values:
        return Interval(math.nan, *ends)
    if graded is None:
        graded = any(value not in (*ends, 0.0) for value in values)
    imagined = () if graded else ends
    np = _numpy()
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1 and not imagined:
        return Interval(mean, *ends)
    seen = np.asarray([*values, *imagined], dtype=float)
    means = _resampled_means(seen, count)
    # Resamples of n answers vary as if there were n - 1: widened, they do not.
    wide = 1.0 if imagined else math.sqrt(count / (count - 1))
    middle = float(seen.mean())
    low, high = (middle + wide * (q - middle) for q in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    return Interval(mean, max(ends[0], min(float(low), mean)), min(ends[1], max(float(high), mean)))


def _resampled_means(seen: Any, count: int) -> Any:
    np = _numpy()
    chance = np.random.default_rng(0)
    size = max(1, min(RESAMPLES, BLOCK // count))
    rows = [
        seen[chance.integers(0, len(seen), size=(min(size, RESAMPLES - at), count))].mean(axis=1)
        for at in range(0, RESAMPLES, size)
    ]
    return np.concatenate(rows)


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p-value that one is as often right as the other, from the questions on which they differ.

    p = min(1, 2 · Σ_{k <= min(b, c)} C(b + c, k) / 2^(b + c))

    >>> mcnemar(9, 1), mcnemar(0, 0)
    (0.021484375, 1.0)
    """
    return min(1.0, 2 * _tail(better + worse, min(better, worse)))


def _tail(count: int, most: int) -> float:
    """The probability of at most so many heads."""
    return float(sum(math.comb(count, k) for k in range(most + 1)) / 2**count)


def sign_flips(apart: Sequence[float]) -> float:
    """The two-sided p-value that differences are as often positive as negative, by size: a paired permutation test.

    Exact up to 14 differences; beyond that 10,000 random flips, the observed one counted in.

    >>> sign_flips([0.1, 0.2, 0.3, 0.4, 0.1])
    0.0625
    """
    moved = [value for value in apart if value]
    if not moved:
        return 1.0
    np = _numpy()
    values = np.asarray(moved, dtype=float)
    bar = abs(values.sum()) * (1 - 1e-12)
    count = len(moved)
    if count <= 14:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        return float((np.abs(signs @ values) >= bar).mean())
    chance = np.random.default_rng(0)
    flips, hits, size = 10_000, 0, max(1, BLOCK // count)
    for at in range(0, flips, size):
        signs = 1 - 2 * chance.integers(0, 2, size=(min(size, flips - at), count))
        hits += int((np.abs(signs @ values) >= bar).sum())
    return (hits + 1) / (flips + 1)


def paired(one: Sequence[float], other: Sequence[float]) -> float:
    """The two-sided p-value of a difference on the same questions: McNemar's for right and wrong, else sign flips."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    if all(value in (-1.0, 0.0, 1.0) for value in apart):
        return mcnemar(apart.count(1.0), apart.count(-1.0))
    return sign_flips(apart)


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One system against the best of several others, though the best is known only from the same questions."""

    best: str
    """Who is best on these questions."""
    apart: Interval
    """How far the system lies above the best one: at the level of confidence, whoever is truly the best."""
    p_plain: float
    """The paired test against ``best`` as if it had been named beforehand."""
    p_better: float
    """The p-value of "it is not better than the truly best one"."""
    p_worse: float
    """The p-value of "it is not worse than the truly best one"."""

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``open``."""
        if self.apart.mean > 0 and self.p_better < SIGNIFICANT:
            return "better"
        return "worse" if self.p_worse < SIGNIFICANT and self.apart.mean < 0 else "open"


def against_best(
    system: Sequence[float], others: Mapping[str, Sequence[float]], *, graded: bool | None = False
) -> AgainstBest:
    """The system against the best of these.

    Having picked the best on the same questions flatters it. So: better than the best means better than *each*
    (the largest of the p-values counts, which needs no correction); worse than the best means worse than *one* of
    them (the smallest counts, times their number). The interval is [min, min] of the differences' intervals, each at
    the level 1 - (1 - level) / k.

    >>> told = against_best([1.0] * 30, {"a": [0.0, 1.0] * 15, "b": [0.0] * 30})
    >>> told.best, told.verdict
    ('a', 'better')
    """
    count = len(others)
    best = max(others, key=lambda name: math.fsum(others[name]))
    level = 1 - (1 - LEVEL) / count
    apart = {name: difference(system, scores, level=level, graded=graded) for name, scores in others.items()}
    tests = {name: paired(system, scores) for name, scores in others.items()}
    better = [p if apart[name].mean > 0 else 1.0 for name, p in tests.items()]
    worse = [p if apart[name].mean < 0 else 1.0 for name, p in tests.items()]
    low, high = min(one.low for one in apart.values()), min(one.high for one in apart.values())
    return AgainstBest(
        best,
        Interval(apart[best].mean, low, high),
        tests[best],
        max(better),
        min(1.0, count * min(worse)),
    )


def needed(apart: Sequence[float], gap: float = 0.05) -> int:
    """About how many questions show a difference of ``gap`` in four of five tries: n = (1.96 + 0.84)² · var / gap².

    >>> needed([1.0, -1.0, 0.0, 0.0] * 10)
    1568
    """
    if not apart:
        return 0
    mean = math.fsum(apart) / len(apart)
    # As if one more pair had differed each way: where none did, some would.
    variance = (math.fsum((value - mean) ** 2 for value in apart) + 2 * (len(apart) < 40)) / len(apart)
    return math.ceil((1.96 + 0.84) ** 2 * variance / gap**2)
