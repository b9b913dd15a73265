"""Who has which row of a slab, and how many rows and columns there are: memory grows, shrinks and moves here alone.

Rows are dense, so that a pass is over neighbours. Knows nothing of what is read, or of drafts.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from ._layers import SlabLayer, Where
from ._prefixes import Prefixes
from ._rows import Row
from ._stores import Read, Store

COLUMNS = 128
"""Rows grow by this many columns at least."""
LASTING = 1024
"""Rows that are to stay in place have as many from the beginning, where memory is not short."""


class Seats(Store, ABC):
    """The rows of a slab, and the memory that they lie in."""

    def __init__(self, read: Read, windows: Sequence[int | None], budget: int | None = None, limit: int = 0) -> None:
        super().__init__(read, Prefixes(limit))
        self.where = Where()
        self.windows = list(windows)
        self.cache = Cache(layers=[SlabLayer(self.where, window) for window in self.windows])
        self.rows: dict[str, Row] = {}
        self.capacity = (0, 0)
        self.budget = budget
        self.static = False
        """True: memory stays in place as long as it can, whoever comes and goes."""
        self.captured: dict[Any, Any] = {}
        """What others have captured of passes over this memory: void when it moves."""
        self._weight = sum(weight.nbytes for weight in read.model.parameters())
        """Bytes that every pass reads, whoever is in it."""

    # --- who sits where ------------------------------------------------------------------------------------------

    def _seat(self, keys: Sequence[str], length: int) -> None:
        """A row for each key; where memory is short, the rows least recently used give theirs up."""
        for key in keys:
            if key in self.rows:
                self.rows[key] = self.rows.pop(key)  # most recently used last
        new = [key for key in keys if key not in self.rows]
        self._make_room(keys, len(self.rows) + len(new), length)
        for key in new:
            self.rows[key] = Row(key, len(self.rows), self.read.adapter_of(key))
        self._room(length)
        self._put_long_rows_first()

    def _put_long_rows_first(self) -> None:
        """Rows of like length become neighbours, where that saves more than moving costs; new ones come last anyhow."""
        rows = sorted(self.rows.values(), key=lambda row: row.index)
        widths = [len(row.ids) for row in rows]
        if self.static or self._padding(widths) <= self._weight:
            return
        for place, row in enumerate(rows):
            longest = max(rows[place:], key=lambda other: len(other.ids))
            if len(longest.ids) > 2 * len(row.ids):
                self._swap(row, longest)
                at = rows.index(longest)
                rows[place], rows[at] = longest, row

    def _swap(self, one: Row, other: Row) -> None:
        width = max(self._width(one), self._width(other))
        for memory in self._memories():
            kept = memory[one.index, :, :width].clone()
            memory[one.index, :, :width] = memory[other.index, :, :width]
            memory[other.index, :, :width] = kept
        one.index, other.index = other.index, one.index

    def drop(self, key: str) -> None:
        if key in self.rows:
            try:
                row = self.rows[key]
                for memory in self._memories():
                    # Who has the row next must not find a NaN there: a masked one is still NaN after the softmax.
                    memory[row.index, :, : self._width(row)] = memory[row.index, :, -1:] = 0
            finally:
                self._drop(key)

    def _drop(self, key: str) -> None:
        gone = self.rows.pop(key)
        self.found.pop(key, None)
        if not self.rows and not self.static:
            return self._resize(0, 0)
        last = max(self.rows.values(), key=lambda row: row.index, default=gone)
        self._blank(gone.index)
        if last.index > gone.index:
            # Rows stay dense: the last one moves into the hole.
            width = self._width(last)
            for memory in self._memories():
                memory[gone.index, :, :width] = memory[last.index, :, :width]
            left, last.index = last.index, gone.index
            self._blank(left)

    def _blank(self, index: int) -> None:
        """What is masked is not harmless: in memory that stays, a NaN would spoil whoever comes next."""
        for memory in self._memories() if self.static else ():
            memory[index] = 0.0

    def clear(self) -> None:
        self.rows.clear()
        self.prefixes.clear()
        self._resize(0, 0)

    def _tensors_of(self, row: Row) -> list[Tensor]:
        """The row's keys and values of every layer: (heads, columns, dim)."""
        return [memory[row.index] for memory in self._memories()]

    def _memories(self) -> list[Tensor]:
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        return [memory for layer in layers for memory in (layer.keys, layer.values)]

    # --- room ----------------------------------------------------------------------------------------------------

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """How many of these lengths fit into the memory budget at once."""
        if self.budget is None or not sizes or not self._bytes_per_token():
            return [slice(0, len(sizes))]
        per_batch = max(1, self.budget // (self._bytes_per_token() * rounded(max(sizes) + COLUMNS)))
        return [slice(i, i + per_batch) for i in range(0, len(sizes), per_batch)]

    def make_room(self, keys: Sequence[str], length: int) -> None:
        """So that these rows can have so many tokens each. Others may go for it, and rows change places then."""
        if length >= self.capacity[1]:
            self._make_room(keys, len(self.rows), length)
        self._room(length)

    def _make_room(self, keys: Sequence[str], rows: int, length: int) -> None:
        """For so many rows of this length, these among them; the others go first, least recently used."""
        while not self._fits(rows, max(self.capacity[1], self._needed(length))):
            victim = next((key for key in self.rows if key not in keys), None)
            if self.capacity[1] > self._needed(length):
                self._resize(self.capacity[0], self._needed(length))
            elif victim is None:
                return
            else:
                self._drop(victim)
                rows -= 1

    def _fits(self, rows: int, columns: int) -> bool:
        return self.budget is None or rows * columns * self._bytes_per_token() <= self.budget

    def _needed(self, length: int = 0) -> int:
        """Columns for what is written, and for a row of this length."""
        return rounded(max([length, *(max(self._width(row), row.due) for row in self.rows.values())]) + 1)

    def _padding(self, widths: Sequence[int]) -> int:
        """Bytes that one pass over rows of these widths reads in vain."""
        return (max(widths, default=0) * len(widths) - sum(widths)) * self._bytes_per_token()

    def _width(self, row: Row) -> int:
        """How many of its columns are written, branches and all."""
        return max([len(row.ids), *(branch.column + len(branch.ids) for branch in row.branches)])

    def _tighten(self, factor: int = 2) -> None:
        """Rows and columns that are more than so many times what is needed go back to the device."""
        if self.budget is None or not self.rows or (self.static and factor > 1):
            return
        rows, columns = len(self.rows), self._needed()
        if self.capacity[0] > factor * rows or self.capacity[1] > factor * columns:
            self._resize(min(power(rows) if factor > 1 else rows, self.capacity[0]), min(columns, self.capacity[1]))

    @property
    def held(self) -> int:
        logits = [one for row in self.rows.values() for one in (*row.logits.values(), *row.ends.values())]
        logits += [b.logits for row in self.rows.values() for b in row.branches if b.logits is not None]
        return self._bytes() + self.prefixes.bytes + sum({one.data_ptr(): one.nbytes for one in logits}.values())

    def alone(self, tokens: int) -> int:
        return rounded(tokens) * self._bytes_per_token()

    def fit(self, budget: int, limit: int) -> None:
        super().fit(budget, limit)
        while self.rows and self._bytes() > budget:
            self._tighten(factor=1)
            if self._bytes() > budget:
                self._drop(next(iter(self.rows)))
        if self._bytes() > budget:  # memory that stays in place though nobody has a row in it
            self._resize(0, 0)
        self.prefixes.shrink(min(limit, max(budget - self._bytes(), 0)))

    def _bytes_per_token(self) -> int:
        return sum(memory.shape[1] * memory.shape[3] * memory.element_size() for memory in self._memories())

    def _bytes(self) -> int:
        return self.capacity[0] * self.capacity[1] * self._bytes_per_token()

    def _room(self, length: int) -> None:
        rows, columns = self.capacity
        need_rows, need_columns = len(self.rows), length + 1  # the last column is scratch
        if self.static:
            self._make_lasting_room(need_rows, need_columns)
        elif need_rows > rows or need_columns > columns:
            columns = max(columns, rounded(need_columns))
            more = power(need_rows) if need_rows > rows else rows
            self._resize(more if self._fits(more, columns) else need_rows, columns)
        elif self.budget is not None and rows > 2 * need_rows:
            self._resize(power(need_rows), columns)

    def _make_lasting_room(self, need_rows: int, need_columns: int) -> None:
        """Memory that moves costs all that was captured: it grows by halves at least, and shrinks only if it must."""
        rows, columns = self.capacity
        if need_rows <= rows and need_columns <= columns:
            return
        rows = max(rows, power(need_rows))
        if need_columns > columns:
            columns = -(-max(need_columns, columns * 3 // 2, LASTING) // COLUMNS) * COLUMNS
        if not self._fits(rows, columns):
            rows, columns = power(need_rows), self._needed(need_columns - 1)
        self._resize(rows if self._fits(rows, columns) else need_rows, columns)

    def _resize(self, rows: int, columns: int) -> None:
        self.capacity = (rows, columns)
        self.captured.clear()
        if self.budget is not None:  # queries under way come first
            self.prefixes.shrink(self.budget - self._bytes())
        written = [0] * len(self.rows)
        for row in self.rows.values():
            if row.index < len(written):
                written[row.index] = min(self._width(row), columns)
        for layer in self.cache.layers:
            layer.resize(rows, columns, written)


def rounded(columns: int) -> int:
    return (columns * 5 // 4 // COLUMNS + 1) * COLUMNS


def power(rows: int) -> int:
    return 1 << max(rows - 1, 0).bit_length()
