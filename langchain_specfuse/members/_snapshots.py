"""Copies of a model's own cache, one query at a time: for recurrent states, which cannot be cut back.

Right for every model whose cache can be copied. A prefix is of use here only as a whole: so one is kept where a prompt
ends, where its query ended, and where two prompts were seen to part. Knows token ids and the model's cache; nothing of
text or jobs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ._prefixes import Prefix, Prefixes, closest, common_prefix, longest_whole
from ._stores import Fan, Read, Store

STEP = 8
"""Where only one token can be read at a time, each costs about as much as so many in one pass."""

AT_ONCE = 4
"""About so many snapshots of a query there are at once: where it stands, where its draft stands, and its branches."""


@dataclass
class Snapshot:
    """The model's own cache after ``ids``, and the logits there."""

    ids: list[int]
    cache: Any
    logits: Tensor

    def copied(self) -> Snapshot:
        return Snapshot(list(self.ids), copy.deepcopy(self.cache), self.logits)


class Snapshots(Store):
    """The snapshots of all queries of a member.

    ``whole``: whether this model reads several tokens at once into a cache that is not empty as it should.
    """

    def __init__(self, read: Read, whole: bool = True, limit: int = 0) -> None:
        super().__init__(read, Prefixes(limit, whole=True))
        self.whole = whole
        self._kept: dict[str, list[Snapshot]] = {}
        self._drafts: dict[str, Snapshot] = {}
        self._sizes: dict[int, int] = {}
        """Bytes of a snapshot of so many tokens: the shortest and the longest seen."""

    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        found = []
        for key, ids in wants:
            new = key not in self._kept
            self._make_room([key for key, _ in wants])
            base = self._at(key, ids)
            # What is kept is a prefix of everything that can still be asked for.
            self._kept.pop(key, None)  # most recently used last
            self._kept[key] = [base]
            if new:
                self._keep(base, copied=True)
            if exact:
                self._drafts[key] = base.copied()
            found.append(base.logits)
        return found

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        for key, token in zip(keys, tokens, strict=True):
            self._drafts[key] = self._fed(self._drafts[key], [token])
        return torch.stack([self._drafts[key].logits for key in keys])

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        self.lead([(want.key, want.ids) for want in wants])
        return [self._branches(want) for want in wants]

    def _branches(self, want: Fan) -> list[Tensor]:
        base = self._kept[want.key][0]
        told = []
        for ids in want.branches:
            shared = common_prefix(want.ids, ids)
            start = base if shared == len(want.ids) else self._fed(None, ids[:shared])
            snapshot, logits = self._traced(start, ids[shared:])
            told.append(logits)
            self._kept[want.key].append(snapshot)
        return told

    def forget(self, key: str) -> None:
        draft = self._drafts.pop(key, None)
        for snapshot in [*self._kept.pop(key, [])[:1], *([draft] if draft else [])]:
            self._keep(snapshot)
        self.found.pop(key, None)

    def drop(self, key: str) -> None:
        for known in (self._kept, self._drafts, self.found):
            known.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()
        self._drafts.clear()
        self.prefixes.clear()

    # --- room ---------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        return self._under_way() + self.prefixes.bytes

    def alone(self, tokens: int) -> int:
        if not self._sizes:
            return 0
        (short, least), (long, most) = min(self._sizes.items()), max(self._sizes.items())
        per_token = (most - least) / (long - short) if long > short else 0.0
        return AT_ONCE * int(least + per_token * max(tokens - short, 0))

    def fit(self, budget: int, limit: int) -> None:
        super().fit(budget, limit)
        self._make_room(())

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        each = self.alone(max(sizes, default=0))
        at_once = len(sizes) if self.budget is None or not each else max(1, self.budget // each)
        return [slice(at, at + at_once) for at in range(0, len(sizes), max(at_once, 1))]

    def _make_room(self, keys: Sequence[str]) -> None:
        """Within the budget: prefixes go first, then queries that are none of these, least recently used."""
        if self.budget is None:
            return
        self.prefixes.shrink(max(self.budget - self._under_way(), 0))
        for key in [key for key in self._kept if key not in keys]:
            if self._under_way() <= self.budget:
                return
            self._kept.pop(key)
            self._drafts.pop(key, None)

    def _under_way(self) -> int:
        """Bytes of what is kept of queries under way."""
        snapshots = [*self._drafts.values(), *(one for kept in self._kept.values() for one in kept)]
        return sum(self._size(one) for one in snapshots)

    def _size(self, snapshot: Snapshot) -> int:
        size = snapshot.logits.nbytes + sum(tensor.nbytes for tensor in _tensors(snapshot.cache))
        ends = (min(self._sizes, default=0), max(self._sizes, default=0), len(snapshot.ids))
        self._sizes[len(snapshot.ids)] = size
        self._sizes = {n: known for n, known in self._sizes.items() if n in (min(ends), max(ends))}
        return size

    # --- where to begin -----------------------------------------------------------------------------------------

    def _at(self, key: str, ids: list[int]) -> Snapshot:
        """A snapshot at exactly these tokens, from the longest that is a prefix of them."""
        kept = [*self._kept.get(key, []), *([self._drafts[key]] if key in self._drafts else [])]
        fits = [s for s in kept if len(s.ids) <= len(ids) and s.ids == ids[: len(s.ids)]]
        best = max(fits, key=lambda s: len(s.ids), default=None) or self._taken(ids)
        self._drafts.pop(key, None)
        self.found[key] = len(best.ids) if best else 0
        self.reused += self.found[key]
        if not fits:
            best = self._to_the_parting(best, ids)
        if best is None:
            return self._fed(None, ids)
        return best if len(best.ids) == len(ids) else self._fed(best, ids[len(best.ids) :])

    def _taken(self, ids: list[int]) -> Snapshot | None:
        """A copy of the longest that was kept of another query and is a prefix of these tokens."""
        prefix = longest_whole(self._prefixes_of_kin(self.read.own), ids)
        if prefix is None or not self._pays(len(ids) - len(prefix.ids), len(ids)):
            return None
        self.prefixes.use(prefix)
        found: Snapshot = prefix.memory
        return found.copied()

    def _pays(self, rest: int, size: int) -> bool:
        return self.whole or rest * STEP <= size

    def _to_the_parting(self, start: Snapshot | None, ids: list[int]) -> Snapshot | None:
        """Read on to where these tokens part from what was kept of other queries, and keep that: a third may come."""
        known = len(start.ids) if start else 0
        shared = closest(self._prefixes_of_kin(self.read.own), ids)[1]
        if not self.whole or shared - known < self.prefixes.least or shared == len(ids):
            return start
        here = self._fed(start, ids[known:shared])
        self._keep(here, copied=True)
        return here

    def _keep(self, snapshot: Snapshot, copied: bool = False) -> None:
        mark = self.read.own.mark if self.read.own else 0
        made = Prefix(list(snapshot.ids), bytes=self._size(snapshot), mark=mark)

        def memory() -> Snapshot:
            cache = copy.deepcopy(snapshot.cache) if copied else snapshot.cache
            return Snapshot(made.ids, cache, snapshot.logits.clone())  # it may be a view of all logits of a pass

        self.prefixes.keep(made, memory, self.prefixes.limit, self._prefixes_of_kin(self.read.own))

    # --- reading ------------------------------------------------------------------------------------------------

    def _traced(self, start: Snapshot, ids: list[int]) -> tuple[Snapshot, Tensor]:
        """The snapshot after these tokens on a copy of ``start``, and the logits before each and after the last."""
        here = start.copied()
        rows = [start.logits[None]]
        for piece in self._pieces(here, ids):
            here, logits = self._read(here, piece)
            rows.append(logits)
        return here, torch.cat(rows)

    def _fed(self, start: Snapshot | None, ids: list[int]) -> Snapshot:
        """``start`` itself, moved on by these tokens."""
        here = start or Snapshot([], DynamicCache(config=self.read.model.config), torch.empty(0))
        for piece in self._pieces(here, ids):
            here, _ = self._read(here, piece)
        return here

    def _pieces(self, here: Snapshot, ids: list[int]) -> list[list[int]]:
        return [ids] if ids and (self.whole or not here.ids) else [[token] for token in ids]

    def _read(self, here: Snapshot, ids: list[int]) -> tuple[Snapshot, Tensor]:
        self.passed += len(ids)
        try:
            logits = self.read(torch.tensor([ids]), cache=here.cache)[0]
        except BaseException:
            self._void(here.cache)
            raise
        # A row of its own: a view would hold the logits of the whole pass.
        return Snapshot(here.ids + ids, here.cache, logits[-1].clone()), logits

    def _void(self, cache: Any) -> None:
        """A pass broke off: what this cache holds now belongs to no tokens."""
        for key, kept in self._kept.items():
            self._kept[key] = [snapshot for snapshot in kept if snapshot.cache is not cache]
        self._drafts = {key: draft for key, draft in self._drafts.items() if draft.cache is not cache}


def _tensors(thing: Any, deep: int = 5) -> Iterator[Tensor]:
    """All tensors in a cache, whatever its layers call them."""
    if isinstance(thing, Tensor):
        yield thing
    elif deep:
        inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        for part in (*inside, *vars(thing).values()) if hasattr(thing, "__dict__") else inside:
            yield from _tensors(part, deep - 1)
