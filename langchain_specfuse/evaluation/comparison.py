"""Compare two systems on the same questions: wins, losses, and the probability that these are due
to chance.

Only questions on which the two scores differ count as a win or a loss. The p-values are exact
(McNemar's test). The interval of the difference adds one won and one lost question, in the manner
of Agresti and Min (2005), so that it also holds for small sets in which hardly any question
differs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .results import Graded

Z = 1.96
"""The normal quantile of a 95% interval."""
POWER_Z = 0.84
"""The normal quantile of a chance of 80% to show a difference."""
GAP = 0.05
"""A smaller difference does not matter."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean difference, and the range in which the true one lies with 95% confidence."""

    mean: float
    low: float
    high: float

    def points(self) -> str:
        """The interval in percentage points.

        >>> Interval(0.03, -0.01, 0.07).points()
        '+3.0 points [-1.0, +7.0]'
        """
        mean, low, high = 100 * self.mean, 100 * self.low, 100 * self.high
        return f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One system against another on the questions that both have answered."""

    system: str
    other: str
    questions: int
    wins: int
    """Questions on which ``system`` scores higher."""
    losses: int
    p: float
    """The exact two-sided p-value: the probability that wins and losses differ at least this much
    by chance."""
    difference: Interval
    """The difference of the mean scores."""
    passes: float
    """Forward passes, as a multiple of the other's."""
    seconds: float
    """Computing time, as a multiple of the other's."""
    needed: int
    """About how many questions it would take to show a difference of five points."""


def compared(system: Sequence[Graded], other: Sequence[Graded]) -> Comparison:
    """Compare the graded answers of two systems."""
    ours, theirs = scores_of(system), scores_of(other)
    shared = [question for question in ours if question in theirs]
    gains = [ours[question] - theirs[question] for question in shared]
    wins = sum(gain > 0 for gain in gains)
    losses = sum(gain < 0 for gain in gains)
    return Comparison(
        system=system[0].system,
        other=other[0].system,
        questions=len(gains),
        wins=wins,
        losses=losses,
        p=two_sided(wins, losses),
        difference=interval(gains),
        passes=_ratio(
            (graded.passes for graded in system),
            (graded.passes for graded in other),
        ),
        seconds=_ratio(
            (graded.seconds for graded in system),
            (graded.seconds for graded in other),
        ),
        needed=needed(gains),
    )


def scores_of(answers: Iterable[Graded]) -> dict[str, float]:
    """question -> score, the mean over seeds."""
    by_question: dict[str, list[float]] = defaultdict(list)
    for graded in answers:
        by_question[graded.question].append(graded.score)
    return {question: mean(scores) for question, scores in by_question.items()}


def by_system(answers: Iterable[Graded]) -> Mapping[str, list[Graded]]:
    """system -> its graded answers; an empty list for a system without any."""
    grouped: dict[str, list[Graded]] = defaultdict(list)
    for graded in answers:
        grouped[graded.system].append(graded)
    return grouped


def mean(values: Iterable[float]) -> float:
    """The mean of some numbers; 0 if there are none."""
    numbers = list(values)
    return math.fsum(numbers) / len(numbers) if numbers else 0.0


def _ratio(values: Iterable[float], others: Iterable[float]) -> float:
    total = math.fsum(others)
    return math.fsum(values) / total if total else math.nan


# --- p-values and intervals -----------------------------------------------------------------------


def one_sided(wins: int, losses: int) -> float:
    """The probability of at least this many wins, if wins and losses are equally likely.

    It is below a level exactly if the one-sided Clopper-Pearson bound of wins / (wins + losses)
    exceeds one half.

    >>> one_sided(5, 0), one_sided(0, 0), round(one_sided(9, 3), 4)
    (0.03125, 1.0, 0.073)
    """
    count = wins + losses
    outcomes = sum(math.comb(count, k) for k in range(wins, count + 1))
    return float(outcomes / 2**count)


def two_sided(wins: int, losses: int) -> float:
    """McNemar's exact test: the p-value of "each of the two is right as often as the other".

    >>> two_sided(9, 1), two_sided(0, 0)
    (0.021484375, 1.0)
    """
    return min(1.0, 2 * one_sided(max(wins, losses), min(wins, losses)))


def upper_bound(count: int, of: int, alpha: float = 0.05) -> float:
    """The exact one-sided upper bound of a share (Clopper and Pearson): the largest share of which
    ``count`` or fewer in ``of`` have a probability of ``alpha``.

    >>> [round(upper_bound(count, 10), 4) for count in (0, 1, 5, 10)]
    [0.2589, 0.3942, 0.7776, 1.0]
    """
    if count >= of:
        return 1.0
    ways = [
        math.lgamma(of + 1) - math.lgamma(k + 1) - math.lgamma(of - k + 1) for k in range(count + 1)
    ]
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        share = (low + high) / 2
        yes, no = math.log(share), math.log1p(-share)
        if math.fsum(math.exp(way + k * yes + (of - k) * no) for k, way in enumerate(ways)) > alpha:
            low = share
        else:
            high = share
    return high


def interval(gains: Sequence[float]) -> Interval:
    """The mean of paired differences from -1 to 1, with its 95% interval.

    One won and one lost question are added.

    >>> result = interval([0.0] * 20)
    >>> result.mean, result.low < 0 < result.high
    (0.0, True)
    """
    if not gains:
        return Interval(math.nan, -1.0, 1.0)
    count = len(gains) + 2
    total = math.fsum(gains)
    squares = math.fsum(gain * gain for gain in gains) + 2
    middle = total / count
    reach = Z * math.sqrt(squares - total * total / count) / count
    average = total / len(gains)
    low = max(-1.0, min(middle - reach, average))
    high = min(1.0, max(middle + reach, average))
    return Interval(average, low, high)


def needed(gains: Sequence[float], gap: float = GAP) -> int:
    """About how many questions it takes to show a difference of ``gap`` in four of five tries:
    n = (1.96 + 0.84)² · var / gap².

    >>> needed([1.0, -1.0, 0.0, 0.0] * 10)
    1568
    """
    if not gains:
        return 0
    average = mean(gains)
    squares = math.fsum((gain - average) ** 2 for gain in gains)
    if len(gains) < 40:
        squares += 2  # as if one more question had been won and one more lost
    return math.ceil((Z + POWER_Z) ** 2 * squares / len(gains) / gap**2)
