"""One answer as plain data made from its rounds: a summary, and a tree of spans with true times.

A round is a span; below it are each member's drafting, scoring and failing. Text that leads to the
answer (drafts, reasons) is in ``inputs``, ``outputs`` and ``error``, which tracers can hide; names,
tags, metadata and events never hold any. This module does not depend on LangChain.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..core.options import Method
from ..core.round import Round
from ..core.values import Effort
from ..errors import EnsembleError, MemberError

Depth = Literal["off", "summary", "rounds", "members"]
TAIL = 80
"""A round's span shows this many characters of the agreed text before it."""
EXIT_EVENT = "specfuse_exit"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work with its start and end, in seconds of ``time.time()``."""

    name: str
    began: float
    ended: float
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    children: tuple[Span, ...] = ()


class AnswerSummary:
    """What the rounds of one answer add up to."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = tuple(members)
        self.rounds = 0
        self.weights: Mapping[str, float] = {}
        self.exits: list[dict[str, Any]] = []
        """The members that left, with the reason: it may quote the text."""
        self._won: Counter[str] = Counter()
        self._looped = 0
        self._late: Counter[str] = Counter()
        self.used: dict[str, Effort] = {}
        """What members that send requests have used, including verifiers."""
        self.refusals: dict[str, str] = {}
        """member -> the text of its last refusal to draft."""

    def add(self, round: Round) -> None:
        self.rounds += 1
        self.weights = round.weights
        self.exits += round.as_dict()["left"] if round.left else []
        if round.finish != "refusal":
            self._won[round.member] += 1
        self._looped += len(round.looped)
        self._late.update(round.late_members)
        self.refusals |= round.refusals
        for phase in round.efforts.values():
            for name, effort in phase.items():
                if effort.requests or effort.input_tokens or effort.output_tokens:
                    self.used[name] = self.used.get(name, Effort()) + effort

    def as_dict(self) -> dict[str, Any]:
        """The summary without exits, as plain JSON."""
        return {
            "members": list(self.members),
            "rounds": self.rounds,
            "weights": dict(self.weights),
            "shares": {
                name: self._won[name] / self.rounds for name in self.members if self._won[name]
            },
            "looped": self._looped,
            "late": dict(self._late),
            "usage": {
                name: {
                    key: getattr(used, key) for key in ("requests", "input_tokens", "output_tokens")
                }
                | ({"cost": used.cost} if used.cost else {})
                | ({"estimated": True} if used.estimated else {})
                for name, used in self.used.items()
            },
        }


class SpanBuilder:
    """Makes the spans of one answer, round by round."""

    def __init__(
        self, members: Sequence[str], verifiers: Sequence[str], method: Method, *, whole: bool
    ) -> None:
        self._verifiers = frozenset(verifiers)
        self._method = method
        self._whole = whole
        """Whether drafting and scoring are spans too."""
        self._summary = AnswerSummary(members)
        self._tail, self._length = "", 0
        self._now = time.time()
        self._failed: list[MemberError] = []
        self.finished = False

    def round(self, round: Round) -> Span:
        """The span of this round."""
        began, _ = _phase(round, "draft")
        ended = max((sum(_phase(round, phase)) for phase in round.seconds), default=began)
        span = Span(
            f"round {round.number}",
            began,
            ended,
            self._inputs(),
            _outputs(round),
            tags=(EXIT_EVENT,) if round.left else (),
            metadata={"specfuse_round": round.number, "specfuse_winner": round.winner},
            children=tuple(self._children(round)),
        )
        self._summary.add(round)
        self._now = ended
        self._length += len(round.text)
        self._tail = (self._tail + round.text)[-TAIL:]
        self.finished = round.finish is not None
        return span

    def cut(self, error: BaseException) -> Span:
        """The span of the round during which the answer broke off."""
        number, ended = self._summary.rounds + 1, time.time()
        self._failed = failures_after(error, self._summary.rounds)
        children = [
            Span(
                f"{self._last_work(failed.member)} {failed.member}",
                self._now,
                ended,
                error=f"{failed.kind}: {failed}",
                metadata={"specfuse_round": number, "specfuse_member": failed.member},
            )
            for failed in self._failed
        ]
        return Span(
            f"round {number}",
            self._now,
            ended,
            self._inputs(),
            error=f"{type(error).__name__}: {error}" if str(error) else type(error).__name__,
            tags=(EXIT_EVENT,) if children else (),
            metadata={"specfuse_round": number},
            children=tuple(children),
        )

    @property
    def exits(self) -> list[dict[str, Any]]:
        """The members that have left, without the reason."""
        left = [
            {key: value for key, value in exit.items() if key != "reason"}
            for exit in self._summary.exits
        ]
        return left + [
            {"member": one.member, "kind": one.kind, "round": one.round} for one in self._failed
        ]

    @property
    def metadata(self) -> dict[str, Any]:
        """The ensemble and the summary, without any text."""
        about: dict[str, Any] = {
            "members": list(self._summary.members),
            "verifiers": sorted(self._verifiers),
        }
        about["method"] = self._method.changes or "robust"
        if self._summary.rounds or self._failed:
            about |= {**self._summary.as_dict(), "exits": self.exits}
        return {f"specfuse_{key}": value for key, value in about.items()}

    def _children(self, round: Round) -> Iterator[Span]:
        """What each member did, if that is wanted; what each member failed in, always."""
        if self._whole:
            for name, effort in round.efforts.get("draft", {}).items():
                if name in round.drafts and name not in round.refusals:
                    yield self._draft(round, name, effort)
            for name, effort in round.efforts.get("verify", {}).items():
                if name in round.scores:
                    yield self._score(round, name, effort)
            for name, refusal in round.refusals.items():
                yield self._member(round, "draft", name, outputs={"refusal": refusal})
            for phase, names in round.late.items():
                for name in names:
                    yield self._member(round, phase, name, outputs={"late": True})
        for gone in round.left:
            if gone.kind != "exit":
                phase = "verify" if self._last_work(gone.member, round) == "score" else "draft"
                yield self._member(round, phase, gone.member, error=f"{gone.kind}: {gone.reason}")

    def _draft(self, round: Round, name: str, effort: Effort) -> Span:
        draft = round.drafts[name]
        outputs: dict[str, Any] = {
            "text": draft.text,
            "ended": draft.ended,
            "tokens": len(draft.tokens),
        }
        if name in round.thoughts:
            outputs["thought"] = round.thoughts[name]
        if draft.logprobs:
            outputs["logprob"] = sum(draft.logprobs)
        return self._member(
            round,
            "draft",
            name,
            effort,
            inputs={"agreed_characters": self._length},
            outputs=outputs,
        )

    def _score(self, round: Round, name: str, effort: Effort) -> Span:
        scores = round.scores[name]
        inputs = {"drafts": {author: round.drafts[author].text for author in scores}}
        outputs = _short({"scores": dict(scores), "votes": dict(round.votes.get(name, {}))})
        return self._member(round, "verify", name, effort, inputs=inputs, outputs=outputs)

    def _member(
        self, round: Round, phase: str, name: str, effort: Effort | None = None, **contents: Any
    ) -> Span:
        """A member's part of a phase; where its own times are unknown, the whole phase."""
        began, seconds = _phase(round, phase)
        if effort is not None:
            contents["outputs"] |= {"read": effort.read, "reused": effort.reused}
            began, seconds = (effort.began, effort.seconds) if effort.began else (began, seconds)
        work = "score" if phase == "verify" else "draft"
        about = {"specfuse_round": round.number, "specfuse_member": name}
        return Span(f"{work} {name}", began, began + seconds, metadata=about, **contents)

    def _last_work(self, member: str, round: Round | None = None) -> str:
        """What a failed member was doing: one that had drafted in this round failed in scoring."""
        drafted = round is not None and member in round.drafts
        return "score" if member in self._verifiers or drafted else "draft"

    def _inputs(self) -> dict[str, Any]:
        """The state of the answer before the round."""
        return {"agreed_characters": self._length, "agreed_tail": self._tail}


def _outputs(round: Round) -> dict[str, Any]:
    """The round without empty values and those that follow from others, because a tracer posts each
    of the many rounds of an answer."""
    found = round.as_dict()
    del found["round"]
    follows = {
        "segment": round.text,
        "weights_before": dict(round.weights),
        "authors": [round.winner],
    }
    found = {key: value for key, value in found.items() if follows.get(key) != value}
    for efforts in found["tokens"].values():
        for effort in efforts.values():
            del effort["seconds"]  # the member's own run has them
    return {key: _short(value) for key, value in found.items() if not _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _short(value: Any) -> Any:
    """The value with numbers rounded to four digits, and without ``False``."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items() if one is not False}
    return value


def failures_after(error: BaseException | None, round: int) -> list[MemberError]:
    """The failures after the last finished round: no round reports them."""
    failures = error.failures if isinstance(error, EnsembleError) else ()
    return [failed for failed in failures if failed.round > round]


def _phase(round: Round, phase: str) -> tuple[float, float]:
    """When a phase began, and how long it took."""
    seconds = round.seconds.get(phase, 0.0)
    return round.began.get(phase) or time.time() - seconds, seconds
