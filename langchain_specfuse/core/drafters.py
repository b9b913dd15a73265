"""Which members draft in a round: all, or (option ``drafters``) those that have won most and, in doubt, the others too.

A draft costs its author a pass per token and every verifier one pass in all, so what can be saved is drafts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from .answer import continues_loop
from .ballot import Vote
from .panel import Panel
from .values import Draft

SHARE_OF_USUAL = 0.75
"""A draft is in doubt when its probability per token is below this share of what is usual for the most confident."""


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """What the votes on an answer have shown so far."""

    wins: Mapping[str, int] = field(default_factory=dict)
    confidence: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """member -> the sum of its drafts' mean log-probabilities, and their number."""

    def first(self, panel: Panel, drafters: int | None) -> tuple[str, ...]:
        """The members that draft first in this round: those with most wins, then those with most weight.

        >>> from .values import Panelist
        >>> panel = Panel.of([Panelist("a"), Panelist("b"), Panelist("c")])
        >>> won = DrafterChoice({"b": 1})
        >>> won.first(panel, 1), won.first(panel, 2), DrafterChoice().first(panel, 1)
        (('b',), ('a', 'b'), ('a', 'b', 'c'))
        """
        if drafters is None or not self.wins:
            return panel.drafters
        ranked = sorted(panel.drafters, key=lambda name: (-self.wins.get(name, 0), -round(panel.weights[name], 12)))
        chosen = set(ranked[:drafters])
        return tuple(name for name in panel.drafters if name in chosen)

    def doubts(self, panel: Panel, drafts: Mapping[str, Draft], answer: str, loop_guard: bool) -> bool:
        """Whether the other members must draft too: no confident draft says anything new."""
        least = self.least_confidence(panel.drafters)
        return not any(
            confidence_of(draft) >= least and not (loop_guard and continues_loop(answer, draft.text))
            for draft in drafts.values()
            if draft.text or draft.ended
        )

    def least_confidence(self, members: Collection[str]) -> float:
        """The log-probability per token that a draft needs: nearly what is usual for the most confident member.

        >>> won = DrafterChoice(confidence={"a": (-0.5, 2), "b": (-2.0, 1)})
        >>> won.least_confidence("ab") == -0.25 + math.log(SHARE_OF_USUAL)
        True
        """
        usual = [total / count for total, count in (self.confidence[n] for n in members if n in self.confidence)]
        return max(usual) + math.log(SHARE_OF_USUAL) if usual else math.inf

    def after(self, drafts: Mapping[str, Draft], vote: Vote) -> DrafterChoice:
        """With one more round. Where all drafts are the same no member has won."""
        if not vote.disputed:
            return self
        wins = {name: self.wins.get(name, 0) + 1 for name in vote.authors}
        known = {name: value for name, draft in drafts.items() if math.isfinite(value := confidence_of(draft))}
        before = {name: self.confidence.get(name, (0.0, 0)) for name in known}
        confidence = {name: (before[name][0] + value, before[name][1] + 1) for name, value in known.items()}
        return DrafterChoice({**self.wins, **wins}, {**self.confidence, **confidence})


def confidence_of(draft: Draft) -> float:
    """The mean log-probability per token that the author gives its draft; minus infinity where it is unknown.

    >>> confidence_of(Draft("a b", logprobs=(-1.0, -2.0))), confidence_of(Draft("a b"))
    (-1.5, -inf)
    """
    return math.fsum(draft.logprobs) / len(draft.logprobs) if draft.logprobs else -math.inf
