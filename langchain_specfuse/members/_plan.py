"""Who stays on a device and how much cache each member has, when they may take only so many bytes together.

Pure functions of sizes: what a weight or a cache is, and how it is moved, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Need:
    """What one member must have: which weights, and the least that its cache can do with."""

    name: str
    weights: str
    least: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Who stays, and how much cache each member has."""

    stay: frozenset[str]
    """Weights that never leave the device. The others come for their member's turn, in the room that is left."""
    caches: Mapping[int, int]
    kept: bool = True
    """False: there is room for one cache only; a member's is freed before another's turn."""


class Short(Exception):
    """A member that does not fit, whatever else gives way: its name and the bytes that it needs."""

    def __init__(self, member: str, needed: int) -> None:
        super().__init__(member, needed)
        self.member, self.needed = member, needed


def planned(total: int, weights: Mapping[str, int], needs: Mapping[int, Need], fixed: frozenset[str]) -> Plan:
    """Weights first, the rest for caches, in proportion to the least that each can do with.

    ``fixed``: weights that cannot be moved.

    >>> two = {1: Need("ann", "a", 5), 2: Need("bob", "b", 15)}
    >>> planned(120, {"a": 40, "b": 40}, two, frozenset()).caches
    {1: 10, 2: 30}
    >>> planned(70, {"a": 40, "b": 40}, two, frozenset())  # not both: they take turns
    Plan(stay=frozenset(), caches={1: 7, 2: 22}, kept=True)
    >>> planned(56, {"a": 40, "b": 40}, two, frozenset()).kept  # not even both caches
    False
    """
    held = sum(weights[one] for one in fixed)
    for need in needs.values():
        own = 0 if need.weights in fixed else weights[need.weights]
        if held + own + need.least > total:
            raise Short(need.name, held + own + need.least)
    least = sum(need.least for need in needs.values())
    stay = staying(total - least, weights, fixed)
    if stay is None:
        room = total - held
        each = {one: room - (0 if need.weights in fixed else weights[need.weights]) for one, need in needs.items()}
        return Plan(fixed, each, kept=False)
    moving = max((size for one, size in weights.items() if one not in stay), default=0)
    room = total - least - moving - sum(weights[one] for one in stay)
    return Plan(stay, {one: need.least + room * need.least // max(least, 1) for one, need in needs.items()})


def staying(room: int, weights: Mapping[str, int], fixed: frozenset[str]) -> frozenset[str] | None:
    """The weights that stay so that the fewest bytes move; there is room for the largest of the others beside them.

    Members are asked in turn, so whoever left last is needed last: to let the least recently used go would move all
    of them in every round. None: not even one fits at a time.

    >>> len(staying(10, {"a": 4, "b": 4, "c": 4}, frozenset()))  # one stays, two share the rest
    1
    >>> sorted(staying(12, {"a": 4, "b": 4, "c": 4}, frozenset()))
    ['a', 'b', 'c']
    """
    if sum(weights.values()) <= room:
        return frozenset(weights)
    order = sorted((one for one in weights if one not in fixed), key=lambda one: -weights[one])
    best: tuple[int, frozenset[str]] | None = None
    for at, largest_moving in enumerate(order):
        stay = {*fixed, *order[:at]}
        left = room - sum(weights[one] for one in stay) - weights[largest_moving]
        if left < 0:
            continue
        for one in order[at + 1 :]:
            if weights[one] <= left:
                stay.add(one)
                left -= weights[one]
        kept = sum(weights[one] for one in stay)
        if best is None or kept > best[0]:
            best = kept, frozenset(stay)
    return best and best[1]
