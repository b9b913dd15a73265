"""The forward pass of a model of transformers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..local.strands import Logits
from .lora import Adapter, Adapters
from .rows import Rows

_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "MPS backend out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device has no memory left. Some libraries have no error class of their own for
    that."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Forward:
    """A forward pass of the model, with the optional arguments that its ``forward`` takes."""

    def __init__(self, model: Any, adapters: Adapters) -> None:
        self.model = model
        self.adapters = adapters
        self.attention = getattr(model.config, "_attn_implementation", "eager")
        self._parameters = inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def __call__(
        self, ids: list[int], *, cache: Any = None, rows: int = 1, adapter: Adapter | None = None
    ) -> Logits:
        """The logits after each of the last ``rows`` of these tokens: (rows, vocabulary)."""
        logits = self._logits([ids], cache, rows, adapter)[0]
        last: Logits = logits[len(logits) - rows :].float().cpu().numpy()
        return last

    def together(
        self,
        parts: Sequence[Sequence[int]],
        rows: Rows,
        wanted: Sequence[int],
        adapter: Adapter | None = None,
    ) -> list[Logits]:
        """Read one part in each row. Returns the logits after so many of its last tokens."""
        sizes = [len(part) for part in parts]
        most = max(sizes)
        padded = [[*part, *[part[-1]] * (most - len(part))] for part in parts]
        first = min(size - count for size, count in zip(sizes, wanted, strict=True))
        given = rows.padding(sizes, self.device)
        known = {name: given[name] for name in given if name in self._parameters}
        logits = self._logits(padded, rows.cache, most - first, adapter, **known)
        first = most - logits.shape[1]  # 0 if the model cannot leave logits out
        ends = [size - first for size in sizes]
        pairs = enumerate(zip(ends, wanted, strict=True))
        kept = torch.cat([logits[row, end - count : end] for row, (end, count) in pairs])
        found = np.split(kept.float().cpu().numpy(), np.cumsum(wanted)[:-1])
        # Copies, because a view would keep the logits of all rows in memory.
        return [part.copy() for part in found]

    def _logits(
        self,
        ids: Sequence[Sequence[int]],
        cache: Any,
        count: int,
        adapter: Adapter | None,
        **arguments: Tensor,
    ) -> Tensor:
        """The logits after at least the last ``count`` tokens: (texts, tokens, vocabulary)."""
        given: dict[str, Any] = dict(arguments)
        if cache is not None:
            given["past_key_values"] = cache
        if "logits_to_keep" in self._parameters:
            given["logits_to_keep"] = max(count, 1)
        if "use_cache" in self._parameters:
            given["use_cache"] = cache is not None
        with self.adapters.reading(adapter):
            input_ids = torch.tensor(ids, device=self.device)
            logits: Tensor = self.model(input_ids=input_ids, **given).logits
        return logits
