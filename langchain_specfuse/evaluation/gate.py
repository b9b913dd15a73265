"""The gate: the other members take part only where that is shown to help, on the user's own
questions.

Each way to use them is compared with the lead alone on the questions on which their scores differ.
It is opened only if this many wins would be rare when wins and losses are equally likely: p < 0.1,
divided by the number of ways that were tried. So at most one calibration in ten lets in members
that do not help.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from ..chat.calibration import Tried
from ..core.results import RESULTS
from .results import Result
from .statistics import chance_of, counted
from .summary import common, scores_of

ALPHA = 0.1
LEAST = 0.05
"""The least weight of a member: one that is nearly always wrong counts for next to nothing."""


def opens(wins: int, losses: int, tried: int) -> bool:
    """Whether these wins and losses open a way, if ``tried`` ways were tried.

    >>> opens(5, 0, 2), opens(4, 0, 2), opens(4, 0, 1)
    (True, False, True)
    """
    return chance_of(wins, losses) < ALPHA / max(tried, 1)


def weights(alone: Mapping[str, Sequence[Result]], result: str) -> dict[str, float]:
    """How much each member's whole answer counts: the log-odds log(a k / (1 - a)) of its share a of
    right answers.

    k, the effective number of different wrong results, is one over the share of pairs of wrong
    answers to one question that agree. Both shares are taken as if one more answer of each kind had
    been seen.
    """
    come_to, count = RESULTS[result], {name: len(found) for name, found in alone.items()}
    right = {name: math.fsum(one.score for one in found) for name, found in alone.items()}
    wrong: dict[str, list[Hashable]] = defaultdict(list)
    for found in alone.values():
        for one in found:
            if one.score < 0.5:
                wrong[one.question].append(come_to(one.answer))
    pairs = [a == b for results in wrong.values() for a, b in itertools.combinations(results, 2)]
    agree = (sum(pairs) + 1) / (len(pairs) + 2)
    shares = {name: (right[name] + 1) / (count[name] + 2) for name in alone}
    return {name: max(math.log(a / (1 - a) / agree), LEAST) for name, a in shares.items()}


def tried(name: str, found: Sequence[Result], alone: Sequence[Result], ways: int) -> Tried:
    """This way against the lead alone."""
    mine, own = scores_of(found), scores_of(alone)
    wins, losses = counted(*common(mine, own))
    return Tried(
        name,
        wins,
        losses,
        chance_of(wins, losses),
        passes=_ratio([one.passes for one in found], [one.passes for one in alone]),
        seconds=_ratio([one.work_s for one in found], [one.work_s for one in alone]),
        opened=opens(wins, losses, ways),
    )


def _ratio(mine: Sequence[float], own: Sequence[float]) -> float:
    whole = math.fsum(own)
    return math.fsum(mine) / whole if whole else math.nan
