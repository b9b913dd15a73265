"""Invariants of weights, feedback and exits, and the effect of the exit policy on whole answers."""

import math
import random
import statistics
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.panel import (
    WEIGHT_FLOOR,
    Panel,
    normalised,
    rewarded,
    with_record,
    without_losers,
)
from langchain_specfuse.core.values import Panelist
from langchain_specfuse.core.voting import totals, votes

weight = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 5e-324, 1e-12, 1e308]))
weights = st.lists(weight, min_size=1, max_size=60).map(
    lambda w: {f"m{i}": v for i, v in enumerate(w)}
)


def panel_of(n):
    return Panel.of([Panelist(f"m{i}") for i in range(n)])


@given(weights)
def test_weights_sum_to_1_keep_the_floor_and_their_order(raw):
    shares = normalised(raw)
    assert math.fsum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= min(WEIGHT_FLOOR, 0.5 / len(raw)) * (1 - 1e-9)
    for name in raw:
        for other in raw:
            assert raw[name] < raw[other] or shares[name] >= shares[other] - 1e-15


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 1e6))
def test_feedback_keeps_weights_finite_and_in_the_order_of_rewards(rewards, eta):
    panel = rewarded(panel_of(len(rewards)), {f"m{i}": r for i, r in enumerate(rewards)}, eta)
    after = [panel.weights[f"m{i}"] for i in range(len(rewards))]
    assert math.fsum(after) == pytest.approx(1)
    assert all(math.isfinite(w) and w > 0 for w in after)
    for reward, w in zip(rewards, after, strict=True):
        for other_reward, v in zip(rewards, after, strict=True):
            assert reward < other_reward or w >= v - 1e-12


# --- exits ----------------------------------------------------------------------------------------


def whole_answer(means, seed, rounds=30, scale=1.0, min_members=1):
    """Return (members per round, departures) of an answer by members with these mean qualities."""
    rng = random.Random(seed)
    panel, sizes = panel_of(len(means)), []
    for number in range(1, rounds + 1):
        names = panel.drafters
        sizes.append(len(names))
        if len(names) < 2:
            continue
        quality = {n: means[int(n[1:])] + rng.gauss(0, 0.7) for n in names}
        rows = {
            j: votes("mean_logprob", [scale * (quality[n] + rng.gauss(0, 0.5)) for n in names])
            for j in names
        }
        total = dict(zip(names, totals(rows, panel.weights, len(names)), strict=True))
        panel = with_record(panel, total, max(total, key=total.__getitem__))
        panel = without_losers(panel, min_members, number)
    return statistics.mean(sizes), panel.left


ONE_WORSE, SPREAD = [0, 0, 0, 0, -2.5], [0, -0.3, -0.6, -0.9, -1.2]


def test_members_whose_votes_hardly_differ_stay():
    assert all(whole_answer([0] * 5, seed, scale=0.03)[1] == () for seed in range(60))


def test_a_member_that_is_clearly_worse_leaves_around_round_4():
    firsts = [whole_answer(ONE_WORSE, seed)[1][0] for seed in range(40)]
    assert {departure.member for departure in firsts} == {"m4"}
    assert 3 <= statistics.median(departure.round for departure in firsts) <= 5


def test_an_answer_by_five_members_of_different_quality_is_written_by_under_two_and_a_half():
    mean = statistics.mean(whole_answer(SPREAD, seed)[0] for seed in range(60))
    assert 2 < mean <= 2.5
    assert mean > statistics.mean(whole_answer(SPREAD, seed, rounds=100)[0] for seed in range(20))


@pytest.mark.parametrize("stay", [1, 2, 4])
def test_min_members_stay(stay):
    leavers = partial(whole_answer, [0, -3, -6, -9, -12], rounds=60, min_members=stay)
    assert {len(leavers(seed)[1]) for seed in range(10)} == {5 - stay}


@pytest.mark.parametrize(("prior", "leaves"), [(None, "c"), ({"b": 0.5}, "b")])
def test_of_two_equally_weak_members_the_lighter_then_the_later_leaves(prior, leaves):
    panel = Panel.of([Panelist(n) for n in "abc"], prior)
    for number in range(1, 9):
        panel = without_losers(with_record(panel, {"a": 1.0, "b": 0.0, "c": 0.0}, "a"), 2, number)
    (departure,) = panel.left
    assert (departure.member, departure.kind) == (leaves, "exit")
    keep = float(departure.reason.split("keep-probability ")[1].split(",")[0])
    assert keep < 0.167 and departure.reason.endswith("below 0.167")
