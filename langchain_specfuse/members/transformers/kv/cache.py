"""A KV cache for many sequences at once: a row per sequence, branches for the drafts under vote.

A row holds the tokens of one query, each at its own column. Columns behind them hold branches: continuations that are
read in one pass, with a mask that lets each branch see the row up to its own beginning and nothing of its siblings. The
branch that wins is moved into the row, so agreed text is never read twice. Rows have different lengths; padding is
written to a scratch column that no mask shows. A query that begins as another did gets a copy of what was read there.
Kept prefixes lie outside the rows, because an unused row would be computed in every pass.

Knows token ids and tensors; nothing of text, jobs, votes or sampling. It is used for every model with which it agrees
(:mod:`.trial`), whatever the model is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...local.prefixes import MOST_ENDS, Prefix, Prefixes, closest, common_prefix
from ...local.store import Branches, Logits, SequenceKey
from .rows import COLUMNS, Branch, Row, Rows, rounded
from .store import CHUNK, Forward, TorchStore, is_out_of_memory

DEEP = 2048
"""Behind this many tokens a chunk is half as long, behind twice as many a quarter: attention to them costs most."""
LEAST_SHARE = 8
"""A chunk never gets shorter than this part of its length."""
T = TypeVar("T")
Want = tuple[SequenceKey, list[int]]
Reading = tuple[Row, list[Branch]]
"""A row, and what to read in it."""


class BatchedCache(TorchStore):
    """Keys and values of many sequences, read together. ``windows``: the sliding window of each layer, if any."""

    kind = "batched cache"

    def __init__(self, forward: Forward, windows: Sequence[int | None], prefix_bytes: int = 0) -> None:
        super().__init__(forward, Prefixes(prefix_bytes))
        self.windows = list(windows)
        self.rows = Rows(windows, self.prefixes)
        self._pass_bytes = sum(weight.nbytes for weight in forward.model.parameters())
        """Bytes that every pass reads, whatever is in it."""
        self._mask_kinds = _mask_kinds(forward.model.config, self.windows)

    @classmethod
    def windows_of(cls, config: Any) -> list[int | None] | None:
        """The sliding window of each layer; None if there is a layer that this cache cannot hold."""
        layers = DynamicCache(config=config).layers
        if getattr(config.get_text_config(decoder=True), "attention_chunk_size", None):
            return None  # looks like a sliding window, but its chunks begin at fixed positions
        if not layers or any(type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers):
            return None
        return [getattr(layer, "sliding_window", None) for layer in layers]

    # --- reading ------------------------------------------------------------------------------------------------

    def prefill(self, wants: Sequence[Want], *, drafting: bool = False) -> list[Logits]:
        new = {key for key, _ in wants if self._is_new(key)} if self.prefixes.limit else set()
        # Found before rows are allocated: a prefix that gives up its memory for them may be what they begin with.
        found = {key: closest(self.prefixes_for(key), ids)[0] for key, ids in wants if key in new}
        self._allocate([key for key, _ in wants], max(len(ids) for _, ids in wants))
        waiting = list(wants)
        while waiting:
            for key, ids in waiting:
                if key in new:
                    self._begin(self.rows[key], ids, found[key])
            now, waiting = self._without_shared(waiting, new)
            self._read_missing(now, drafting)
        for key, ids in wants:
            if key in new:
                row = self.rows[key]
                _remember(row.ends, len(ids), row.logits[len(ids)], MOST_ENDS)
        return [self.rows[key].logits[len(ids)] for key, ids in wants]

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        wants = [(self.rows[key], [token]) for key, token in zip(keys, tokens, strict=True)]
        self.rows.make_room(keys, max(len(row.ids) for row, _ in wants) + 1)
        logits: dict[SequenceKey, Logits] = {}
        for part in self._passes(wants, [(row, len(row.ids) + 1) for row, _ in wants]):
            logits |= {row.key: own[0] for row, own in self._append(part)}
        return [logits[key] for key in keys]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        self.prefill([(want.key, want.ids) for want in wants])
        plans = [(self.rows[want.key], _planned(self.rows[want.key], want)) for want in wants]
        widths = [(row, row.width_with(plan)) for row, plan in plans]
        self.rows.make_room([want.key for want in wants], max(width for _, width in widths))
        logits: dict[SequenceKey, list[Logits]] = {}
        for part in self._passes([(want, *plan) for want, plan in zip(wants, plans, strict=True)], widths):
            readings = [(row, plan) for _, row, plan in part]
            for (want, row, plan), own in zip(part, self._pass(readings), strict=True):
                logits[want.key] = _logits_of(row, len(want.ids), plan, own)
        return [logits[want.key] for want in wants]

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        row = self.rows.by_key.get(key)
        known = common_prefix(row.ids, ids) if row else 0
        if row:
            known = max([known, *(common_prefix(row.ids[: b.start] + b.ids, ids) for b in row.branches)])
        if self._is_new(key) and self.prefixes.limit:
            shared = closest([*self.prefixes_for(key), *self._other_rows(key)], ids)[1]
            known = max(known, shared if shared >= self.prefixes.shortest else 0)
        return len(ids) - known

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        new = self._is_new(key) and self.prefixes.limit > 0
        found = closest(self.prefixes_for(key), ids)[0] if new else None
        self._allocate([key], len(ids))
        row = self.rows[key]
        row.expected = len(ids)
        if new:
            self._begin(row, ids, found)
        self._adopt_branch(row, ids)
        known = common_prefix(row.ids, ids)
        row.cut(known)
        part = ids[known : known + self._chunk_behind(known)]
        self._read_chunks([(row, part)])
        row.read_ahead += len(part)

    def keep_logits(self, key: SequenceKey, length: int, logits: Logits) -> None:
        _remember(self.rows[key].logits, length, logits)

    # --- forgetting and memory ----------------------------------------------------------------------------------

    def forget(self, key: SequenceKey) -> None:
        if key in self.rows.by_key:
            self._keep_prefix(self.rows[key])
            self._free(key)
            self.rows.tighten()

    def drop(self, key: SequenceKey) -> None:
        if key in self.rows.by_key:
            try:
                self.rows.blank(key)
            finally:
                self._free(key)

    def clear(self) -> None:
        self.found.clear()
        self.prefixes.clear()
        self.rows.clear()

    def _free(self, key: SequenceKey) -> None:
        self.found.pop(key, None)
        self.rows.free(key)

    @property
    def open_sequences(self) -> list[SequenceKey]:
        return list(self.rows.by_key)

    @property
    def bytes_held(self) -> int:
        logits = [one for row in self.rows for one in (*row.logits.values(), *row.ends.values())]
        logits += [b.logits for row in self.rows for b in row.branches if b.logits is not None]
        return self.rows.bytes + self.prefixes.bytes + sum({one.ctypes.data: one.nbytes for one in logits}.values())

    def bytes_for(self, tokens: int) -> int:
        return rounded(tokens) * self.rows.bytes_per_token

    @torch.inference_mode()  # rows may shrink, and another engine's member may have asked for room
    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
        self.rows.set_budget(budget)
        self.prefixes.shrink(min(prefix_bytes, max(budget - self.rows.bytes, 0)))

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        return super().batches([size + COLUMNS for size in sizes])

    # --- prefixes -----------------------------------------------------------------------------------------------

    def _other_rows(self, key: SequenceKey) -> list[Prefix]:
        """What is cached of other open queries, as prefixes."""
        adapter = self.forward.adapter_of(key)
        return [
            Prefix(row.ids, partial(self.rows.tensors_of, row), ends=row.ends)
            for row in self.rows
            if row.key != key and row.adapter is adapter
        ]

    def _is_new(self, key: SequenceKey) -> bool:
        return key not in self.rows.by_key or not self.rows[key].used

    def _begin(self, row: Row, ids: list[int], kept: Prefix | None) -> None:
        """Let a new row begin with a copy of what was read of the same tokens."""
        kept_first = [kept] if kept else []
        found, shared = closest([*kept_first, *self.prefixes_for(row.key), *self._other_rows(row.key)], ids)
        if found is None or shared < self.prefixes.shortest or shared <= len(row.ids):
            return
        self.prefixes.use(found)
        for memory, old in zip(self.rows.tensors_of(row), found.data(), strict=True):
            memory[:, :shared] = old[:, :shared]
        row.ids, row.logits = ids[:shared], {n: logits for n, logits in found.ends.items() if n <= shared}
        row.ends = dict(row.logits)

    def _without_shared(self, wants: Sequence[Want], new: set[SequenceKey]) -> tuple[list[Want], list[Want]]:
        """What to read now, and what can wait: it begins with something long that is read now, and will copy that."""
        now: list[Want] = []
        later: list[Want] = []
        for key, ids in wants:
            row = self.rows[key]
            others = [other for one, other in now if one in new and self.rows[one].adapter is row.adapter]
            shared = max((common_prefix(ids, other) for other in others), default=0)
            waits = key in new and shared - len(row.ids) >= self.prefixes.shortest
            (later if waits else now).append((key, ids))
        return now, later

    def _keep_prefix(self, row: Row) -> None:
        """Keep the row's tokens for queries to come, as many as fit."""
        per_token = self.rows.bytes_per_token
        others = self.rows.bytes if len(self.rows.by_key) > 1 else 0  # what the rows take when this one is gone
        room = self.prefixes.limit if self.budget is None else min(self.prefixes.limit, self.budget - others)
        size = min(len(row.ids), max(room, 0) // per_token if per_token else 0)
        ends = {n: logits.copy() for n, logits in row.ends.items() if n <= size}
        held = size * per_token + sum(one.nbytes for one in ends.values())

        def copy() -> Any:
            tensors = [one[:, :size].clone() for one in self.rows.tensors_of(row)]
            return lambda: tensors

        try:
            adapter_id = row.adapter.id if row.adapter else 0
            self.prefixes.keep(Prefix(row.ids[:size], None, held, ends, adapter_id), copy, room)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.prefixes.clear()

    # --- what to read -------------------------------------------------------------------------------------------

    def _allocate(self, keys: Sequence[SequenceKey], length: int) -> None:
        self.rows.allocate([(key, self.forward.adapter_of(key)) for key in keys], length)

    def _adopt_branch(self, row: Row, ids: list[int]) -> None:
        """If the text went on as a branch did, make the branch part of the row."""
        best, length = None, common_prefix(row.ids, ids)
        for branch in row.branches:
            shared = common_prefix(row.ids[: branch.start] + branch.ids, ids)
            if shared > max(length, branch.start):
                best, length = branch, shared
        if best is None:
            return
        count = length - best.start
        for memory in self.rows.tensors_of(row):
            memory[:, best.start : length] = memory[:, best.column : best.column + count].clone()
        row.cut(best.start)
        row.ids += best.ids[:count]
        if count == len(best.ids) and best.logits is not None:
            row.logits[length] = best.logits

    def _read_missing(self, wants: Sequence[Want], drafting: bool) -> None:
        missing = []
        for key, ids in wants:
            row = self.rows[key]
            self._adopt_branch(row, ids)
            known = common_prefix(row.ids, ids)
            complete = known == len(ids) and known in row.logits
            known = known if complete else min(known, len(ids) - 1)
            self.found[key] = max(known - row.read_ahead, 0)
            self.tokens_reused += self.found[key]
            row.read_ahead, row.expected, row.used = 0, 0, True
            if drafting or not complete:
                row.cut(known)
            if not complete:
                missing.append((row, ids[known:]))
        for group in _adjacent(missing):
            for part in self._passes(group, [(row, len(row.ids) + len(new)) for row, new in group]):
                self._read_chunks(part)

    def _passes(self, wants: Sequence[T], widths: Sequence[tuple[Row, int]]) -> list[list[T]]:
        """Split what is wanted of these rows into passes. A pass is as wide as its longest row, and all passes read the
        weights: rows are read apart where padding would cost more than that."""
        parts: list[list[int]] = []
        for at in sorted(range(len(wants)), key=lambda at: widths[at][0].index):
            together = [widths[n][1] for n in [*parts[-1], at]] if parts else []
            padding = max(together, default=0) * len(together) - sum(together)
            if parts and padding * self.rows.bytes_per_token <= self._pass_bytes:
                parts[-1].append(at)
            else:
                parts.append([at])
        return [[wants[at] for at in part] for part in parts]

    def _read_chunks(self, group: Sequence[tuple[Row, list[int]]]) -> None:
        """Append these tokens to their (adjacent) rows; keeps the logits after the last of each."""
        start, longest = 0, max(len(ids) for _, ids in group)
        while start < longest:
            size = self._chunk_behind(max(len(row.ids) for row, _ in group))
            chunk = [(row, ids[start : start + size]) for row, ids in group]
            keep = sorted({len(new) - 1 for _, new in chunk if new})
            for (row, logits), (_, new) in zip(self._append(chunk, keep), chunk, strict=True):
                if new:
                    _remember(row.logits, len(row.ids), logits[keep.index(len(new) - 1)])
            start += size

    def _chunk_behind(self, known: int) -> int:
        """How many tokens one pass reads behind this many."""
        return max(self.chunk >> (known // DEEP).bit_length(), self.chunk // LEAST_SHARE, 1)

    def _append(
        self, group: Sequence[tuple[Row, list[int]]], keep: list[int] | None = None
    ) -> list[tuple[Row, Logits]]:
        """More tokens for these rows. Returns each row's logits, (q or keep, vocabulary)."""
        readings = [(row, [Branch(len(row.ids), new, len(row.ids))] if new else []) for row, new in group]
        logits = self._pass(readings, keep)
        for row, new in group:
            row.ids = row.ids + new
            row.branches = []  # their columns may be written over
        return [(row, own) for (row, _), own in zip(group, logits, strict=True)]

    # --- one pass -----------------------------------------------------------------------------------------------

    def _pass(self, readings: Sequence[Reading], keep: list[int] | None = None) -> list[Logits]:
        """Read all of these in one pass, and the rows between them. Returns each row's logits."""
        rows = [row for row, _ in readings]
        first, last = min(row.index for row in rows), max(row.index for row in rows)
        count, longest = last - first + 1, max(_size(plan) for _, plan in readings)
        if not longest:  # all is known
            return [torch.empty(0)] * len(readings)
        lowest = min(branch.start for _, plan in readings for branch in plan)
        shape = (count, longest)
        ids, begin = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        columns, positions = torch.full(shape, self.rows.scratch), torch.full(shape, lowest)
        # Every new token sees the row up to ``trunk``, and its own branch from ``begin`` to itself.
        trunk = torch.full(shape, lowest + 1)
        for row, plan in readings:
            r, at = row.index - first, 0
            for branch in plan:
                part = slice(at, at + len(branch.ids))
                steps = torch.arange(len(branch.ids))
                ids[r, part] = torch.tensor(branch.ids)
                columns[r, part], positions[r, part] = branch.column + steps, branch.start + steps
                trunk[r, part], begin[r, part] = branch.start, branch.column
                at += len(branch.ids)
        window = self.rows.window
        window.first, window.count, window.lowest, window.start = first, count, lowest, int(columns[0, 0])
        window.width = max(row.width_with(plan) for row, plan in readings)
        tensors = (ids, columns, positions, trunk, begin)
        ids, columns, positions, trunk, begin = (one.to(self.forward.device) for one in tensors)
        window.columns = columns
        mask = self._mask(columns, positions, trunk, begin)
        adapters: list[Any] = [None] * count
        for row in self.rows:
            if first <= row.index <= last:
                adapters[row.index - first] = row.adapter
        try:
            logits = self.forward(
                ids, position_ids=positions, attention_mask=mask, cache=self.rows.cache, keep=keep, adapters=adapters
            )
        except BaseException:  # its rows may lack what they are said to hold
            for row in self.rows:
                if first <= row.index <= last:
                    row.cut(0)
            raise
        self.tokens_read += sum(_size(plan) for _, plan in readings)
        return [logits[row.index - first] for row in rows]

    def _mask(self, columns: Tensor, positions: Tensor, trunk: Tensor, begin: Tensor) -> Any:
        """One mask for all layers, or one for each kind of layer by the name that the model gives it."""
        visible, held = visible_columns(columns, trunk, begin, self.rows.window.width, self.rows.scratch)
        masks = {
            kind: self.forward.as_mask(self._within(visible, held, positions, sliding))
            for kind, sliding in self._mask_kinds.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _within(self, visible: Tensor, held: Tensor, positions: Tensor, sliding: int | None) -> Tensor:
        """What is visible inside a sliding window, of the columns that such a layer shows."""
        if sliding is None:
            return visible
        return (visible & (held > positions[:, :, None] - sliding))[..., self.rows.window.first_column(sliding) :]


def visible_columns(columns: Tensor, trunk: Tensor, begin: Tensor, width: int, scratch: int) -> tuple[Tensor, Tensor]:
    """Which columns each token sees, (rows, q, width), and which position each of them holds."""
    every = torch.arange(width, device=columns.device)
    on_trunk = every < trunk[:, :, None]
    on_branch = (every >= begin[:, :, None]) & (every <= columns[:, :, None])
    on_branch &= (columns < scratch)[:, :, None]
    held = torch.where(on_trunk, every, every - begin[:, :, None] + trunk[:, :, None])
    return on_trunk | on_branch, held


def _mask_kinds(config: Any, windows: Sequence[int | None]) -> dict[str, int | None]:
    """The masks that this model's layers want: name -> sliding window."""
    if len(set(windows)) == 1:
        return {"all": windows[0]}
    types = getattr(config.get_text_config(decoder=True), "layer_types", None) or [
        "full_attention" if window is None else "sliding_attention" for window in windows
    ]
    return dict(zip(types, windows, strict=True))


def _adjacent(missing: list[tuple[Row, list[int]]]) -> list[list[tuple[Row, list[int]]]]:
    """Groups of adjacent rows that lack about equally many tokens, so that little padding is read."""
    groups: list[list[tuple[Row, list[int]]]] = []
    for row, ids in sorted(missing, key=lambda item: item[0].index):
        if groups:
            sizes = [len(new) for _, new in groups[-1]] + [len(ids)]
            fits = max(sizes) <= 1.5 * min(sizes) + 8 and max(sizes) * len(sizes) <= 4 * CHUNK
            if fits and groups[-1][-1][0].index == row.index - 1:
                groups[-1].append((row, ids))
                continue
        groups.append([(row, ids)])
    return groups


def _planned(row: Row, want: Branches) -> list[Branch]:
    """Where each branch begins, and which tokens must be read for it."""
    column, plan = max(len(row.ids), len(want.ids)), []
    for ids in want.branches:
        start = common_prefix(want.ids, ids)
        # Where the logits before its first token are not known, the token before that is read once more.
        reread = start < len(want.ids)
        start -= reread
        plan.append(Branch(start, ids[start:], column, reread))
        column += len(ids) - start
    return plan


def _logits_of(row: Row, length: int, plan: list[Branch], logits: Logits) -> list[Logits]:
    """Per branch the logits before each of its new tokens, and after the last: (tokens + 1, vocabulary)."""
    at, found, before = 0, [], row.logits[length][None]
    for branch in plan:
        own = logits[at : at + len(branch.ids)]
        at += len(branch.ids)
        branch.logits = own[-1].copy() if len(own) else None
        found.append(own if branch.reread else np.concatenate([before, own]) if len(own) else before)
    row.branches = [branch for branch in plan if branch.ids] or row.branches
    return found


def _size(plan: Sequence[Branch]) -> int:
    return sum(len(branch.ids) for branch in plan)


def _remember(known: dict[int, Logits], length: int, logits: Logits, most: int = 3) -> None:
    known.pop(length, None)
    known[length] = logits
    while len(known) > most:
        del known[next(iter(known))]
