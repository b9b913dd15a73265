"""One round's vote: which drafts are distinct, which can win, who must score what, and who wins.

Without a lead, the draft with the highest total wins. With a lead, its draft wins unless there is
enough evidence for another one. Likelihood rewards familiar text, not true text, so in a vote of
equals weak members outvote a strong one. With a lead they can only correct it: a rival's draft wins
if the evidence for it exceeds the method's ``margin``. With an infinite margin the answer is the
lead's own, at its own cost.

Paper: it has no lead; all members draft and vote in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .answer import continues_loop
from .options import Method
from .referee import FREE, Referee
from .values import Candidate, Draft, Scored, Segment
from .voting import confidences, raw_score, rewards, shares, totals, votes

Reading: TypeAlias = Sequence[float]
"""One draft as one verifier reads it: the log-probability of each token that a constraint leaves
free, and of the end of the turn."""


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome of a vote: the winner, its segment, and all scores by the members' names."""

    winner: str
    authors: tuple[str, ...]
    """The members that wrote the winning segment, the winner first."""
    segment: Segment
    scores: Mapping[str, Mapping[str, float]]
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    disputed: bool
    """False if all drafts coincide. Such a round gives no evidence about any member."""
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
        self._method = method
        self._answer = answer
        self._referee = referee
        self.looped: tuple[str, ...] = ()
        if len(drafts) == 1:  # there is nothing to choose between
            ((name, draft),) = drafts.items()
            self.candidates = self.eligible = [_candidate(draft, [name])]
            return
        authors: dict[Hashable, list[str]] = {}
        for name, draft in drafts.items():
            authors.setdefault(self._meaning(draft), []).append(name)
        self.candidates = [_candidate(drafts[names[0]], names) for names in authors.values()]
        # An empty draft that does not end the answer is no proposal.
        proposals = [c for c in self.candidates if c.text or c.ended]
        # Paper: it has no loop guard. Likelihood rewards repetition, and members pick it up from
        # each other, so a draft that only repeats loses to any draft that does not.
        fresh = [c for c in proposals if not self._loops(c)]
        self.eligible = fresh or proposals or self.candidates
        self.looped = tuple(name for c in proposals if c not in self.eligible for name in c.authors)

    # --- what verifiers are asked -----------------------------------------------------------------

    def to_score(self, verifier: str) -> tuple[Candidate, ...]:
        """What this verifier must score: all candidates but its own, if its draft came with
        log-probabilities."""
        return tuple(c for c in self.eligible if not self._is_own(verifier, c))

    def readings_of(self, verifier: str, reply: Scored) -> list[Reading]:
        """How this verifier reads every eligible draft, from its reply and from its own draft.

        Empty if the verifier abstains: it cannot end turns, and a draft is only an end.
        """
        rows = _rows(reply)
        readings: list[Reading] = []
        for candidate in self.eligible:
            reading = self._reading(verifier, candidate, rows)
            if candidate.ended and not reading:
                return []
            readings.append(reading)
        return readings

    def is_sure(self, name: str) -> bool:
        """Whether this member gives every token of its draft at least the probability that the
        method asks of a lead."""
        draft = self.drafts[name]
        if draft.least is not None:
            return is_sure([draft.least], self._method.sure)
        own = self._free(_candidate(draft), draft.logprobs or (), draft.ends)
        return is_sure(own, self._method.sure)

    # --- the count --------------------------------------------------------------------------------

    def count(
        self,
        readings: Mapping[str, Sequence[Reading]],
        weights: Mapping[str, float],
        lead: str | None = None,
    ) -> Vote:
        """The outcome of the vote with these readings, by verifier. Drafts that cannot win get 0.

        Totals that differ only through the order of floating-point additions are a tie. Ties go to
        the member with more weight, then to the first.
        """
        names = list(self.drafts)
        if len(names) == 1 and not readings:
            (winner,) = names
            only = {winner: 1.0}
            segment = self._segment(names)
            return Vote(winner, (winner,), segment, {}, {}, only, only, False, {})
        method = self._method
        scores = {verifier: self._scores(row) for verifier, row in readings.items()}
        by_verifier = {verifier: votes(method.score, row) for verifier, row in scores.items()}
        confidence = confidences(method.weighting, method.score, scores)
        sums = totals(by_verifier, shares(confidence, weights), len(self.eligible))
        if not by_verifier:
            sums = [1.0 / len(self.eligible)] * len(self.eligible)
        earned = rewards(method.reward, by_verifier, [c.authors for c in self.eligible], confidence)
        total = self._by_author(sums)
        reward = self._by_author(earned)

        def rank(name: str) -> tuple[float, float, int]:
            return round(total[name], 12), round(weights.get(name, 0.0), 12), -names.index(name)

        evidence = self._evidence(readings, weights, lead)
        if lead is not None and lead in total:
            winner = self._winner_against(lead, evidence, rank)
        else:
            winner = max(total, key=rank)
        chosen = next(c for c in self.eligible if winner in c.authors)
        authors = tuple(sorted(chosen.authors, key=lambda name: name != winner))
        return Vote(
            winner,
            authors,
            self._segment(authors),
            scores={verifier: self._by_author(row) for verifier, row in scores.items()},
            votes={verifier: self._by_author(row) for verifier, row in by_verifier.items()},
            totals={name: total.get(name, 0.0) for name in names},
            rewards={name: reward.get(name, 0.0) for name in names},
            disputed=len(self.candidates) > 1,
            evidence=evidence,
        )

    def _scores(self, readings: Sequence[Reading]) -> list[float]:
        return [
            raw_score(self._method.score, reading, candidate.text)
            for reading, candidate in zip(readings, self.eligible, strict=True)
        ]

    def _evidence(
        self,
        readings: Mapping[str, Sequence[Reading]],
        weights: Mapping[str, float],
        lead: str | None,
    ) -> dict[str, float]:
        """For each author of another draft than the lead's: the evidence that it is better."""
        own = next((i for i, c in enumerate(self.eligible) if lead in c.authors), None)
        if own is None or not readings:
            return {}
        of_lead = {verifier: row[own] for verifier, row in readings.items()}
        evidence: dict[str, float] = {}
        for i, candidate in enumerate(self.eligible):
            if i != own:
                of_rival = {verifier: row[i] for verifier, row in readings.items()}
                odds = log_odds(of_rival, of_lead, weights)
                evidence |= dict.fromkeys(candidate.authors, odds)
        return evidence

    def _winner_against(
        self, lead: str, evidence: Mapping[str, float], rank: Callable[[str], Any]
    ) -> str:
        """The rival with the most evidence if that exceeds the margin, otherwise the lead."""
        margin = math.inf if self._method.margin is None else self._method.margin
        best = max(evidence, key=lambda name: (round(evidence[name], 12), rank(name)), default=lead)
        return best if evidence.get(best, 0.0) > margin else lead

    def _by_author(self, values: Sequence[float]) -> dict[str, float]:
        pairs = zip(self.eligible, values, strict=True)
        return {name: value for candidate, value in pairs for name in candidate.authors}

    def _segment(self, authors: Sequence[str]) -> Segment:
        """The segment that these members wrote, with the tokens of those that wrote the same
        text."""
        first = self.drafts[authors[0]]
        tokens: dict[str, tuple[int, ...]] = {}
        for name in authors:
            draft = self.drafts[name]
            # A draft that the referee cut has no tokens of its own: its author tokenizes the text
            # as every other member does.
            if draft.text == first.text and (draft.tokens or not draft.size):
                tokens[name] = draft.tokens
        return first.segment(tokens)

    # --- drafts -----------------------------------------------------------------------------------

    def _meaning(self, draft: Draft) -> Hashable:
        """Equal for drafts that mean the same once the text that the constraint forces after them
        is added."""
        whole = draft.text + self._referee.forced(self._answer + draft.text)
        ended = draft.ended or self._referee.must_end(self._answer + whole)
        return self._referee.same(self._answer, whole), ended

    def _loops(self, candidate: Candidate) -> bool:
        return self._method.loop_guard and continues_loop(self._answer, candidate.text)

    def _is_own(self, verifier: str, candidate: Candidate) -> bool:
        """Whether this candidate is the verifier's own draft and came with its
        log-probabilities."""
        if verifier not in candidate.authors:
            return False
        draft = self.drafts[verifier]
        same = (draft.text, draft.ended) == (candidate.text, candidate.ended)
        return same and draft.logprobs is not None

    def _reading(self, verifier: str, candidate: Candidate, rows: Iterator[Any]) -> Reading:
        """How the verifier reads the candidate: from its own draft, else from the next row of its
        reply."""
        if self._is_own(verifier, candidate):
            draft = self.drafts[verifier]
            logprobs, ends = draft.logprobs or (), draft.ends
        else:
            logprobs, ends = next(rows)
        if candidate.ended and logprobs and logprobs[-1] == -math.inf:
            # It cannot end turns (a base model without such a token), so the end is not scored.
            candidate = replace(candidate, ended=False)
            logprobs = logprobs[:-1]
        return self._free(candidate, logprobs, ends)

    def _free(
        self, candidate: Candidate, logprobs: Sequence[float], ends: Sequence[int] | None
    ) -> Sequence[float]:
        """The log-probabilities of tokens that the constraint does not force."""
        if ends is None:  # no constraint, or a member that does not report where its tokens end
            return logprobs
        spans = self._referee.spans(self._answer, candidate.text)
        end_is_forced = candidate.ended and self._referee.must_end(self._answer + candidate.text)
        return unforced(logprobs, ends, spans, end_is_forced)


def _candidate(draft: Draft, authors: Sequence[str] = ()) -> Candidate:
    return Candidate(draft.text, draft.ended, tuple(authors))


def _rows(reply: Scored) -> Iterator[tuple[Sequence[float], Sequence[int] | None]]:
    """For each scored candidate: its log-probabilities, and where its tokens end."""
    return zip(reply.logprobs, reply.ends or [None] * len(reply.logprobs), strict=True)


def unforced(
    logprobs: Sequence[float],
    ends: Sequence[int],
    spans: Sequence[tuple[int, int]],
    end_is_forced: bool,
) -> Sequence[float]:
    """The log-probabilities of tokens that are not wholly inside ``spans``, and of the end unless
    it is forced.

    Tokens that a constraint forces have probability near 1 and say nothing about the draft.

    >>> unforced([-1.0, -0.1, -2.0], [2, 6, 9], [(2, 6)], False)
    [-1.0, -2.0]
    >>> unforced([-1.0, -0.3], [4], [], True)
    [-1.0]

    If nothing is left, everything counts:

    >>> unforced([-0.1], [3], [(0, 3)], False)
    [-0.1]
    """
    tokens = list(logprobs[: len(ends)])
    rest = list(logprobs[len(ends) :])
    if end_is_forced and logprobs:
        (rest or tokens).pop()
    free = []
    begin = 0
    for logprob, end in zip(tokens, ends, strict=False):
        forced = begin < end and any(a <= begin and end <= b for a, b in spans)
        if not forced:
            free.append(logprob)
        begin = end
    return [*free, *rest] or list(logprobs)


# --- the lead -------------------------------------------------------------------------------------

LARGER = 2
"""A member leads by its size if it has at least this many times the parameters of every other
one."""
BOUND = math.log(19)
"""The evidence of one verifier counts as at most this. A verifier that is wrong in one of 20 cases
shifts the odds by at most 19 to 1, however sure it is."""


def is_sure(own: Reading, sure: float) -> bool:
    """Whether a member gives each token of its draft at least this probability. One doubtful word
    is enough for the others to be asked.

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
    impossible would overrule any number of others. A test that clips the log-likelihood
    ratio of every observation is robust against a share of wrong observations (Huber, 1965).

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
