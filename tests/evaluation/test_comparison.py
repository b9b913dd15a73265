"""The comparison of two systems: against scipy where it has the same, and by simulation where the
truth is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.evaluation import Graded
from langchain_specfuse.evaluation.comparison import (
    compared,
    interval,
    needed,
    one_sided,
    scores_of,
    two_sided,
    upper_bound,
)

TRIES = 1000


def graded(system: str, scores: list[float], **more) -> list[Graded]:
    return [
        Graded(f"{system}{number}", system, str(number), 0, "x", score, **more)
        for number, score in enumerate(scores)
    ]


def paired(chance: random.Random, count: int, win: float, loss: float) -> list[float]:
    """Differences of which these shares are won and lost."""
    return chance.choices([1.0, -1.0, 0.0], [win, loss, 1 - win - loss], k=count)


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 60, 200])
@pytest.mark.parametrize(("win", "loss"), [(0.05, 0.05), (0.3, 0.1), (0.0, 0.02), (0.6, 0.3)])
def test_an_interval_contains_the_true_difference(count, win, loss):
    chance = random.Random(7)
    intervals = [interval(paired(chance, count, win, loss)) for _ in range(TRIES)]
    covered = sum(estimate.low <= win - loss <= estimate.high for estimate in intervals)
    assert covered / TRIES >= 0.94


def test_an_interval_of_graded_scores_contains_the_true_difference():
    chance = random.Random(7)
    gains = [
        [chance.betavariate(2, 3) - chance.betavariate(3, 2) for _ in range(40)]
        for _ in range(TRIES)
    ]
    covered = sum(estimate.low <= 0.4 - 0.6 <= estimate.high for estimate in map(interval, gains))
    assert covered / TRIES >= 0.94


def test_an_interval_is_no_wider_than_it_must_be_and_equals_are_not_equal_for_certain():
    """Otherwise "cannot tell" would always be right, or never."""
    mixed, equal = interval([1.0, -1.0, 0.0, 0.0] * 25), interval([0.0] * 20)
    assert mixed.mean == 0.0 and 0.24 < mixed.high - mixed.low < 0.32
    assert equal.mean == 0.0 and 0.05 < equal.high < 0.15 and equal.low == -equal.high


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_an_interval_contains_its_mean_and_stays_on_the_scale(gains):
    estimate = interval(gains)
    assert (
        -1 <= estimate.low <= estimate.mean + 1e-12 and estimate.mean - 1e-12 <= estimate.high <= 1
    )


def test_fewer_questions_are_needed_where_fewer_differ():
    often, seldom = [1.0, -1.0, 0.0, 0.0] * 20, [1.0, -1.0, *[0.0] * 38] * 2
    assert needed(often) > 5 * needed(seldom) > 0


# --- p-values -------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_p_values_are_those_of_the_exact_binomial_test(wins, losses):
    count = wins + losses
    from scipy import stats  # a second, also where no test here runs

    expected = stats.binomtest(wins, count).pvalue if count else 1.0
    assert two_sided(wins, losses) == pytest.approx(expected)
    expected = stats.binomtest(wins, count, alternative="greater").pvalue if count else 1.0
    assert one_sided(wins, losses) == pytest.approx(expected)


# --- two systems ----------------------------------------------------------------------------------


def test_only_questions_that_both_have_answered_and_that_differ_count():
    system = graded("both", [1.0, 1.0, 0.0, 1.0], passes=6, seconds=3.0)
    other = graded("ann", [1.0, 0.0, 1.0], passes=2, seconds=1.0)
    comparison = compared(system, other)
    assert (comparison.system, comparison.other, comparison.questions) == ("both", "ann", 3)
    assert (comparison.wins, comparison.losses, comparison.p) == (1, 1, 1.0)
    assert (comparison.passes, comparison.seconds) == (4.0, 4.0)
    assert comparison.difference.mean == 0.0


def test_a_question_s_score_is_the_mean_over_seeds():
    answers = [Graded(str(seed), "a", "1", seed, "x", score) for seed, score in enumerate([1, 0])]
    assert scores_of(answers) == {"1": 0.5}


@pytest.mark.parametrize(
    ("count", "of", "alpha", "expected"),
    [
        *((0, n, a, 1 - a ** (1 / n)) for n in (1, 28, 100, 5000) for a in (0.05, 0.025)),
        *((n - 1, n, 0.05, 0.95 ** (1 / n)) for n in (2, 28, 1000)),
        (2, 10, 0.05, 0.5069),
        (3, 10, 0.05, 0.6066),
        (4, 10, 0.05, 0.6965),
        (7, 7, 0.05, 1.0),
        (0, 0, 0.05, 1.0),
    ],
)
def test_the_upper_bound_of_a_share_is_that_of_clopper_and_pearson(count, of, alpha, expected):
    assert upper_bound(count, of, alpha) == pytest.approx(expected, abs=5e-5)
