"""The tensors of a slab: one layer's keys and values for many rows, and who may see which column.

A pass is aimed by :class:`Where`; every layer writes and shows what it says. Knows nothing of queries or drafts.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

LAZY = 1 << 20
"""Bytes from which on memory is had from the system in pages."""


def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Zeros of this kind. On the CPU a page is only taken when it is written: a long row may make all rows wide."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < LAZY or not hasattr(mmap, "MAP_ANONYMOUS"):
        return like.new_zeros(shape)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # given back with the tensor
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


@dataclass
class Where:
    """Which rows and columns the pass under way reads and writes; shared by all layers."""

    first: int = 0
    count: int = 1
    columns: Tensor | None = None
    """(rows, q) columns to write; None: one row, ``start`` and following."""
    index: Tensor | None = None
    """(rows, 1) the rows by number, where they are needed and known beforehand."""
    start: int = 0
    width: int = 0
    """Columns that can be seen."""
    scratch: int = 0
    """The column for what is padding; never seen."""
    lowest: int = 0
    """The lowest position that is read in this pass."""


class SlabLayer(CacheLayerMixin):
    """Keys and values of one layer: (rows, heads, columns, dim), grown as needed."""

    is_sliding = False

    def __init__(self, where: Where, window: int | None) -> None:
        super().__init__()
        self.where = where
        self.window = window
        self.rows = self.columns = 1

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.keys = self._blank(key_states)
        self.values = self._blank(value_states)
        self.is_initialized = True

    def _blank(self, like: Tensor) -> Tensor:
        # Zeros, not garbage: a masked NaN is still NaN after the softmax.
        return zeros((self.rows, like.shape[1], self.columns, like.shape[3]), like)

    def resize(self, rows: int, columns: int, written: Sequence[int]) -> None:
        """So many rows and columns from now on; of each row that was there so much is kept."""
        self.rows, self.columns = rows, columns
        if self.is_initialized:
            self.keys, self.values = self._grown(self.keys, written), self._grown(self.values, written)

    def _grown(self, old: Tensor, written: Sequence[int]) -> Tensor:
        new = self._blank(old)
        rows, columns = min(old.shape[0], self.rows, len(written)), min(old.shape[2], self.columns)
        if old.device.type == "cpu" and 2 * sum(written) < rows * columns:
            for row, width in enumerate(written[:rows]):
                new[row, :, :width] = old[row, :, :width]
        else:
            new[:rows, :, :columns] = old[:rows, :, :columns]
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self._written(self.keys, key_states), self._written(self.values, value_states)

    def _written(self, memory: Tensor, new: Tensor) -> Tensor:  # new: (rows, heads, q, dim)
        where = self.where
        rows = memory[where.first : where.first + where.count]
        if where.columns is None:
            rows[:, :, where.start : where.start + new.shape[2]] = new
        else:
            index = where.index
            if index is None or index.device != memory.device:
                index = torch.arange(where.count, device=memory.device)[:, None]
            rows[index, :, where.columns.to(memory.device)] = new.transpose(1, 2)
        return rows[:, :, lowest_column(where, self.window) : where.width]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.where.width - lowest_column(self.where, self.window), lowest_column(self.where, self.window)

    def get_seq_length(self) -> int:
        return self.where.lowest

    def get_max_length(self) -> int:
        return -1


def lowest_column(where: Where, window: int | None) -> int:
    """The first column that any token of this pass may see: a sliding layer need not look further back."""
    return 0 if window is None else max(0, where.lowest - window + 1)


def causal(positions: Tensor, where: Where) -> tuple[Tensor, Tensor]:
    """Rows without branches: column n holds position n, and sees itself and what is before it.

    Returns who is seen, (rows, q, width), and which position each column holds.
    """
    columns = torch.arange(where.width, device=positions.device)
    return columns <= positions[:, :, None], columns


def tree(columns: Tensor, trunk: Tensor, begin: Tensor, where: Where) -> tuple[Tensor, Tensor]:
    """Branches see their row up to ``trunk`` and themselves from column ``begin`` on; nothing of their siblings."""
    every = torch.arange(where.width)
    on_trunk = every < trunk[:, :, None]
    on_branch = (every >= begin[:, :, None]) & (every <= columns[:, :, None])
    on_branch &= (columns < where.scratch)[:, :, None]
    held = torch.where(on_trunk, every, every - begin[:, :, None] + trunk[:, :, None])
    return on_trunk | on_branch, held


def within(seen: Tensor, held: Tensor, positions: Tensor, where: Where, window: int | None) -> Tensor:
    """The part of ``seen`` that lies within a sliding window, for the columns that such a layer shows."""
    if window is None:
        return seen
    return (seen & (held > positions[:, :, None] - window))[..., lowest_column(where, window) :]
