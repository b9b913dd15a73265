"""A cache that uses the model's own cache of transformers, one sequence at a time.

Layers that hold keys and values can be cut back, even those with sliding windows: all keys are
kept, and the model's own masks hide the old ones. Recurrent layers can only be copied. When a
model is loaded, :func:`best_cache` finds out which kind of cache gives the logits of a fresh
reading. If none does, every pass reads the whole text, which is correct but slow.
"""

from __future__ import annotations

import copy
import inspect
import logging
import time
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..local.cache import Cache
from ..local.strands import Extension, Logits, SequenceKey, Strand
from .lora import Adapter, Adapters

if TYPE_CHECKING:
    from .model import TransformersWeights

log = logging.getLogger("langchain_specfuse")

CHUNK, CPU_CHUNK = 1024, 64
"""At most this many tokens are read in one pass, to bound the memory that a long prompt needs. On a
CPU, a pass over 64 tokens takes about as long as drafting ten."""
PER_QUERY = 4
"""About how many strands an open query has: its text, its draft, and its branches."""
LIMITS = {torch.float32: 1e-3}
HALF_LIMIT = 0.12
"""How far logits may differ from those of a fresh reading, relative to their spread. With real
models, rounding makes a difference of up to 1e-5 in float32 and 0.05 in bfloat16, and a wrong mask
or position makes one of 0.3 to 0.8."""
CPU_WORK, GPU_WORK = 1.5e11, 5e13
"""The trial reads past a sliding window if its tokens times the model's parameters are at most
this. That takes a few seconds."""

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
        arguments: dict[str, Any] = {}
        if cache is not None:
            name = "past_key_values" if "past_key_values" in self._parameters else "cache_params"
            arguments[name] = cache
        if "logits_to_keep" in self._parameters:
            arguments["logits_to_keep"] = max(rows, 1)
        if "use_cache" in self._parameters:
            arguments["use_cache"] = cache is not None
        with self.adapters.reading(adapter):
            input_ids = torch.tensor([ids], device=self.device)
            logits = self.model(input_ids=input_ids, **arguments).logits[0]
        last: Logits = logits[len(logits) - rows :].float().cpu().numpy()
        return last


class ModelCache(Cache):
    """The state of a strand is the model's own cache.

    ``kind``: ``keys and values``, which can be cut; ``states``, which can be copied; ``token by
    token``, the same for models that cannot read several tokens into a cache that is not empty;
    ``no cache``.
    """

    def __init__(
        self, weights: TransformersWeights, kind: str, adapter: Adapter | None = None
    ) -> None:
        forward = weights.forward
        super().__init__(weights, CPU_CHUNK if forward.device.type == "cpu" else CHUNK)
        self.forward = forward
        self.adapter = adapter
        self.kind = kind
        self.cuts = kind in ("keys and values", "no cache")
        self.prefixes.whole = not self.cuts

    # --- strands ----------------------------------------------------------------------------------

    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        if self.budget is not None:
            copied = max((self.bytes_of(strand) for strand in self.trunks.values()), default=0)
            while self.bytes_held + copied > self.budget and self.give_up(keys):
                pass
        return Strand(state=self._empty_state())

    def _empty_state(self) -> Any:
        if self.kind == "no cache":
            return None
        if self.cuts:
            return DynamicCache()
        return DynamicCache(config=self.forward.model.config)

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
        if not self.cuts or size == 0:
            strand.state = self._empty_state()
            strand.cut(0)
            return False
        if strand.state is not None:
            strand.state.crop(size - len(strand.ids))  # minus the number of tokens to remove
        strand.cut(size)
        return True

    def read(self, extensions: Sequence[Extension]) -> list[Logits]:
        return [self._read(*extension) for extension in extensions]

    def _read(self, strand: Strand, tokens: Sequence[int], rows: int) -> Logits:
        found, left = [], list(tokens)
        while left:
            size = self._pass_size(strand, left)
            part, left = left[:size], left[size:]
            part_rows = min(len(part), max(rows - len(left), 0))
            self.tokens_read += len(part)
            found.append(self._pass(strand, part, part_rows))
            self.last_sign = time.monotonic()
            strand.ids += part
        return np.concatenate(found) if found else np.empty((0, 0), np.float32)

    def _pass_size(self, strand: Strand, left: Sequence[int]) -> int:
        """How many of these tokens are read in the next pass."""
        if self.kind != "token by token":
            return self.chunk
        return 1 if strand.ids else len(left)

    def _pass(self, strand: Strand, tokens: list[int], rows: int) -> Logits:
        if self.kind == "no cache":
            return self.forward([*strand.ids, *tokens], rows=rows, adapter=self.adapter)
        try:
            return self.forward(tokens, cache=strand.state, rows=rows, adapter=self.adapter)
        except BaseException:
            self.cut(strand, 0)  # the content of this state no longer corresponds to any tokens
            raise

    # --- memory -----------------------------------------------------------------------------------

    def bytes_of(self, strand: Strand) -> int:
        return sum(tensor.nbytes for tensor in _tensors(strand.state))

    @property
    def bytes_held(self) -> int:
        return sum(self.bytes_of(strand) for strand in self.strands) + self.logits_bytes

    def bytes_for(self, tokens: int) -> int:
        return PER_QUERY * (tokens * self.token_bytes + self.strand_bytes)

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
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
        return
    if not depth:
        return
    parts: list[Any] = []
    if isinstance(thing, dict):
        parts += thing.values()
    elif isinstance(thing, (list, tuple)):
        parts += thing
    if hasattr(thing, "__dict__"):
        parts += vars(thing).values()
    for part in parts:
        yield from _tensors(part, depth - 1)


# --- the trial ------------------------------------------------------------------------------------


def best_cache(
    weights: TransformersWeights, adapter: Adapter | None = None, member: str = ""
) -> ModelCache:
    """The fastest kind of cache that agrees with a fresh reading of made-up tokens."""
    forward, vocabulary = weights.forward, weights.trial_tokens
    size = 24 + _window(forward)
    text = [vocabulary[(3 * at + at * at // 5) % len(vocabulary)] for at in range(size)]
    limit = LIMITS.get(forward.model.dtype, HALF_LIMIT)
    kinds = ["states", "token by token"]
    if _holds_keys_and_values(forward.model.config):
        kinds.insert(0, "keys and values")
    for kind in kinds:
        try:
            cache = ModelCache(weights, kind, adapter)
            if cache.agrees(text, limit, forward(text, adapter=adapter)[0]):
                return cache
        except Exception as error:  # a cache that cannot work with this model raises anything
            log.debug("a trial of %s failed: %s", kind, error)
    log.warning(
        "%s: no cache agrees with a fresh reading, so every pass reads everything: right, but slow",
        member,
    )
    return ModelCache(weights, "no cache", adapter)


def _holds_keys_and_values(config: Any) -> bool:
    """Whether every layer holds keys and values, and nothing else."""
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
