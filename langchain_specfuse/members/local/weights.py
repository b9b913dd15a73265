"""A model in memory, and the caches of everything that is read with it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

from .cache import Cache, caches_on

CACHE_SHARE = 0.3
"""The cache of a member may take this part of the memory that is free after loading, or an equal
part where there are too many caches for that: see :func:`cache_share`."""


class Weights(ABC):
    """A model and its tokenizer, loaded once per source: all members that name the source share
    them.

    Members with the same adapter also share a cache, and with it batches; others are computed one
    after another. Weights live as long as a member or a cache refers to them, and a cache lives as
    long as a member uses it.
    """

    tokenizer: Any
    generation_config: Any
    """Holds ``eos_token_id`` and, perhaps, ``repetition_penalty``."""
    device: str
    vocabulary_size: int
    """There are logits for this many tokens: often for more than the tokenizer knows."""
    id: str | None = None
    """Distinguishes models that were given in memory and have no name."""

    def __init__(self) -> None:
        self._caches: WeakValueDictionary[Any, Cache] = WeakValueDictionary()
        self._lock = threading.Lock()

    def cache(self, adapter: str | None, prefix_cache: bool | int, member: str) -> Cache:
        """The one cache for this adapter and this setting. ``member``: for errors.

        This is where a cache gets its budget: a share of the memory that is free now. The budgets
        of earlier caches on the device are lowered to the same share.
        """
        with self._lock:
            loaded = self.adapter(adapter, member) if adapter else None
            # The type counts: prefix_cache=1 is one byte, and True is the usual share.
            key = (loaded, repr(prefix_cache))
            cache = self._caches.get(key)
            if cache is None:
                cache = self._caches[key] = self.new_cache(loaded, member)
                caches = caches_on(self.device)
                budget = int(cache_share(len(caches)) * self.free_bytes())
                for other in caches:
                    if other is not cache:
                        other.lower_budget(budget)
                cache.set_budget(budget, prefix_bytes(budget, prefix_cache))
            return cache

    @abstractmethod
    def at_work(self) -> AbstractContextManager[None]:
        """A context in which all work with the model happens: reading, and freeing what was
        read."""

    @abstractmethod
    def adapter(self, path: str, member: str) -> Any:
        """The one copy of an adapter."""

    @abstractmethod
    def new_cache(self, adapter: Any, member: str) -> Cache:
        """An empty cache for everything that is read with this adapter."""

    @abstractmethod
    def free_bytes(self) -> int:
        """The memory of the device that nothing uses now."""

    @abstractmethod
    def describe(self, cache: Cache) -> str:
        """Device, precision and so on, in words."""

    @property
    @abstractmethod
    def context_limit(self) -> int | None:
        """The longest text that the model can read, in tokens. None: unknown."""

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The model's number of parameters."""

    def prune(self) -> None:
        """Free the adapters that no member uses any more."""
        return


def cache_share(count: int) -> float:
    """The part of the free memory that each of ``count`` caches may take.

    >>> cache_share(1), cache_share(3), cache_share(5)
    (0.3, 0.3, 0.2)
    """
    return min(CACHE_SHARE, 1 / max(count, 1))


def prefix_bytes(budget: int, prefix_cache: bool | int) -> int:
    """The bytes of a cache that prefixes may take.

    >>> prefix_bytes(900, True), prefix_bytes(900, False), prefix_bytes(900, 50)
    (300, 0, 50)
    """
    if prefix_cache is True:
        return budget // 3
    return min(budget, int(prefix_cache))
