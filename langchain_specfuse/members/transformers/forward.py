"""A forward pass of a model, and which arguments its ``forward`` takes."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ..local.store import Logits
from .lora import Adapter, Adapters

_OUT_OF_MEMORY = ("DefaultCPUAllocator: can't allocate", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device has no memory left. Some libraries have no error class of their own for that."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


class Forward:
    """A forward pass of the model. Knows which optional arguments this model's ``forward`` takes."""

    def __init__(self, model: Any, adapters: Adapters | None = None) -> None:
        self.model = model
        self.adapters = adapters or Adapters(model)
        self.attention = getattr(model.config, "_attn_implementation", "eager")
        self._parameters = inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def __call__(self, ids: list[int], *, cache: Any = None, last: int = 1, adapter: Adapter | None = None) -> Logits:
        """The logits after each of the last ``last`` of these tokens: (last, vocabulary)."""
        arguments = {"past_key_values" if "past_key_values" in self._parameters else "cache_params": cache}
        narrow = "logits_to_keep" in self._parameters
        if narrow:
            arguments["logits_to_keep"] = max(last, 1)
        given = {name: value for name, value in arguments.items() if value is not None}
        if "use_cache" in self._parameters:
            given["use_cache"] = cache is not None
        with self.adapters.reading(adapter):
            logits = self.model(input_ids=torch.tensor([ids], device=self.device), **given).logits[0]
        wanted: Logits = logits[len(logits) - last :].float().cpu().numpy()
        return wanted
