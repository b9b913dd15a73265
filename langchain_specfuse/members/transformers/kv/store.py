"""What a member's KV cache can do, and the slowest kind, which is right for every model.

A *store* reads tokens of many sequences and remembers them. Three ways to read: ``prefill`` (the text so far),
``decode`` (one more token of a draft) and ``read_branches`` (several continuations, for scoring).

- :class:`.cache.BatchedCache` does all of it in few passes, for attention layers of any kind;
- :class:`.snapshots.Snapshots` copies the model's own cache, for recurrent states, which cannot be cut back;
- :class:`NoCache` keeps nothing.

Which of them agrees with a model is tried when it is loaded (:mod:`.trial`).
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from ..lora import Adapter, Adapters
from .prefixes import Prefix, Prefixes, common_prefix

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


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Names a sequence: a query as one member reads it, with its adapter."""

    query_id: str
    member: str = ""
    adapter: Adapter | None = None


@dataclass(frozen=True)
class Branches:
    """Continuations of ``ids``. Each branch is a whole list of tokens, nearly all of it shared with ``ids``."""

    key: SequenceKey
    ids: list[int]
    branches: list[list[int]]


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
    ) -> Tensor:
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
            logits: Tensor = self.model(input_ids=ids.to(self.device), **given).logits
        return logits if narrow or keep is None else logits[:, keep]


_STORES: WeakSet[Store] = WeakSet()
_LOCK = threading.Lock()
"""A model may be loaded, and a store made, while another thread goes through all stores."""


class Store(ABC):
    """The cache of one batch group."""

    kind = ""
    """For people."""

    def __init__(self, forward: Forward, prefixes: Prefixes | None = None) -> None:
        self.forward = forward
        self.tokens_read = 0
        self.tokens_reused = 0
        self.found: dict[SequenceKey, int] = {}
        """Per sequence, how many tokens of the text so far were cached when it was last read."""
        self.prefixes = prefixes or Prefixes()
        self.chunk = CPU_CHUNK if forward.device.type == "cpu" else CHUNK
        """At most this many tokens of a sequence are read in one pass."""
        self.budget: int | None = None
        """Bytes for open sequences and kept prefixes together. None: no limit."""
        with _LOCK:
            _STORES.add(self)

    @abstractmethod
    def prefill(self, wants: Sequence[tuple[SequenceKey, list[int]]], *, drafting: bool = False) -> list[Tensor]:
        """Per (key, ids) the logits after the last token. ``drafting``: ``decode`` follows, so nothing behind ids is
        kept."""

    @abstractmethod
    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Tensor]:
        """One more token for each sequence: the logits after it."""

    @abstractmethod
    def read_branches(self, wants: Sequence[Branches]) -> list[list[Tensor]]:
        """Per want and branch the logits before each new token and after the last: (new tokens + 1, vocabulary)."""

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        """At most how many of these tokens must still be read; 0 where chunked prefill is not supported."""
        return 0

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        """Read one chunk of what is missing of these tokens."""
        raise NotImplementedError

    def keep_logits(self, key: SequenceKey, length: int, logits: Tensor) -> None:
        """These are the logits after the first ``length`` tokens; they will be asked for again."""
        return None

    @abstractmethod
    def forget(self, key: SequenceKey) -> None:
        """The query is over: free its memory, or keep it as a prefix while there is room."""

    @abstractmethod
    def drop(self, key: SequenceKey) -> None:
        """What is cached for this sequence may be wrong: keep nothing of it."""

    @abstractmethod
    def clear(self) -> None:
        """Free everything, prefixes too."""

    def free_memory(self) -> None:
        """The device is out of memory: free everything here, and the kept prefixes of all others on the device."""
        self.clear()
        with _LOCK:
            stores = list(_STORES)
        for store in stores:
            if store.forward.device == self.forward.device:  # so it has the same worker, and is not at work now
                store.prefixes.clear()
        torch.cuda.empty_cache()

    def prefixes_for(self, key: SequenceKey) -> list[Prefix]:
        """The kept prefixes that this sequence may begin with."""
        adapter = self.forward.adapter_of(key)
        return self.prefixes.of(adapter.id if adapter else 0)

    @property
    @abstractmethod
    def open_sequences(self) -> list[SequenceKey]:
        """The sequences that are cached, least recently used first."""

    @property
    def bytes_held(self) -> int:
        return self.prefixes.bytes

    def bytes_for(self, tokens: int) -> int:
        """About how many bytes a sequence of this many tokens takes."""
        return 0

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        """From now on at most ``budget`` bytes, ``prefix_bytes`` of them for prefixes. The excess is freed at once."""
        self.budget, self.prefixes.limit = budget, prefix_bytes
        self.prefixes.shrink(prefix_bytes)

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """How to split sequences of these lengths into batches that fit into the budget."""
        each = self.bytes_for(max(sizes, default=0))
        count = max(1, self.budget // each if self.budget is not None and each else len(sizes))
        return [slice(at, at + count) for at in range(0, len(sizes), count)]


class NoCache(Store):
    """Every pass reads everything. Right for whatever can be read at all; the other kinds are measured by it."""

    kind = "no cache"

    def __init__(self, forward: Forward) -> None:
        super().__init__(forward)
        self._ids: dict[SequenceKey, list[int]] = {}

    def prefill(self, wants: Sequence[tuple[SequenceKey, list[int]]], *, drafting: bool = False) -> list[Tensor]:
        self._ids |= {key: list(ids) for key, ids in wants}
        self.found |= {key: 0 for key, _ in wants}
        return [self._read(key, ids)[-1] for key, ids in wants]

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Tensor]:
        for key, token in zip(keys, tokens, strict=True):
            self._ids[key].append(token)
        return [self._read(key, self._ids[key])[-1] for key in keys]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Tensor]]:
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

    def _read(self, key: SequenceKey, ids: list[int]) -> Tensor:
        self.tokens_read += len(ids)
        return self.forward(torch.tensor([ids]), adapters=[self.forward.adapter_of(key)])[0]
