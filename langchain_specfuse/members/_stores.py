"""What a member's memory can do, and the two slower kinds that are right for every model.

A *store* reads tokens of many queries and remembers them. Three ways to read: ``lead`` (the text so far), ``step`` (one
more token of a draft), ``fan`` (several ways to go on, for scoring). :class:`._slab.Slab` does all of it in few passes
for attention layers of any kind; :class:`Snapshots` copies the model's own cache, for layers with a recurrent state
that cannot be cut back; :class:`Rereading` keeps nothing. Which of them a model agrees with is tried (``_trial``).
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two lists share from the beginning."""
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return size
    return next(i for i in range(size) if one[i] != other[i])


@dataclass(frozen=True)
class Fan:
    """Ways to go on from ``ids``: every branch is a whole list of tokens, nearly all of it shared with ``ids``."""

    key: str
    ids: list[int]
    branches: list[list[int]]


class Read:
    """One pass through the model. Knows which of the optional arguments this model's forward takes."""

    def __init__(self, model: Any) -> None:
        self.model = model
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

    def as_mask(self, seen: Tensor) -> Tensor:  # (rows, q, columns) of bool -> (rows, 1, q, columns)
        seen = seen[:, None].to(self.device)
        if self.kind == "sdpa":
            return seen
        dtype = self.model.dtype
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)

    def __call__(
        self,
        ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Any = None,
        cache: Any = None,
        keep: list[int] | None = None,
    ) -> Tensor:
        """Logits (rows, q or len(keep), vocabulary)."""
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
        logits: Tensor = self.model(input_ids=ids.to(self.device), **use_cache, **extra).logits
        return logits if narrow or keep is None else logits[:, keep]


class Store(ABC):
    """The memory of one member. ``reused`` and ``passed`` count context tokens found and tokens read."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.reused = 0
        self.passed = 0

    @abstractmethod
    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        """Per (key, ids) the logits after the last token. ``exact``: a draft follows; nothing behind ids is kept."""

    @abstractmethod
    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        """One more token for each key: the logits after it, (keys, vocabulary)."""

    @abstractmethod
    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        """Per want and branch the logits before each new token and after the last: (new tokens + 1, vocabulary)."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """Free what is kept for this key."""

    @abstractmethod
    def clear(self) -> None:
        """Free everything."""

    def pin(self, key: str, length: int, logits: Tensor) -> None:
        """The logits after the first ``length`` tokens are these; they will be asked for again."""
        return None

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """Which of these many lengths to take at once."""
        return [slice(0, len(sizes))]


class Rereading(Store):
    """No memory: every pass reads everything. Right for whatever can be read at all, and the measure of the others."""

    def __init__(self, read: Read) -> None:
        super().__init__(read)
        self._ids: dict[str, list[int]] = {}

    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        for key, ids in wants:
            self._ids[key] = list(ids)
        return [self._whole(ids)[-1] for _, ids in wants]

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        for key, token in zip(keys, tokens, strict=True):
            self._ids[key].append(token)
        return torch.stack([self._whole(self._ids[key])[-1] for key in keys])

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        return [[self._whole(ids)[common_prefix(want.ids, ids) - 1 :] for ids in want.branches] for want in wants]

    def forget(self, key: str) -> None:
        self._ids.pop(key, None)

    def clear(self) -> None:
        self._ids.clear()

    def _whole(self, ids: list[int]) -> Tensor:
        self.passed += len(ids)
        return self.read(torch.tensor([ids]))[0]


@dataclass
class Snapshot:
    """The model's own cache after ``ids``, and the logits there."""

    ids: list[int]
    cache: Any
    logits: Tensor


class Snapshots(Store):
    """Copies of the model's own cache, one query at a time: for recurrent states, which cannot be cut back.

    ``whole``: whether this model reads several tokens at once into a cache that is not empty as it should.
    """

    def __init__(self, read: Read, whole: bool = True) -> None:
        super().__init__(read)
        self.whole = whole
        self._kept: dict[str, list[Snapshot]] = {}
        self._drafts: dict[str, Snapshot] = {}

    def lead(self, wants: Sequence[tuple[str, list[int]]], exact: bool = False) -> list[Tensor]:
        found = []
        for key, ids in wants:
            base = self._at(key, ids)
            # What is kept is a prefix of everything that can still be asked for.
            self._kept[key] = [base]
            if exact:
                self._drafts[key] = Snapshot(list(base.ids), copy.deepcopy(base.cache), base.logits)
            found.append(base.logits)
        return found

    def step(self, keys: Sequence[str], tokens: Sequence[int]) -> Tensor:
        for key, token in zip(keys, tokens, strict=True):
            self._drafts[key] = self._fed(self._drafts[key], [token])
        return torch.stack([self._drafts[key].logits for key in keys])

    def fan(self, wants: Sequence[Fan]) -> list[list[Tensor]]:
        self.lead([(want.key, want.ids) for want in wants])
        return [self._branches(want) for want in wants]

    def _branches(self, want: Fan) -> list[Tensor]:
        base = self._kept[want.key][0]
        told = []
        for ids in want.branches:
            shared = common_prefix(want.ids, ids)
            start = base if shared == len(want.ids) else self._fed(None, ids[:shared])
            snapshot, logits = self._traced(start, ids[shared:])
            told.append(logits)
            self._kept[want.key].append(snapshot)
        return told

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)
        self._drafts.pop(key, None)

    def clear(self) -> None:
        self._kept.clear()
        self._drafts.clear()

    def _at(self, key: str, ids: list[int]) -> Snapshot:
        """A snapshot at exactly these tokens, from the longest that is a prefix of them."""
        kept = [*self._kept.get(key, []), *([self._drafts[key]] if key in self._drafts else [])]
        fits = [s for s in kept if len(s.ids) <= len(ids) and s.ids == ids[: len(s.ids)]]
        best = max(fits, key=lambda s: len(s.ids), default=None)
        self._drafts.pop(key, None)
        if best is None:
            return self._fed(None, ids)
        self.reused += len(best.ids)
        return best if len(best.ids) == len(ids) else self._fed(best, ids[len(best.ids) :])

    def _traced(self, start: Snapshot, ids: list[int]) -> tuple[Snapshot, Tensor]:
        """The snapshot after these tokens on a copy of ``start``, and the logits before each and after the last."""
        here = Snapshot(start.ids, copy.deepcopy(start.cache), start.logits)
        rows = [start.logits[None]]
        for piece in self._pieces(here, ids):
            here, logits = self._read(here, piece)
            rows.append(logits)
        return here, torch.cat(rows)

    def _fed(self, start: Snapshot | None, ids: list[int]) -> Snapshot:
        """``start`` itself, moved on by these tokens."""
        here = start or Snapshot([], DynamicCache(config=self.read.model.config), torch.empty(0))
        for piece in self._pieces(here, ids):
            here, _ = self._read(here, piece)
        return here

    def _pieces(self, here: Snapshot, ids: list[int]) -> list[list[int]]:
        return [ids] if ids and (self.whole or not here.ids) else [[token] for token in ids]

    def _read(self, here: Snapshot, ids: list[int]) -> tuple[Snapshot, Tensor]:
        self.passed += len(ids)
        logits = self.read(torch.tensor([ids]), cache=here.cache)[0]
        return Snapshot(here.ids + ids, here.cache, logits[-1]), logits
