"""One round's vote: which drafts are distinct, which are eligible, who must score what, and the
outcome."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .answer import continues_loop
from .lead import Reading, is_sure, log_odds
from .options import Method
from .referee import FREE, Referee
from .values import Candidate, Draft, Scored, Segment
from .voting import confidences, raw_score, rewards, shares, totals, votes


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome: the winner, its segment, and all numbers by the members' names."""

    winner: str
    authors: tuple[str, ...]
    """The members that wrote the winning segment, the winner first."""
    segment: Segment
    scores: Mapping[str, Mapping[str, float]]
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    disputed: bool
    """False when all drafts coincide: such a round says nothing about any member."""
    evidence: Mapping[str, float]
    """With a lead, for each author of another draft: the evidence that its draft is the better
    one."""


class Ballot:
    """The distinct drafts of one round. Drafts that coincide are one candidate: scored once,
    rewarded alike."""

    def __init__(
        self, method: Method, drafts: Mapping[str, Draft], answer: str, referee: Referee = FREE
    ) -> None:
        self.drafts = drafts
        self._method, self._answer, self._referee = method, answer, referee
        authors: dict[Hashable, list[str]] = {}
        for name, draft in drafts.items():
            authors.setdefault(self._meaning(draft), []).append(name)
        firsts = [(drafts[names[0]], tuple(names)) for names in authors.values()]
        self.candidates = [Candidate(draft.text, draft.ended, names) for draft, names in firsts]
        # An empty draft that does not end the answer is no proposal; a loop loses to any draft that
        # goes on.
        proposals = [c for c in self.candidates if c.text or c.ended]
        # Paper: it has no loop guard. Likelihood rewards repetition, and members pick it up from
        # each other.
        fresh = [c for c in proposals if not (method.loop_guard and continues_loop(answer, c.text))]
        self.eligible = fresh or proposals or self.candidates
        self.looped = tuple(name for c in proposals if c not in self.eligible for name in c.authors)

    def to_score(self, judge: str) -> tuple[Candidate, ...]:
        """What this verifier must score: all candidates but its own, if its draft came with
        log-probabilities."""
        return tuple(c for c in self.eligible if not self._is_own(judge, c))

    def readings_of(self, judge: str, reply: Scored) -> list[Reading]:
        """How this verifier reads every eligible draft, from its reply and from its own draft.

        Empty if the verifier abstains, because it cannot end turns and a draft is only an end.
        """
        rows = _rows(reply)
        readings = [self._reading(judge, candidate, rows) for candidate in self.eligible]
        abstains = any(c.ended and not one for c, one in zip(self.eligible, readings, strict=True))
        return [] if abstains else readings

    def sure(self, name: str) -> bool:
        """Whether this member gives every token of its draft the probability that makes it sure."""
        draft = self.drafts[name]
        if draft.least is not None:
            return is_sure([draft.least], self._method.sure)
        own = self._free(Candidate(draft.text, draft.ended, ()), draft.logprobs or (), draft.ends)
        return is_sure(own, self._method.sure)

    def counted(
        self,
        readings: Mapping[str, Sequence[Reading]],
        weights: Mapping[str, float],
        lead: str | None = None,
    ) -> Vote:
        """Weigh the votes; the lead's draft wins unless there is enough evidence for another.
        Drafts that are not eligible get 0."""
        method = self._method
        scores = {
            judge: [
                raw_score(method.score, one, c.text)
                for one, c in zip(row, self.eligible, strict=True)
            ]
            for judge, row in readings.items()
        }
        by_verifier = {judge: votes(method.score, row) for judge, row in scores.items()}
        confidence = confidences(method.weighting, method.score, scores)
        sums = totals(by_verifier, shares(confidence, weights), len(self.eligible))
        if not by_verifier:
            sums = [1.0 / len(self.eligible)] * len(self.eligible)
        earned = rewards(method.reward, by_verifier, [c.authors for c in self.eligible], confidence)
        total, reward = self._by_member(sums), self._by_member(earned)
        order = list(self.drafts)

        def rank(name: str) -> tuple[float, float, int]:
            # Rounded: what differs only by the order of a float addition is a tie.
            return round(total[name], 12), round(weights.get(name, 0.0), 12), -order.index(name)

        evidence = self._evidence(readings, weights, lead)
        winner = self._led(lead, evidence, rank) if lead in total else max(total, key=rank)
        chosen = next(c for c in self.eligible if winner in c.authors)
        authors = tuple(sorted(chosen.authors, key=lambda name: name != winner))
        return Vote(
            winner,
            authors,
            self._segment(authors),
            scores={judge: self._by_member(row) for judge, row in scores.items()},
            votes={judge: self._by_member(row) for judge, row in by_verifier.items()},
            totals={name: total.get(name, 0.0) for name in order},
            rewards={name: reward.get(name, 0.0) for name in order},
            disputed=len(self.candidates) > 1,
            evidence=evidence,
        )

    def _evidence(
        self,
        readings: Mapping[str, Sequence[Reading]],
        weights: Mapping[str, float],
        lead: str | None,
    ) -> dict[str, float]:
        """For each author of another draft than the lead's: the evidence that it is better."""
        at = next((i for i, c in enumerate(self.eligible) if lead in c.authors), None)
        if at is None or not readings:
            return {}
        stands = {judge: row[at] for judge, row in readings.items()}
        rivals = [(i, c) for i, c in enumerate(self.eligible) if i != at]
        found = [
            (c, log_odds({judge: row[i] for judge, row in readings.items()}, stands, weights))
            for i, c in rivals
        ]
        return {name: evidence for c, evidence in found for name in c.authors}

    def _led(self, lead: str, evidence: Mapping[str, float], rank: Callable[[str], Any]) -> str:
        """The winner: the rival with most evidence if that exceeds the margin, else the lead."""
        margin = math.inf if self._method.margin is None else self._method.margin
        best = max(evidence, key=lambda name: (round(evidence[name], 12), rank(name)), default=lead)
        return best if evidence.get(best, 0.0) > margin else lead

    def _meaning(self, draft: Draft) -> Hashable:
        """Equal for drafts that mean the same once the text that the constraint forces after them
        is added."""
        whole = draft.text + self._referee.forced(self._answer + draft.text)
        over = draft.ended or self._referee.must_end(self._answer + whole)
        return self._referee.same(self._answer, whole), over

    def _is_own(self, judge: str, candidate: Candidate) -> bool:
        """Whether this candidate is the judge's own draft and came with its log-probabilities."""
        if judge not in candidate.authors or self.drafts[judge].logprobs is None:
            return False
        return (self.drafts[judge].text, self.drafts[judge].ended) == (
            candidate.text,
            candidate.ended,
        )

    def _reading(self, judge: str, candidate: Candidate, rows: Iterator[Any]) -> Reading:
        """The log-probabilities that count in a score."""
        own = self.drafts[judge] if self._is_own(judge, candidate) else None
        logprobs, ends = (own.logprobs or (), own.ends) if own else next(rows)
        if candidate.ended and logprobs and logprobs[-1] == -math.inf:
            # It cannot end turns (a base model without such a token), so the end is not scored.
            candidate, logprobs = replace(candidate, ended=False), logprobs[:-1]
        return self._free(candidate, logprobs, ends)

    def _free(
        self, candidate: Candidate, logprobs: Sequence[float], ends: Sequence[int] | None
    ) -> Sequence[float]:
        if ends is None:  # no constraint, or a member that does not report where its tokens end
            return logprobs
        spans = self._referee.spans(self._answer, candidate.text)
        inevitable = candidate.ended and self._referee.must_end(self._answer + candidate.text)
        return unforced(logprobs, ends, spans, inevitable)

    def _by_member(self, values: Sequence[float]) -> dict[str, float]:
        return {name: v for c, v in zip(self.eligible, values, strict=True) for name in c.authors}

    def _segment(self, authors: Sequence[str]) -> Segment:
        first = self.drafts[authors[0]]
        alike = [name for name in authors if self.drafts[name].text == first.text]
        # A draft that the referee cut has no tokens of its own; its author reads the text like
        # anybody else's.
        tokens = {
            n: self.drafts[n].tokens for n in alike if self.drafts[n].tokens or not first.text
        }
        return Segment(first.text, first.ended, tokens)


def _rows(reply: Scored) -> Iterator[tuple[Sequence[float], Sequence[int] | None]]:
    return zip(reply.logprobs, reply.ends or [None] * len(reply.logprobs), strict=True)


def unforced(
    logprobs: Sequence[float],
    ends: Sequence[int],
    spans: Sequence[tuple[int, int]],
    inevitable: bool,
) -> Sequence[float]:
    """The log-probabilities of tokens that are not wholly inside ``spans``, and of the end unless
    it is inevitable.

    Tokens that a constraint forces have probability near 1 and say nothing about the draft.

    >>> unforced([-1.0, -0.1, -2.0], [2, 6, 9], [(2, 6)], False)
    [-1.0, -2.0]
    >>> unforced([-1.0, -0.3], [4], [], True)
    [-1.0]

    If nothing is left, everything counts:

    >>> unforced([-0.1], [3], [(0, 3)], False)
    [-0.1]
    """
    known = list(logprobs[:-1] if inevitable else logprobs)
    if spans:
        begins = [0, *ends]
        free = [
            not any(a <= begin < end <= b for a, b in spans)
            for begin, end in zip(begins, ends, strict=False)
        ]
        known = [value for value, counts in zip(known, free, strict=False) if counts] + known[
            len(free) :
        ]
    return known or list(logprobs)
