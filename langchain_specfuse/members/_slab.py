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
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ._adapters import Adapter
from ._layers import causal, tree, within
from ._mishaps import is_shortage
from ._passes import Place, passes
from ._prefixes import ENDS, Prefix, closest, common_prefix
from ._rows import Branch, Row
from ._seats import Seats
from ._stores import DEEP, LEAST, PREFILL, Fan, Read

T = TypeVar("T")


class Slab(Seats):
    """Many queries' keys and values, read together."""

    can_turn_back = True

    def __init__(self, read: Read, windows: Sequence[int | None], budget: int | None = None, limit: int = 0) -> None:
        super().__init__(read, windows, budget, limit)
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
        new = {key for key, _ in wants if self._is_new(key)} if self.prefixes.limit else set()
        # Held while rows are made: what gives its memory up for them may be what they begin with.
        spared = [prefix for key, ids in wants if key in new and (prefix := self._closest_of_kin(key, ids))]
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

    def missing(self, key: str, ids: list[int]) -> int:
        row = self.rows.get(key)
        known = common_prefix(row.ids, ids) if row else 0
        if row:
            known = max([known, *(common_prefix(row.ids[: b.start] + b.ids, ids) for b in row.branches)])
        if self._is_new(key) and self.prefixes.limit:
            adapter = self.read.adapter_of(key)
            shared = closest([*self._prefixes_of_kin(adapter), *self._rows_of_kin(adapter, row)], ids)[1]
            known = max(known, shared if shared >= self.prefixes.least else 0)
        return len(ids) - known

    def ahead(self, key: str, ids: list[int]) -> int:
        new = self._is_new(key)
        spared = self._closest_of_kin(key, ids) if new else None
        self._seat([key], len(ids))
        row = self.rows[key]
        row.due = len(ids)
        if new and self.prefixes.limit:
            self._begin(row, ids, [spared] if spared else [])
        self._settle(row, ids)
        known = common_prefix(row.ids, ids)
        row.cut(known)
        part = ids[known : known + self._size_at(known)]
        self._feed([(row, part)])
        row.ahead += len(part)
        return len(ids) - known - len(part)

    def _read_missing(self, wants: Sequence[tuple[str, list[int]]], exact: bool) -> None:
        missing = []
        for key, ids in wants:
            row = self.rows[key]
            self._settle(row, ids)
            known = common_prefix(row.ids, ids)
            complete = known == len(ids) and known in row.logits
            known = known if complete else min(known, len(ids) - 1)
            self.found[key] = max(known - row.ahead, 0)
            self.reused += self.found[key]
            row.ahead, row.due, row.asked = 0, 0, True
            if exact or not complete:
                row.cut(known)
            if not complete:
                missing.append((row, ids[known:]))
        for near in _adjacent(missing):
            for group in self._parts(near, [len(row.ids) + len(new) for row, new in near], [row for row, _ in near]):
                self._feed(group)

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        rows = [self.rows[key] for key in keys]
        longest = max(len(row.ids) for row in rows) + 1
        if longest >= self.capacity[1]:
            self._make_room(keys, len(self.rows), longest)
        self._room(longest)
        parts = self._parts(list(zip(rows, tokens, strict=True)), [len(row.ids) + 1 for row in rows], rows)
        if len(parts) == 1:
            return self._step(rows, tokens)
        logits = {
            row.key: one
            for part in parts
            for (row, _), one in zip(part, self._step(*zip(*part, strict=True)), strict=True)
        }
        return torch.stack([logits[row.key] for row in rows])

    def _step(self, rows: Sequence[Row], tokens: Sequence[int]) -> Tensor:
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
            row.branches = row.apart()
        self._aim(first, count, columns, max(len(row.ids) for row in rows), lowest)
        logits = self._pass(ids, positions, causal(positions, self.where), keep=None)[:, -1]
        self.passed += len(rows)
        return logits if count == len(rows) and _ordered(rows) else logits[[row.index - first for row in rows]]

    def stride(self, wants: Sequence[tuple[str, list[int]]]) -> list[Tensor]:
        rows = [self.rows[key] for key, _ in wants]
        longest = max(len(row.ids) + len(new) for row, (_, new) in zip(rows, wants, strict=True))
        if longest >= self.capacity[1]:
            self._make_room([key for key, _ in wants], len(self.rows), longest)
        self._room(longest)
        told: dict[str, Tensor] = {}
        asked = [(row, new) for row, (_, new) in zip(rows, wants, strict=True)]
        for part in self._parts(asked, [len(row.ids) + len(new) for row, new in asked], rows):
            logits, first = self._append(part, keep=None), min(row.index for row, _ in part)
            told |= {row.key: logits[row.index - first, : len(new)] for row, new in part}
        return [told[row.key] for row in rows]

    def turn_back(self, key: str, ids: list[int]) -> None:
        row = self.rows[key]
        kept = row.branches
        self._settle(row, ids)
        assert row.ids[: len(ids)] == ids, "only what has been read can be turned back to"
        row.cut(len(ids))
        row.branches = kept
        row.branches = row.apart()

    def hop(self, ids: Tensor, positions: Tensor, columns: Tensor, width: int) -> Tensor:
        """One more token for the first rows, all (rows, 1) and on the device: the logits after it, (rows, vocabulary).

        Nothing here depends on what the tensors hold, so that it can be captured. Rows are told by :meth:`went_on`.
        """
        where = self.where
        where.first, where.count, where.columns, where.width, where.lowest = 0, len(ids), columns, width, 0
        where.index = torch.arange(where.count, device=columns.device)[:, None]
        try:
            # Which rows have an adapter is told outside of the tensors: nobody leaps who has one.
            plain = [None] * where.count
            return self._pass(ids, positions, causal(positions, where), keep=None, adapters=plain)[:, -1]
        finally:
            where.index = None

    def went_on(self, row: Row, tokens: Sequence[int]) -> None:
        """This row has read these tokens in hops."""
        row.ids = [*row.ids, *tokens]
        row.branches = row.apart()
        self.passed += len(tokens)

    def pin(self, key: str, length: int, logits: Tensor) -> None:
        _remember(self.rows[key].logits, length, logits)

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        self.lead([(want.key, want.ids) for want in wants])
        rows = [self.rows[want.key] for want in wants]
        plans = [self._planned(row, want) for row, want in zip(rows, wants, strict=True)]
        widths = [_reach(row, plan) for row, plan in zip(rows, plans, strict=True)]
        self._make_room([want.key for want in wants], len(self.rows), max(widths))
        self._room(max(widths))
        told: dict[str, list[Tensor]] = {}
        for part in self._parts(list(zip(wants, plans, strict=True)), widths, rows):
            now, planned = zip(*part, strict=True)
            told |= {want.key: one for want, one in zip(now, self._read_branches(now, planned), strict=True)}
        return [told[want.key] for want in wants]

    def forget(self, key: str) -> None:
        if key in self.rows:
            self._keep(self.rows[key])
            self._drop(key)
            self._tighten()

    # --- prefixes -----------------------------------------------------------------------------------------------

    def _begin(self, row: Row, ids: list[int], spared: Sequence[Prefix]) -> None:
        """A new row begins with a copy of what has been read of the same tokens, here or by the row's kin."""
        rows = self._rows_of_kin(row.adapter, row)
        mine = [prefix for prefix in spared if prefix.mark == row.mark]
        found, shared = closest([*mine, *self._prefixes_of_kin(row.adapter), *rows], ids)
        if found is None or shared < self.prefixes.least or shared <= len(row.ids):
            return
        self.prefixes.use(found)
        for memory, old in zip(self._memories(), found.memory(), strict=True):
            memory[row.index, :, :shared] = old[:, :shared]
        row.ids, row.logits = ids[:shared], {n: logits for n, logits in found.ends.items() if n <= shared}
        row.ends = dict(row.logits)

    def _rows_of_kin(self, adapter: Adapter | None, but: Row | None) -> list[Prefix]:
        """What others hold of queries that are under way."""
        return [
            Prefix(other.ids, partial(slab._tensors_of, other), ends=other.ends)
            for slab in self._family()
            for other in slab.rows.values()
            if other is not but and other.adapter is adapter
        ]

    def _is_new(self, key: str) -> bool:
        return key not in self.rows or not self.rows[key].asked

    def _closest_of_kin(self, key: str, ids: list[int]) -> Prefix | None:
        return closest(self._prefixes_of_kin(self.read.adapter_of(key)), ids)[0]

    def _parted(self, wants: Sequence[tuple[str, list[int]]], new: set[str]) -> tuple[Any, Any]:
        """Whom to read now, and who does better to wait for one of them, of whom a long beginning can be copied."""
        now: list[tuple[str, list[int]]] = []
        later: list[tuple[str, list[int]]] = []
        for key, ids in wants:
            mine = self.rows[key].adapter
            others = [other for one, other in now if one in new and self.rows[one].adapter is mine]
            alike = max((common_prefix(ids, other) for other in others), default=0)
            waits = key in new and alike - len(self.rows[key].ids) >= self.prefixes.least
            (later if waits else now).append((key, ids))
        return now, later

    def _keep(self, row: Row) -> None:
        """The row's tokens as a prefix for queries to come, as many as fit."""
        per_token = self._bytes_per_token()
        rest = self._bytes() if self.static or len(self.rows) > 1 else 0  # of the slab, when this row is gone
        room = self.prefixes.limit if self.budget is None else min(self.prefixes.limit, self.budget - rest)
        size = min(len(row.ids), max(room, 0) // per_token if per_token else 0)
        ends = {n: logits.clone() for n, logits in row.ends.items() if n <= size}
        held = size * per_token + sum(one.nbytes for one in ends.values())
        made = Prefix(row.ids[:size], None, held, ends, row.mark)

        def memory() -> Callable[[], list[Tensor]]:
            apart = [one[:, :size].clone() for one in self._tensors_of(row)]
            return lambda: apart

        try:
            self.prefixes.keep(made, memory, room, self._prefixes_of_kin(row.adapter))
        except Exception as error:
            if not is_shortage(error):
                raise
            self.prefixes.clear()

    def _parts(self, asked: Sequence[T], widths: Sequence[int], rows: Sequence[Row]) -> list[list[T]]:
        """What is asked of these rows, pass by pass: a pass is as wide as its longest row."""
        if self._padding(widths) <= self._weight:
            return [list(asked)]
        order = sorted(range(len(rows)), key=lambda at: rows[at].index)
        places = [Place(rows[at].index, widths[at]) for at in order]
        cuts = passes(places, self._weight / self._bytes_per_token())
        return [[asked[at] for at in order[cut]] for cut in cuts]

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
            size = self._size_at(max(len(row.ids) for row, _ in group))
            self._feed_chunk([(row, ids[start : start + size]) for row, ids in group])
            start += size

    def _size_at(self, known: int) -> int:
        """How many tokens one pass reads behind so many."""
        return max(self.piece >> (known // DEEP).bit_length(), self.piece // LEAST, 1)

    def _feed_chunk(self, group: Sequence[tuple[Row, list[int]]]) -> None:
        ends = sorted({len(new) - 1 for _, new in group if new})
        logits = self._append(group, keep=ends)
        for i, (row, new) in enumerate(group):
            if new:
                _remember(row.logits, len(row.ids), logits[i, ends.index(len(new) - 1)])

    def _append(self, group: Sequence[tuple[Row, list[int]]], keep: list[int] | None) -> Tensor:
        """One pass over more tokens of these rows, and of those that lie between: (rows, q or keep, vocabulary)."""
        first, longest = min(row.index for row, _ in group), max(len(new) for _, new in group)
        count = max(row.index for row, _ in group) - first + 1
        ids = torch.zeros((count, longest), dtype=torch.long)
        columns = torch.full((count, longest), self.capacity[1] - 1)
        lowest = min(len(row.ids) for row, new in group if new)
        positions = torch.full((count, longest), lowest)
        for row, new in group:
            i, at = row.index - first, torch.arange(len(row.ids), len(row.ids) + len(new))
            ids[i, : len(new)], columns[i, : len(new)], positions[i, : len(new)] = torch.tensor(new), at, at
        for row, new in group:
            row.ids = row.ids + new
            row.branches = row.apart()
        self._aim(first, count, columns, max(len(row.ids) for row, _ in group), lowest)
        logits = self._pass(ids, positions, causal(positions, self.where), keep=keep)
        self.passed += sum(len(new) for _, new in group)
        return logits

    def _planned(self, row: Row, want: Fan) -> list[Branch]:
        """Where each branch begins and which tokens it must read."""
        before = [branch.column + len(branch.ids) for branch in row.branches if want.beside]
        column, plan = max(len(row.ids), len(want.ids) + want.apart, *before), []
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
        width = max(_reach(row, plan) for row, plan in zip(rows, plans, strict=True))
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
        row.branches = (row.branches if want.beside else []) + [branch for branch in plan if branch.ids]
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

    def _pass(
        self,
        ids: Tensor,
        positions: Tensor,
        view: tuple[Tensor, Tensor],
        keep: list[int] | None,
        adapters: Sequence[Adapter | None] | None = None,
    ) -> Tensor:
        mask = self._mask(*view, positions)
        rows = self._adapters() if adapters is None else adapters
        try:
            return self.read(ids, position_ids=positions, attention_mask=mask, cache=self.cache, keep=keep, rows=rows)
        except BaseException:
            self._void()
            raise

    def _adapters(self) -> list[Adapter | None]:
        """Those of the rows that the pass is aimed at."""
        first, count = self.where.first, self.where.count
        own = {row.index: row.adapter for row in self.rows.values()}
        return [own.get(index) for index in range(first, first + count)]

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


def _reach(row: Row, plan: Sequence[Branch]) -> int:
    """The columns that a row takes with these branches."""
    return max([len(row.ids), *(branch.column + len(branch.ids) for branch in plan)])


def _ordered(rows: Sequence[Row]) -> bool:
    return all(a.index < b.index for a, b in zip(rows, rows[1:], strict=False))
