"""Several texts as the rows of one cache of transformers, so that one pass reads all of them.

Rows are padded on the left, as prompts are in a batch of ``generate``: the distances between tokens
stay right, and so do the model's own masks, even those of sliding windows. transformers' continuous
batching was considered instead, but its paged cache can only draft: it cannot score a given text,
and it cannot be copied or cut back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from ..local.strands import Strand


class Rows:
    """The keys and values of several strands. While a strand is here, this is its state."""

    def __init__(self, strands: Sequence[Strand]) -> None:
        """Move the keys and values of these strands here, layer by layer, to save memory."""
        self.strands = list(strands)
        self.width = max(len(strand.ids) for strand in strands)
        """The number of columns."""
        self.starts = [self.width - len(strand.ids) for strand in strands]
        """The first column of each row that is not padding."""
        self.cache = DynamicCache()
        try:
            self._gather([strand.state for strand in strands])
        except Exception:
            self.empty()
            raise
        for strand in strands:
            strand.state = self

    def _gather(self, states: Sequence[DynamicCache]) -> None:
        for index in range(max(len(state.layers) for state in states)):
            layers = [state.layers[index] if state.layers else DynamicLayer() for state in states]
            like = next((layer for layer in layers if layer.is_initialized), None)
            new = DynamicLayer()
            if like is not None:
                new.lazy_initialization(like.keys, like.values)
                new.keys = self._padded(like.keys, [layer.keys for layer in layers])
                new.values = self._padded(like.values, [layer.values for layer in layers])
            self.cache.layers.append(new)
            for state in states:
                if state.layers:
                    state.layers[index] = DynamicLayer()

    def _padded(self, like: Tensor, parts: Sequence[Tensor | None]) -> Tensor:
        """One row for each part, which ends in the last column: (rows, heads, width, size)."""
        # Zeros, because a NaN in the padding would spread even where it is masked.
        rows = like.new_zeros((len(parts), like.shape[1], self.width, like.shape[3]))
        for row, part in enumerate(parts):
            if part is not None:
                rows[row, :, self.starts[row] :] = part[0]
        return rows

    @property
    def bytes_each(self) -> int:
        """The share of each strand in the memory of all rows."""
        layers = [layer for layer in self.cache.layers if layer.is_initialized]
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        return size // max(1, sum(strand.state is self for strand in self.strands))

    # --- reading ----------------------------------------------------------------------------------

    def padding(self, sizes: Sequence[int], device: torch.device) -> dict[str, Tensor]:
        """The mask and the positions for a pass that appends so many tokens to each row. Shorter
        ones are padded on the right."""
        most = max(sizes)
        starts = torch.tensor(self.starts)[:, None]
        new = torch.tensor(sizes)[:, None]
        columns = torch.arange(self.width + most)
        visible = (columns >= starts) & (columns < self.width + new)
        # Padding has positions, too, and a model may know no more of them than its context has.
        positions = self.width - starts + torch.arange(most).minimum(new - 1)
        return {"attention_mask": visible.long().to(device), "position_ids": positions.to(device)}

    def append(self, parts: Sequence[Sequence[int]]) -> None:
        """Note that these tokens were read, one part for each row."""
        for strand, tokens in zip(self.strands, parts, strict=True):
            strand.ids += tokens
        if len({len(part) for part in parts}) == 1:
            self.width += len(parts[0])
        else:  # Rows must end in the same column.
            self.dissolve()

    # --- leaving ----------------------------------------------------------------------------------

    def keep(self, strands: Collection[Strand]) -> None:
        """Give all other strands their own states back."""
        rows = [row for row, strand in enumerate(self.strands) if strand in strands]
        if len(rows) == len(self.strands):
            return
        others = [row for row in range(len(self.strands)) if row not in rows]
        self._give_back(others)
        padding = min(self.starts[row] for row in rows)
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys = layer.keys[rows, :, padding:]
                layer.values = layer.values[rows, :, padding:]
        self.strands = [self.strands[row] for row in rows]
        self.starts = [self.starts[row] - padding for row in rows]
        self.width -= padding

    def separate(self, strand: Strand) -> None:
        """Give one strand its own state back. The others stay here."""
        self._give_back([self.strands.index(strand)])

    def dissolve(self) -> None:
        """Give all strands their own states back."""
        self._give_back(range(len(self.strands)), last=True)

    def empty(self) -> None:
        """Empty all strands: what was read is lost."""
        for strand in self.strands:
            strand.state = DynamicCache()
            strand.cut(0)
        self.cache.layers.clear()  # an error may still refer to the cache

    def _give_back(self, rows: Iterable[int], *, last: bool = False) -> None:
        strands = {row: self.strands[row] for row in rows if self.strands[row].state is self}
        states = {row: DynamicCache() for row in strands}
        try:
            for layer in self.cache.layers:
                for row, state in states.items():
                    state.layers.append(self._layer_of(layer, row))
                if last:
                    layer.keys = layer.values = None
        except Exception:
            self.empty()
            raise
        for row, strand in strands.items():
            strand.state = states[row]

    def _layer_of(self, layer: DynamicLayer, row: int) -> DynamicLayer:
        own = DynamicLayer()
        if layer.is_initialized:
            columns = slice(self.starts[row], self.starts[row] + len(self.strands[row].ids))
            keys = layer.keys[row : row + 1, :, columns].clone()
            values = layer.values[row : row + 1, :, columns].clone()
            own.lazy_initialization(keys, values)
            own.keys, own.values = keys, values
        return own
