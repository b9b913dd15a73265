"""The lead: one member writes, the others are asked where it is unsure, and a rival's draft needs
evidence to win.

Likelihood rewards familiar text, not true text, so in a vote of equals weak members outvote a
strong one. With a lead they can only correct it: its draft stands unless the evidence for a rival's
draft exceeds the method's ``margin``. With an infinite margin the answer is the lead's own, at its
own cost.

Paper: it has no lead; all members draft and vote in every round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from .voting import raw_score

LARGER = 2
"""A member leads by its size if it has at least this many times the parameters of every other
one."""
BOUND = math.log(19)
"""The evidence of one verifier counts as at most this. A verifier that is wrong in one of 20 cases
shifts the odds by at most 19 to 1, however sure it is."""
Reading: TypeAlias = Sequence[float]
"""One draft as one verifier reads it: the log-probability of each token that a constraint leaves
free, and of the end of the turn."""


def is_sure(own: Reading, sure: float) -> bool:
    """Whether a member gives each token of its draft at least this probability. One doubtful word
    is enough to ask.

    >>> (
    ...     is_sure([math.log(0.9), math.log(0.5)], 0.4),
    ...     is_sure([math.log(0.9), math.log(0.3)], 0.4),
    ...     is_sure([], 0.4),
    ... )
    (True, False, False)
    """
    return bool(own) and math.exp(min(own)) >= sure


def log_odds(
    rival: Mapping[str, Reading], lead: Mapping[str, Reading], weights: Mapping[str, float]
) -> float:
    """The evidence for a rival's draft: Σ_j w_j clip(mean log p_j(rival) - mean log p_j(lead)) over
    the verifiers j.

    >>> log_odds(
    ...     {"a": [-1.0], "b": [-2.0, -4.0]}, {"a": [-2.0], "b": [-1.0]}, {"a": 0.75, "b": 0.25}
    ... )
    0.25

    Each verifier's part is clipped to ±``BOUND``. Otherwise one token that one verifier finds
    impossible would overrule any number of others. Clipping every observation's log-likelihood
    ratio is the test that is robust against a share of wrong observations (Huber, 1965).

    >>> impossible = {"a": [-math.inf], "b": [-1.0], "c": [-1.0]}
    >>> round(
    ...     log_odds({"a": [-1.0], "b": [-3.0], "c": [-3.0]}, impossible, dict.fromkeys("abc", 1)),
    ...     2,
    ... )
    -0.35
    """
    whole = math.fsum(weights[name] for name in rival)
    gaps = {name: _mean(rival[name]) - _mean(lead[name]) for name in rival}
    parts = (weights[name] * max(-BOUND, min(BOUND, gap)) for name, gap in gaps.items())
    return math.fsum(parts) / whole if whole else 0.0


def _mean(reading: Reading) -> float:
    return raw_score("mean_logprob", reading, "")


def largest(sizes: Mapping[str, int]) -> str | None:
    """The member that leads by its number of parameters: at least twice those of every other one.

    >>> (
    ...     largest({"big": 1500, "small": 135}),
    ...     largest({"a": 270, "b": 135, "c": 140}),
    ...     largest({"big": 9, "unknown": 0}),
    ... )
    ('big', None, None)
    """
    if len(sizes) < 2 or not all(sizes.values()):
        return None
    first, second, *_ = sorted(sizes, key=lambda name: -sizes[name])
    return first if sizes[first] >= LARGER * sizes[second] else None
