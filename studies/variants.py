"""The loop with other ways to turn scores into votes, and votes into rewards: experiments with the method.

A way to count gets each verifier's scores of the drafts and returns each verifier's votes; a way to reward gets the
votes and returns each draft's reward. ``varied`` is the loop of ``core/rounds.py`` with these two in their places.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from langchain_specfuse.core.answer import Answer
from langchain_specfuse.core.ballot import Ballot, Vote
from langchain_specfuse.core.drafters import DrafterChoice
from langchain_specfuse.core.method import ScoreKind, Settings
from langchain_specfuse.core.panel import LEARNING_RATES, Panel, dismissed, hedged, observed
from langchain_specfuse.core.rounds import Clock, Loop, call_for_drafts, call_for_scores
from langchain_specfuse.core.values import Query, Round, Segment
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


Count = Callable[[ScoreKind, Rows, Authors, Memory], Rows]
Reward = Callable[[Rows, Rows, Authors], list[float]]


def plain(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """As published: every verifier's votes sum to 1."""
    return {judge: votes(kind, row) for judge, row in scores.items()}


def standardised(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """A verifier's scores of one round at mean 0 and deviation 1: every verifier counts the same."""

    def evened(row: Sequence[float]) -> list[float]:
        spread = statistics.pstdev(row) or 1.0
        return votes("mean_logprob", [(score - statistics.fmean(row)) / spread for score in row])

    return {judge: evened(row) for judge, row in scores.items()}


def calibrated(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """A score counts in units of what this verifier usually gives its own drafts: a confident one counts more."""

    def measured(judge: str, row: Sequence[float]) -> list[float]:
        usual = -statistics.fmean(memory.own.get(judge) or [-1.0])
        return votes("mean_logprob", [score / min(max(usual, 0.05), 5.0) for score in row])

    return {judge: measured(judge, row) for judge, row in scores.items()}


def without_outlier(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """The verifier whose votes are furthest from the others' mean does not count in this round (of three or more)."""
    by_verifier = plain(kind, scores, authors, memory)
    if len(by_verifier) < 3:
        return by_verifier

    def apart(judge: str) -> float:
        others = [row for name, row in by_verifier.items() if name != judge]
        mean = [statistics.fmean(column) for column in zip(*others, strict=True)]
        return math.fsum(abs(a - b) for a, b in zip(by_verifier[judge], mean, strict=True))

    furthest = max(by_verifier, key=apart)
    return {judge: row for judge, row in by_verifier.items() if judge != furthest}


def gated(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """A member that alone is confident in its draft (over 0.9 per token) decides alone; else all vote."""
    by_verifier = plain(kind, scores, authors, memory)
    sure = [j for j, row in scores.items() for i, who in enumerate(authors) if j in who and row[i] > math.log(0.9)]
    return {sure[0]: by_verifier[sure[0]]} if len(sure) == 1 else by_verifier


def surest(kind: ScoreKind, scores: Rows, authors: Authors, memory: Memory) -> Rows:
    """The draft whose author is most confident in it wins; no other member counts."""
    own = [max((scores[j][i] for j in who if j in scores), default=-math.inf) for i, who in enumerate(authors)]
    best = max(range(len(own)), key=own.__getitem__)
    return {judge: [float(i == best) for i in range(len(row))] for judge, row in scores.items()}


def by_wins(by_verifier: Rows, scores: Rows, authors: Authors) -> list[float]:
    return win_rates(by_verifier, authors)


def by_margins(by_verifier: Rows, scores: Rows, authors: Authors) -> list[float]:
    """As the win rates of third parties, but a comparison counts by how clear it is."""

    def rate(i: int) -> float:
        clear = [
            _clear(row, i, k)
            for judge, row in by_verifier.items()
            for k in range(len(authors))
            if k != i and judge not in authors[i] and judge not in authors[k]
        ]
        return statistics.fmean(clear) if clear else win_rates(by_verifier, authors)[i]

    return [rate(i) for i in range(len(authors))]


def by_all(by_verifier: Rows, scores: Rows, authors: Authors) -> list[float]:
    """All verifiers judge, the authors too, by how clear a comparison is."""
    if len(authors) < 2:
        return [1.0]

    def rate(i: int) -> float:
        others = [k for k in range(len(authors)) if k != i]
        return statistics.fmean(_clear(row, i, k) for row in by_verifier.values() for k in others)

    return [rate(i) for i in range(len(authors))]


def _clear(row: Sequence[float], i: int, k: int) -> float:
    return 0.5 + 0.5 * (row[i] - row[k]) / max(row[i] + row[k], 1e-12)


def by_own(by_verifier: Rows, scores: Rows, authors: Authors) -> list[float]:
    """How confident an author is in its own draft: the probability per token that its log-probability stands for."""
    own = [max((scores[j][i] for j in who if j in scores), default=0.0) for i, who in enumerate(authors)]
    return [math.exp(min(score, 0.0)) for score in own]


COUNTS: dict[str, Count] = {f.__name__: f for f in (plain, standardised, calibrated, without_outlier, gated, surest)}
REWARDS: dict[str, Reward] = {f.__name__: f for f in (by_wins, by_margins, by_all, by_own)}


def varied(query: Query, settings: Settings, panel: Panel, count: Count, reward: Reward) -> Loop:
    """``core.rounds.rounds`` with another way to count and to reward, and without a tie-break."""
    method, choice, memory = settings.method, DrafterChoice(), Memory()
    answer = Answer(stop=settings.stop, budget=settings.max_tokens).started()
    for number in range(1, settings.max_tokens + 1):
        before, clock = panel, Clock()
        panel, drafts = yield from call_for_drafts(panel, query, settings, answer, number, clock, choice)
        ballot = Ballot(method, drafts, answer.text)
        panel, scores = yield from call_for_scores(panel, query, answer, ballot, number, clock)
        vote = counted(ballot, method.score, scores, panel.weights, count, reward, memory)
        answer, voted = answer.plus(vote.segment), panel
        eta = LEARNING_RATES[method.feedback](method.learning_rate, number, len(panel.drafters))
        panel = hedged(panel, vote.rewards, eta)
        if vote.disputed:
            panel = observed(panel, vote.totals, vote.winner)
            panel = dismissed(method.exit, panel, method.min_members, number)
        yield Round(
            number, answer.released, vote.segment, vote.winner, drafts, vote.scores, vote.votes, vote.totals,
            vote.rewards, voted.weights, panel.weights, authors=vote.authors, looped=ballot.looped,
            left=panel.left[len(before.left) :], finish=answer.finish,
        )  # fmt: skip
        if answer.finish:
            return


def counted(
    ballot: Ballot,
    kind: ScoreKind,
    scores: Rows,
    weights: Mapping[str, float],
    count: Count,
    reward: Reward,
    memory: Memory,
) -> Vote:
    """The outcome under another way to count; without a dispute the plain one."""
    base = ballot.counted(scores, weights)
    if not scores:
        return base
    authors = [candidate.authors for candidate in ballot.eligible]
    memory.seen(scores, authors)
    by_verifier = count(kind, scores, authors, memory)
    heard = math.fsum(weights[judge] for judge in by_verifier)
    sums = [math.fsum(weights[j] / heard * row[i] for j, row in by_verifier.items()) for i in range(len(authors))]
    total, order = by_member(authors, sums), list(ballot.drafts)
    rewards = by_member(authors, reward(by_verifier, scores, authors))
    winner = max(total, key=lambda n: (round(total[n], 12), round(weights.get(n, 0.0), 12), -order.index(n)))
    wrote = tuple(sorted(next(who for who in authors if winner in who), key=lambda name: name != winner))
    draft = ballot.drafts[winner]
    tokens = {name: ballot.drafts[name].tokens for name in wrote if ballot.drafts[name].text == draft.text}
    return replace(
        base,
        winner=winner,
        authors=wrote,
        segment=Segment(draft.text, draft.ended, tokens),
        votes={judge: by_member(authors, row) for judge, row in by_verifier.items()},
        totals={name: total.get(name, 0.0) for name in order},
        rewards={name: rewards.get(name, 0.0) for name in order},
    )


def by_member(authors: Authors, values: Sequence[float]) -> dict[str, float]:
    return {name: value for who, value in zip(authors, values, strict=True) for name in who}
