"""The key/value memory of one model for many queries at once: one row per query, branches for drafts under vote.

A row holds the tokens of one query, each at its own column; columns behind them hold branches: other ways to go on,
read in one pass with a mask that lets every branch see the row up to its own beginning and nothing of its siblings.
The branch that wins is moved to where it belongs, so agreed text is never read twice. Rows are ragged; what is padding
is written to a scratch column that no mask ever shows. A query that begins as another did, over or under way, gets a
copy of what was read there; what is kept of queries that are over lies apart, and so slows down no pass.

Knows token ids and tensors; nothing of text, jobs, votes or sampling. Which models it is right for is decided by trying
(:func:`._trial.right`), never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ._layers import SlabLayer, Where, causal, tree, within
from ._prefixes import ENDS, Prefix, Prefixes, closest, common_prefix
from ._stores import Fan, Read, Store

COLUMNS = 128
"""Rows grow by this many columns at least."""
PREFILL = 1024
"""Tokens of one row that are read in one pass at most: bounds the memory of a long prompt."""


@dataclass
class Branch:
    """Tokens read as one way to go on from ``start``, kept in columns of their own until it wins or is forgotten."""

    start: int
    ids: list[int]
    column: int
    refed: bool
    """True: its first token is the last one shared with the row, read once more for the logits after it."""
    logits: Tensor | None = None


@dataclass
class Row:
    """One query's tokens in the slab."""

    key: str
    index: int
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Tensor] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    branches: list[Branch] = field(default_factory=list)
    ends: dict[int, Tensor] = field(default_factory=dict)
    """The same where prompts ended, of this query and of those that it goes on from."""

    def cut(self, length: int) -> None:
        """Only the first tokens."""
        self.ids = self.ids[:length]
        self.logits = {n: logits for n, logits in self.logits.items() if n <= length}
        self.ends = {n: logits for n, logits in self.ends.items() if n <= length}
        self.branches = []


class Slab(Store):
    """Many queries' keys and values, read together."""

    def __init__(self, read: Read, windows: Sequence[int | None], budget: int | None = None, limit: int = 0) -> None:
        super().__init__(read, Prefixes(limit))
        self.where = Where()
        self.windows = list(windows)
        self.cache = Cache(layers=[SlabLayer(self.where, window) for window in self.windows])
        self.rows: dict[str, Row] = {}
        self.capacity = (0, 0)
        self.budget = budget
        self._mask_kinds = _mask_kinds(read.model.config, self.windows)

    @classmethod
    def windows_of(cls, config: Any) -> list[int | None] | None:
        """Each layer's sliding window, or None where a layer is of a kind that a slab cannot hold."""
        layers = DynamicCache(config=config).layers
        if getattr(config.get_text_config(decoder=True), "attention_chunk_size", None):
            return None  # kept like a sliding window, but no such thing: chunks begin at fixed positions
        if not layers or any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
            return None
        return [getattr(layer, "sliding_window", None) for layer in layers]

    # --- the three ways to read (see Store) -------------------------------------------------------------------

    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        new = {key for key, _ in wants if key not in self.rows} if self.prefixes.limit else set()
        # Held while rows are made: what gives its memory up for them may be what they begin with.
        spared = [prefix for key, ids in wants if key in new and (prefix := closest(self._prefixes_of_kin(), ids)[0])]
        self._seat([key for key, _ in wants], max(len(ids) for _, ids in wants))
        waiting = list(wants)
        while waiting:
            for key, ids in waiting:
                if key in new:
                    self._begin(self.rows[key], ids, spared)
            now, waiting = self._parted(waiting, new)
            self._read_missing(now, exact)
        for key, ids in wants:
            if key in new:
                _remember(self.rows[key].ends, len(ids), self.rows[key].logits[len(ids)], ENDS)
        return [self.rows[key].logits[len(ids)] for key, ids in wants]

    def _read_missing(self, wants: Sequence[tuple[str, list[int]]], exact: bool) -> None:
        missing = []
        for key, ids in wants:
            row = self.rows[key]
            self._settle(row, ids)
            known = common_prefix(row.ids, ids)
            complete = known == len(ids) and known in row.logits
            known = known if complete else min(known, len(ids) - 1)
            self.found[key] = known
            self.reused += known
            if exact or not complete:
                row.cut(known)
            if not complete:
                missing.append((row, ids[known:]))
        for group in _adjacent(missing):
            self._feed(group)

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        rows = [self.rows[key] for key in keys]
        self._room(max(len(row.ids) for row in rows) + 1)
        first = min(row.index for row in rows)
        count = max(row.index for row in rows) - first + 1
        ids = torch.zeros((count, 1), dtype=torch.long)
        columns = torch.full((count, 1), self.capacity[1] - 1)
        lowest = min(len(row.ids) for row in rows)
        positions = torch.full((count, 1), lowest)
        for row, token in zip(rows, tokens, strict=True):
            at = row.index - first
            ids[at, 0], columns[at, 0], positions[at, 0] = token, len(row.ids), len(row.ids)
            row.ids.append(token)
            row.branches = []
        self._aim(first, count, columns, max(len(row.ids) for row in rows), lowest)
        logits = self._pass(ids, positions, causal(positions, self.where), keep=None)[:, -1]
        self.passed += len(rows)
        return logits if count == len(rows) and _ordered(rows) else logits[[row.index - first for row in rows]]

    def pin(self, key: str, length: int, logits: Tensor) -> None:
        _remember(self.rows[key].logits, length, logits)

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        self.lead([(want.key, want.ids) for want in wants])
        plans = [self._planned(self.rows[want.key], want) for want in wants]
        room = max(
            len(self.rows[w.key].ids) + sum(len(b.ids) for b in plan) for w, plan in zip(wants, plans, strict=True)
        )
        self._room(room)
        return self._read_branches(wants, plans)

    def forget(self, key: str) -> None:
        if key in self.rows:
            self._keep(self.rows[key])
            self._drop(key)

    def _drop(self, key: str) -> None:
        gone = self.rows.pop(key)
        self.found.pop(key, None)
        if not self.rows:
            return self._resize(0, 0)
        last = max(self.rows.values(), key=lambda row: row.index)
        if last.index > gone.index:
            # Rows stay dense: the last one moves into the hole.
            width = max([len(last.ids)] + [b.column + len(b.ids) for b in last.branches])
            for memory in self._memories():
                memory[gone.index, :, :width] = memory[last.index, :, :width]
            last.index = gone.index

    def clear(self) -> None:
        self.rows.clear()
        self.prefixes.clear()
        self._resize(0, 0)

    # --- prefixes -----------------------------------------------------------------------------------------------

    def _begin(self, row: Row, ids: list[int], spared: Sequence[Prefix]) -> None:
        """A new row begins with a copy of what has been read of the same tokens, here or by the row's kin."""
        rows = [
            Prefix(other.ids, partial(slab._tensors_of, other), ends=other.ends)
            for slab in self._family()
            for other in slab.rows.values()
            if other is not row
        ]
        found, shared = closest([*spared, *self._prefixes_of_kin(), *rows], ids)
        if found is None or shared < self.prefixes.least or shared <= len(row.ids):
            return
        self.prefixes.use(found)
        for memory, old in zip(self._memories(), found.memory(), strict=True):
            memory[row.index, :, :shared] = old[:, :shared]
        row.ids, row.logits = ids[:shared], {n: logits for n, logits in found.ends.items() if n <= shared}
        row.ends = dict(row.logits)

    def _parted(self, wants: Sequence[tuple[str, list[int]]], new: set[str]) -> tuple[Any, Any]:
        """Whom to read now, and who does better to wait for one of them, of whom a long beginning can be copied."""
        now: list[tuple[str, list[int]]] = []
        later: list[tuple[str, list[int]]] = []
        for key, ids in wants:
            alike = max((common_prefix(ids, other) for one, other in now if one in new), default=0)
            waits = key in new and alike - len(self.rows[key].ids) >= self.prefixes.least
            (later if waits else now).append((key, ids))
        return now, later

    def _keep(self, row: Row) -> None:
        """The row's tokens as a prefix for queries to come, as many as fit."""
        per_token = self._bytes_per_token()
        rest = self._bytes() if len(self.rows) > 1 else 0  # of the slab, when this row is gone
        room = self.prefixes.limit if self.budget is None else min(self.prefixes.limit, self.budget - rest)
        size = min(len(row.ids), max(room, 0) // per_token if per_token else 0)
        ends = {n: logits.clone() for n, logits in row.ends.items() if n <= size}
        made = Prefix(row.ids[:size], None, size * per_token + sum(one.nbytes for one in ends.values()), ends)

        def memory() -> Callable[[], list[Tensor]]:
            apart = [one[:, :size].clone() for one in self._tensors_of(row)]
            return lambda: apart

        try:
            self.prefixes.keep(made, memory, room, self._prefixes_of_kin())
        except torch.OutOfMemoryError:
            self.prefixes.clear()

    def _tensors_of(self, row: Row) -> list[Tensor]:
        """The row's keys and values of every layer: (heads, columns, dim)."""
        return [memory[row.index] for memory in self._memories()]

    def _memories(self) -> list[Tensor]:
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        return [memory for layer in layers for memory in (layer.keys, layer.values)]

    # --- rows ---------------------------------------------------------------------------------------------------

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """How many of these lengths fit into the memory budget at once."""
        if self.budget is None or not sizes or not self._bytes_per_token():
            return [slice(0, len(sizes))]
        per_batch = max(1, self.budget // (self._bytes_per_token() * _rounded(max(sizes) + COLUMNS)))
        return [slice(i, i + per_batch) for i in range(0, len(sizes), per_batch)]

    def _seat(self, keys: Sequence[str], length: int) -> None:
        """A row for each key; where memory is short, the rows least recently used give theirs up."""
        for key in keys:
            if key in self.rows:
                self.rows[key] = self.rows.pop(key)  # most recently used last
        new = [key for key in keys if key not in self.rows]
        while self._over_budget(len(self.rows) + len(new), length):
            victim = next((key for key in self.rows if key not in keys), None)
            if victim is None:
                break
            self._drop(victim)
        for key in new:
            self.rows[key] = Row(key, len(self.rows))
        self._room(length)

    def _over_budget(self, rows: int, length: int) -> bool:
        columns = max(_rounded(length + 1), max((_rounded(len(r.ids) + 1) for r in self.rows.values()), default=0))
        return self.budget is not None and rows * columns * self._bytes_per_token() > self.budget

    def _bytes_per_token(self) -> int:
        return sum(memory.shape[1] * memory.shape[3] * memory.element_size() for memory in self._memories())

    def _bytes(self) -> int:
        return self.capacity[0] * self.capacity[1] * self._bytes_per_token()

    def _room(self, length: int) -> None:
        rows, columns = self.capacity
        need_rows, need_columns = len(self.rows), length + 1  # the last column is scratch
        if need_rows > rows or need_columns > columns:
            self._resize(_power(need_rows) if need_rows > rows else rows, max(columns, _rounded(need_columns)))
        elif self.budget is not None and rows > 2 * need_rows:
            self._resize(_power(need_rows), columns)

    def _resize(self, rows: int, columns: int) -> None:
        self.capacity = (rows, columns)
        if self.budget is not None:  # queries under way come first
            self.prefixes.shrink(self.budget - self._bytes())
        for layer in self.cache.layers:
            layer.resize(rows, columns)

    def _settle(self, row: Row, ids: list[int]) -> None:
        """If a branch is how the text went on, make it part of the row."""
        best, length = None, common_prefix(row.ids, ids)
        for branch in row.branches:
            whole = row.ids[: branch.start] + branch.ids
            if (shared := common_prefix(whole, ids)) > max(length, branch.start):
                best, length = branch, shared
        if best is None:
            return
        count = length - best.start
        for memory in self._memories():
            source = memory[row.index, :, best.column : best.column + count].clone()
            memory[row.index, :, best.start : length] = source
        row.cut(best.start)
        row.ids += best.ids[:count]
        if count == len(best.ids) and best.logits is not None:
            row.logits[length] = best.logits

    # --- passes ---------------------------------------------------------------------------------------------------

    def _feed(self, group: Sequence[tuple[Row, list[int]]]) -> None:
        """Append these tokens to their (adjacent) rows; keeps the logits after the last of each."""
        start = 0
        longest = max(len(ids) for _, ids in group)
        self._room(max(len(row.ids) + len(ids) for row, ids in group))
        while start < longest:
            self._feed_chunk([(row, ids[start : start + PREFILL]) for row, ids in group])
            start += PREFILL

    def _feed_chunk(self, group: Sequence[tuple[Row, list[int]]]) -> None:
        first, longest = group[0][0].index, max(len(ids) for _, ids in group)
        ids = torch.zeros((len(group), longest), dtype=torch.long)
        columns = torch.full((len(group), longest), self.capacity[1] - 1)
        lowest = min(len(row.ids) for row, new in group if new)
        positions = torch.full((len(group), longest), lowest)
        for i, (row, new) in enumerate(group):
            at = torch.arange(len(row.ids), len(row.ids) + len(new))
            ids[i, : len(new)], columns[i, : len(new)], positions[i, : len(new)] = torch.tensor(new), at, at
        for row, new in group:
            row.ids = row.ids + new
            row.branches = []
        self._aim(first, len(group), columns, max(len(row.ids) for row, _ in group), lowest)
        ends = sorted({len(new) - 1 for _, new in group if new})
        logits = self._pass(ids, positions, causal(positions, self.where), keep=ends)
        self.passed += sum(len(new) for _, new in group)
        for i, (row, new) in enumerate(group):
            if new:
                _remember(row.logits, len(row.ids), logits[i, ends.index(len(new) - 1)])

    def _planned(self, row: Row, want: Fan) -> list[Branch]:
        """Where each branch begins and which tokens it must read."""
        column, plan = len(row.ids), []
        for ids in want.branches:
            start = common_prefix(want.ids, ids)
            # Where the logits before its first token are not known, the token before it is read once more.
            refed = start < len(want.ids)
            start -= refed
            plan.append(Branch(start, ids[start:], column, refed))
            column += len(ids) - start
        return plan

    def _read_branches(self, wants: Sequence[Fan], plans: Sequence[list[Branch]]) -> list[list[Tensor]]:
        rows = [self.rows[want.key] for want in wants]
        first, count = min(r.index for r in rows), max(r.index for r in rows) - min(r.index for r in rows) + 1
        width = max(len(row.ids) + _size(plan) for row, plan in zip(rows, plans, strict=True))
        longest = max(_size(plan) for plan in plans)
        if not longest:  # only ends are asked about: all is known
            known = [row.logits[len(want.ids)][None] for row, want in zip(rows, wants, strict=True)]
            return [[logits] * len(plan) for logits, plan in zip(known, plans, strict=True)]
        ids = torch.zeros((count, longest), dtype=torch.long)
        columns = torch.full((count, longest), self.capacity[1] - 1)
        lowest = min((b.start for plan in plans for b in plan), default=0)
        positions = torch.full((count, longest), lowest)
        # For every new token: the row is visible up to ``trunk``, its own branch from ``begin`` to itself.
        trunk = torch.full((count, longest), lowest + 1)
        begin = torch.zeros((count, longest), dtype=torch.long)
        for row, plan in zip(rows, plans, strict=True):
            r, at = row.index - first, 0
            for branch in plan:
                size = len(branch.ids)
                ids[r, at : at + size] = torch.tensor(branch.ids)
                columns[r, at : at + size] = torch.arange(branch.column, branch.column + size)
                positions[r, at : at + size] = torch.arange(branch.start, branch.start + size)
                trunk[r, at : at + size] = branch.start
                begin[r, at : at + size] = branch.column
                at += size
        self._aim(first, count, columns, width, lowest)
        logits = self._pass(ids, positions, tree(columns, trunk, begin, self.where), keep=None)
        self.passed += sum(_size(plan) for plan in plans)
        return [
            self._told(self.rows[want.key], want, plan, logits[row.index - first])
            for row, want, plan in zip(rows, wants, plans, strict=True)
        ]

    def _told(self, row: Row, want: Fan, plan: list[Branch], logits: Tensor) -> list[Tensor]:
        """Per branch the logits before each of its new tokens, and after the last: (tokens + 1, vocabulary)."""
        at, told = 0, []
        for branch in plan:
            mine = logits[at : at + len(branch.ids)]
            at += len(branch.ids)
            branch.logits = mine[-1].clone() if len(mine) else None
            told.append(mine if branch.refed else torch.cat([row.logits[len(want.ids)][None], mine]))
        row.branches = [branch for branch in plan if branch.ids]
        return told

    def _aim(self, first: int, count: int, columns: Tensor, width: int, lowest: int) -> None:
        where = self.where
        where.first, where.count, where.width, where.lowest = first, count, width, lowest
        where.start, where.scratch = int(columns[0, 0]), self.capacity[1] - 1
        where.columns = None if count == 1 else columns.to(self.read.device)

    def _mask(self, seen: Tensor, held: Tensor, positions: Tensor) -> Any:
        """The masks of one pass: one for all layers, or one for each kind by the name that the model gives it."""
        masks = {
            kind: self.read.as_mask(within(seen, held, positions, self.where, window))
            for kind, window in self._mask_kinds.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _pass(self, ids: Tensor, positions: Tensor, view: tuple[Tensor, Tensor], keep: list[int] | None) -> Tensor:
        mask = self._mask(*view, positions)
        try:
            return self.read(ids, position_ids=positions, attention_mask=mask, cache=self.cache, keep=keep)
        except BaseException:
            self._void()
            raise

    def _void(self) -> None:
        """A pass broke off: its rows may lack what they say they hold."""
        for row in self.rows.values():
            if self.where.first <= row.index < self.where.first + self.where.count:
                row.cut(0)


def _remember(known: dict[int, Tensor], length: int, logits: Tensor, most: int = 3) -> None:
    known.pop(length, None)
    known[length] = logits
    while len(known) > most:
        del known[next(iter(known))]


def _mask_kinds(config: Any, windows: Sequence[int | None]) -> dict[str, int | None]:
    """The masks that this model's layers want, by the name that it gives them."""
    if len(set(windows)) == 1:
        return {"all": windows[0]}
    types = getattr(config.get_text_config(decoder=True), "layer_types", None) or [
        "full_attention" if window is None else "sliding_attention" for window in windows
    ]
    return dict(zip(types, windows, strict=True))


def _adjacent(missing: list[tuple[Row, list[int]]]) -> list[list[tuple[Row, list[int]]]]:
    """Groups of neighbouring rows that lack about equally many tokens, so that little padding is read."""
    groups: list[list[tuple[Row, list[int]]]] = []
    for row, ids in sorted(missing, key=lambda item: item[0].index):
        if groups:
            sizes = [len(new) for _, new in groups[-1]] + [len(ids)]
            fits = max(sizes) <= 1.5 * min(sizes) + 8 and max(sizes) * len(sizes) <= 4 * PREFILL
            if fits and groups[-1][-1][0].index == row.index - 1:
                groups[-1].append((row, ids))
                continue
        groups.append([(row, ids)])
    return groups


def _size(plan: Sequence[Branch]) -> int:
    return sum(len(branch.ids) for branch in plan)


def _ordered(rows: Sequence[Row]) -> bool:
    return all(a.index < b.index for a, b in zip(rows, rows[1:], strict=False))


def _rounded(columns: int) -> int:
    return (columns * 5 // 4 // COLUMNS + 1) * COLUMNS


def _power(rows: int) -> int:
    return 1 << max(rows - 1, 0).bit_length()
