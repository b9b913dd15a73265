"""Weights, Hedge and exits: invariants, schedules, and what the exit policies do over whole answers."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.panel import (
    WEIGHT_FLOOR,
    Panel,
    dismissed,
    hedged,
    keep_probabilities,
    learning_rate,
    normalised,
    observed,
)
from langchain_specfuse.core.values import Departure, Seat
from langchain_specfuse.core.voting import totals, votes
from langchain_specfuse.errors import UsageError

weight = st.one_of(st.floats(0, 1e6), st.sampled_from([0.0, 5e-324, 1e-12, 1e308]))
weights = st.lists(weight, min_size=1, max_size=60).map(lambda w: {f"m{i}": v for i, v in enumerate(w)})


def seated(n):
    return Panel.of([Seat(f"m{i}") for i in range(n)])


@given(weights)
def test_weights_sum_to_1_and_keep_the_floor(raw):
    shares = normalised(raw)
    assert math.fsum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) >= min(WEIGHT_FLOOR, 0.5 / len(raw)) * (1 - 1e-9)
    for one in raw:
        for other in raw:
            assert raw[one] < raw[other] or shares[one] >= shares[other] - 1e-15


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.floats(0, 1e6))
def test_hedge_keeps_weights_finite_and_rewards_in_order(rewards, eta):
    panel = hedged(seated(len(rewards)), {f"m{i}": r for i, r in enumerate(rewards)}, eta)
    after = [panel.weights[f"m{i}"] for i in range(len(rewards))]
    assert math.fsum(after) == pytest.approx(1)
    assert all(math.isfinite(w) and w > 0 for w in after)
    for one, w in zip(rewards, after, strict=True):
        for other, v in zip(rewards, after, strict=True):
            assert one < other or w >= v - 1e-12


def test_equal_rewards_leave_the_weights_alone():
    panel = Panel.of([Seat("a"), Seat("b")], prior={"a": 3})
    assert hedged(panel, {"a": 0.7, "b": 0.7}, 1.0) is panel


def test_a_verify_only_member_keeps_pace_with_an_average_drafter():
    panel = Panel.of([Seat("a"), Seat("b"), Seat("judge", drafts=False)])
    after = hedged(panel, {"a": 1.0, "b": 0.0}, 1.0).weights
    assert after["a"] > after["judge"] > after["b"]


@pytest.mark.parametrize("prior", [{"a": -1.0}, {"a": math.nan}, {"a": math.inf}])
def test_a_prior_that_is_no_weight_is_told(prior):
    with pytest.raises(UsageError, match="prior weight of 'a'"):
        Panel.of([Seat("a"), Seat("b")], prior)


@pytest.mark.parametrize("t", [1, 2, 7, 100])
def test_learning_rate_schedules(t):
    assert learning_rate("published", 0.6, t, 5) == 0.6 / t
    assert learning_rate("anytime", 0.6, t, 5) == pytest.approx(0.6 * math.sqrt(8 * math.log(5) / t))
    assert learning_rate("off", 0.6, t, 5) == learning_rate("anytime", 0.6, t, 1) == 0.0


def test_those_who_stay_keep_their_proportions():
    panel = Panel.of([Seat(n) for n in "abc"], {"a": 2, "b": 1, "c": 1})
    assert panel.without([Departure("b", "exit", "", 1)]).weights == pytest.approx({"a": 2 / 3, "c": 1 / 3})


# --- exits ------------------------------------------------------------------------------------------------------


def whole_answer(means, seed, kind="studentized", rounds=30, draft_sd=0.7, judge_sd=0.5, scale=1.0, min_members=1):
    """(members per round, departures) of an answer whose members' drafts have these mean qualities."""
    rng = random.Random(seed)
    panel, sizes = seated(len(means)), []
    for t in range(1, rounds + 1):
        names = panel.drafters
        sizes.append(len(names))
        if len(names) < 2:
            continue
        quality = {n: means[int(n[1:])] + rng.gauss(0, draft_sd) for n in names}
        rows = {j: votes("mean_logprob", [scale * (quality[n] + rng.gauss(0, judge_sd)) for n in names]) for j in names}
        total = dict(zip(names, totals(rows, panel.weights, len(names)), strict=True))
        panel = observed(panel, total, max(total, key=total.__getitem__))
        panel = dismissed(kind, panel, min_members, t)
    return statistics.mean(sizes), panel.left


EQUAL, ONE_WORSE, SPREAD = [0] * 5, [0, 0, 0, 0, -2.5], [0, -0.3, -0.6, -0.9, -1.2]


def test_studentized_keeps_members_whose_votes_hardly_differ():
    for seed in range(60):
        assert whole_answer(EQUAL, seed, scale=0.03)[1] == ()


def test_studentized_dismisses_the_one_that_is_clearly_worse_around_round_4():
    firsts = [whole_answer(ONE_WORSE, seed)[1][0] for seed in range(40)]
    assert {gone.member for gone in firsts} == {"m4"}
    assert 3 <= statistics.median(gone.round for gone in firsts) <= 5


def test_studentized_runs_a_spread_of_five_at_under_2_and_a_half_members():
    mean = statistics.mean(whole_answer(SPREAD, seed)[0] for seed in range(60))
    assert 2 < mean <= 2.5
    assert mean > statistics.mean(whole_answer(SPREAD, seed, rounds=100)[0] for seed in range(20))


def test_studentized_dismisses_nobody_before_the_third_scored_round():
    assert all(whole_answer([0, 0, 0, -4, -4], seed)[1][0].round >= 3 for seed in range(40))


def test_studentized_dismisses_all_at_once_who_have_fallen_too_far():
    together = [whole_answer([0, 0, 0, -4, -4], seed)[1][:2] for seed in range(40)]
    assert sum(one.round == other.round for one, other in together) > 20
    assert all({one.member, other.member} == {"m3", "m4"} for one, other in together)


def test_never_means_never():
    assert whole_answer(ONE_WORSE, 0, kind="never") == (5, ())


def test_fixed_dismisses_the_worse_one_within_the_answer():
    for seed in range(10):
        assert whole_answer(ONE_WORSE, seed, kind="fixed")[1][0].member == "m4"


LOUD = {"a": 0.8, "b": 0.8, "c": 0.2}


def after_rounds(kind, totals, assured, rounds=1, min_members=1):
    panel = Panel.of([Seat(name) for name in totals])
    for number in range(1, rounds + 1):
        told = {name: total for name, total in totals.items() if name in panel.drafters}
        panel = dismissed(kind, observed(panel, told, max(told, key=told.__getitem__)), min_members, number, assured)
    return panel.drafters


def test_quiet_dismisses_at_once_who_loses_and_hardly_speaks():
    assert after_rounds("quiet", {"a": 0.5, "b": 0.4, "c": 0.1}, LOUD) == ("a", "b")
    assert after_rounds("studentized", {"a": 0.5, "b": 0.4, "c": 0.1}, LOUD) == ("a", "b", "c")


def test_quiet_gives_time_to_those_who_lose_with_a_voice_of_their_own():
    assert after_rounds("quiet", {"a": 0.5, "b": 0.4, "c": 0.1}, dict.fromkeys("abc", 0.5)) == ("a", "b", "c")


def test_quiet_keeps_who_hardly_speaks_but_wins():
    assert after_rounds("quiet", {"a": 0.1, "b": 0.4, "c": 0.5}, LOUD) == ("a", "b", "c")


def test_quiet_calls_nobody_quiet_where_all_are_or_who_cannot_score():
    at_a_loss = dict.fromkeys("abc", 0.1)
    assert after_rounds("quiet", {"a": 0.5, "b": 0.4, "c": 0.1}, at_a_loss) == ("a", "b", "c")
    assert after_rounds("quiet", {"a": 0.5, "b": 0.4, "c": 0.1}, {"a": 0.8, "b": 0.8}) == ("a", "b", "c")
    assert after_rounds("quiet", {"a": 0.5, "b": 0.4, "c": 0.1}, {}) == ("a", "b", "c")


def test_quiet_leaves_as_many_as_must_stay():
    assert after_rounds("quiet", {"a": 0.8, "b": 0.1, "c": 0.1}, {"a": 0.9, "b": 0.1, "c": 0.05}) == ("a",)
    stay = after_rounds("quiet", {"a": 0.8, "b": 0.1, "c": 0.1}, {"a": 0.9, "b": 0.1, "c": 0.05}, min_members=2)
    assert stay == ("a", "b")


def test_quiet_is_studentized_where_everybody_speaks():
    for seed in range(20):
        assert whole_answer(SPREAD, seed, kind="quiet") == whole_answer(SPREAD, seed)


def test_who_left_for_its_silence_is_told_so():
    panel = observed(Panel.of([Seat(name) for name in "abc"]), {"a": 0.5, "b": 0.4, "c": 0.1}, "a")
    (gone,) = dismissed("quiet", panel, 1, 1, LOUD).left
    assert gone.member == "c" and "unsure of every draft" in gone.reason


def test_literal_lets_far_fewer_go_than_studentized():
    literal, ours = (
        [whole_answer(SPREAD, seed, kind=kind)[1] for seed in range(20)] for kind in ("literal", "studentized")
    )
    assert sum(map(len, literal)) < sum(map(len, ours)) / 2


@pytest.mark.parametrize("kind", ["studentized", "quiet", "literal", "fixed"])
@pytest.mark.parametrize("stay", [1, 2, 4])
def test_min_members_stay(kind, stay):
    for seed in range(10):
        left = whole_answer([0, -3, -6, -9, -12], seed, kind=kind, rounds=60, min_members=stay)[1]
        assert len(left) <= 5 - stay


def test_exits_do_happen_up_to_min_members():
    assert len(whole_answer([0, -1, -2, -3, -4], 1, rounds=100, min_members=2)[1]) == 3


@pytest.mark.parametrize("kind", ["studentized", "quiet", "literal", "fixed"])
def test_keep_probabilities_are_shares_for_any_panel(kind):
    for n in (1, 2, 5):
        panel = seated(n)
        for _ in range(3):
            panel = observed(panel, {f"m{i}": float(i == 0) for i in range(n)}, "m0")
        assert math.fsum(keep_probabilities(kind, panel).values()) == pytest.approx(1)


def test_of_two_equally_low_members_the_lighter_then_the_later_leaves():
    def loser(prior):
        panel = Panel.of([Seat(n) for n in "abc"], prior)
        for t in range(1, 9):
            panel = dismissed("studentized", observed(panel, {"a": 1.0, "b": 0.0, "c": 0.0}, "a"), 2, t)
        return panel.left[0].member

    assert loser(None) == "c"
    assert loser({"b": 0.5}) == "b"


def test_verify_only_members_are_never_dismissed():
    panel = Panel.of([Seat("a"), Seat("b"), Seat("judge", drafts=False)])
    for t in range(1, 30):
        panel = dismissed("studentized", observed(panel, {n: float(n == "a") for n in panel.drafters}, "a"), 1, t)
    assert panel.verifiers == ("a", "judge")
