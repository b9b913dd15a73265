"""The gate admits members that help, and others in at most one of ten calibrations."""

import math
import random

import pytest

from langchain_specfuse.evaluation import Graded
from langchain_specfuse.evaluation.comparison import compared, one_sided
from langchain_specfuse.evaluation.gate import ALPHA, opens, tried, weights


def clopper_pearson(wins: int, count: int, alpha: float) -> float:
    """The one-sided lower bound, by bisection on the exact binomial tail."""

    def tail(p: float) -> float:
        return sum(
            math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(wins, count + 1)
        )

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) < alpha else (low, middle)
    return low


@pytest.mark.parametrize("ways", [1, 2, 3])
def test_it_opens_exactly_where_the_lower_bound_exceeds_one_half(ways):
    for wins in range(30):
        for losses in range(30):
            if wins + losses:
                bound = clopper_pearson(wins, wins + losses, ALPHA / ways) if wins else 0.0
                assert opens(wins, losses, ways) == (bound > 0.5), (wins, losses)
    assert not opens(0, 0, ways)
    assert one_sided(0, 5) == 1.0


@pytest.mark.parametrize(("questions", "differ"), [(40, 0.3), (200, 0.1), (200, 0.5)])
def test_a_way_that_is_no_better_than_the_lead_opens_in_at_most_one_of_ten_calibrations(
    questions, differ
):
    """A thousand simulated calibrations of three ways, none better than the lead: one opened is one
    too many."""
    chance, opened = random.Random(5), 0
    for _ in range(1000):
        any_open = False
        for win in (0.5, 0.5, 0.4):  # the share of wins among the questions that differ
            marks = [chance.random() < win for _ in range(questions) if chance.random() < differ]
            any_open |= opens(sum(marks), len(marks) - sum(marks), 3)
        opened += any_open
    assert opened <= 100


def test_many_small_wins_do_not_open_a_way_that_is_worse_on_the_whole():
    def graded(system, scores):
        return [
            Graded(f"{system}{number}", system, str(number), 0, "x", score, passes=1)
            for number, score in enumerate(scores)
        ]

    lead = graded("lead", [0.5] * 20 + [1.0] * 5)
    worse = tried(compared(graded("vote", [0.51] * 20 + [0.0] * 5), lead), ways=4)
    assert (worse.wins, worse.losses, worse.opened) == (20, 5, False) and worse.p < ALPHA / 4
    assert tried(compared(graded("vote", [0.9] * 20 + [0.0] * 5), lead), ways=4).opened


def test_weights_are_log_odds_and_count_more_where_errors_seldom_agree():
    def answers(right, wrong):
        numbers = [n if n < right else wrong + n for n in range(98)]
        return [
            Graded(f"{right}{wrong}{n}", "x", str(n), 0, f"it is {number}", float(n < right))
            for n, number in enumerate(numbers)
        ]

    apart = weights({"ann": answers(74, 1000), "bob": answers(49, 2000)}, "number")
    # (74 + 1) / (98 + 2) right; none of 24 pairs of wrong answers agrees: 1 / 26.
    assert apart == pytest.approx({"ann": math.log(3 * 26), "bob": math.log(26)})
    alike = weights({"ann": answers(74, 1000), "bob": answers(49, 1000)}, "number")
    assert alike == pytest.approx({"ann": math.log(3 * 26 / 25), "bob": 0.05}, abs=0.02)
