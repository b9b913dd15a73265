"""Bootstrap intervals and the comparison with the best of several, by simulation where the truth is
known."""

from __future__ import annotations

import intervals
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TRIES = 100


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    """A simulation computes many intervals; a thousand resamples each are enough for it."""
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)


def right(chance, count: int, share: float = 0.5) -> list[float]:
    return list((chance.random(count) < share).astype(float))


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9, None])
def test_an_interval_contains_the_truth(share):
    """Of right and wrong answers, or (None) of graded ones."""
    chance = np.random.default_rng(7)
    truth = 0.4 if share is None else share
    samples = [
        list(chance.beta(2, 3, 40)) if share is None else right(chance, 40, share)
        for _ in range(TRIES)
    ]
    covered = [one.low <= truth <= one.high for one in map(intervals.interval, samples)]
    assert sum(covered) / TRIES >= 0.89


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_an_interval_contains_its_mean_and_stays_on_the_scale(values):
    found = intervals.interval(values)
    assert 0 <= found.low <= found.mean + 1e-12 and found.mean - 1e-12 <= found.high <= 1
    assert found == intervals.interval(values)  # randomness is seeded


@pytest.mark.long
@pytest.mark.parametrize(("gap", "verdict"), [(0.0, "open"), (0.45, "better"), (-0.45, "worse")])
def test_equals_are_seldom_called_better_or_worse_though_the_best_was_picked(gap, verdict):
    """A system against four members that are all equally good (0.5)."""
    chance = np.random.default_rng(3)
    verdicts = [
        intervals.against_best(
            right(chance, 80, 0.5 + gap), {str(k): right(chance, 80) for k in range(4)}
        ).verdict
        for _ in range(TRIES)
    ]
    assert verdicts.count(verdict) / TRIES > (0.87 if verdict == "open" else 0.8)


def test_better_than_the_best_is_better_than_each():
    """Far better than the weak one and hardly better than the good one shows nothing."""
    ours, good = [1.0] * 31 + [0.0] * 9, [1.0] * 30 + [0.0] * 10
    found = intervals.against_best(ours, {"weak": [0.0] * 40, "good": good})
    assert found.best == "good" and found.verdict == "open"
    assert found.p_better == found.p_plain == 1.0
