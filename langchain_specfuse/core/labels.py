"""Turns the scores of labels into probabilities, and fits temperatures, biases and the members'
weights to examples.

A member's score for a label is the log-probability of the label's text. Its *calibrated*
probabilities are

    p(k) = softmax_k(score_k / T + b_k)

with a temperature T and a bias b_k for each label. The probabilities of all members are averaged
with weights: p(k) = Σ_m w_m p_m(k). Everything is computed in plain Python: a fit has few
parameters, and a few hundred examples are enough.

What the labels mean, and how members score them, is in ``chat.labelling``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Probabilities = tuple[float, ...]
"""One for each label; they sum to 1."""

RIDGE = 1.0
"""The prior of a fit: bias and 1/T are about as far from 0 and 1 as a standard normal variable."""
STEPS = 50
LEAST_SLOPE = 0.01
"""1/T is at least this, so that more probable labels never become less probable."""
FOLDS = 5
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far the weights may move from the best member alone to the weights that fit best."""
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
    """Scales and weights that were fitted to examples."""

    scales: Mapping[str, Scale]
    weights: Mapping[str, float]
    best: str
    """The member with the lowest log loss after calibration."""
    held_out: Mapping[str, tuple[Probabilities, ...]]
    """member -> its calibrated probabilities for each example, by a fit to other examples."""
    together: tuple[Probabilities, ...]
    """The average of these for each example, with weights for which only other examples were
    looked at."""

    def probabilities(self, scores: Mapping[str, Sequence[float]]) -> Probabilities:
        """The probabilities of all members together, from the scores of each."""
        rows = {name: self.scales[name](own) for name, own in scores.items()}
        return averaged(rows, self.weights)


Rows: TypeAlias = Mapping[str, Sequence[Probabilities]]
"""member -> its probabilities for each example."""


def fit(scores: Mapping[str, Sequence[Sequence[float]]], labels: Sequence[int]) -> Fit:
    """Fit each member's scale, and the weights. ``scores``: member -> the scores of each example.

    The weights are fitted to the probabilities of held-out examples, which the scales were not
    fitted to. They are shrunk to the best calibrated member: w = (1 - λ) · best + λ · fitted, with
    the λ of :data:`SHARES` that predicts the examples of other folds best.
    """
    held_out = {name: _held_out(rows, labels) for name, rows in scores.items()}
    best, weights = _chosen(held_out, labels)
    by_fold = _by_fold(held_out, labels, lambda rows, right: _chosen(rows, right)[1])
    return Fit(
        {name: fitted(rows, labels) for name, rows in scores.items()},
        weights,
        best,
        held_out,
        _averages(held_out, labels, by_fold),
    )


def _chosen(rows: Rows, labels: Sequence[int]) -> tuple[str, dict[str, float]]:
    """The best member, and the weights: shrunk to it by the share that predicts other folds
    best."""
    best = min(rows, key=lambda name: log_loss(rows[name], labels))
    by_fold = _by_fold(rows, labels, best_weights)

    def loss(share: float) -> float:
        moved = {fold: shrunk(weights, best, share) for fold, weights in by_fold.items()}
        return log_loss(_averages(rows, labels, moved), labels)

    return best, shrunk(best_weights(rows, labels), best, min(SHARES, key=loss))


def shrunk(weights: Mapping[str, float], best: str, share: float) -> dict[str, float]:
    """The weights, moved towards the best member alone.

    >>> shrunk({"a": 0.5, "b": 0.5}, "a", 0.5)
    {'a': 0.75, 'b': 0.25}
    """
    return {name: share * weight + (1 - share) * (name == best) for name, weight in weights.items()}


def best_weights(
    probabilities: Mapping[str, Sequence[Probabilities]], labels: Sequence[int]
) -> dict[str, float]:
    """The weights with which the average has the lowest log loss. The loss is convex in the
    weights; each step of expectation maximisation lowers it:

        w_m <- mean over examples of w_m p_m(right) / Σ_n w_n p_n(right)

    >>> weights = best_weights({"a": [(0.9, 0.1)] * 4, "b": [(0.5, 0.5)] * 4}, [0, 0, 0, 0])
    >>> {name: round(weight, 2) for name, weight in weights.items()}
    {'a': 1.0, 'b': 0.0}
    """
    right = {
        name: [max(row[label], FLOOR) for row, label in pairs(rows, labels)]
        for name, rows in probabilities.items()
    }
    weights = dict.fromkeys(right, 1 / len(right))
    for _ in range(200):
        totals = [
            math.fsum(weights[name] * values[i] for name, values in right.items())
            for i in range(len(labels))
        ]
        updated = {
            name: weights[name]
            * math.fsum(map(lambda p, total: p / total, values, totals))
            / len(labels)
            for name, values in right.items()
        }
        change = max(abs(updated[name] - weights[name]) for name in weights)
        weights = updated
        if change < 1e-6:
            break
    return weights


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


def _by_fold(
    rows: Rows,
    labels: Sequence[int],
    weights_of: Callable[[Rows, Sequence[int]], Mapping[str, float]],
) -> dict[int, Mapping[str, float]]:
    """fold -> the weights that ``weights_of`` gives for the examples of the other folds."""
    folds = folds_of(labels)
    weights = {}
    for fold in set(folds):
        others = [i for i in range(len(labels)) if folds[i] != fold]
        own = {name: [row[i] for i in others] for name, row in rows.items()}
        weights[fold] = weights_of(own, [labels[i] for i in others])
    return weights


def _averages(
    rows: Rows, labels: Sequence[int], by_fold: Mapping[int, Mapping[str, float]]
) -> tuple[Probabilities, ...]:
    """The average for each example, with the weights of its fold."""
    return tuple(
        averaged({name: row[i] for name, row in rows.items()}, by_fold[fold])
        for i, fold in enumerate(folds_of(labels))
    )
