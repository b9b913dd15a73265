"""A forward pass of the model, and the slowest store, which is right for every model.

- :class:`.cache.BatchedCache` does all of it in few passes, for attention layers of any kind;
- :class:`.snapshots.Snapshots` copies the model's own cache, for recurrent states, which cannot be cut back;
- :class:`NoCache` keeps nothing.

Which of them agrees with a model is tried when it is loaded (:mod:`.trial`).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...local.prefixes import Prefixes, common_prefix
from ...local.store import Branches, Logits, SequenceKey, Store
from ..lora import Adapter, Adapters

CHUNK = 1024
"""At most this many tokens of a sequence are read in one pass: bounds the memory of a long prompt."""
CPU_CHUNK = 64
"""The same on a CPU, where a pass over this many tokens takes about as long as drafting ten."""
_OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device has no memory left. Some libraries have no error class of their own for that."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Forward:
    """A forward pass of the model. Knows which optional arguments this model's ``forward`` takes.

    ``own``: the adapter of sequences that name none.
    """

    def __init__(self, model: Any, adapters: Adapters | None = None, own: Adapter | None = None) -> None:
        self.model = model
        self.adapters = adapters or Adapters(model)
        self.own = own
        self.attention = getattr(model.config, "_attn_implementation", "eager")
        self._parameters = inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def takes_positions(self) -> bool:
        """Whether rows of different lengths can be read together, with our own positions and masks."""
        return "position_ids" in self._parameters and self.attention in ("sdpa", "eager")

    def as_mask(self, visible: Tensor) -> Tensor:  # (rows, q, columns) of bool -> (rows, 1, q, columns)
        visible = visible[:, None]
        if self.attention == "sdpa":
            return visible
        hidden = torch.finfo(self.model.dtype).min
        return torch.zeros(visible.shape, dtype=self.model.dtype, device=visible.device).masked_fill_(~visible, hidden)

    def adapter_of(self, key: SequenceKey) -> Adapter | None:
        return key.adapter or self.own

    def __call__(
        self,
        ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Any = None,
        cache: Any = None,
        keep: list[int] | None = None,
        adapters: Sequence[Adapter | None],
    ) -> Logits:
        """Logits (rows, q or len(keep), vocabulary). ``adapters``: one per row."""
        arguments = {"position_ids": position_ids, "attention_mask": attention_mask}
        arguments["past_key_values" if "past_key_values" in self._parameters else "cache_params"] = cache
        narrow = keep is not None and "logits_to_keep" in self._parameters
        if narrow:
            arguments["logits_to_keep"] = torch.tensor(keep)  # on the CPU, as the head may be on another device
        given = {name: value for name, value in arguments.items() if value is not None}
        if "use_cache" in self._parameters:
            given["use_cache"] = cache is not None
        with self.adapters.reading(adapters):
            logits = self.model(input_ids=ids.to(self.device), **given).logits
        wanted: Logits = (logits if narrow or keep is None else logits[:, keep]).float().cpu().numpy()
        return wanted


class TorchStore(Store):
    """A store that a forward pass fills."""

    def __init__(self, forward: Forward, prefixes: Prefixes | None = None) -> None:
        super().__init__(str(forward.device), CPU_CHUNK if forward.device.type == "cpu" else CHUNK, prefixes)
        self.forward = forward

    def adapter_of(self, key: SequenceKey) -> Adapter | None:
        return self.forward.adapter_of(key)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def free_memory(self) -> None:
        super().free_memory()
        torch.cuda.empty_cache()


class NoCache(TorchStore):
    """Every pass reads everything. Right for whatever can be read at all; the other kinds are measured by it."""

    kind = "no cache"

    def __init__(self, forward: Forward) -> None:
        super().__init__(forward)
        self._ids: dict[SequenceKey, list[int]] = {}

    def prefill(self, wants: Sequence[tuple[SequenceKey, list[int]]], *, drafting: bool = False) -> list[Logits]:
        self._ids |= {key: list(ids) for key, ids in wants}
        self.found |= {key: 0 for key, _ in wants}
        return [self._read(key, ids)[-1] for key, ids in wants]

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        for key, token in zip(keys, tokens, strict=True):
            self._ids[key].append(token)
        return [self._read(key, self._ids[key])[-1] for key in keys]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        self.found |= {want.key: 0 for want in wants}
        return [
            [self._read(want.key, ids)[common_prefix(want.ids, ids) - 1 :] for ids in want.branches] for want in wants
        ]

    def forget(self, key: SequenceKey) -> None:
        self._ids.pop(key, None)
        self.found.pop(key, None)

    def drop(self, key: SequenceKey) -> None:
        self.forget(key)

    def clear(self) -> None:
        self._ids.clear()

    @property
    def open_sequences(self) -> list[SequenceKey]:
        return list(self._ids)

    def _read(self, key: SequenceKey, ids: list[int]) -> Logits:
        self.tokens_read += len(ids)
        return self.forward(torch.tensor([ids]), adapters=[self.forward.adapter_of(key)])[0]
