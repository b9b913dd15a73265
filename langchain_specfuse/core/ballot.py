"""One round's vote: which drafts are distinct, which may be chosen, who must score what, and the outcome.

Knows the drafts and the verifiers' numbers of one round; remembers nothing beyond it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .answer import continues_loop
from .referee import FREE, Referee
from .umpire import Dispute, called_for, decided, dispute
from .values import Candidate, Draft, Scored, Segment, Settings
from .voting import assurances, raw_score, rewards, totals, voices, votes


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome: who won, with which segment, and all the numbers by member's name."""

    winner: str
    authors: tuple[str, ...]
    """Who wrote what won, the winner first."""
    segment: Segment
    scores: Mapping[str, Mapping[str, float]]
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    assured: Mapping[str, float]
    """How loud each verifier spoke."""
    disputed: bool
    """False when all drafts coincided: then there is nothing to learn about anybody."""


class Ballot:
    """The distinct drafts of one round. Drafts that coincide are one candidate: scored once, rewarded alike."""

    def __init__(self, settings: Settings, drafts: Mapping[str, Draft], answer: str, referee: Referee = FREE) -> None:
        self.drafts = drafts
        self.kind, self._voice, self._reward = settings.score, settings.voice, settings.reward
        self._answer, self._referee = answer, referee
        writers: dict[Hashable, list[str]] = {}
        for name, draft in drafts.items():
            writers.setdefault(self._meaning(draft), []).append(name)
        firsts = [(drafts[names[0]], tuple(names)) for names in writers.values()]
        self.candidates = [Candidate(draft.text, draft.ended, names) for draft, names in firsts]
        # A draft without text that does not end the answer says nothing; a loop waits while another draft goes on.
        saying = [c for c in self.candidates if c.text or c.ended]
        # Paper: it has no loop guard. Likelihood likes repetition, and members infect each other with it.
        fresh = [c for c in saying if not (settings.loop_guard and continues_loop(answer, c.text))]
        self.eligible = fresh or saying or self.candidates
        self.looped = tuple(name for c in saying if c not in self.eligible for name in c.authors)

    def unknown_to(self, judge: str) -> tuple[Candidate, ...]:
        """What this judge must score: all but its own draft, if that came with its numbers."""
        return tuple(c for c in self.eligible if not self._told(judge, c))

    def scores_of(self, judge: str, reply: Scored) -> list[float]:
        """This judge's score of every eligible draft, from its replies and what came with its own draft."""
        told = _numbers(reply)
        return [raw_score(self.kind, self._counted(judge, c, told), c.text) for c in self.eligible]

    def dispute(self, scores: Mapping[str, Sequence[float]]) -> Dispute | None:
        """Whether several are sure of different drafts, and who shall decide between these."""
        return dispute(self.kind, scores, [c.authors for c in self.eligible])

    def called_for(self, between: Dispute, scores: Mapping[str, Sequence[float]], unasked: Scored) -> int:
        """The draft that the question calls for most, as the umpire's scores have it, which are now told without it."""
        disputed = [self.eligible[i] for i in between.drafts]
        numbers = [self._free(c, *one) for c, one in zip(disputed, _numbers(unasked), strict=True)]
        without = [raw_score(self.kind, one, c.text) for one, c in zip(numbers, disputed, strict=True)]
        return between.drafts[called_for(self.kind, [scores[between.umpire][i] for i in between.drafts], without)]

    def counted(
        self,
        scores: Mapping[str, Sequence[float]],
        weights: Mapping[str, float],
        ruling: tuple[Dispute, int] | None = None,
    ) -> Vote:
        """Weigh the votes, after the umpire's ruling if there was one. A draft that was not eligible has total and
        reward 0."""
        ballots = {judge: votes(self.kind, row) for judge, row in scores.items()}
        ballots = decided(ballots, *ruling) if ruling else ballots
        assured = assurances(self._voice, self.kind, scores)
        sums = totals(ballots, voices(assured, weights), len(self.eligible))
        if not ballots:
            sums = [1.0 / len(self.eligible)] * len(self.eligible)
        earned = rewards(self._reward, ballots, [c.authors for c in self.eligible], assured)
        total, reward = self._by_member(sums), self._by_member(earned)
        order = list(self.drafts)

        def rank(name: str) -> tuple[float, float, int]:
            # What only the order of a float addition tells apart is a tie.
            return round(total[name], 12), round(weights.get(name, 0.0), 12), -order.index(name)

        winner = max(total, key=rank)
        chosen = next(c for c in self.eligible if winner in c.authors)
        authors = tuple(sorted(chosen.authors, key=lambda name: name != winner))
        return Vote(
            winner,
            authors,
            self._segment(authors),
            scores={judge: self._by_member(row) for judge, row in scores.items()},
            votes={judge: self._by_member(row) for judge, row in ballots.items()},
            totals={name: total.get(name, 0.0) for name in order},
            rewards={name: reward.get(name, 0.0) for name in order},
            assured=assured,
            disputed=len(self.candidates) > 1,
        )

    def _meaning(self, draft: Draft) -> Hashable:
        """Drafts that mean the same are one: with what they make inevitable, they say the same and end or do not."""
        whole = draft.text + self._referee.forced(self._answer + draft.text)
        over = draft.ended or self._referee.must_end(self._answer + whole)
        return self._referee.same(self._answer, whole), over

    def _told(self, judge: str, candidate: Candidate) -> bool:
        """Whether this judge's numbers came with its own draft."""
        if judge not in candidate.authors or self.drafts[judge].logprobs is None:
            return False
        return (self.drafts[judge].text, self.drafts[judge].ended) == (candidate.text, candidate.ended)

    def _counted(self, judge: str, candidate: Candidate, told: Iterator[Any]) -> Sequence[float]:
        """The numbers that count: without those of what could not be otherwise, which say nothing and flatter."""
        own = self.drafts[judge] if self._told(judge, candidate) else None
        return self._free(candidate, *((own.logprobs or (), own.ends) if own else next(told)))

    def _free(self, candidate: Candidate, logprobs: Sequence[float], ends: Sequence[int] | None) -> Sequence[float]:
        if ends is None:  # no constraint, or a member that does not tell where its tokens end
            return logprobs
        spans = self._referee.spans(self._answer, candidate.text)
        inevitable = candidate.ended and self._referee.must_end(self._answer + candidate.text)
        return unforced(logprobs, ends, spans, inevitable)

    def _by_member(self, values: Sequence[float]) -> dict[str, float]:
        return {name: v for c, v in zip(self.eligible, values, strict=True) for name in c.authors}

    def _segment(self, authors: Sequence[str]) -> Segment:
        first = self.drafts[authors[0]]
        alike = [name for name in authors if self.drafts[name].text == first.text]
        # Who was cut by the referee has no tokens of its own for what is left, and reads it like others' text.
        tokens = {n: self.drafts[n].tokens for n in alike if self.drafts[n].tokens or not first.text}
        return Segment(first.text, first.ended, tokens)


def _numbers(reply: Scored) -> Iterator[tuple[Sequence[float], Sequence[int] | None]]:
    return zip(reply.logprobs, reply.ends or [None] * len(reply.logprobs), strict=True)


def unforced(
    logprobs: Sequence[float], ends: Sequence[int], spans: Sequence[tuple[int, int]], inevitable: bool
) -> Sequence[float]:
    """The log-probabilities of tokens that do not lie wholly in ``spans``, and of the end unless it is inevitable.

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
        free = [not any(a <= begin < end <= b for a, b in spans) for begin, end in zip(begins, ends, strict=False)]
        known = [value for value, counts in zip(known, free, strict=False) if counts] + known[len(free) :]
    return known or list(logprobs)
