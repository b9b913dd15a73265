"""Learns from labelled questions which member should lead for which kind of question, and measures
this on held-out questions.

For each member, ridge regression on the features of ``core.routing`` predicts the difference
between its score for a question and its mean score. :data:`RIDGE` and the features are constants:
nothing is tuned on the user's questions, so leave-one-out is a fair test.

The linear algebra is plain Python, because the package does not depend on numpy. It takes about a
second for 400 questions and about 10 s for 1,000, far less than asking them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import mul
from typing import TypeAlias

from ..core.routing import Features, Router, best

RIDGE = 3.0
"""The factor of the squared weights. With 0.3 or 1, a router for members that do not differ in
skill loses up to six points; with 10, it needs too many questions to follow real differences
(docs/development/log.md)."""

Rows: TypeAlias = list[list[float]]
Scores: TypeAlias = Mapping[str, Sequence[float]]
"""member -> its score for each question, in the order of the questions."""


def fitted(features: Sequence[Features], scores: Scores) -> Router:
    """A router from the features of the questions and the members' scores."""
    factor = _factor(features)
    weights: dict[int, list[float]] = defaultdict(lambda: [0.0] * len(scores))
    shares = {name: math.fsum(row) / len(row) for name, row in scores.items()}
    for column, (name, row) in enumerate(scores.items()):
        alphas = _solved(factor, [score - shares[name] for score in row])
        for question, alpha in zip(features, alphas, strict=True):
            for position, value in question.items():
                weights[position][column] += alpha * value
    return Router(shares, dict(weights))


def left_out(features: Sequence[Features], scores: Scores) -> list[str]:
    """For each question, the member that a router made from all other questions would choose.

    With A = (K + λI)^-1, K the inner products of the questions, y a member's scores and m_i its
    mean without question i, ridge regression without question i predicts for it
    y_i - ((A y)_i - m_i (A 1)_i) / A_ii. This is exact, and needs no second fit.
    """
    count = len(features)
    factor = _factor(features)
    diagonal = _inverse_diagonal(factor)
    ones = _solved(factor, [1.0] * count)
    means: list[dict[str, float]] = [{} for _ in features]
    predicted: list[dict[str, float]] = [{} for _ in features]
    for name, row in scores.items():
        total = math.fsum(row)
        solved = _solved(factor, row)
        for i, score in enumerate(row):
            mean = (total - score) / (count - 1)
            means[i][name] = mean
            predicted[i][name] = score - (solved[i] - mean * ones[i]) / diagonal[i]
    return [best(row, best(mean)) for row, mean in zip(predicted, means, strict=True)]


# --- linear algebra -------------------------------------------------------------------------------


def _factor(features: Sequence[Features]) -> Rows:
    """The Cholesky factor L of K + λI: the rows of a lower triangular matrix, each up to its
    diagonal."""
    matrix = _inner_products(features)
    factor: Rows = []
    for i, row in enumerate(matrix):
        row[i] += RIDGE
        new: list[float] = []
        for j in range(i):
            other = factor[j]
            new.append((row[j] - sum(map(mul, new, other))) / other[j])
        new.append(math.sqrt(row[i] - sum(map(mul, new, new))))
        factor.append(new)
    return factor


def _inner_products(features: Sequence[Features]) -> Rows:
    """The inner products of each question with those before it and with itself."""
    holders: dict[int, list[tuple[int, float]]] = defaultdict(list)
    rows = []
    for i, question in enumerate(features):
        row = [0.0] * (i + 1)
        for position, value in question.items():
            holders[position].append((i, value))
            for other, others_value in holders[position]:
                row[other] += value * others_value
        rows.append(row)
    return rows


def _solved(factor: Rows, right: Iterable[float]) -> list[float]:
    """x with L Lᵀ x = right."""
    forward: list[float] = []
    for row, value in zip(factor, right, strict=True):
        forward.append((value - sum(map(mul, row, forward))) / row[-1])
    solution = forward
    for i in range(len(factor) - 1, -1, -1):
        row = factor[i]
        solution[i] /= row[i]
        for j in range(i):
            solution[j] -= row[j] * solution[i]
    return solution


def _inverse_diagonal(factor: Rows) -> list[float]:
    """The diagonal of (L Lᵀ)^-1: for each column of L^-1, the sum of its squares."""
    diagonal = []
    for start, first in enumerate(factor):
        column = [1 / first[start]]
        for row in factor[start + 1 :]:
            column.append(-sum(map(mul, row[start:-1], column)) / row[-1])
        diagonal.append(math.fsum(value * value for value in column))
    return diagonal
