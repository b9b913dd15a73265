"""Copies of a model's own cache, one sequence at a time: for recurrent states, which cannot be cut back.

Right for every model whose cache can be copied. A kept prefix is only of use here as a whole, so one is kept where a
prompt ends, where its query ended, and where two prompts were seen to part. Knows token ids and the model's cache.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ...local.prefixes import Prefix, Prefixes, closest, common_prefix
from ...local.store import Branches, Logits, SequenceKey
from .store import Forward, TorchStore

PASS_TOKENS = 8
"""Where only one token can be read at a time, reading each costs about as much as this many in one pass."""
PER_QUERY = 4
"""About how many snapshots an open query has: its context, its draft, and its branches."""


@dataclass(eq=False)
class Snapshot:
    """The model's own cache after ``ids``, and the logits there."""

    ids: list[int]
    cache: Any
    logits: Logits

    def copied(self) -> Snapshot:
        return Snapshot(self.ids, copy.deepcopy(self.cache), self.logits)

    @cached_property
    def bytes(self) -> int:
        return self.logits.nbytes + sum(tensor.nbytes for tensor in _tensors(self.cache))


class Snapshots(TorchStore):
    """Snapshots of all open queries.

    ``whole``: whether this model can read several tokens at once into a cache that is not empty.
    """

    kind = "snapshots"

    def __init__(self, forward: Forward, prefix_bytes: int = 0, *, whole: bool = True) -> None:
        super().__init__(forward, Prefixes(prefix_bytes, whole=True))
        self.whole = whole
        self._contexts: dict[SequenceKey, list[Snapshot]] = {}
        """The context that was read last, then its branches. Least recently used first."""
        self._drafts: dict[SequenceKey, Snapshot] = {}
        self._sizes: dict[int, int] = {}
        """Tokens -> bytes, of the shortest and the longest snapshot so far."""

    # --- reading ------------------------------------------------------------------------------------------------

    def prefill(self, wants: Sequence[tuple[SequenceKey, list[int]]], *, drafting: bool = False) -> list[Logits]:
        logits = []
        for key, ids in wants:
            new = key not in self._contexts
            self._make_room([key for key, _ in wants])
            context = self._read_to(key, ids)
            self._contexts.pop(key, None)  # most recently used last
            self._contexts[key] = [context]  # what is kept is a prefix of everything that can still be asked for
            if new:
                self._keep_prefix(key, context, copied=True)
            if drafting:
                self._drafts[key] = context.copied()
            logits.append(context.logits)
        return logits

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        for key, token in zip(keys, tokens, strict=True):
            self._drafts[key] = self._extended(key, self._drafts[key], [token])
        return [self._drafts[key].logits for key in keys]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        self.prefill([(want.key, want.ids) for want in wants])
        return [[self._read_branch(want, ids) for ids in want.branches] for want in wants]

    def _read_branch(self, want: Branches, ids: list[int]) -> Logits:
        context = self._contexts[want.key][0]
        shared = common_prefix(want.ids, ids)
        here = context.copied() if shared == len(want.ids) else self._extended(want.key, None, ids[:shared])
        rows = [here.logits[None]]
        for part in self._parts(here, ids[shared:]):
            here, logits = self._read(want.key, here, part)
            rows.append(logits)
        self._contexts[want.key].append(here)
        return np.concatenate(rows)

    def _read_to(self, key: SequenceKey, ids: list[int]) -> Snapshot:
        """A snapshot at exactly these tokens, from the longest that is a prefix of them."""
        draft = self._drafts.pop(key, None)
        known = [*self._contexts.get(key, []), *([draft] if draft else [])]
        best = max((one for one in known if one.ids == ids[: len(one.ids)]), key=lambda one: len(one.ids), default=None)
        fresh = best is None
        best = best or self._from_prefix(key, ids)
        self.found[key] = len(best.ids) if best else 0
        self.tokens_reused += self.found[key]
        if fresh:
            best = self._keep_where_prompts_part(key, best, ids)
        return self._extended(key, best, ids[len(best.ids) if best else 0 :])

    def _extended(self, key: SequenceKey, start: Snapshot | None, ids: list[int]) -> Snapshot:
        """``start`` itself, moved on by these tokens."""
        here = start or Snapshot([], DynamicCache(config=self.forward.model.config), np.empty(0, np.float32))
        for part in self._parts(here, ids):
            here, _ = self._read(key, here, part)
        return here

    def _parts(self, here: Snapshot, ids: list[int]) -> list[list[int]]:
        return [ids] if ids and (self.whole or not here.ids) else [[token] for token in ids]

    def _read(self, key: SequenceKey, here: Snapshot, ids: list[int]) -> tuple[Snapshot, Logits]:
        self.tokens_read += len(ids)
        try:
            logits = self.forward(torch.tensor([ids]), cache=here.cache, adapters=[self.forward.adapter_of(key)])[0]
        except BaseException:  # what this cache holds now belongs to no tokens
            for one, snapshots in self._contexts.items():
                self._contexts[one] = [snapshot for snapshot in snapshots if snapshot.cache is not here.cache]
            self._drafts = {one: draft for one, draft in self._drafts.items() if draft.cache is not here.cache}
            raise
        # Its last row is copied: a view would hold the logits of the whole pass.
        after = Snapshot(here.ids + ids, here.cache, logits[-1].copy())
        size = len(after.ids)
        if not self._sizes or not min(self._sizes) <= size <= max(self._sizes):
            self._sizes[size] = after.bytes
            self._sizes = {at: self._sizes[at] for at in (min(self._sizes), max(self._sizes))}
        return after, logits

    # --- prefixes -----------------------------------------------------------------------------------------------

    def _from_prefix(self, key: SequenceKey, ids: list[int]) -> Snapshot | None:
        """A copy of the longest kept prefix of these tokens."""
        whole = [prefix for prefix in self.prefixes_for(key) if prefix.ids == ids[: len(prefix.ids)]]
        prefix = max(whole, key=lambda one: len(one.ids), default=None)
        if prefix is None or not (self.whole or (len(ids) - len(prefix.ids)) * PASS_TOKENS <= len(ids)):
            return None
        self.prefixes.use(prefix)
        snapshot: Snapshot = prefix.data
        return snapshot.copied()

    def _keep_where_prompts_part(self, key: SequenceKey, start: Snapshot | None, ids: list[int]) -> Snapshot | None:
        """Read on to where these tokens part from a kept prefix, and keep that: a third prompt may begin alike."""
        known = len(start.ids) if start else 0
        shared = closest(self.prefixes_for(key), ids)[1]
        if not self.whole or shared - known < self.prefixes.shortest or shared == len(ids):
            return start
        here = self._extended(key, start, ids[known:shared])
        self._keep_prefix(key, here, copied=True)
        return here

    def _keep_prefix(self, key: SequenceKey, snapshot: Snapshot, copied: bool = False) -> None:
        adapter = self.forward.adapter_of(key)
        new = Prefix(snapshot.ids, bytes=snapshot.bytes, adapter_id=adapter.id if adapter else 0)
        self.prefixes.keep(new, lambda: snapshot.copied() if copied else snapshot, self.prefixes.limit)

    # --- forgetting and memory ----------------------------------------------------------------------------------

    def forget(self, key: SequenceKey) -> None:
        draft = self._drafts.pop(key, None)
        for snapshot in [*self._contexts.pop(key, [])[:1], *([draft] if draft else [])]:
            self._keep_prefix(key, snapshot)
        self.found.pop(key, None)

    def drop(self, key: SequenceKey) -> None:
        for known in (self._contexts, self._drafts, self.found):
            known.pop(key, None)

    def clear(self) -> None:
        self._contexts.clear()
        self._drafts.clear()
        self.prefixes.clear()

    @property
    def open_sequences(self) -> list[SequenceKey]:
        return list(self._contexts)

    @property
    def bytes_held(self) -> int:
        return self._bytes_open() + self.prefixes.bytes

    def bytes_for(self, tokens: int) -> int:
        """Along a straight line: recurrent states are of one size, attention layers grow."""
        if not self._sizes:
            return 0
        (short, least), (long, most) = min(self._sizes.items()), max(self._sizes.items())
        per_token = (most - least) / (long - short) if long > short else 0.0
        return PER_QUERY * int(least + per_token * max(tokens - short, 0))

    @torch.inference_mode()  # rows may shrink, and another engine's member may have asked for room
    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
        self._make_room(())

    def _make_room(self, keys: Sequence[SequenceKey]) -> None:
        """Keep to the budget: drop prefixes, then queries other than these, least recently used first."""
        if self.budget is None:
            return
        self.prefixes.shrink(max(self.budget - self._bytes_open(), 0))
        for key in [key for key in self._contexts if key not in keys]:
            if self._bytes_open() <= self.budget:
                return
            self.drop(key)

    def _bytes_open(self) -> int:
        contexts = [snapshot for snapshots in self._contexts.values() for snapshot in snapshots]
        return sum(snapshot.bytes for snapshot in [*contexts, *self._drafts.values()])


def _tensors(thing: Any, depth: int = 5) -> Iterator[Tensor]:
    """All tensors in a cache, whatever its layers call them."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth:
        inside = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ()
        for part in (*inside, *vars(thing).values()) if hasattr(thing, "__dict__") else inside:
            yield from _tensors(part, depth - 1)
