"""The record of a round.

:class:`Round` is what the loop yields. :class:`RoundData` is the same round as plain data: custom
events, child runs of tracers, the metadata of a message, saved traces and the lines of ``--json``
are all made from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .values import Draft, Effort, Finish, Segment


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that left the answer, and why."""

    member: str
    kind: str
    """``exit`` if it was voted out, else the kind of its failure."""
    reason: str
    round: int
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that the member raised, if any."""

    def as_dict(self) -> dict[str, Any]:
        """The departure as plain JSON, without the exception."""
        return {
            "member": self.member,
            "kind": self.kind,
            "reason": self.reason,
            "round": self.round,
        }


@dataclass(frozen=True, slots=True)
class Rejection:
    """A draft that a check of the user refused."""

    member: str
    text: str
    """The draft."""
    check: str
    """The check's name."""
    reason: str
    kept: int = 0
    """How many characters at the beginning of the text were kept; the rest was cut off."""
    is_shown: bool = False
    """The draft was agreed in spite of the check (``on_failure="keep"``)."""
    tokens: int = 0
    """Its length in its author's tokens."""
    held_back: str = ""
    """The end of the agreed text before the draft that was still held back. The check refuses both
    together, so the fault may lie here."""

    def as_dict(self) -> dict[str, Any]:
        """The rejection as plain JSON."""
        return {item.name: getattr(self, item.name) for item in fields(Rejection)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundData:
    """A round as plain data. ``docs/reference/events.md`` explains every field."""

    number: int
    text: str
    segment: str
    ended: bool
    winner: str
    authors: Sequence[str]
    drafts: Mapping[str, Mapping[str, Any]]
    scores: Mapping[str, Mapping[str, float]]
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    margin: float
    dissent: float
    runner_up: str | None
    rewards: Mapping[str, float]
    weights_before: Mapping[str, float]
    weights: Mapping[str, float]
    forced: str
    thoughts: Mapping[str, str]
    looped: Sequence[str]
    lead: str
    evidence: Mapping[str, float]
    late: Mapping[str, Sequence[str]]
    """Always empty, because a late member leaves. Traces of older versions may list late
    members."""
    refusals: Mapping[str, str]
    left: Sequence[Mapping[str, Any]]
    samples: Mapping[str, str]
    rejected: Sequence[Mapping[str, Any]] = ()
    withdrawn: str = ""
    checks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    finish: Finish | None
    stalled: bool
    seconds: Mapping[str, float]
    tokens: Mapping[str, Mapping[str, Mapping[str, float]]]

    def as_dict(self) -> dict[str, Any]:
        """The data of a ``specfuse_round`` event: plain JSON that the caller may change."""
        values = {item.name: _copied(getattr(self, item.name)) for item in fields(RoundData)}
        return {"round": values.pop("number"), **values}


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round, as the loop yields it."""

    number: int
    """From 1."""
    text: str
    """The text to stream now. Text that may begin a stop string is held back."""
    segment: Segment
    winner: str
    """The name of the draft that won: its member's name, or that of an additional sample."""
    drafts: Mapping[str, Draft]
    scores: Mapping[str, Mapping[str, float]]
    """verifier -> drafting member -> raw score. Empty when there was nothing to choose between."""
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    weights_before: Mapping[str, float]
    weights: Mapping[str, float]
    authors: tuple[str, ...] = ()
    """The members that drafted the winning segment, the winner first."""
    forced: str = ""
    """Text that the constraint leaves no choice about: appended after the segment (in round 1 also
    before it)."""
    thoughts: Mapping[str, str] = field(default_factory=dict)
    """member -> its reasoning, in the round in which it reasoned."""
    looped: tuple[str, ...] = ()
    """Members whose drafts only repeated the end of the answer and therefore could not win."""
    lead: str = ""
    """The member that leads; empty if all vote as equals."""
    evidence: Mapping[str, float] = field(default_factory=dict)
    """member -> the evidence that its draft is better than the lead's, where others than the lead
    were asked."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """member -> its refusal, for members that refused to draft. If the finish is ``refusal``, the
    refusal of ``member`` is the answer, and ``drafts`` has an empty draft for each of them."""
    left: tuple[Departure, ...] = ()
    """The members that left in this round."""
    samples: Mapping[str, str] = field(default_factory=dict)
    """For additional samples of members: the draft's name, such as ``ann#2`` -> its member."""
    rejected: tuple[Rejection, ...] = ()
    """The drafts that checks refused in this round, in their order."""
    withdrawn: str = ""
    """Text at the end of the answer that earlier rounds had agreed and that a check then refused.
    It was held back and never shown; this round's segment takes its place."""
    checks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """check -> how many drafts it ``passed`` and ``rejected`` in this round, or how many places in
    drafts it ``redacted``."""
    finish: Finish | None = None
    """Why the answer ends, if it ends with this round."""
    stalled: bool = False
    """The finish is ``length``, but the budget was not used up: no member could continue, or the
    answer only repeated itself (then the winner is in ``looped``)."""
    efforts: Mapping[str, Mapping[str, Effort]] = field(default_factory=dict)
    """phase (``draft``, ``verify``) -> member -> effort."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """phase -> wall-clock seconds between asking and the last reply."""

    @property
    def member(self) -> str:
        """The member that wrote the winning draft."""
        return self.samples.get(self.winner, self.winner)

    @property
    def drafted(self) -> int:
        """The length of all drafts in their authors' tokens, including drafts that were refused and
        drawn again."""
        count = sum(draft.size for draft in self.drafts.values())
        if not self.rejected:
            return count
        counted = {(name, draft.text) for name, draft in self.drafts.items()}
        for item in self.rejected:
            if (item.member, item.text) in counted:
                counted.remove((item.member, item.text))
                continue
            kept = self.drafts.get(item.member) if item.kept else None
            count += item.tokens - (len(kept.tokens) if kept else 0)
        return count

    @property
    def margin(self) -> float:
        """The winner's total minus that of the best other draft (1.0 when all drafts coincide)."""
        runner_up = self.runner_up
        if runner_up is None:
            return 1.0
        return self.totals[self.winner] - self.totals.get(runner_up, 0.0)

    @property
    def dissent(self) -> float:
        """The entropy of the totals over the distinct drafts, from 0 (unanimous) to 1 (all drafts
        equal)."""
        drafts = {self._content(name): total for name, total in self.totals.items() if total > 0}
        if len(drafts) < 2:
            return 0.0
        whole = math.fsum(drafts.values())
        shares = [total / whole for total in drafts.values()]
        return -math.fsum(share * math.log(share) for share in shares) / math.log(len(drafts))

    @property
    def runner_up(self) -> str | None:
        """The author of the best draft other than the winning one; None when all drafts
        coincide."""
        agreed = self._content(self.winner)
        others = [name for name in self.drafts if self._content(name) != agreed]
        return max(others, key=lambda name: self.totals.get(name, 0.0), default=None)

    def _content(self, name: str) -> tuple[str, bool]:
        """A key that distinguishes drafts. The authors of the winning segment share one key,
        because they may have spelled the same call differently."""
        draft = self.drafts[self.winner if name in self.authors else name]
        return draft.text, draft.ended

    def data(self) -> RoundData:
        """The round as plain data."""
        return RoundData(
            number=self.number,
            text=self.text,
            segment=self.segment.text,
            ended=self.segment.ended,
            winner=self.winner,
            authors=list(self.authors),
            drafts={name: _draft_data(draft) for name, draft in self.drafts.items()},
            scores={verifier: dict(row) for verifier, row in self.scores.items()},
            votes={verifier: dict(row) for verifier, row in self.votes.items()},
            totals=dict(self.totals),
            margin=self.margin,
            dissent=self.dissent,
            runner_up=self.runner_up,
            rewards=dict(self.rewards),
            weights_before=dict(self.weights_before),
            weights=dict(self.weights),
            forced=self.forced,
            thoughts=dict(self.thoughts),
            looped=list(self.looped),
            lead=self.lead,
            evidence=dict(self.evidence),
            late={},
            refusals=dict(self.refusals),
            left=[departure.as_dict() for departure in self.left],
            samples=dict(self.samples),
            rejected=[rejection.as_dict() for rejection in self.rejected],
            withdrawn=self.withdrawn,
            checks={name: dict(counts) for name, counts in self.checks.items()},
            finish=self.finish,
            stalled=self.stalled,
            seconds=dict(self.seconds),
            tokens={
                phase: {name: _tokens(effort) for name, effort in efforts.items()}
                for phase, efforts in self.efforts.items()
            },
        )

    def as_dict(self) -> dict[str, Any]:
        """The round as plain JSON: ``data().as_dict()``."""
        return self.data().as_dict()


def _draft_data(draft: Draft) -> dict[str, Any]:
    size = len(draft.tokens) or draft.written
    data = {"text": draft.text, "ended": draft.ended, "tokens": size}
    if draft.calls:
        data["calls"] = [{"name": call.name, "arguments": call.arguments} for call in draft.calls]
    return data


def _tokens(effort: Effort) -> dict[str, float]:
    return {"read": effort.read, "reused": effort.reused, "seconds": effort.seconds}


def _copied(value: Any) -> Any:
    """A copy of plain data."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(item) for item in value]
    return value
