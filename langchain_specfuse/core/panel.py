"""Who is still in, with what voting weight, and who leaves: Hedge and the exit policies.

A :class:`Panel` is frozen; every change returns a new one. It knows names and numbers, nothing of drafts or text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..errors import UsageError, advised
from .values import Departure, ExitKind, FeedbackKind, Seat

WEIGHT_FLOOR = 0.02
CLIP = 3.0
"""How many standard deviations one round may count for."""
PATIENCE = 2
"""Rounds in a row under the threshold before a member leaves."""
FIRST_EXIT = 3
"""No exit before this many scored rounds."""
QUIET = 0.3
"""Who speaks with less than this share of the loudest voice is quiet."""
HEAT = 2.5
"""The factor of the studentized policy's temperature: the lower, the sooner members leave."""


@dataclass(frozen=True, slots=True)
class Record:
    """What an answer's scored rounds have shown so far: the evidence for exits."""

    rounds: int = 0
    quality: Mapping[str, float] = field(default_factory=dict)
    """Q of the studentized and quiet policies: clipped, standardised deviations, summed."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Q of the literal and fixed policies: totals, summed."""
    wins: Mapping[str, int] = field(default_factory=dict)
    squares: float = 0.0
    count: int = 0
    low: Mapping[str, int] = field(default_factory=dict)
    """Rounds in a row under the exit threshold."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The members still in, with their weights."""

    seats: tuple[Seat, ...]
    weights: Mapping[str, float]
    left: tuple[Departure, ...] = ()
    record: Record = Record()

    @property
    def drafters(self) -> tuple[str, ...]:
        return tuple(seat.name for seat in self.seats if seat.drafts)

    @property
    def verifiers(self) -> tuple[str, ...]:
        return tuple(seat.name for seat in self.seats if seat.scores)

    @classmethod
    def of(cls, seats: Sequence[Seat], prior: Mapping[str, float] | None = None) -> Panel:
        """Everybody in, with equal weights or those of ``prior`` (whoever it does not name counts 1).

        >>> Panel.of([Seat("a"), Seat("b")]).weights
        {'a': 0.5, 'b': 0.5}
        """
        for name, weight in (prior or {}).items():
            if not 0.0 <= weight < math.inf:
                raise advised(UsageError(f"the prior weight of {name!r} is {weight!r}"), "give a number from 0 up")
        return cls(tuple(seats), normalised({s.name: (prior or {}).get(s.name, 1.0) for s in seats}))

    def without(self, departures: Sequence[Departure]) -> Panel:
        """The panel after these members have left; the others keep their proportions."""
        if not departures:
            return self
        gone = {departure.member for departure in departures}
        seats = tuple(seat for seat in self.seats if seat.name not in gone)
        weights = normalised({seat.name: self.weights[seat.name] for seat in seats})
        return replace(self, seats=seats, weights=weights, left=self.left + tuple(departures))


def normalised(weights: Mapping[str, float], floor: float = WEIGHT_FLOOR) -> dict[str, float]:
    """Weights that sum to 1, none under the floor (or under half of an equal share, where members are many).

    >>> normalised({"a": 3.0, "b": 1.0})
    {'a': 0.75, 'b': 0.25}
    >>> normalised({"a": 1.0, "b": 0.0})
    {'a': 0.98, 'b': 0.02}
    >>> normalised({"a": 0.0, "b": 0.0})
    {'a': 0.5, 'b': 0.5}
    """
    if not weights:
        return {}
    highest = max(weights.values())
    weights = {name: value / highest if highest > 0 else 1.0 for name, value in weights.items()}
    floor = min(floor, 0.5 / len(weights))
    low: set[str] = set()
    while True:
        free = math.fsum(value for name, value in weights.items() if name not in low)
        room = 1.0 - floor * len(low)
        shares = {name: floor if name in low else room * value / free for name, value in weights.items()}
        sunk = {name for name, share in shares.items() if share < floor} - low
        if not sunk:
            return shares
        low |= sunk


def learning_rate(kind: FeedbackKind, rate: float, round: int, members: int) -> float:
    """η_t: ``rate / t`` as published, ``rate · sqrt(8 ln n / t)`` any-time, 0 when off.

    >>> learning_rate("published", 1.0, 4, 3), learning_rate("off", 1.0, 4, 3)
    (0.25, 0.0)
    >>> round(learning_rate("anytime", 1.0, 4, 3), 3)
    1.482
    """
    if kind == "off" or members < 2:
        return 0.0
    return rate / round if kind == "published" else rate * math.sqrt(8 * math.log(members) / round)


def hedged(panel: Panel, rewards: Mapping[str, float], eta: float) -> Panel:
    """Multiplicative weights: w_i <- w_i · exp(η r_i), renormalised. A verify-only member earns the neutral 1/2.

    >>> panel = hedged(Panel.of([Seat("a"), Seat("b")]), {"a": 1.0, "b": 0.0}, eta=1.0)
    >>> {name: round(w, 3) for name, w in panel.weights.items()}
    {'a': 0.731, 'b': 0.269}
    """
    if eta == 0.0 or len(set(rewards.values())) < 2:
        return panel
    gains = {name: eta * rewards.get(name, 0.5) for name in panel.weights}
    most = max(gains.values())  # a common factor changes nothing, and keeps a high learning rate finite
    return replace(
        panel, weights=normalised({name: w * math.exp(gains[name] - most) for name, w in panel.weights.items()})
    )


def observed(panel: Panel, totals: Mapping[str, float], winner: str) -> Panel:
    """The panel with one more scored round in its record.

    d_i = total_i - mean(total); sd = pooled standard deviation of all d so far (at least 0.01);
    Q_i += clip(d_i / sd, -3, 3).
    """
    old = panel.record
    mean = math.fsum(totals.values()) / len(totals)
    deviations = {name: total - mean for name, total in totals.items()}
    squares = old.squares + math.fsum(d * d for d in deviations.values())
    count = old.count + len(deviations)
    sd = max(math.sqrt(squares / count), 0.01)
    record = replace(
        old,
        rounds=old.rounds + 1,
        squares=squares,
        count=count,
        quality={n: old.quality.get(n, 0.0) + max(-CLIP, min(CLIP, d / sd)) for n, d in deviations.items()},
        sums={n: old.sums.get(n, 0.0) + total for n, total in totals.items()},
        wins={n: old.wins.get(n, 0) + (n == winner) for n in totals},
    )
    return replace(panel, record=record)


def keep_probabilities(kind: ExitKind, panel: Panel) -> dict[str, float]:
    """p = softmax(Q / τ) over the drafting members.

    ``studentized``, ``quiet``: τ_t = HEAT · H · sqrt(t), where H is the entropy of (wins + 1) / Σ divided by ln n.
    ``literal``: Q = sum of totals, τ = H · sqrt(t). ``fixed``: the same Q, τ = 1.

    Paper: the paper's closed form is not public. ``studentized`` is our reconstruction (the increments have unit
    variance, so sqrt(t) keeps noise at O(1) and lets real gaps grow); ``literal`` is what its text says word by word,
    and lets few go: totals that sum to 1 never grow far apart.
    """
    names = panel.drafters
    if len(names) < 2:
        return dict.fromkeys(names, 1.0)
    record = panel.record
    quality = record.sums if kind in ("literal", "fixed") else record.quality
    spread = _win_entropy([record.wins.get(name, 0) + 1 for name in names])
    root = math.sqrt(max(record.rounds, 1))
    tau = {"literal": spread * root, "fixed": 1.0}.get(kind, HEAT * spread * root)
    best = max(quality.get(name, 0.0) for name in names)
    shares = {name: math.exp((quality.get(name, 0.0) - best) / max(tau, 1e-6)) for name in names}
    whole = math.fsum(shares.values())
    return {name: share / whole for name, share in shares.items()}


def _win_entropy(counts: Sequence[int]) -> float:
    whole = sum(counts)
    return -math.fsum(c / whole * math.log(c / whole) for c in counts) / math.log(len(counts))


def dismissed(
    kind: ExitKind, panel: Panel, min_members: int, round: int, assured: Mapping[str, float] | None = None
) -> Panel:
    """The panel after this round's exits: members leave whose keep-probability is under 0.5 / n.

    Under ``studentized`` it must have been so in two rounds running and at least three rounds must have been scored;
    all of whom that is true go at once, under ``literal`` and ``fixed`` the lowest. ``quiet`` is ``studentized``, but
    who hardly spoke (``assured``: a_j under 0.3 of the loudest) goes at once when under its fair share, 1 / n: it
    loses, and has no opinion of its own. ``min_members`` (at least one) stay.
    """
    names = panel.drafters
    if kind == "never" or len(names) <= max(min_members, 1):
        return panel
    keep = keep_probabilities(kind, panel)
    quiet = _quiet(names, assured or {}) if kind == "quiet" else set()
    limits = {name: (1.0 if name in quiet else 0.5) / len(names) for name in names}
    low = {name: panel.record.low.get(name, 0) + 1 if keep[name] < limits[name] else 0 for name in names}
    panel = replace(panel, record=replace(panel.record, low=low))
    patience, first, most = (1, 1, 1) if kind in ("literal", "fixed") else (PATIENCE, FIRST_EXIT, len(names))
    lost = {name for name, times in low.items() if times >= patience and panel.record.rounds >= first}
    ready = [name for name in names if low[name] and name in lost | quiet]
    ready.sort(key=lambda name: (keep[name], panel.weights[name], -names.index(name)))
    most = min(most, len(names) - max(min_members, 1))
    told = "its drafts kept losing: keep-probability {:.3f}, under {:.3f}{}"
    unsure = dict.fromkeys(quiet, ", and it is unsure of every draft")
    return panel.without(
        [Departure(n, "exit", told.format(keep[n], limits[n], unsure.get(n, "")), round) for n in ready[:most]]
    )


def _quiet(names: Sequence[str], assured: Mapping[str, float]) -> set[str]:
    """Those who hardly spoke. Whoever cannot score has no voice to be judged by."""
    loudest = max(assured.values(), default=0.0)
    return {name for name in names if assured.get(name, loudest) < QUIET * loudest}
