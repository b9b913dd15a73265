"""The gate: the other members take part only where the user's own questions show that they help.

Each way to use them is compared with the lead alone, on the questions on which their scores differ.
A way is opened only if this many wins would be rare if wins and losses were equally likely: p < 0.1
divided by the number of ways that were tried, and only if its mean score is higher. So at most one
calibration in ten admits members that do not help.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from ..chat.calibration import Tried
from ..core.results import RESULTS
from .comparison import Comparison, one_sided
from .results import Graded

ALPHA = 0.1
LEAST_WEIGHT = 0.05
"""The weight of a member that is nearly always wrong."""


def opens(wins: int, losses: int, ways: int) -> bool:
    """Whether these wins and losses open a way, if ``ways`` ways were tried.

    >>> opens(5, 0, 2), opens(4, 0, 2), opens(4, 0, 1)
    (True, False, True)
    """
    return one_sided(wins, losses) < ALPHA / max(ways, 1)


def tried(comparison: Comparison, ways: int) -> Tried:
    """The calibration's record of one way, from its comparison with the lead alone."""
    wins, losses = comparison.wins, comparison.losses
    return Tried(
        comparison.system,
        wins,
        losses,
        one_sided(wins, losses),
        passes=comparison.passes,
        seconds=comparison.seconds,
        # With graded scores, many small wins may weigh less than a few losses.
        opened=opens(wins, losses, ways) and comparison.difference.mean > 0,
    )


def weights(alone: Mapping[str, Sequence[Graded]], result: str) -> dict[str, float]:
    """How much each member's whole answer counts: the log-odds log(a k / (1 - a)) of its share a of
    right answers.

    k, the effective number of different wrong results, is one over the share of pairs of wrong
    answers to one question that agree. Both shares are computed as if one more answer of each kind
    had been given.
    """
    result_of = RESULTS[result]
    wrong: dict[str, list[Hashable]] = defaultdict(list)
    for answers in alone.values():
        for graded in answers:
            if graded.score < 0.5:
                wrong[graded.question].append(result_of(graded.answer))
    pairs = [
        first == second
        for results in wrong.values()
        for first, second in itertools.combinations(results, 2)
    ]
    agree = (sum(pairs) + 1) / (len(pairs) + 2)
    log_odds = {}
    for name, answers in alone.items():
        right = math.fsum(graded.score for graded in answers)
        share = (right + 1) / (len(answers) + 2)
        log_odds[name] = max(math.log(share / (1 - share) / agree), LEAST_WEIGHT)
    return log_odds
