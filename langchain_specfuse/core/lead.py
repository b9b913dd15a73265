"""The lead: one member writes, the others are asked where it is unsure, and a rival's draft needs evidence to win.

Likelihood rewards familiar text, not true text, so in a vote of equals weak members outvote a strong one. With a lead
they can only correct it: its draft stands unless a rival's has more evidence by the ``margin`` of the method. With an
infinite margin the answer is the lead's own, at its own cost.

Paper: it has no lead; all members draft and vote in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LARGER = 2
"""A member leads by its size if it has at least this many times the parameters of every other one."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One draft as one verifier reads it."""

    logprobs: Sequence[float]
    """One per token (those that a constraint forces are left out), and one for the end of the turn."""
    ends: Sequence[int] | None = None
    """Where each token of the text ends in it; None: unknown."""


@dataclass(frozen=True, slots=True)
class Case:
    """A rival's draft against the lead's."""

    rival: str
    lead: str
    """The two texts."""
    authors: tuple[str, str]
    """The first author of each."""
    readings: Mapping[str, tuple[Reading, Reading]]
    """verifier -> how it reads the rival's draft and the lead's."""
    weights: Mapping[str, float]

    def pooled(self, value: Callable[[Reading], float]) -> float:
        """The rival's value minus the lead's, as a mean over the verifiers by weight."""
        whole = math.fsum(self.weights[name] for name in self.readings)
        gaps = (self.weights[name] * (value(rival) - value(lead)) for name, (rival, lead) in self.readings.items())
        return math.fsum(gaps) / whole if whole else 0.0


Evidence: TypeAlias = Callable[[Case], float]


def log_odds(case: Case) -> float:
    """The difference of the mean log-probabilities per token, over all verifiers by weight."""
    return case.pooled(mean)


def lowest(case: Case) -> float:
    """The same with the least probable token of a draft instead of the mean: one wrong word is not made up for."""
    return case.pooled(lambda reading: max(min(reading.logprobs, default=FLOOR), FLOOR))


def window(case: Case) -> float:
    """The log-odds of what the drafts differ in: from where they part, over equally many characters."""
    begin = common_prefix(case.rival, case.lead)
    size = min(len(case.rival), len(case.lead)) - begin

    def inside(reading: Reading) -> float:
        if reading.ends is None:
            return mean(reading)
        return within(reading, begin, begin + size) if size > 0 else within(reading, begin, math.inf)

    return case.pooled(inside)


def surest(case: Case) -> float:
    """How much surer the rival is of its own draft than the lead of its own."""
    rival, lead = case.authors
    if rival not in case.readings or lead not in case.readings:
        return 0.0
    return mean(case.readings[rival][0]) - mean(case.readings[lead][1])


EVIDENCE: dict[str, Evidence] = {"log_odds": log_odds, "window": window, "lowest": lowest, "surest": surest}
"""The values of the option ``evidence``."""
FLOOR = -100.0


def mean(reading: Reading) -> float:
    """The mean log-probability per token."""
    known = [max(value, FLOOR) for value in reading.logprobs]
    return math.fsum(known) / len(known) if known else FLOOR


def within(reading: Reading, begin: float, end: float) -> float:
    """The log-probability of the text between two places; of a token that is partly inside, its share counts.

    >>> within(Reading([-1.0, -2.0, -4.0], [4, 8, 12]), 4, 10)
    -4.0
    """
    total, start = 0.0, 0
    for value, stop in zip(reading.logprobs, reading.ends or (), strict=False):
        inside = min(stop, end) - max(start, begin)
        total += max(value, FLOOR) * max(inside, 0) / max(stop - start, 1)
        start = stop
    return total if end != math.inf else total + math.fsum(reading.logprobs[len(reading.ends or ()) :])


def common_prefix(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def largest(sizes: Mapping[str, int]) -> str | None:
    """The member that leads by its number of parameters: at least twice those of every other one.

    >>> largest({"big": 1500, "small": 135}), largest({"a": 270, "b": 135, "c": 140}), largest({"big": 9, "unknown": 0})
    ('big', None, None)
    """
    if len(sizes) < 2 or not all(sizes.values()):
        return None
    first, second, *_ = sorted(sizes, key=lambda name: -sizes[name])
    return first if sizes[first] >= LARGER * sizes[second] else None
