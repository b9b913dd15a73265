"""One round's vote: which drafts are distinct, which may be chosen, who must score what, and the outcome.

Knows the drafts and the verifiers' numbers of one round; remembers nothing beyond it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .answer import continues_loop
from .values import Candidate, Draft, Segment, Settings
from .voting import raw_score, totals, votes, win_rates


@dataclass(frozen=True, slots=True)
class Vote:
    """The outcome: who won, with which segment, and all the numbers by member's name."""

    winner: str
    segment: Segment
    scores: Mapping[str, Mapping[str, float]]
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    disputed: bool
    """False when all drafts coincided: then there is nothing to learn about anybody."""


class Ballot:
    """The distinct drafts of one round. Drafts that coincide are one candidate: scored once, rewarded alike."""

    def __init__(self, settings: Settings, drafts: Mapping[str, Draft], answer: str) -> None:
        self.drafts = drafts
        self.kind = settings.score
        writers: dict[tuple[str, bool], list[str]] = {}
        for name, draft in drafts.items():
            writers.setdefault((draft.text, draft.ended), []).append(name)
        self.candidates = [Candidate(text, ended, tuple(names)) for (text, ended), names in writers.items()]
        # A draft without text that does not end the answer says nothing; a loop waits while another draft goes on.
        saying = [c for c in self.candidates if c.text or c.ended]
        # Paper: it has no loop guard. Likelihood likes repetition, and members infect each other with it.
        fresh = [c for c in saying if not (settings.loop_guard and continues_loop(answer, c.text))]
        self.eligible = fresh or saying or self.candidates
        self.looped = tuple(name for c in saying if c not in self.eligible for name in c.authors)

    def unknown_to(self, judge: str) -> tuple[Candidate, ...]:
        """What this judge must score: all but its own draft, if that came with its numbers."""
        return tuple(c for c in self.eligible if not self._told(judge, c))

    def scores_of(self, judge: str, replies: Sequence[Sequence[float]]) -> list[float]:
        """This judge's score of every eligible draft, from its replies and what came with its own draft."""
        told, own = iter(replies), self.drafts[judge].logprobs or () if judge in self.drafts else ()
        return [raw_score(self.kind, own if self._told(judge, c) else next(told), c.text) for c in self.eligible]

    def counted(self, scores: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> Vote:
        """Weigh the votes. A draft that was not eligible has total and reward 0."""
        ballots = {judge: votes(self.kind, row) for judge, row in scores.items()}
        sums = totals(ballots, _shares(weights, ballots), len(self.eligible))
        rates = win_rates(ballots, [c.authors for c in self.eligible])
        if not ballots:
            sums = [1.0 / len(self.eligible)] * len(self.eligible)
        if len(self.eligible) == 1:
            rates = [1.0]
        total, reward = self._by_member(sums), self._by_member(rates)
        order = list(self.drafts)

        def rank(name: str) -> tuple[float, float, int]:
            # What only the order of a float addition tells apart is a tie.
            return round(total[name], 12), round(weights.get(name, 0.0), 12), -order.index(name)

        winner = max(total, key=rank)
        return Vote(
            winner,
            self._segment(winner),
            scores={judge: self._by_member(row) for judge, row in scores.items()},
            votes={judge: self._by_member(row) for judge, row in ballots.items()},
            totals={name: total.get(name, 0.0) for name in order},
            rewards={name: reward.get(name, 0.0) for name in order},
            disputed=len(self.candidates) > 1,
        )

    def _told(self, judge: str, candidate: Candidate) -> bool:
        return judge in candidate.authors and self.drafts[judge].logprobs is not None

    def _by_member(self, values: Sequence[float]) -> dict[str, float]:
        return {name: v for c, v in zip(self.eligible, values, strict=True) for name in c.authors}

    def _segment(self, winner: str) -> Segment:
        chosen = next(c for c in self.eligible if winner in c.authors)
        authors = sorted(chosen.authors, key=lambda name: name != winner)
        return Segment(chosen.text, chosen.ended, {name: self.drafts[name].tokens for name in authors})


def _shares(weights: Mapping[str, float], judges: Mapping[str, object]) -> dict[str, float]:
    """The judges' weights, so that they sum to 1 (a draft-only member's vote is left out)."""
    whole = math.fsum(weights[judge] for judge in judges)
    return {judge: weights[judge] / whole for judge in judges}
