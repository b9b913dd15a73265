"""What a transformers model has read, on the model's own cache, one sequence at a time.

Layers that hold keys and values can be cut back, sliding windows too, where all keys are kept and
the model's own masks hide the old ones. Recurrent layers can only be copied. Which of these agrees
with a fresh reading is tried when a model is loaded; where none does, every pass reads everything:
right, but slow.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..local.strands import Logits, Reading, SequenceKey, Strand, StrandStore
from .lora import Adapter, Adapters

log = logging.getLogger("langchain_specfuse")

CHUNK, CPU_CHUNK = 1024, 64
"""At most this many tokens are read in one pass: bounds the memory of a long prompt. On a CPU a
pass over 64 tokens takes about as long as drafting ten."""
PER_QUERY = 4
"""About how many strands an open query has: its text, its draft, and its branches."""
LIMITS = {torch.float32: 1e-3}
HALF_LIMIT = 0.12
"""How far logits may lie from those of a fresh reading, relative to their spread. With real models,
rounding makes a difference of up to 1e-5 in float32 and 0.05 in bfloat16, a wrong mask or position
one of 0.3 to 0.8."""
CPU_WORK, GPU_WORK = 1.5e11, 5e13
"""The trial reads past a sliding window if its tokens times the model's parameters are at most
this: a few seconds."""

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
    """A forward pass of the model. Records which optional arguments this model's ``forward``
    takes."""

    def __init__(self, model: Any, adapters: Adapters | None = None) -> None:
        self.model = model
        self.adapters = adapters or Adapters(model)
        self.attention = getattr(model.config, "_attn_implementation", "eager")
        self._parameters = inspect.signature(model.forward).parameters

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def __call__(
        self, ids: list[int], *, cache: Any = None, last: int = 1, adapter: Adapter | None = None
    ) -> Logits:
        """The logits after each of the last ``last`` of these tokens: (last, vocabulary)."""
        arguments = {
            "past_key_values" if "past_key_values" in self._parameters else "cache_params": cache
        }
        narrow = "logits_to_keep" in self._parameters
        if narrow:
            arguments["logits_to_keep"] = max(last, 1)
        given = {name: value for name, value in arguments.items() if value is not None}
        if "use_cache" in self._parameters:
            given["use_cache"] = cache is not None
        with self.adapters.reading(adapter):
            logits = self.model(input_ids=torch.tensor([ids], device=self.device), **given).logits[
                0
            ]
        wanted: Logits = logits[len(logits) - last :].float().cpu().numpy()
        return wanted


class ModelCache(StrandStore):
    """The state of a strand is the model's own cache.

    ``kind``: ``keys and values``, which can be cut; ``states``, which can be copied; ``token by
    token``, the same for models that cannot read several tokens into a cache that is not empty;
    ``no cache``.
    """

    def __init__(self, forward: Forward, kind: str, adapter: Adapter | None = None) -> None:
        on_cpu = forward.device.type == "cpu"
        super().__init__(str(forward.device), CPU_CHUNK if on_cpu else CHUNK)
        self.forward = forward
        self.kind = kind
        self.cuts = kind in ("keys and values", "no cache")
        self.prefixes.whole = not self.cuts
        self.adapter = adapter

    # --- strands ----------------------------------------------------------------------------------

    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        self.sweep()
        copied = max((self.bytes_of(strand) for strand in self.trunks.values()), default=0)
        while (
            self.budget is not None
            and self.bytes_held + copied > self.budget
            and self.give_up(keys)
        ):
            pass
        return Strand(state=self._empty_cache())

    def _empty_cache(self) -> Any:
        if self.kind == "no cache":
            return None
        return DynamicCache() if self.cuts else DynamicCache(config=self.forward.model.config)

    def release(self, strand: Strand) -> None:
        strand.cut(0)
        strand.state = None

    def copy(self, old: Strand, new: Strand, size: int) -> None:
        if size == len(old.ids) or self.cuts:
            new.state = copy.deepcopy(old.state)
            new.begin_as(old)
            self.cut(new, size)

    def cut(self, strand: Strand, size: int) -> bool:
        if size >= len(strand.ids):
            return True
        whole = self.cuts and size > 0
        if not whole:
            strand.state = self._empty_cache()
        elif strand.state is not None:
            strand.state.crop(size - len(strand.ids))  # minus what goes
        strand.cut(size if whole else 0)
        return whole

    def read(self, wants: Sequence[Reading]) -> list[Logits]:
        return [self._read(*want) for want in wants]

    def _read(self, strand: Strand, tokens: Sequence[int], wanted: int) -> Logits:
        rows, ids = [], list(tokens)
        while ids:
            single = self.kind == "token by token"
            size = 1 if single and strand.ids else len(ids) if single else self.chunk
            part, ids = ids[:size], ids[size:]
            last = min(len(part), max(wanted - len(ids), 0))
            self.tokens_read += len(part)
            if self.kind == "no cache":
                read = self.forward([*strand.ids, *part], last=last, adapter=self.adapter)
            else:
                try:
                    read = self.forward(part, cache=strand.state, last=last, adapter=self.adapter)
                except BaseException:
                    self.cut(strand, 0)  # what this cache holds now belongs to no tokens
                    raise
            strand.ids += part
            rows.append(read)
        return np.concatenate(rows) if rows else np.empty((0, 0), np.float32)

    # --- memory -----------------------------------------------------------------------------------

    def bytes_of(self, strand: Strand) -> int:
        return sum(tensor.nbytes for tensor in _tensors(strand.state))

    @property
    def bytes_held(self) -> int:
        return sum(self.bytes_of(strand) for strand in self.strands) + self.logits_bytes

    def bytes_for(self, tokens: int) -> int:
        return PER_QUERY * (tokens * self.token_bytes + self.strand_bytes)

    # the worker of another engine, which is not in inference mode, may ask for room
    @torch.inference_mode()
    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
        self.sweep()
        while self.bytes_held > budget and self.give_up(()):
            pass

    def is_out_of_memory(self, error: BaseException) -> bool:
        return is_out_of_memory(error)

    def free_memory(self) -> None:
        super().free_memory()
        torch.cuda.empty_cache()
        torch.xpu.empty_cache()
        if torch.backends.mps.is_available():
            torch.mps.empty_cache()


def _tensors(thing: Any, depth: int = 5) -> Iterator[Tensor]:
    """All tensors in a cache, whatever its layers call them."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth:
        inside = (
            thing.values()
            if isinstance(thing, dict)
            else thing
            if isinstance(thing, (list, tuple))
            else ()
        )
        for part in (*inside, *vars(thing).values()) if hasattr(thing, "__dict__") else inside:
            yield from _tensors(part, depth - 1)


# --- the trial ------------------------------------------------------------------------------------


def best_cache(
    forward: Forward, vocabulary: Sequence[int], name: str, adapter: Adapter | None = None
) -> ModelCache:
    """The fastest kind of cache that agrees with a fresh reading of made-up tokens."""
    text = [
        vocabulary[(3 * at + at * at // 5) % len(vocabulary)] for at in range(24 + _window(forward))
    ]
    limit = LIMITS.get(forward.model.dtype, HALF_LIMIT)
    kinds = ["keys and values"] if _holds_keys_and_values(forward.model.config) else []
    for kind in [*kinds, "states", "token by token"]:
        try:
            store = ModelCache(forward, kind, adapter)
            if store.tried(text, limit, forward(text, adapter=adapter)[0]):
                return store
        except Exception as error:  # a cache that cannot work with this model raises anything
            log.debug("a trial of %s failed: %s", kind, error)
    log.warning(
        "%s: no cache agrees with a fresh reading, so every pass reads everything: right, but slow",
        name,
    )
    return ModelCache(forward, "no cache", adapter)


def _holds_keys_and_values(config: Any) -> bool:
    """Whether each layer holds keys and values alone."""
    try:
        layers = DynamicCache(config=config).layers
    except Exception as error:  # a config that transformers cannot make a cache for
        log.debug("no cache of keys and values: %s", error)
        return False
    chunked = getattr(config.get_text_config(decoder=True), "attention_chunk_size", None)
    plain = layers and all(
        type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers
    )
    return bool(plain) and not chunked  # chunks begin at fixed positions


def _window(forward: Forward) -> int:
    """The longest sliding window that is short enough to be read past; 0 if there is none."""
    config = forward.model.config.get_text_config(decoder=True)
    work = CPU_WORK if forward.device.type == "cpu" else GPU_WORK
    most = work / sum(weight.numel() for weight in forward.model.parameters())
    most = min(most, (getattr(config, "max_position_embeddings", None) or most) - 24)
    window = getattr(config, "sliding_window", None) or 0
    return window if window <= most else 0
