"""What a member's memory can do, and the slowest kind, which is right for every model.

A *store* reads tokens of many queries and remembers them. Three ways to read: ``lead`` (the text so far), ``step`` (one
more token of a draft), ``fan`` (several ways to go on, for scoring). :class:`._slab.Slab` does all of it in few passes
for attention layers of any kind; :class:`._snapshots.Snapshots` copies the model's own cache, for layers with a
recurrent state that cannot be cut back; :class:`Rereading` keeps nothing. Which of them a model agrees with is tried
(``_trial``).
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ._adapters import Adapter, Adapters
from ._prefixes import Prefix, Prefixes, common_prefix

PREFILL = 1024
"""Tokens of one row that are read in one pass at most: bounds the memory of a long prompt."""
PIECE = 64
"""The same on a CPU, where a pass over so many tokens takes about as long as drawing ten."""
DEEP = 2048
"""Behind so many tokens half as many, behind twice as many a quarter: to look back at them costs most there."""
LEAST = 8
"""A piece is parted into so many at most."""


class Key(str):
    """One member's one query, where members share a store: its tokens are read with that member's adapter."""

    __slots__ = ("adapter", "query_id")
    adapter: Adapter | None
    query_id: str

    def __new__(cls, query_id: str, member: str, adapter: Adapter | None = None) -> Key:
        made = super().__new__(cls, f"{member}\n{query_id}")
        made.adapter, made.query_id = adapter, query_id
        return made


@dataclass(frozen=True)
class Fan:
    """Ways to go on from ``ids``: every branch is a whole list of tokens, nearly all of it shared with ``ids``."""

    key: str
    ids: list[int]
    branches: list[list[int]]
    apart: int = 0
    """So many tokens of a draft can be read behind ``ids`` before they take the branches' place."""
    beside: bool = False
    """True: the branches read before stay what they are."""


class Read:
    """One pass through the model. Knows which of the optional arguments this model's forward takes.

    ``own``: the adapter with which everything is read that does not say otherwise.
    """

    def __init__(self, model: Any, adapters: Adapters | None = None, own: Adapter | None = None) -> None:
        self.model = model
        self.adapters = adapters or Adapters(model)
        self.own = own
        self._takes = inspect.signature(model.forward).parameters
        self.kind = getattr(model.config, "_attn_implementation", "eager")

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    @property
    def can_place(self) -> bool:
        """Whether rows of different lengths can be read together: positions and masks are ours to give."""
        return "position_ids" in self._takes and self.kind in ("sdpa", "eager")

    @property
    def adds_masks(self) -> bool:
        """Whether masks are numbers to add. ``sdpa`` makes them of bools anew in every layer: that costs launches."""
        return self.kind != "sdpa" or self.device.type == "cuda"

    def as_mask(self, seen: Tensor) -> Tensor:  # (rows, q, columns) of bool -> (rows, 1, q, columns)
        seen = seen[:, None].to(self.device)
        if not self.adds_masks:
            return seen
        dtype = self.model.dtype
        hidden = float("-inf") if self.kind == "sdpa" else torch.finfo(dtype).min
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, hidden)

    def adapter_of(self, key: str) -> Adapter | None:
        """With which adapter this query is read."""
        return key.adapter if isinstance(key, Key) else self.own

    def __call__(
        self,
        ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Any = None,
        cache: Any = None,
        keep: list[int] | None = None,
        rows: Sequence[Adapter | None] | None = None,
    ) -> Tensor:
        """Logits (rows, q or len(keep), vocabulary). ``rows``: the adapter of each."""
        extra: dict[str, Any] = {}
        if position_ids is not None:
            extra["position_ids"] = position_ids.to(self.device)
        if cache is not None:
            extra["past_key_values" if "past_key_values" in self._takes else "cache_params"] = cache
        if attention_mask is not None:
            extra["attention_mask"] = attention_mask
        narrow = keep is not None and "logits_to_keep" in self._takes
        if narrow:
            extra["logits_to_keep"] = torch.tensor(keep)  # on the CPU: an index for whatever device the head is on
        use_cache = {"use_cache": cache is not None} if "use_cache" in self._takes else {}
        with self.adapters.reading([self.own] * len(ids) if rows is None else rows):
            logits: Tensor = self.model(input_ids=ids.to(self.device), **use_cache, **extra).logits
        return logits if narrow or keep is None else logits[:, keep]


class Stores:
    """Stores that are to find each other, for as long as each lives. May be read while another thread adds one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: list[ref[Store]] = []

    def add(self, store: Store) -> None:
        with self._lock:
            self._known = [*(one for one in self._known if one()), ref(store)]

    def __iter__(self) -> Iterator[Store]:
        return iter([store for one in self._known if (store := one()) is not None])


EVERY = Stores()


class Store(ABC):
    """The memory of one member. ``reused`` and ``passed`` count context tokens found and tokens read."""

    can_turn_back = False
    """Whether tokens that were read on a guess can be taken back: only then is ``stride`` there, and ``turn_back``."""

    def __init__(self, read: Read, prefixes: Prefixes | None = None) -> None:
        self.read = read
        self.reused = 0
        self.passed = 0
        self.found: dict[str, int] = {}
        """Per key, how many tokens of the text so far were there when it was last asked for."""
        self.prefixes = prefixes or Prefixes()
        self.piece = PIECE if read.device.type == "cpu" else PREFILL
        """So many tokens of a text are read in one pass at most."""
        self.budget: int | None = None
        """Bytes for keys, values or states, of queries under way and of prefixes together. None: no bound."""
        self.kin: Iterable[Store] = ()
        """The stores of these weights: what one has read another need not. They share a desk, so a thread."""
        EVERY.add(self)

    @abstractmethod
    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        """Per (key, ids) the logits after the last token. ``exact``: a draft follows; nothing behind ids is kept."""

    def missing(self, key: str, ids: list[int]) -> int:
        """How many of these tokens must still be read, at most."""
        return 0

    def ahead(self, key: str, ids: list[int]) -> int:
        """Read one piece of what is missing of these tokens; how many are missing then.

        A store that says that nothing is missing is never asked.
        """
        return 0

    @abstractmethod
    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        """One more token for each key: the logits after it, (keys, vocabulary)."""

    def stride(self, wants: Sequence[tuple[str, list[int]]]) -> list[Tensor]:
        """Several more tokens for each key: the logits after each of them, (tokens, vocabulary)."""
        raise NotImplementedError

    def turn_back(self, key: str, ids: list[int]) -> None:
        """The text so far is these tokens, all of which were read, in the row or as a branch; branches stay."""
        raise NotImplementedError

    @abstractmethod
    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        """Per want and branch the logits before each new token and after the last: (new tokens + 1, vocabulary)."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """This query is over: its memory is free for others, or kept as a prefix while nobody needs the room."""

    @abstractmethod
    def drop(self, key: str) -> None:
        """What is known of this query may be wrong: keep nothing of it."""

    @abstractmethod
    def clear(self) -> None:
        """Free everything, prefixes too."""

    def relieve(self) -> None:
        """The device is out of memory: free everything here, and what others on the device keep for later."""
        self.clear()
        for store in EVERY:
            if store.read.device == self.read.device:  # so it is at our desk, and not at work
                store.prefixes.clear()
        torch.cuda.empty_cache()

    @property
    def held(self) -> int:
        """Bytes of all that is remembered now."""
        return self.prefixes.bytes

    def alone(self, tokens: int) -> int:
        """About the bytes that one query of so many tokens takes."""
        return 0

    def fit(self, budget: int, limit: int) -> None:
        """From now on no more than ``budget`` bytes, ``limit`` of them for prefixes; what is over goes at once."""
        self.budget, self.prefixes.limit = budget, limit
        self.prefixes.shrink(limit)

    def pin(self, key: str, length: int, logits: Tensor) -> None:
        """The logits after the first ``length`` tokens are these; they will be asked for again."""
        return None

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """Which of these many lengths to take at once."""
        return [slice(0, len(sizes))]

    def _family(self) -> list[Any]:
        """This store, and those of its kind that go with the same weights."""
        return [self, *(store for store in self.kin if store is not self and type(store) is type(self))]

    def _prefixes_of_kin(self, adapter: Adapter | None) -> list[Prefix]:
        """What was read with this adapter: with another one the same tokens leave other keys and values."""
        mark = adapter.mark if adapter else 0
        kept = [prefix for store in self._family() for prefix in store.prefixes.kept]
        return [prefix for prefix in kept if prefix.mark == mark]


class Rereading(Store):
    """No memory: every pass reads everything. Right for whatever can be read at all, and the measure of the others."""

    def __init__(self, read: Read) -> None:
        super().__init__(read)
        self._ids: dict[str, list[int]] = {}

    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        for key, ids in wants:
            self._ids[key] = list(ids)
            self.found[key] = 0
        return [self._whole(ids)[-1] for _, ids in wants]

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        for key, token in zip(keys, tokens, strict=True):
            self._ids[key].append(token)
        return torch.stack([self._whole(self._ids[key])[-1] for key in keys])

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        self.found.update((want.key, 0) for want in wants)
        return [[self._whole(ids)[common_prefix(want.ids, ids) - 1 :] for ids in want.branches] for want in wants]

    def forget(self, key: str) -> None:
        self._ids.pop(key, None)
        self.found.pop(key, None)

    def drop(self, key: str) -> None:
        self.forget(key)

    def clear(self) -> None:
        self._ids.clear()

    def _whole(self, ids: list[int]) -> Tensor:
        self.passed += len(ids)
        return self.read(torch.tensor([ids]))[0]
