"""The loop with other ways to count and to reward, as experiments: what the method might do instead.

A way to count gets each verifier's scores of the drafts in play and gives each verifier's votes; a way to reward gets
the votes and gives each draft's reward. ``varied`` is the loop of ``core/rounds.py`` with these two in their places.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from langchain_specfuse.core.answer import Answer
from langchain_specfuse.core.ballot import Ballot, Vote
from langchain_specfuse.core.panel import Panel, dismissed, hedged, learning_rate, observed
from langchain_specfuse.core.rounds import Clock, Loop, call_for_drafts, call_for_scores
from langchain_specfuse.core.values import Query, Round, Settings
from langchain_specfuse.core.voting import votes, win_rates

Rows = Mapping[str, Sequence[float]]
Authors = Sequence[Sequence[str]]


@dataclass
class Memory:
    """What an answer has shown so far: every verifier's scores of its own drafts."""

    own: dict[str, list[float]] = field(default_factory=dict)

    def seen(self, scores: Rows, authors: Authors) -> None:
        for judge, row in scores.items():
            self.own.setdefault(judge, []).extend(row[i] for i, who in enumerate(authors) if judge in who)


Count = Callable[[str, Rows, Authors, Memory], Rows]
Reward = Callable[[Rows, Rows, Authors], list[float]]


def plain(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    return {judge: votes(kind, row) for judge, row in scores.items()}  # type: ignore[arg-type]


def standardised(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """A verifier's scores of one round at mean 0 and deviation 1: everybody speaks equally loud."""

    def evened(row: Sequence[float]) -> list[float]:
        spread = statistics.pstdev(row) or 1.0
        return votes("mean_logprob", [(score - statistics.fmean(row)) / spread for score in row])

    return {judge: evened(row) for judge, row in scores.items()}


def calibrated(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """A score counts in units of what this verifier usually gives its own drafts: whoever is surer speaks louder."""

    def measured(judge: str, row: Sequence[float]) -> list[float]:
        usual = -statistics.fmean(memory.own.get(judge) or [-1.0])
        return votes("mean_logprob", [score / min(max(usual, 0.05), 5.0) for score in row])

    return {judge: measured(judge, row) for judge, row in scores.items()}


def without_outlier(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """The verifier whose votes lie furthest from the others' mean has no voice in this round (of three or more)."""
    cast = plain(kind, scores, authors, memory)
    if len(cast) < 3:
        return cast

    def apart(judge: str) -> float:
        others = [row for name, row in cast.items() if name != judge]
        mean = [statistics.fmean(column) for column in zip(*others, strict=True)]
        return math.fsum(abs(a - b) for a, b in zip(cast[judge], mean, strict=True))

    furthest = max(cast, key=apart)
    return {judge: row for judge, row in cast.items() if judge != furthest}


def gated(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """Whoever is sure of its draft (over 0.9 a token, the others under) decides alone; else everybody votes."""
    cast = plain(kind, scores, authors, memory)
    sure = [j for j, row in scores.items() for i, who in enumerate(authors) if j in who and row[i] > math.log(0.9)]
    return {sure[0]: cast[sure[0]]} if len(sure) == 1 else cast


def surest(kind: str, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """The draft of whoever is surest of its own; nobody else is heard."""
    own = [max((scores[j][i] for j in who if j in scores), default=-math.inf) for i, who in enumerate(authors)]
    best = max(range(len(own)), key=own.__getitem__)
    return {judge: [float(i == best) for i in range(len(row))] for judge, row in scores.items()}


def by_wins(cast: Rows, scores: Rows, authors: Authors) -> list[float]:
    return win_rates(cast, authors)


def by_margins(cast: Rows, scores: Rows, authors: Authors) -> list[float]:
    """As the win rates of third parties, but a comparison counts by how clear it is: (v_i - v_k) / (v_i + v_k)."""

    def rate(i: int) -> float:
        clear = [
            0.5 + 0.5 * (row[i] - row[k]) / max(row[i] + row[k], 1e-12)
            for judge, row in cast.items()
            for k in range(len(authors))
            if k != i and judge not in authors[i] and judge not in authors[k]
        ]
        return statistics.fmean(clear) if clear else win_rates(cast, authors)[i]

    return [rate(i) for i in range(len(authors))]


def by_all(cast: Rows, scores: Rows, authors: Authors) -> list[float]:
    """Everybody judges, the writers too, by how clear a comparison is."""

    def rate(i: int) -> float:
        return statistics.fmean(
            0.5 + 0.5 * (row[i] - row[k]) / max(row[i] + row[k], 1e-12)
            for row in cast.values()
            for k in range(len(authors))
            if k != i
        )

    return [rate(i) for i in range(len(authors))] if len(authors) > 1 else [1.0]


def by_own(cast: Rows, scores: Rows, authors: Authors) -> list[float]:
    """How sure a writer is of its own draft: the mean probability of a token, as its log-probability has it."""
    own = [max((scores[j][i] for j in who if j in scores), default=0.0) for i, who in enumerate(authors)]
    return [math.exp(min(score, 0.0)) for score in own]


COUNTS: dict[str, Count] = {f.__name__: f for f in (plain, standardised, calibrated, without_outlier, gated, surest)}
REWARDS: dict[str, Reward] = {f.__name__: f for f in (by_wins, by_margins, by_all, by_own)}


def varied(query: Query, settings: Settings, panel: Panel, count: Count, reward: Reward) -> Loop:
    """``core.rounds.rounds`` with another way to count and to reward."""
    answer, memory = Answer(stop=settings.stop, budget=settings.max_tokens).started(), Memory()
    for number in range(1, settings.max_tokens + 1):
        before, clock = panel, Clock()
        panel, drafts = yield from call_for_drafts(panel, query, settings, answer, number, clock)
        ballot = Ballot(settings, drafts, answer.text)
        panel, scores = yield from call_for_scores(panel, query, answer, ballot, number, clock)
        vote = counted(ballot, scores, panel.weights, count, reward, memory)
        answer = answer.plus(vote.segment)
        voted = panel
        eta = learning_rate(settings.feedback, settings.learning_rate, number, len(panel.drafters))
        panel = hedged(panel, vote.rewards, eta)
        if vote.disputed:
            panel = observed(panel, vote.totals, vote.winner)
            panel = dismissed(settings.exit, panel, settings.min_members, number, vote.assured)
        yield Round(
            number, answer.released, vote.segment, vote.winner, drafts, vote.scores, vote.votes, vote.totals,
            vote.rewards, voted.weights, panel.weights, authors=vote.authors, looped=ballot.looped,
            left=panel.left[len(before.left) :], finish=answer.finish,
        )  # fmt: skip
        if answer.finish:
            return


def counted(
    ballot: Ballot, scores: Rows, weights: Mapping[str, float], count: Count, reward: Reward, memory: Memory
) -> Vote:
    """The outcome under another way to count; without a dispute the plain one."""
    base = ballot.counted(scores, weights)
    if not scores:
        return base
    authors = [candidate.authors for candidate in ballot.eligible]
    memory.seen(scores, authors)
    cast = count(ballot.kind, scores, authors, memory)
    heard = math.fsum(weights[judge] for judge in cast)
    sums = [math.fsum(weights[j] / heard * row[i] for j, row in cast.items()) for i in range(len(authors))]
    total = ballot._by_member(sums)
    rewards = ballot._by_member(reward(cast, scores, authors))
    order = list(ballot.drafts)
    winner = max(total, key=lambda n: (round(total[n], 12), round(weights.get(n, 0.0), 12), -order.index(n)))
    chosen = next(candidate for candidate in ballot.eligible if winner in candidate.authors)
    wrote = tuple(sorted(chosen.authors, key=lambda name: name != winner))
    return replace(
        base,
        winner=winner,
        authors=wrote,
        segment=ballot._segment(wrote),
        votes={judge: ballot._by_member(row) for judge, row in cast.items()},
        totals={name: total.get(name, 0.0) for name in order},
        rewards={name: rewards.get(name, 0.0) for name in order},
    )
