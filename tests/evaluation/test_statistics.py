"""The statistics: against scipy where it has the same, and by simulation where the truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.evaluation import statistics as own

TRIES = 100


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    """A simulation takes many intervals; a thousand resamples each are enough for it."""
    monkeypatch.setattr(own, "RESAMPLES", 1000)


def covered(make, truth: float, count: int, graded: bool) -> float:
    """The share of intervals that hold the truth."""
    chance = np.random.default_rng(7)
    told = [own.interval(list(make(chance, count)), graded=graded) for _ in range(TRIES)]
    return sum(one.low <= truth <= one.high for one in told) / TRIES


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("count", [20, 60])
def test_an_interval_of_right_and_wrong_holds_the_truth(share, count):
    found = covered(lambda chance, n: (chance.random(n) < share).astype(float), share, count, graded=False)
    assert found >= 0.92


@pytest.mark.parametrize("count", [20, 60])
def test_an_interval_of_graded_scores_holds_the_truth(count):
    assert covered(lambda chance, n: chance.beta(2, 3, n), 0.4, count, graded=True) >= 0.89


def test_an_interval_is_no_wider_than_it_must_be():
    """Else "cannot tell" would always be right."""
    told = own.interval([1.0] * 50 + [0.0] * 50)
    assert told.mean == 0.5 and 0.17 < told.high - told.low < 0.22


def test_all_right_is_not_for_certain():
    told = own.interval([1.0] * 20)
    assert told.mean == told.high == 1.0 and 0.8 < told.low < 0.95


def test_whether_scores_are_graded_can_be_told_from_them():
    right, half = [1.0] * 20, [1.0] * 19 + [0.5]
    assert own.interval(right, graded=None) == own.interval(right, graded=False) != own.interval(right, graded=True)
    assert own.interval(half, graded=None) == own.interval(half, graded=True)
    assert own.difference(right, right, graded=None) == own.difference(right, right, graded=False)
    assert own.difference(right, half, graded=None) == own.difference(right, half, graded=True)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.booleans() | st.none())
def test_an_interval_holds_its_mean_and_stays_on_the_scale(values, graded):
    told = own.interval(values, graded=graded)
    assert 0 <= told.low <= told.mean + 1e-12 and told.mean - 1e-12 <= told.high <= 1
    assert told == own.interval(values, graded=graded)  # chance is seeded


def test_nothing_seen_is_nothing_known():
    told = own.interval([])
    assert math.isnan(told.mean) and (told.low, told.high) == (0, 1)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(better, worse):
    scipy = pytest.importorskip("scipy.stats")
    wanted = scipy.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert own.mcnemar(better, worse) == pytest.approx(wanted)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=11))
def test_sign_flips_are_scipy_s_permutation_test(apart):
    scipy = pytest.importorskip("scipy.stats")
    moved = [value for value in apart if value]
    if len(moved) < 2:
        assert own.sign_flips(apart) in (1.0,)
        return
    told = scipy.permutation_test(
        (moved,), lambda x, axis: x.sum(axis=axis), permutation_type="samples", n_resamples=10**6, vectorized=True
    )
    assert own.sign_flips(apart) == pytest.approx(told.pvalue, abs=2 / 2 ** len(moved))


def test_many_sign_flips_by_chance_agree_with_the_normal_one():
    scipy = pytest.importorskip("scipy.stats")
    apart = np.random.default_rng(1).normal(0.05, 0.3, 200)
    assert own.sign_flips(list(apart)) == pytest.approx(scipy.ttest_1samp(apart, 0).pvalue, abs=0.01)


def test_right_and_wrong_pairs_get_mcnemar_s_test_and_graded_ones_the_other():
    one, other = [1.0] * 9 + [0.0], [0.0] * 9 + [1.0]
    assert own.paired(one, other) == own.mcnemar(9, 1)
    assert own.paired([0.5, 1.0, 0.25], [0.1, 0.2, 0.05]) == own.sign_flips([0.4, 0.8, 0.2])


# --- against the best of several ------------------------------------------------------------------------------------


def rates(gap: float, count: int = 80, others: int = 4) -> tuple[float, float, float]:
    """How often a system is called better and worse, and how often its interval holds the truth. All others are
    equally good (0.5), so the best of them on the data only looks better: the case that fools the plain test."""
    chance = np.random.default_rng(3)
    better = worse = held = 0
    for _ in range(TRIES):
        mine = (chance.random(count) < 0.5 + gap).astype(float)
        theirs = {str(k): list((chance.random(count) < 0.5).astype(float)) for k in range(others)}
        told = own.against_best(list(mine), theirs)
        better += told.verdict == "better"
        worse += told.verdict == "worse"
        held += told.apart.low <= gap <= told.apart.high
    return better / TRIES, worse / TRIES, held / TRIES


def test_equals_are_seldom_called_better_or_worse_though_the_best_was_picked_on_the_same_data():
    better, worse, held = rates(0.0)
    assert better <= 0.05 and worse <= 0.08 and held >= 0.93


def test_what_is_plainly_better_or_worse_is_called_so():
    assert rates(0.45)[0] > 0.8
    assert rates(-0.45)[1] > 0.8


def test_the_plain_test_would_be_fooled():
    """That is why there is another one: the best of eight equals looks better than an equal far too often."""
    chance = np.random.default_rng(3)
    plain = corrected = 0
    for _ in range(TRIES):
        mine = list((chance.random(80) < 0.5).astype(float))
        theirs = {str(k): list((chance.random(80) < 0.5).astype(float)) for k in range(8)}
        told = own.against_best(mine, theirs)
        plain += told.p_plain < 0.05 and told.apart.mean < 0
        corrected += told.verdict == "worse"
    assert plain / TRIES > 0.1 >= corrected / TRIES


def test_better_than_the_best_is_better_than_each():
    """Far better than the weak one, hardly better than the good one: that shows nothing."""
    mine = [1.0] * 31 + [0.0] * 9
    told = own.against_best(mine, {"weak": [0.0] * 40, "good": [1.0] * 30 + [0.0] * 10})
    assert told.best == "good" and told.apart.mean == 0.025
    assert told.p_better == told.p_plain == 1.0 and told.verdict == "open"


def test_one_other_member_is_a_plain_comparison():
    mine, theirs = [1.0] * 12 + [0.0] * 8, [0.0] * 10 + [1.0] * 10
    told = own.against_best(mine, {"a": theirs})
    assert told.p_plain == pytest.approx(own.mcnemar(10, 8)) == pytest.approx(told.p_better)
    assert told.apart == own.difference(mine, theirs)


def test_the_number_of_questions_needed_shows_the_gap_in_about_four_of_five_tries():
    chance = np.random.default_rng(5)

    def pairs(count: int) -> list[float]:
        return list(chance.choice([1.0, -1.0, 0.0], p=[0.2, 0.1, 0.7], size=count))

    count = own.needed(pairs(4000), gap=0.1)
    seen = sum(own.difference(p, [0.0] * count).low > 0 for p in (pairs(count) for _ in range(100)))
    assert 60 <= seen <= 95
