"""Kin: members with the same weights, told apart by an adapter, a system prompt or a seed, and one memory for them all.

Their jobs are one batch: a pass reads rows of several members, each with its own adapter. Which models that is right
for is tried at load; members that it is not right for, or that are to be kept apart, are kin to nobody but themselves.
Knows stores and whose jobs are whose; nothing of how a draft is drawn or scored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ._adapters import Adapter
from ._allowance import Allowance
from ._holding import Holding
from ._leaps import Leaps
from ._loading import Weights
from ._lookahead import Lookahead
from ._slab import Slab
from ._stores import Read, Store
from ._trial import best_store, graphed, mixes

if TYPE_CHECKING:
    from .transformers import TransformersMember


class Kin:
    """Members whose jobs can be one batch. A member alone is one too."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.lookahead = Lookahead()
        """What guessing costs hangs on the weights and this memory; how often it comes true, on each query."""
        self.members: WeakSet[TransformersMember] = WeakSet()
        self.allowance: Allowance | None = None
        self.holding: Holding | None = None
        """Their share of a device's memory budget, if they have one: one memory is counted once."""
        self._leaps: list[Leaps | None] = []

    def leaps(self, stops: Sequence[int], vocabulary: Sequence[int], name: str) -> Leaps | None:
        """How all of them draw several tokens at once, if they do. Tried once: a trial clears their memory."""
        if not self._leaps:
            self._leaps.append(graphed(self.store, stops, vocabulary, name))
        return self._leaps[0]

    def draft(self, jobs: Sequence[tuple[TransformersMember, DraftJob]]) -> list[Draft | Failure]:
        return self._told("draft", jobs)

    def score(self, jobs: Sequence[tuple[TransformersMember, ScoreJob]]) -> list[Scored | Failure]:
        return self._told("score", jobs)

    def leave(self, member: TransformersMember, adapter: Adapter | None) -> None:
        """This member lets go of what it holds; what it has read is of use only to those with the same adapter."""
        self.members.discard(member)
        if not any(other.adapted is adapter for other in self.members):
            self.store.prefixes.drop(adapter.mark if adapter else 0)
        if not self.members and self.allowance and self.holding:
            self.allowance.leave(self.holding)
            self.allowance = self.holding = None

    def _told(self, work: str, jobs: Sequence[tuple[TransformersMember, Any]]) -> list[Any]:
        here = [at for at, (member, _) in enumerate(jobs) if member.kin is self]
        told = dict(zip(here, self._together(work, [jobs[at] for at in here]), strict=True))
        for at, (member, job) in enumerate(jobs):
            if at not in told:  # it was unloaded since it was asked
                (told[at],) = getattr(member, work)([job])
        return [told[at] for at in range(len(jobs))]

    @staticmethod
    def _together(work: str, jobs: list[tuple[TransformersMember, Any]]) -> list[Any]:
        return getattr(jobs[0][0], f"{work}_all")(jobs) if jobs else []


def kin_for(
    weights: Weights, adapter: Adapter | None, vocabulary: Sequence[int], budget: int, limit: int, name: str, alike: Any
) -> Kin:
    """Those with these weights who are ``alike``: bounded alike, and ending their turns alike."""
    read = Read(weights.model, weights.adapters)
    mixed = adapter is None or mixes(read, vocabulary, adapter)
    found = weights.kin.get(alike) if mixed else None
    if found is None:
        own = read if mixed else Read(weights.model, weights.adapters, adapter)
        kept = mixed and not weights.yours  # a model in memory may be anything
        found = Kin(best_store(own, vocabulary, budget, limit, name, remembered=kept))
        weights.stores.add(found.store)
        found.store.kin = weights.stores
        if mixed and isinstance(found.store, Slab):
            weights.kin[alike] = found
    return found
