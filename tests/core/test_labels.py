"""Probabilities of labels, and fits to examples."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.core.labels import (
    Scale,
    accuracy,
    calibration_error,
    fit,
    fitted,
    log_loss,
    softmax,
)

finite = st.floats(-500, 500)
LABELS = 3


def drawn(seed: int, count: int, temperature: float, bias: tuple[float, ...], noise: float = 0.0):
    """Scores of ``count`` examples, and labels that were drawn from the probabilities which this
    scale gives them."""
    rng = random.Random(seed)
    scores, labels = [], []
    for _ in range(count):
        row = tuple(rng.gauss(0, 4) for _ in bias)
        chances = Scale(temperature, bias)(row)
        labels.append(rng.choices(range(len(bias)), chances)[0])
        scores.append(tuple(value + rng.gauss(0, noise) for value in row))
    return scores, labels


@given(st.lists(finite, min_size=2, max_size=6), st.floats(0.01, 100))
def test_probabilities_sum_to_one_and_keep_the_order_of_scores(scores, temperature):
    chances = Scale(temperature)(scores)
    assert math.isclose(sum(chances), 1.0)
    best = max(range(len(scores)), key=lambda k: scores[k])
    assert chances[best] == max(chances)


def test_a_fit_finds_the_scale_that_the_labels_were_drawn_from():
    truth = Scale(2.5, (1.0, -0.5, -0.5))
    scores, labels = drawn(1, 2000, truth.temperature, tuple(truth.bias))
    found = fitted(scores, labels)
    assert found.temperature == pytest.approx(truth.temperature, rel=0.15)
    assert list(found.bias) == pytest.approx(list(truth.bias), abs=0.25)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=LABELS, max_size=LABELS))
def test_a_constant_added_to_the_scores_of_a_label_changes_no_fitted_probability(shift):
    scores, labels = drawn(2, 60, 2.0, (0.5, 0.0, -0.5))
    shifted = [tuple(map(sum, zip(row, shift, strict=True))) for row in scores]
    plain, moved = fitted(scores, labels), fitted(shifted, labels)
    for row, other in zip(scores, shifted, strict=True):
        assert plain(row) == pytest.approx(moved(other), abs=1e-3)


def test_a_fit_to_few_examples_of_one_label_stays_finite():
    scale = fitted([(-900.0, -1.0), (-800.0, -2.0)], [1, 1])
    chances = scale((-850.0, -1.5))
    assert all(map(math.isfinite, chances)) and min(chances) > 0


def test_scores_that_say_the_opposite_make_no_label_more_probable():
    scores = [(0.0, 5.0), (5.0, 0.0)] * 40
    scale = fitted(scores, [0, 1] * 40)
    assert scale((0.0, 5.0)) == pytest.approx((0.5, 0.5), abs=0.05)


def test_the_member_that_knows_is_the_best():
    scores, labels = drawn(3, 150, 1.0, (0.0, 0.0, 0.0))
    rng = random.Random(4)
    guesses = [tuple(rng.gauss(0, 4) for _ in range(3)) for _ in labels]
    result = fit({"guesses": guesses, "knows": scores}, labels)
    assert result.best == "knows"
    assert log_loss(result.held_out["knows"], labels) < log_loss(result.held_out["guesses"], labels)


def test_the_loss_that_a_fit_reports_is_hardly_below_that_on_new_examples():
    """Of a fit to the same examples, it would be."""
    reported, later = [], []
    for seed in range(8):
        scores, labels = drawn(seed, 330, 3.0, (0.5, 0.0, -0.5), noise=4.0)
        result = fit({"a": scores[:30]}, labels[:30])
        reported.append(log_loss(result.held_out["a"], labels[:30]))
        later.append(log_loss([result.scales["a"](row) for row in scores[30:]], labels[30:]))
    assert math.fsum(reported) / 8 > math.fsum(later) / 8 - 0.05


def test_calibrated_probabilities_are_right_as_often_as_they_say():
    scores, labels = drawn(6, 1500, 4.0, (1.0, 0.0, -1.0))
    scale = fitted(scores[:300], labels[:300])
    raw = [softmax(row) for row in scores[300:]]
    calibrated = [scale(row) for row in scores[300:]]
    assert calibration_error(raw, labels[300:]) > 0.2
    assert calibration_error(calibrated, labels[300:]) < 0.06
    assert accuracy(calibrated, labels[300:]) > accuracy(raw, labels[300:])
