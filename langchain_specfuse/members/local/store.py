"""What a member's cache can do, whatever computes it.

A *store* reads tokens of many sequences and remembers them. Three ways to read: ``prefill`` (the text so far),
``decode`` (one more token of a draft) and ``read_branches`` (several continuations, for scoring). Each engine has its
own: :mod:`..transformers.kv` and :mod:`..llamacpp.cache`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from .prefixes import Prefix, Prefixes

Logits: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Names a sequence: a query as one member reads it, with its adapter."""

    query_id: str
    member: str = ""
    adapter: Any = None


@dataclass(frozen=True)
class Branches:
    """Continuations of ``ids``. Each branch is a whole list of tokens, nearly all of it shared with ``ids``."""

    key: SequenceKey
    ids: list[int]
    branches: list[list[int]]


_STORES: WeakSet[Store] = WeakSet()
_LOCK = threading.Lock()
"""A model may be loaded, and a store made, while another thread goes through all stores."""


class Store(ABC):
    """The cache of one batch group. ``chunk``: at most this many tokens of a sequence are read in one pass."""

    kind = ""
    """For people."""

    def __init__(self, device: str, chunk: int, prefixes: Prefixes | None = None) -> None:
        self.device = device
        self.chunk = chunk
        self.tokens_read = 0
        self.tokens_reused = 0
        self.found: dict[SequenceKey, int] = {}
        """Per sequence, how many tokens of the text so far were cached when it was last read."""
        self.prefixes = prefixes or Prefixes()
        self.budget: int | None = None
        """Bytes for open sequences and kept prefixes together. None: no limit."""
        with _LOCK:
            _STORES.add(self)

    @abstractmethod
    def prefill(self, wants: Sequence[tuple[SequenceKey, list[int]]], *, drafting: bool = False) -> list[Logits]:
        """Per (key, ids) the logits after the last token. ``drafting``: ``decode`` follows, so nothing behind ids is
        kept."""

    @abstractmethod
    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        """One more token for each sequence: the logits after it."""

    @abstractmethod
    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        """Per want and branch the logits before each new token and after the last: (new tokens + 1, vocabulary)."""

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        """At most how many of these tokens must still be read; 0 where chunked prefill is not supported."""
        return 0

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        """Read one chunk of what is missing of these tokens."""
        raise NotImplementedError

    def keep_logits(self, key: SequenceKey, length: int, logits: Logits) -> None:
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

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether this error means that the device has no memory left."""
        return isinstance(error, MemoryError)

    def free_memory(self) -> None:
        """The device is out of memory: free everything here, and the kept prefixes of all others on the device."""
        self.clear()
        with _LOCK:
            stores = list(_STORES)
        for store in stores:
            if store.device == self.device:  # so it has the same worker, and is not at work now
                store.prefixes.clear()

    def adapter_of(self, key: SequenceKey) -> Any:
        """The adapter that this sequence is read with."""
        return key.adapter

    def prefixes_for(self, key: SequenceKey) -> list[Prefix]:
        """The kept prefixes that this sequence may begin with."""
        adapter = self.adapter_of(key)
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
