"""Turns the scores of labels into probabilities, and fits temperatures and biases to examples.

A member's score for a label is the log-probability of the label's text. Its *calibrated*
probabilities are

    p(k) = softmax_k(score_k / T + b_k)

with a temperature T and a bias b_k for each label. Everything is computed in plain Python: a fit
has few parameters, and a few hundred examples are enough.

What the labels mean, and how members score them, is in ``chat.labelling``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Probabilities = tuple[float, ...]
"""One for each label; they sum to 1."""

RIDGE = 1.0
"""The prior of a fit: bias and 1/T are about as far from 0 and 1 as a standard normal variable."""
STEPS = 50
LEAST_SLOPE = 0.01
"""1/T is at least this, so that more probable labels never become less probable."""
FOLDS = 5
FLOOR = 1e-6
"""In a log loss, a probability counts as at least this."""


def softmax(values: Sequence[float]) -> Probabilities:
    """exp(v_k) / Σ exp(v).

    >>> softmax([0.0, 0.0]), softmax([1000.0, 0.0])
    ((0.5, 0.5), (1.0, 0.0))
    """
    highest = max(values)
    exponentials = [math.exp(value - highest) for value in values]
    total = math.fsum(exponentials)
    return tuple(value / total for value in exponentials)


@dataclass(frozen=True, slots=True)
class Scale:
    """How one member's scores become probabilities."""

    temperature: float = 1.0
    bias: Sequence[float] = field(default=())
    """One for each label; empty: 0 for all."""

    def __call__(self, scores: Sequence[float]) -> Probabilities:
        """The probabilities of the labels with these scores.

        >>> Scale()([0.0, math.log(3)])
        (0.25, 0.75)
        >>> Scale(temperature=2.0, bias=(0.0, math.log(2)))([0.0, math.log(4)])
        (0.2, 0.8)
        """
        bias = self.bias or (0.0,) * len(scores)
        values = [score / self.temperature + b for score, b in zip(scores, bias, strict=True)]
        return softmax(values)


def averaged(
    probabilities: Mapping[str, Probabilities], weights: Mapping[str, float]
) -> Probabilities:
    """The members' probabilities, averaged with their weights. Members that are missing are left
    out; if all others have the weight 0, these count equally.

    >>> averaged({"a": (1.0, 0.0), "b": (0.5, 0.5)}, {"a": 1.0, "b": 1.0, "c": 2.0})
    (0.75, 0.25)
    """
    total = math.fsum(weights.get(name, 0.0) for name in probabilities)
    if total <= 0:
        weights, total = dict.fromkeys(probabilities, 1.0), len(probabilities)
    columns = zip(*probabilities.values(), strict=True)
    shares = [weights.get(name, 0.0) / total for name in probabilities]
    return tuple(math.fsum(map(_times, shares, column)) for column in columns)


def _times(a: float, b: float) -> float:
    return a * b


# --- how good probabilities are -------------------------------------------------------------------


def accuracy(rows: Sequence[Probabilities], labels: Sequence[int]) -> float:
    """The share of examples whose most probable label is right.

    >>> accuracy([(0.9, 0.1), (0.6, 0.4)], [0, 1])
    0.5
    """
    return sum(row.index(max(row)) == label for row, label in pairs(rows, labels)) / len(rows)


def log_loss(rows: Sequence[Probabilities], labels: Sequence[int]) -> float:
    """-mean log p(right label).

    >>> round(log_loss([(0.5, 0.5), (0.25, 0.75)], [0, 1]), 3)
    0.49
    """
    losses = [-math.log(max(row[label], FLOOR)) for row, label in pairs(rows, labels)]
    return math.fsum(losses) / len(losses)


def brier(rows: Sequence[Probabilities], labels: Sequence[int]) -> float:
    """mean Σ_k (p_k - [k is right])², from 0 to 2.

    >>> brier([(0.5, 0.5)], [0])
    0.5
    """
    losses = [
        math.fsum((p - (k == label)) ** 2 for k, p in enumerate(row))
        for row, label in pairs(rows, labels)
    ]
    return math.fsum(losses) / len(losses)


def calibration_error(
    rows: Sequence[Probabilities], labels: Sequence[int], bins: int = 10
) -> float:
    """The expected calibration error: how far the probability of the most probable label is from
    the share of examples where it is right, in ``bins`` ranges of equal width.

    >>> round(calibration_error([(0.9, 0.1), (0.9, 0.1)], [0, 1]), 3)
    0.4
    """
    gaps = [0.0] * bins
    for row, label in pairs(rows, labels):
        highest = max(row)
        gaps[min(int(highest * bins), bins - 1)] += highest - (row.index(highest) == label)
    return math.fsum(map(abs, gaps)) / len(rows)


def pairs(
    rows: Sequence[Probabilities], labels: Sequence[int]
) -> Iterable[tuple[Probabilities, int]]:
    """Each example's probabilities with its right label."""
    return zip(rows, labels, strict=True)


# --- fitting one member ---------------------------------------------------------------------------


def fitted(scores: Sequence[Sequence[float]], labels: Sequence[int]) -> Scale:
    """The scale with the highest likelihood on these examples, under the prior of :data:`RIDGE`.

    The scores are centred first, label by label, so that a fit to few examples starts from no
    preference for any label. The negative log-likelihood is convex in (1/T, b) and is minimised by
    damped Newton steps.

    >>> scale = fitted([(0.0, 1.0), (0.0, 3.0)] * 20, [0, 1] * 20)
    >>> [round(p) for p in scale((0.0, 1.0))], [round(p) for p in scale((0.0, 3.0))]
    ([1, 0], [0, 1])
    """
    means = [math.fsum(column) / len(scores) for column in zip(*scores, strict=True)]
    centred = [[score - mean for score, mean in zip(row, means, strict=True)] for row in scores]
    slope, bias = _minimum(centred, labels, free_slope=True)
    if slope < LEAST_SLOPE:
        slope, bias = _minimum(centred, labels, free_slope=False)
    shifted = [b - slope * mean for b, mean in zip(bias, means, strict=True)]
    middle = math.fsum(shifted) / len(shifted)
    return Scale(1.0 / slope, tuple(b - middle for b in shifted))


def _minimum(
    scores: Sequence[Sequence[float]], labels: Sequence[int], *, free_slope: bool
) -> tuple[float, list[float]]:
    """The slope 1/T and the biases with the least loss."""
    count = len(scores[0])
    point = [1.0 if free_slope else LEAST_SLOPE, *[0.0] * count]
    loss = _loss(scores, labels, point)
    for _ in range(STEPS):
        gradient, hessian = _derivatives(scores, labels, point)
        if not free_slope:
            gradient[0] = 0.0
            hessian[0] = [1.0, *[0.0] * count]
            for row in hessian[1:]:
                row[0] = 0.0
        step = _solved(hessian, gradient)
        length = 1.0
        while length > 1e-8:
            trial = [value - length * change for value, change in zip(point, step, strict=True)]
            trial_loss = _loss(scores, labels, trial)
            if trial_loss <= loss:
                break
            length /= 2
        gain = loss - trial_loss
        if gain < 1e-9 * (1 + abs(loss)):
            break
        point, loss = trial, trial_loss
    return point[0], point[1:]


def _loss(
    scores: Sequence[Sequence[float]], labels: Sequence[int], point: Sequence[float]
) -> float:
    slope, *bias = point
    total = RIDGE / 2 * ((slope - 1) ** 2 + math.fsum(b * b for b in bias))
    for row, label in zip(scores, labels, strict=True):
        values = [slope * score + b for score, b in zip(row, bias, strict=True)]
        highest = max(values)
        total += highest - values[label]
        total += math.log(math.fsum(math.exp(value - highest) for value in values))
    return total


def _derivatives(
    scores: Sequence[Sequence[float]], labels: Sequence[int], point: Sequence[float]
) -> tuple[list[float], list[list[float]]]:
    """Gradient and Hessian of the loss in (1/T, b_1, ..., b_K)."""
    slope, *bias = point
    size = len(point)
    gradient = [RIDGE * (slope - 1), *[RIDGE * b for b in bias]]
    hessian = [[RIDGE * (i == j) for j in range(size)] for i in range(size)]
    for row, label in zip(scores, labels, strict=True):
        chances = softmax([slope * score + b for score, b in zip(row, bias, strict=True)])
        mean = math.fsum(map(_times, chances, row))
        gradient[0] += mean - row[label]
        hessian[0][0] += math.fsum(p * (s - mean) ** 2 for p, s in zip(chances, row, strict=True))
        for k, p in enumerate(chances, 1):
            gradient[k] += p - (k - 1 == label)
            hessian[0][k] += p * (row[k - 1] - mean)
            hessian[k][k] += p
            for j, q in enumerate(chances, 1):
                hessian[k][j] -= p * q
    for k in range(1, size):
        hessian[k][0] = hessian[0][k]
    return gradient, hessian


def _solved(matrix: Sequence[Sequence[float]], vector: Sequence[float]) -> list[float]:
    """The x with matrix · x = vector, by Gaussian elimination. The matrix is positive definite.

    >>> _solved([[2.0, 1.0], [1.0, 3.0]], [5.0, 10.0])
    [1.0, 3.0]
    """
    rows = [[*row, value] for row, value in zip(matrix, vector, strict=True)]
    size = len(rows)
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [b - factor * a for a, b in zip(rows[i], rows[j], strict=True)]
    solution = [0.0] * size
    for i in reversed(range(size)):
        rest = math.fsum(rows[i][j] * solution[j] for j in range(i + 1, size))
        solution[i] = (rows[i][size] - rest) / rows[i][i]
    return solution


# --- fitting all members --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """Scales that were fitted to examples."""

    scales: Mapping[str, Scale]
    best: str
    """The member with the lowest log loss after calibration."""
    held_out: Mapping[str, tuple[Probabilities, ...]]
    """member -> its calibrated probabilities for each example, by a fit to other examples."""


def fit(scores: Mapping[str, Sequence[Sequence[float]]], labels: Sequence[int]) -> Fit:
    """Fit each member's scale. ``scores``: member -> the scores of each example."""
    held_out = {name: _held_out(rows, labels) for name, rows in scores.items()}
    return Fit(
        {name: fitted(rows, labels) for name, rows in scores.items()},
        min(held_out, key=lambda name: log_loss(held_out[name], labels)),
        held_out,
    )


def folds_of(labels: Sequence[int]) -> list[int]:
    """The fold of each example. Each label is spread evenly over the folds.

    >>> folds_of([0, 0, 1, 0, 1])
    [0, 1, 3, 2, 4]
    """
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    folds = [0] * len(labels)
    for place, i in enumerate(order):
        folds[i] = place % FOLDS
    return folds


def _held_out(
    scores: Sequence[Sequence[float]], labels: Sequence[int]
) -> tuple[Probabilities, ...]:
    """The probabilities of each example, by a scale that was fitted to the other folds."""
    folds = folds_of(labels)
    rows: list[Probabilities] = [()] * len(labels)
    for fold in set(folds):
        others = [i for i in range(len(labels)) if folds[i] != fold]
        scale = fitted([scores[i] for i in others], [labels[i] for i in others])
        for i in range(len(labels)):
            if folds[i] == fold:
                rows[i] = scale(scores[i])
    return tuple(rows)
