"""Voting weights to begin with, learned from results and votes, and shrunk: little evidence moves them little.

Knows counts; who asked what is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

QUESTIONS = 20.0
"""So many imagined questions, half of them right, are added to each member's."""
ROUNDS = 100.0
"""So many imagined rounds with the neutral reward one half."""
VOTES = 0.5
"""What the members think of each other counts half: small models are sure of bland text."""
MOST = 4.0
"""No weight above this or below its inverse, where 1 is neutral."""


def learned(
    right: Mapping[str, tuple[float, int]], rewards: Mapping[str, tuple[float, int]] | None = None
) -> dict[str, float]:
    """Starting weights by member, 1 being neutral.

    ``right``: member -> (sum of its scores alone, questions). ``rewards``: member -> (sum of rewards, rounds).
    log w_i = logit p_i + 0.5 · logit r_i, less the members' mean, where p and r are shrunk towards 1/2.
    (The best weight of an independent voter is the log of its odds; as factors of a vote we take the odds themselves.)

    >>> learned({"a": (18, 20), "b": (10, 20)})
    {'a': 1.528, 'b': 0.655}
    >>> learned({"a": (10, 20), "b": (10, 20)})
    {'a': 1.0, 'b': 1.0}
    """
    votes = rewards or {}
    logs = {}
    for name, (score, count) in right.items():
        reward, rounds = votes.get(name, (0.0, 0))
        p = (score + QUESTIONS / 2) / (count + QUESTIONS)
        r = (reward + ROUNDS / 2) / (rounds + ROUNDS)
        logs[name] = _logit(p) + VOTES * _logit(r)
    middle = sum(logs.values()) / len(logs)
    return {name: round(min(MOST, max(1 / MOST, math.exp(value - middle))), 3) for name, value in logs.items()}


def _logit(share: float) -> float:
    return math.log(share / (1 - share))
