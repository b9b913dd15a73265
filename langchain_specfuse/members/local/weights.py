"""A model in memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary


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
        self.groups: WeakValueDictionary[Any, Any] = WeakValueDictionary()
        """The batch groups of its members, by what makes them different: see ``batch``."""
        self.lock = threading.Lock()
        """Held while a group is made."""

    @abstractmethod
    def at_work(self) -> AbstractContextManager[None]:
        """A context in which all work with the model happens: reading, and freeing what was
        read."""

    @abstractmethod
    def adapter(self, path: str, member: str) -> Any:
        """The one copy of an adapter."""

    @abstractmethod
    def free_bytes(self) -> int:
        """The memory of the device that nothing uses now."""

    @abstractmethod
    def describe(self) -> str:
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
