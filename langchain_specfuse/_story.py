"""One answer as a tree of spans: a round, and under it what each member drafted, scored and failed in, with true times.

Plain data made from rounds alone. What leads to a text (drafts, reasons) stands in ``inputs``, ``outputs`` and
``error``, which tracers know how to hide; names, tags, metadata and events never hold any of it. Knows nothing of
tracers or LangChain.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .core.values import Departure, Effort, Round
from .errors import EnsembleError, MemberError

Depth = Literal["off", "summary", "rounds", "members"]
TAIL = 200
"""So many characters of the agreed text are told with a round: enough to see where it goes on."""
EXIT_EVENT = "specfuse_exit"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that was done, from when until when, in seconds of ``time.time()``."""

    name: str
    began: float
    ended: float
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    children: tuple[Span, ...] = ()


class Story:
    """What has been told of one answer so far: where the text stands, and what it all adds up to."""

    def __init__(self, members: Sequence[str], verifiers: Sequence[str], preset: str, *, whole: bool) -> None:
        self._members = tuple(members)
        self._verifiers = frozenset(verifiers)
        self._preset = preset
        self._whole = whole
        self._tail, self._length = "", 0
        self._now = time.time()
        self._number = 0
        self._won: Counter[str] = Counter()
        self._looped = 0
        self._late: Counter[str] = Counter()
        self._exits: list[dict[str, Any]] = []
        self._weights: Mapping[str, float] = {}
        self.departures: list[dict[str, Any]] = []
        """Who left in the round that broke off."""
        self.finished = False

    def after(self, round: Round) -> Span:
        """The round's span; the story goes on behind it."""
        span = self._round(round)
        self._number, self._now = round.number, span.ended
        self._length += len(round.text)
        self._tail = (self._tail + round.text)[-TAIL:]
        self._won[round.winner] += 1
        self._looped += len(round.looped)
        self._late.update(round.stragglers)
        self._exits += exits(round)
        self._weights = round.weights
        self.finished = round.finish is not None
        return span

    def cut(self, error: BaseException) -> Span:
        """The span of the round that was under way when the answer broke off."""
        number, ended = self._number + 1, time.time()
        told = departed(error, self._number)
        self.departures = [{"member": one.member, "kind": one.kind, "round": one.round} for one in told]
        self._exits += self.departures
        children = tuple(
            Span(
                f"{self._last_work(failed.member, ())} {failed.member}",
                self._now,
                ended,
                error=f"{failed.kind}: {failed}",
                metadata=self._about(number, failed.member),
            )
            for failed in told
        )
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        inputs = self._inputs(number, self._weights)
        return Span(
            _name(number),
            self._now,
            ended,
            inputs,
            error=words,
            tags=(EXIT_EVENT,) if told else (),
            metadata=self._about(number),
            children=children,
        )

    @property
    def summary(self) -> dict[str, Any]:
        """The ensemble as metadata of the chat model's run. Without any text: reasons stay with the rounds."""
        told: dict[str, Any] = {
            "members": list(self._members),
            "verifiers": sorted(self._verifiers),
            "preset": self._preset,
        }
        if self._number or self._exits:
            told |= {
                "rounds": self._number,
                "weights": dict(self._weights),
                "shares": {name: self._won[name] / self._number for name in self._members if self._won[name]},
                "exits": list(self._exits),
                "looped": self._looped,
                "late": dict(self._late),
            }
        return {f"specfuse_{key}": value for key, value in told.items()}

    def _round(self, round: Round) -> Span:
        began, ended = _bounds(round)
        return Span(
            _name(round.number),
            began,
            ended,
            self._inputs(round.number, round.weights_before, [gone.member for gone in round.left]),
            {key: value for key, value in round.as_dict().items() if key != "round"},
            tags=(EXIT_EVENT,) if round.left else (),
            metadata={**self._about(round.number), "specfuse_winner": round.winner},
            children=tuple(self._children(round)),
        )

    def _children(self, round: Round) -> Iterator[Span]:
        """What each member did, if that is wanted; what each member failed in, always."""
        if self._whole:
            for name, effort in round.efforts.get("draft", {}).items():
                if name in round.drafts:
                    yield self._draft(round, name, effort)
            for name, effort in round.efforts.get("verify", {}).items():
                if name in round.scores:
                    yield self._score(round, name, effort)
            for phase, names in round.late.items():
                for name in names:
                    yield self._missing(round, phase, name)
        for gone in round.left:
            if gone.kind != "exit":
                yield self._failure(round, gone)

    def _draft(self, round: Round, name: str, effort: Effort) -> Span:
        draft = round.drafts[name]
        outputs = {"text": draft.text, "ended": draft.ended, "tokens": len(draft.tokens), **_cost(effort)}
        if name in round.thoughts:
            outputs["thought"] = round.thoughts[name]
        if draft.logprobs:
            outputs["logprob"] = sum(draft.logprobs)
        inputs = {"agreed_characters": self._length}
        return Span(
            f"draft {name}",
            *_when(round, "draft", effort),
            inputs,
            outputs,
            metadata=self._about(round.number, name),
        )

    def _score(self, round: Round, name: str, effort: Effort) -> Span:
        scores = round.scores[name]
        inputs = {"drafts": {author: round.drafts[author].text for author in scores}}
        outputs = {"scores": dict(scores), "votes": dict(round.votes.get(name, {})), **_cost(effort)}
        return Span(
            f"score {name}",
            *_when(round, "verify", effort),
            inputs,
            outputs,
            metadata=self._about(round.number, name),
        )

    def _missing(self, round: Round, phase: str, name: str) -> Span:
        began, seconds = _phase(round, phase)
        work = "score" if phase == "verify" else "draft"
        about = self._about(round.number, name)
        return Span(f"{work} {name}", began, began + seconds, outputs={"late": True}, metadata=about)

    def _failure(self, round: Round, gone: Departure) -> Span:
        work = self._last_work(gone.member, tuple(round.efforts.get("draft", {})))
        began, seconds = _phase(round, "verify" if work == "score" else "draft")
        return Span(
            f"{work} {gone.member}",
            began,
            began + seconds,
            error=f"{gone.kind}: {gone.reason}",
            metadata=self._about(round.number, gone.member),
        )

    def _last_work(self, member: str, drafted: Sequence[str]) -> str:
        """What a member was doing when it failed: who has drafted in this round failed in scoring."""
        return "score" if member in self._verifiers or member in drafted else "draft"

    def _inputs(self, number: int, weights: Mapping[str, float], left: Sequence[str] = ()) -> dict[str, Any]:
        """What the round began with; who failed in it has no weight any more, but was in."""
        members = list(dict.fromkeys([*(weights or self._members), *left]))
        told = {"round": number, "agreed_characters": self._length, "agreed_tail": self._tail}
        return {**told, "members": members, "weights": dict(weights)}

    def _about(self, number: int, member: str = "") -> dict[str, Any]:
        about: dict[str, Any] = {"specfuse_round": number}
        return {**about, "specfuse_member": member} if member else about


def departed(error: BaseException | None, after: int) -> list[MemberError]:
    """Who failed behind this round, in one that nobody was left to finish: no round tells of them."""
    told = error.failures if isinstance(error, EnsembleError) else ()
    return [failed for failed in told if failed.round > after]


def exits(round: Round) -> list[dict[str, Any]]:
    """Who left in this round. Without the reason: what a member raised may quote the text."""
    return [{"member": gone.member, "kind": gone.kind, "round": gone.round} for gone in round.left]


def _name(number: int) -> str:
    return f"round {number}"


def _cost(effort: Effort) -> dict[str, int]:
    return {"read": effort.read, "reused": effort.reused}


def _phase(round: Round, phase: str) -> tuple[float, float]:
    """When a phase began and how long it took; a round that does not tell has just ended."""
    seconds = round.seconds.get(phase, 0.0)
    return round.began.get(phase) or time.time() - sum(round.seconds.values()), seconds


def _when(round: Round, phase: str, effort: Effort) -> tuple[float, float]:
    """From when until when a member worked; if that is not known, from the question to the last reply."""
    began, seconds = (effort.began, effort.seconds) if effort.began else _phase(round, phase)
    return began, began + seconds


def _bounds(round: Round) -> tuple[float, float]:
    began, _ = _phase(round, "draft")
    ends = [sum(_phase(round, phase)) for phase in round.seconds]
    return began, max(ends, default=began)
