"""Who drafts in a round: everybody, or only who has won so far and, in doubt, the rest too. And who waits for whom.

A draft costs its writer a pass for every token, and every verifier one pass as a whole: what can be saved is drafts. A
:class:`Casting` is frozen. It knows who won and how sure everybody was of its drafts; it asks nobody, counts no votes,
and says nothing of weights or exits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from .answer import continues_loop
from .ballot import Vote
from .panel import Panel
from .values import Candidate, Draft, Seat, Speculation

FAR = 0.75
"""A draft is doubted when its tokens have less than this share of the probability that is usual for the surest."""


MUCH = 4
"""A member with so many times the parameters of another does well to wait for its draft."""


@dataclass(frozen=True, slots=True)
class Casting:
    """What an answer's votes have shown so far."""

    wins: Mapping[str, int] = field(default_factory=dict)
    sureness: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """member -> how sure it was of its drafts, summed, and how many there were."""

    def cast(self, panel: Panel, drafters: int | None) -> tuple[str, ...]:
        """Who drafts first in this round: so many of those who won most often, then of those with most weight.

        >>> from .values import Seat
        >>> panel = Panel.of([Seat("a"), Seat("b"), Seat("c")])
        >>> Casting({"b": 1}).cast(panel, 1), Casting({"b": 1}).cast(panel, 2), Casting().cast(panel, 1)
        (('b',), ('a', 'b'), ('a', 'b', 'c'))
        """
        if drafters is None or not self.wins:
            return panel.drafters
        ranked = sorted(panel.drafters, key=lambda name: (-self.wins.get(name, 0), -round(panel.weights[name], 12)))
        chosen = set(ranked[:drafters])
        return tuple(name for name in panel.drafters if name in chosen)

    def doubts(self, panel: Panel, drafts: Mapping[str, Draft], answer: str, loop_guard: bool) -> bool:
        """Whether the rest must draft too: nobody is sure, or what the sure ones say is nothing or a loop."""
        least = self.least_sure(panel.drafters)
        return not any(
            sure_of(draft) >= least and not (loop_guard and continues_loop(answer, draft.text))
            for draft in drafts.values()
            if draft.text or draft.ended
        )

    def least_sure(self, members: Collection[str]) -> float:
        """How sure a draft must be: nearly as sure as the surest of these members usually is.

        >>> Casting(sureness={"a": (-0.5, 2), "b": (-2.0, 1)}).least_sure("ab") == -0.25 + math.log(FAR)
        True
        """
        usual = [whole / count for whole, count in (self.sureness[name] for name in members if name in self.sureness)]
        return max(usual) + math.log(FAR) if usual else math.inf

    def after(self, drafts: Mapping[str, Draft], vote: Vote) -> Casting:
        """With one more round. Who was alone, or said what all said, has won nothing."""
        if not vote.disputed:
            return self
        wins = {name: self.wins.get(name, 0) + 1 for name in vote.authors}
        told = {name: sure for name, draft in drafts.items() if math.isfinite(sure := sure_of(draft))}
        before = {name: self.sureness.get(name, (0.0, 0)) for name in told}
        sureness = {name: (before[name][0] + sure, before[name][1] + 1) for name, sure in told.items()}
        return Casting({**self.wins, **wins}, {**self.sureness, **sureness})


def sure_of(draft: Draft) -> float:
    """The mean log-probability that the writer gives a token of its draft; minus infinity where it does not tell.

    >>> sure_of(Draft("a b", logprobs=(-1.0, -2.0))), sure_of(Draft("a b"))
    (-1.5, -inf)
    """
    return math.fsum(draft.logprobs) / len(draft.logprobs) if draft.logprobs else -math.inf


def in_turn(seats: Sequence[Seat], names: Sequence[str], speculate: Speculation) -> list[tuple[str, ...]]:
    """Who drafts at once, and who waits for their drafts to check them as guesses of how its own goes on.

    A member waits for a much smaller one at its own desk, where they would not draft at the same time anyway. If
    ``speculate`` is True, for anyone smaller: those at one desk one after another, those at others together.

    >>> seats = [Seat("large", size=70, desk="gpu"), Seat("small", size=1, desk="gpu"), Seat("mid", size=3, desk="gpu")]
    >>> in_turn(seats, ["large", "small", "mid"], "auto"), in_turn(seats, ["large", "small", "mid"], True)
    ([('small', 'mid'), ('large',)], [('small',), ('mid',), ('large',)])
    >>> in_turn(seats, ["large", "small", "mid"], False), in_turn(seats, ["large"], "auto")
    ([('large', 'small', 'mid')], [('large',)])
    >>> in_turn([*seats, Seat("far", size=9, desk="gpu 2")], ["large", "small", "mid", "far"], True)
    [('small',), ('mid', 'far'), ('large',)]
    """
    present = {seat.name: seat for seat in seats if seat.name in names}

    def waits_for(one: Seat, other: Seat) -> bool:
        if speculate is True:
            return 0 < other.size < one.size
        return 0 < other.size * MUCH <= one.size and other.desk == one.desk

    waiting = [
        one for one in present.values() if speculate and any(waits_for(one, other) for other in present.values())
    ]

    def turn(one: Seat) -> int:
        """Where a desk takes one after another anyway, each sees what all before it drafted."""
        if one not in waiting or speculate is not True:
            return int(one in waiting)
        return 1 + len({other.size for other in waiting if other.desk == one.desk and other.size < one.size})

    turns = {name: turn(present[name]) for name in names}
    return [tuple(name for name in names if turns[name] == which) for which in sorted(set(turns.values()))]


def hints(drafts: Mapping[str, Draft]) -> tuple[Candidate, ...]:
    """What these drafts say, each once."""
    writers: dict[tuple[str, bool], list[str]] = {}
    for name, draft in drafts.items():
        if draft.text or draft.ended:
            writers.setdefault((draft.text, draft.ended), []).append(name)
    return tuple(Candidate(text, ended, tuple(names)) for (text, ended), names in writers.items())
