"""The members that take part, their voting weights, and when they leave.

A :class:`Panel` is frozen: every change returns a new one. It contains names and numbers, no drafts
or texts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from .round import Departure
from .values import Panelist

WEIGHT_FLOOR = 0.02
CLIP = 3.0
"""How many standard deviations one round may count for."""
PATIENCE = 2
"""Rounds in a row under the threshold before a member leaves."""
FIRST_EXIT = 3
"""No exit before this many scored rounds."""
HEAT = 2.5
"""The factor of the exit policy's temperature: the lower, the sooner members leave."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the scored rounds of an answer have shown: the evidence for exits."""

    rounds: int = 0
    quality: Mapping[str, float] = field(default_factory=dict)
    """Q: the sum of clipped, standardised deviations of a member's total from the mean."""
    wins: Mapping[str, int] = field(default_factory=dict)
    squares: float = 0.0
    count: int = 0
    low: Mapping[str, int] = field(default_factory=dict)
    """Rounds in a row under the exit threshold."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The members that are still in, with their weights."""

    members: tuple[Panelist, ...]
    weights: Mapping[str, float]
    left: tuple[Departure, ...] = ()
    record: Record = Record()
    lead: str | None = None
    """The member that leads: its draft wins unless another is better. None: all vote as equals.
    See :mod:`.ballot`."""
    reserve: tuple[str, ...] = ()
    """Members that are asked nothing unless the lead cannot continue; the first of them is the
    next to take over."""
    absent: tuple[Departure, ...] = ()
    """Members with which the answer should have begun, but which could not be loaded. They leave in
    its first round."""
    drafters: tuple[str, ...] = field(init=False, repr=False, compare=False)
    verifiers: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        drafters = tuple(member.name for member in self.members if member.drafts)
        verifiers = tuple(member.name for member in self.members if member.scores)
        object.__setattr__(self, "drafters", drafters)
        object.__setattr__(self, "verifiers", verifiers)

    @classmethod
    def of(
        cls,
        members: Sequence[Panelist],
        prior: Mapping[str, float] | None = None,
        lead: str | None = None,
        reserve: Sequence[str] = (),
        absent: Sequence[Departure] = (),
    ) -> Panel:
        """A panel of all members. Their weights are equal, or those of ``prior``, in which a member
        that is not named has 1.

        >>> Panel.of([Panelist("a"), Panelist("b")]).weights
        {'a': 0.5, 'b': 0.5}
        """
        prior = prior or {}
        weights = normalised({member.name: prior.get(member.name, 1.0) for member in members})
        return cls(tuple(members), weights, lead=lead, reserve=tuple(reserve), absent=tuple(absent))

    def without(self, departures: Sequence[Departure]) -> Panel:
        """The panel after these members have left. The weights of the others keep their
        proportions."""
        if not departures:
            return self
        gone = {departure.member for departure in departures}
        members = tuple(member for member in self.members if member.name not in gone)
        weights = normalised({member.name: self.weights[member.name] for member in members})
        lead = None if self.lead in gone else self.lead
        return replace(
            self,
            members=members,
            weights=weights,
            left=self.left + tuple(departures),
            lead=lead,
            reserve=tuple(name for name in self.reserve if name not in gone),
        )

    def without_absent(self) -> Panel:
        """The panel after the members that could not be loaded have left."""
        return replace(self.without(self.absent), absent=()) if self.absent else self

    def is_native(self, name: str) -> bool:
        """Whether this member answers the caller's own request."""
        return any(member.native for member in self.members if member.name == name)

    def has_one_writer(self, margin: float | None) -> bool:
        """Whether one member writes: it leads with this margin, or is alone."""
        return (self.lead is not None and margin == math.inf) or len(self.drafters) == 1

    @property
    def is_led_natively(self) -> bool:
        """Whether a native member leads, or is alone."""
        names = (self.lead,) if self.lead else self.drafters
        return len(names) == 1 and self.is_native(names[0])

    def joined_by(self, member: Panelist) -> Panel:
        """The panel after a member has come from the reserve. It gets the mean weight.

        >>> panel = Panel.of([Panelist("a")], lead="a", reserve=["b", "c"])
        >>> panel = panel.joined_by(Panelist("b"))
        >>> panel.weights, panel.lead, panel.reserve
        ({'a': 0.5, 'b': 0.5}, 'a', ('c',))
        """
        mean = math.fsum(self.weights.values()) / len(self.weights) if self.weights else 1.0
        return replace(
            self,
            members=(*self.members, member),
            weights=normalised({**self.weights, member.name: mean}),
            reserve=tuple(name for name in self.reserve if name != member.name),
        )


def normalised(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights that sum to 1, with none below the floor. With many members, the floor is half of an
    equal share.

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
    floor = min(WEIGHT_FLOOR, 0.5 / len(weights))
    low: set[str] = set()
    while True:
        free = math.fsum(value for name, value in weights.items() if name not in low)
        room = 1.0 - floor * len(low)
        shares = {
            name: floor if name in low else room * value / free for name, value in weights.items()
        }
        sunk = {name for name, share in shares.items() if share < floor} - low
        if not sunk:
            return shares
        low |= sunk


# --- weights --------------------------------------------------------------------------------------


def rewarded(panel: Panel, rewards: Mapping[str, float], eta: float) -> Panel:
    """Multiplicative weights: w_i <- w_i · exp(η r_i), normalised. A verify-only member earns the
    neutral 1/2.

    >>> panel = rewarded(Panel.of([Panelist("a"), Panelist("b")]), {"a": 1.0, "b": 0.0}, eta=1.0)
    >>> {name: round(w, 3) for name, w in panel.weights.items()}
    {'a': 0.731, 'b': 0.269}
    """
    if eta == 0.0 or len(panel.drafters) < 2 or len(set(rewards.values())) < 2:
        return panel
    gains = {name: eta * rewards.get(name, 0.5) for name in panel.weights}
    # A common factor has no effect on the result, and keeps it finite at a high learning rate.
    highest = max(gains.values())
    weights = {
        name: weight * math.exp(gains[name] - highest) for name, weight in panel.weights.items()
    }
    return replace(panel, weights=normalised(weights))


# --- exits ----------------------------------------------------------------------------------------


def with_record(panel: Panel, totals: Mapping[str, float], winner: str) -> Panel:
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
        quality={
            n: old.quality.get(n, 0.0) + max(-CLIP, min(CLIP, d / sd))
            for n, d in deviations.items()
        },
        wins={n: old.wins.get(n, 0) + (n == winner) for n in totals},
    )
    return replace(panel, record=record)


def keep_probabilities(panel: Panel) -> dict[str, float]:
    """p = softmax(Q / τ) over the drafting members, where τ_t = HEAT · H · sqrt(t).

    H is the entropy of (wins + 1) / Σ divided by ln n.

    Paper: its closed form is not public; this is our reconstruction. The increments of Q have unit
    variance, so sqrt(t) keeps noise at O(1) and lets real gaps grow. With literal readings of the
    paper's text almost no member left (docs/development/log.md).
    """
    names = panel.drafters
    if len(names) < 2:
        return dict.fromkeys(names, 1.0)
    record = panel.record
    tau = HEAT * win_entropy(panel) * math.sqrt(max(record.rounds, 1))
    best = max(record.quality.get(name, 0.0) for name in names)
    shares = {
        name: math.exp((record.quality.get(name, 0.0) - best) / max(tau, 1e-6)) for name in names
    }
    whole = math.fsum(shares.values())
    return {name: share / whole for name, share in shares.items()}


def win_entropy(panel: Panel) -> float:
    """The entropy of the drafting members' wins, from 0 to 1. Every member starts with one win."""
    counts = [panel.record.wins.get(name, 0) + 1 for name in panel.drafters]
    whole = sum(counts)
    return -math.fsum(c / whole * math.log(c / whole) for c in counts) / math.log(len(counts))


def without_losers(panel: Panel, min_members: int, round: int) -> Panel:
    """The panel after this round's exits. A member leaves if its keep-probability is below 0.5 / n
    twice in a row, from the third scored round on. ``min_members`` (at least one) drafting members
    stay."""
    names = panel.drafters
    least = max(min_members, 1)
    if len(names) <= least:
        return panel
    keep = keep_probabilities(panel)
    limit = 0.5 / len(names)
    low = dict.fromkeys(names, 0)
    for name in names:
        if keep[name] < limit:
            low[name] = panel.record.low.get(name, 0) + 1
    panel = replace(panel, record=replace(panel.record, low=low))
    if panel.record.rounds < FIRST_EXIT:
        return panel
    losers = [name for name in names if low[name] >= PATIENCE and name != panel.lead]
    losers.sort(key=lambda name: (keep[name], panel.weights[name], -names.index(name)))
    departures = []
    for name in losers[: len(names) - least]:
        reason = f"its drafts kept losing: keep-probability {keep[name]:.3f}, below {limit:.3f}"
        departures.append(Departure(name, "exit", reason, round))
    return panel.without(departures)
