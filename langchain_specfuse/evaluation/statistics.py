"""How certain a number is: bootstrap intervals, paired tests, and the ensemble against the best of
several.

Scores that are only 0 and 1 need care in small sets: the plain bootstrap of twenty right answers
out of twenty says "100%, for certain". So each resample is drawn from the answers and one imagined
answer at each end of the scale. Graded scores need no such help. Which of the two they are is read
from the scores. All randomness is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import imported

LEVEL = 0.95
RESAMPLES = 4000
SIGNIFICANT = 0.05


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean, and the range in which the true one lies at this level of confidence."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f} [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def numpy() -> Any:
    """The library, or an error that names its extra. The commands call it before they ask the first
    question."""
    return imported("numpy", "an evaluation", "eval")


def interval(scores: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The mean of scores from 0 to 1.

    >>> found = interval([1.0] * 16 + [0.0] * 4)
    >>> found.mean, 0.5 < found.low < 0.66, 0.9 < found.high < 0.98
    (0.8, True, True)
    """
    return _interval(scores, level, (0.0, 1.0))


def difference(one: Sequence[float], other: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The mean of ``one``'s scores minus ``other``'s on the same questions.

    >>> found = difference([1.0] * 20, [1.0] * 20)
    >>> found.mean, found.low < 0 < found.high
    (0.0, True)
    """
    return _interval(_apart(one, other), level, (-1.0, 1.0))


def _apart(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


def _interval(values: Sequence[float], level: float, ends: tuple[float, float]) -> Interval:
    if not values:
        return Interval(math.nan, *ends)
    np, count = numpy(), len(values)
    mean = math.fsum(values) / count
    graded = any(value not in (*ends, 0.0) for value in values)
    if graded and count == 1:
        return Interval(mean, *ends)
    drawn_from = np.asarray([*values, *(() if graded else ends)], dtype=float)
    chance = np.random.default_rng(0)
    means = [
        drawn_from[chance.integers(0, len(drawn_from), size=count)].mean() for _ in range(RESAMPLES)
    ]
    # Resamples of n answers vary as if there were n - 1: widen them by that factor. The imagined
    # answers do it already.
    wide = math.sqrt(count / (count - 1)) if graded else 1.0
    middle = float(drawn_from.mean())
    low, high = (
        middle + wide * (q - middle) for q in np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    )
    return Interval(mean, max(ends[0], min(float(low), mean)), min(ends[1], max(float(high), mean)))


def chance_of(wins: int, losses: int) -> float:
    """The probability of at least this many wins, if wins and losses are equally likely.

    It is below a level exactly if the one-sided Clopper-Pearson bound of wins / (wins + losses)
    exceeds one half.

    >>> chance_of(5, 0), chance_of(0, 0), round(chance_of(9, 3), 4)
    (0.03125, 1.0, 0.073)
    """
    count = wins + losses
    return float(sum(math.comb(count, k) for k in range(wins, count + 1)) / 2**count)


def mcnemar(better: int, worse: int) -> float:
    """The exact two-sided p-value of "one is right as often as the other", from the questions on
    which they differ.

    >>> mcnemar(9, 1), mcnemar(0, 0)
    (0.021484375, 1.0)
    """
    return min(1.0, 2 * chance_of(max(better, worse), min(better, worse)))


def counted(one: Sequence[float], other: Sequence[float]) -> tuple[int, int]:
    """On how many of the same questions ``one`` scores higher, and on how many lower."""
    apart = _apart(one, other)
    return sum(value > 0 for value in apart), sum(value < 0 for value in apart)


@dataclass(frozen=True, slots=True)
class AgainstBest:
    """One system against the best of several others, where the best is known only from the same
    questions."""

    best: str
    """The best of the others on these questions."""
    apart: Interval
    """How far the system is above the best one, at this level of confidence, whichever that truly
    is."""
    p_plain: float
    """The paired test against ``best`` as if it had been named beforehand."""
    p_better: float
    """The p-value of "it is not better than the truly best one"."""
    p_worse: float
    """The p-value of "it is not worse than the truly best one"."""
    wins: int = 0
    """Questions on which the system scored higher than ``best``."""
    losses: int = 0

    @property
    def verdict(self) -> str:
        """``better``, ``worse`` or ``open``."""
        if self.apart.mean > 0 and self.p_better < SIGNIFICANT:
            return "better"
        return "worse" if self.p_worse < SIGNIFICANT and self.apart.mean < 0 else "open"


def against_best(
    system: Sequence[float], others: Mapping[str, Sequence[float]], systems: int = 1
) -> AgainstBest:
    """The system against the best of these. ``systems``: the number of systems that are compared;
    p and intervals are corrected for it.

    Picking the best on the same questions flatters it. So: better than the best means better than
    *each* (the largest of the p-values counts, which needs no correction); worse than the best
    means worse than *one* of them (the smallest counts, times their number). The interval is [min,
    min] of the differences' intervals, each at the level 1 - (1 - level) / k.

    >>> found = against_best([1.0] * 30, {"a": [0.0, 1.0] * 15, "b": [0.0] * 30})
    >>> found.best, found.verdict
    ('a', 'better')
    """
    best = max(others, key=lambda name: math.fsum(others[name]))
    level = 1 - (1 - LEVEL) / len(others) / systems
    apart = {name: difference(system, scores, level=level) for name, scores in others.items()}
    counts = {name: counted(system, scores) for name, scores in others.items()}
    tests = {name: mcnemar(*count) for name, count in counts.items()}
    low, high = min(one.low for one in apart.values()), min(one.high for one in apart.values())
    # Of graded scores the mean and most questions may say the opposite: then nothing is shown.
    better = max(
        p if apart[name].mean > 0 and counts[name][0] > counts[name][1] else 1.0
        for name, p in tests.items()
    )
    worse = min(
        p if apart[name].mean < 0 and counts[name][0] < counts[name][1] else 1.0
        for name, p in tests.items()
    )
    return AgainstBest(
        best,
        Interval(apart[best].mean, low, high),
        tests[best],
        min(1.0, systems * better),
        min(1.0, systems * len(others) * worse),
        *counts[best],
    )


def needed(apart: Sequence[float], gap: float = 0.05) -> int:
    """About how many questions show a difference of ``gap`` in four of five tries: n = (1.96 +
    0.84)² · var / gap².

    >>> needed([1.0, -1.0, 0.0, 0.0] * 10)
    1568
    """
    if not apart:
        return 0
    mean = math.fsum(apart) / len(apart)
    # In a small set, as if one more pair had differed each way: where none did, some would.
    variance = (math.fsum((value - mean) ** 2 for value in apart) + 2 * (len(apart) < 40)) / len(
        apart
    )
    return math.ceil((1.96 + 0.84) ** 2 * variance / gap**2)
