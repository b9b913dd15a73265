"""The statistics: against scipy where it has the same, and by simulation where the truth is
known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from langchain_specfuse.evaluation import statistics as own

TRIES = 100


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    """A simulation takes many intervals; a thousand resamples each are enough for it."""
    monkeypatch.setattr(own, "RESAMPLES", 1000)


def right(chance, count: int, share: float = 0.5) -> list[float]:
    return list((chance.random(count) < share).astype(float))


# --- intervals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, 60])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, None])
def test_an_interval_holds_the_truth(share, count):
    """Of right and wrong answers, or (None) of graded ones."""
    chance = np.random.default_rng(7)
    truth = 0.4 if share is None else share
    made = [
        list(chance.beta(2, 3, count)) if share is None else right(chance, count, share)
        for _ in range(TRIES)
    ]
    held = [one.low <= truth <= one.high for one in map(own.interval, made)]
    assert sum(held) / TRIES >= (0.89 if share is None else 0.92)


def test_an_interval_is_no_wider_than_it_must_be_and_all_right_is_not_for_certain():
    """Else "cannot tell" would always be right, or never."""
    half, whole = own.interval([1.0] * 50 + [0.0] * 50), own.interval([1.0] * 20)
    assert half.mean == 0.5 and 0.17 < half.high - half.low < 0.22
    assert whole.mean == whole.high == 1.0 and 0.8 < whole.low < 0.95


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_holds_its_mean_and_stays_on_the_scale(values):
    found = own.interval(values)
    assert 0 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
    assert found == own.interval(values)  # randomness is seeded


# --- paired tests ---------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(better, worse):
    wanted = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert own.mcnemar(better, worse) == pytest.approx(wanted)


def test_graded_scores_show_something_only_where_mean_and_most_questions_agree():
    mine, other = [0.4] * 20 + [1.0], [0.41] * 20 + [0.0]
    assert (
        own.counted(mine, other) == (1, 20)
        and own.mcnemar(1, 20) < 0.001
        and sum(mine) > sum(other)
    )
    assert (
        own.against_best(mine, {"a": other}).verdict
        == own.against_best(other, {"a": mine}).verdict
        == "open"
    )


# --- against the best of several ------------------------------------------------------------------


def found_of(gap: float, others: int = 4, count: int = 80) -> list[own.AgainstBest]:
    """A system against others that are all equally good (0.5): the best of them on the data only
    looks better."""
    chance = np.random.default_rng(3)
    return [
        own.against_best(
            right(chance, count, 0.5 + gap), {str(k): right(chance, count) for k in range(others)}
        )
        for _ in range(TRIES)
    ]


def share_of(found: list[own.AgainstBest], verdict: str) -> float:
    return sum(one.verdict == verdict for one in found) / len(found)


@pytest.mark.long
def test_equals_are_seldom_called_better_or_worse_though_the_best_was_picked_on_the_same_data():
    found = found_of(0.0)
    assert share_of(found, "better") <= 0.05 and share_of(found, "worse") <= 0.08
    assert sum(one.apart.low <= 0 <= one.apart.high for one in found) / TRIES >= 0.93


@pytest.mark.long
def test_what_is_plainly_better_or_worse_is_called_so():
    assert share_of(found_of(0.45), "better") > 0.8
    assert share_of(found_of(-0.45), "worse") > 0.8


def test_better_than_the_best_is_better_than_each():
    """Far better than the weak one, hardly better than the good one: that shows nothing."""
    mine, good = [1.0] * 31 + [0.0] * 9, [1.0] * 30 + [0.0] * 10
    found = own.against_best(mine, {"weak": [0.0] * 40, "good": good})
    assert (
        found.best == "good" and found.p_better == found.p_plain == 1.0 and found.verdict == "open"
    )
    assert own.against_best(mine, {"good": good}).apart == own.difference(mine, good)
