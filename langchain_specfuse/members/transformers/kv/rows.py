"""The memory of the batched cache: tensors with a row per sequence and a column per token, and who has which row.

Rows lie next to each other, so that a pass reads a range of them. Memory grows, shrinks and moves here alone. Knows
tokens and tensors; nothing of what is read, or of drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from ...local.prefixes import Prefixes
from ...local.store import Logits, SequenceKey
from ..lora import Adapter

COLUMNS = 128
"""Rows grow by at least this many columns."""


@dataclass
class Window:
    """Which rows and columns the pass under way reads and writes. All layers share it."""

    first: int = 0
    """The first row."""
    count: int = 1
    """Number of rows."""
    columns: Tensor = field(default_factory=lambda: torch.zeros((1, 1), dtype=torch.long))
    """(rows, q): the columns to write."""
    start: int = 0
    """The first of them."""
    width: int = 0
    """Number of columns that can be seen."""
    lowest: int = 0
    """The lowest position that this pass reads."""

    def first_column(self, sliding: int | None) -> int:
        """The first column that any token of this pass may see, in a layer with this sliding window."""
        return 0 if sliding is None else max(0, self.lowest - sliding + 1)


class KVLayer(CacheLayerMixin):
    """Keys and values of one layer: (rows, heads, columns, dim)."""

    is_sliding = False

    def __init__(self, window: Window, sliding: int | None) -> None:
        super().__init__()
        self.window = window
        self.sliding = sliding
        self.rows = self.columns = 1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._zeros(key_states)
        self.values = self._zeros(value_states)
        self.is_initialized = True

    def _zeros(self, like: Tensor) -> Tensor:
        """Zeros, because a masked NaN is still NaN after the softmax. numpy's take memory only where they are written:
        one long row makes all rows wide."""
        shape = (self.rows, like.shape[1], self.columns, like.shape[3])
        if like.device.type != "cpu" or not all(shape):
            return like.new_zeros(shape)
        return torch.from_numpy(np.zeros(math.prod(shape) * like.element_size(), np.uint8)).view(like.dtype).view(shape)

    def resize(self, rows: int, columns: int, written: Sequence[int]) -> None:
        """``written``: how many columns of each existing row must be kept."""
        self.rows, self.columns = rows, columns
        if self.is_initialized:
            self.keys, self.values = self._resized(self.keys, written), self._resized(self.values, written)

    def _resized(self, old: Tensor, written: Sequence[int]) -> Tensor:
        new = self._zeros(old)
        for row, width in enumerate(written[: min(self.rows, len(old))]):
            new[row, :, :width] = old[row, :, :width]
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._write(self.keys, key_states), self._write(self.values, value_states)

    def _write(self, memory: Tensor, new: Tensor) -> Tensor:  # new: (rows, heads, q, dim)
        window = self.window
        rows = memory[window.first : window.first + window.count]
        if window.count == 1:  # without padding, and its columns are consecutive
            rows[:, :, window.start : window.start + new.shape[2]] = new
        else:
            index = torch.arange(window.count, device=memory.device)[:, None]
            rows[index, :, window.columns.to(memory.device)] = new.transpose(1, 2)
        return rows[:, :, window.first_column(self.sliding) : window.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        first = self.window.first_column(self.sliding)
        return self.window.width - first, first

    def get_seq_length(self) -> int:
        return self.window.lowest

    def get_max_length(self) -> int:
        return -1


@dataclass
class Branch:
    """Tokens that continue a sequence from ``start``, written from ``column`` on. Behind the row's own tokens they are
    apart until they win or are forgotten."""

    start: int
    ids: list[int]
    column: int
    reread: bool = False
    """True: its first token is the last one shared with the row, read once more for the logits after it."""
    logits: Logits | None = None
    """After its last token."""


@dataclass
class Row:
    """One sequence in the cache."""

    key: SequenceKey
    index: int
    adapter: Adapter | None = None
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    ends: dict[int, Logits] = field(default_factory=dict)
    """The same where prompts ended, of this query and of those that it continues."""
    branches: list[Branch] = field(default_factory=list)
    read_ahead: int = 0
    """Tokens that were read in chunks since the last job was done."""
    expected: int = 0
    """Its length once all chunks have been read."""
    used: bool = False
    """Whether any job was done. Until then it only holds chunks that were read ahead."""

    @property
    def width(self) -> int:
        """How many of its columns are written, with branches."""
        return self.width_with(self.branches)

    def width_with(self, branches: Sequence[Branch]) -> int:
        return max([len(self.ids), *(branch.column + len(branch.ids) for branch in branches)])

    def cut(self, length: int) -> None:
        """Keep only the first tokens."""
        self.ids = self.ids[:length]
        self.logits = {n: logits for n, logits in self.logits.items() if n <= length}
        self.ends = {n: logits for n, logits in self.ends.items() if n <= length}
        self.branches = []


class Rows:
    """All rows, least recently used first, and the memory in which they lie."""

    def __init__(self, windows: Sequence[int | None], prefixes: Prefixes) -> None:
        self.window = Window()
        self.cache = Cache(layers=[KVLayer(self.window, sliding) for sliding in windows])
        self.by_key: dict[SequenceKey, Row] = {}
        self.capacity = (0, 0)
        self.budget: int | None = None
        self._prefixes = prefixes

    def __getitem__(self, key: SequenceKey) -> Row:
        return self.by_key[key]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.by_key.values())

    @property
    def scratch(self) -> int:
        """The column where padding is written. No mask ever shows it."""
        return self.capacity[1] - 1

    def allocate(self, wants: Sequence[tuple[SequenceKey, Adapter | None]], length: int) -> None:
        """A row of this length for each key."""
        for key, _ in wants:
            if key in self.by_key:
                self.by_key[key] = self.by_key.pop(key)  # most recently used last
        new = [(key, adapter) for key, adapter in wants if key not in self.by_key]
        self.make_room([key for key, _ in wants], length, more=len(new))
        for key, adapter in new:
            self.by_key[key] = Row(key, len(self.by_key), adapter)

    def make_room(self, keys: Sequence[SequenceKey], length: int, more: int = 0) -> None:
        """Memory for all rows and ``more``, of this length each. Where it is short, rows other than these are freed,
        least recently used first."""
        rows = len(self.by_key) + more
        if rows <= self.capacity[0] and length <= self.scratch:
            return
        while not self._fits(rows, self._columns_for(length)):
            victim = next((key for key in self.by_key if key not in keys), None)
            if victim is None:
                break
            self.free(victim)
            rows -= 1
        columns = self._columns_for(length)
        if self._fits(rows, self.capacity[1]):
            columns = max(columns, self.capacity[1])
        wanted = self.capacity[0] if rows <= self.capacity[0] else power_of_two(rows)
        self._resize(wanted if self._fits(wanted, columns) else rows, columns)

    def free(self, key: SequenceKey) -> None:
        gone = self.by_key.pop(key)
        if not self.by_key:
            return self._resize(0, 0)
        last = max(self, key=lambda row: row.index)
        if last.index > gone.index:  # rows stay dense: the last one moves into the gap
            for memory in self.memories():
                memory[gone.index, :, : last.width] = memory[last.index, :, : last.width]
            last.index = gone.index

    def blank(self, key: SequenceKey) -> None:
        """Overwrite the row with zeros: a NaN would spoil the next sequence there, even where it is masked."""
        row = self.by_key[key]
        for memory in self.tensors_of(row):
            memory[:, : row.width] = memory[:, self.scratch :] = 0

    def clear(self) -> None:
        self.by_key.clear()
        self._resize(0, 0)

    def tighten(self) -> None:
        """Give back rows and columns that are more than twice what is needed."""
        if self.by_key and self.budget is not None:
            rows, columns = len(self.by_key), self._columns_for()
            if self.capacity[0] > 2 * rows or self.capacity[1] > 2 * columns:
                self._resize(min(power_of_two(rows), self.capacity[0]), min(columns, self.capacity[1]))

    def set_budget(self, budget: int) -> None:
        self.budget = budget
        while self.by_key and self.bytes > budget:
            tight = len(self.by_key), min(self._columns_for(), self.capacity[1])
            if self.capacity == tight:
                self.free(next(iter(self.by_key)))
            else:
                self._resize(*tight)

    def memories(self) -> list[Tensor]:
        """Keys and values of every layer: (rows, heads, columns, dim)."""
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        return [memory for layer in layers for memory in (layer.keys, layer.values)]

    def tensors_of(self, row: Row) -> list[Tensor]:
        """The row's keys and values of every layer: (heads, columns, dim)."""
        return [memory[row.index] for memory in self.memories()]

    @property
    def bytes_per_token(self) -> int:
        return sum(memory.shape[1] * memory.shape[3] * memory.element_size() for memory in self.memories())

    @property
    def bytes(self) -> int:
        return self.capacity[0] * self.capacity[1] * self.bytes_per_token

    def _fits(self, rows: int, columns: int) -> bool:
        return self.budget is None or rows * columns * self.bytes_per_token <= self.budget

    def _columns_for(self, length: int = 0) -> int:
        """Columns for what is written, and for a row of this length."""
        return rounded(max([length, *(max(row.width, row.expected) for row in self)]) + 1)

    def _resize(self, rows: int, columns: int) -> None:
        self.capacity = (rows, columns)
        if self.budget is not None:  # open queries come before kept prefixes
            self._prefixes.shrink(self.budget - self.bytes)
        written = [0] * len(self.by_key)
        for row in self:
            if row.index < len(written):
                written[row.index] = min(row.width, columns)
        for layer in self.cache.layers:
            layer.resize(rows, columns, written)


def rounded(columns: int) -> int:
    """Some more columns than are needed now, so that a row need not grow at every token."""
    return (columns * 5 // 4 // COLUMNS + 1) * COLUMNS


def power_of_two(rows: int) -> int:
    return 1 << max(rows - 1, 0).bit_length()
