"""A cache that uses the model's own cache of transformers.

Layers that hold keys and values can be cut back, even those with sliding windows: all keys are
kept, and the model's own masks hide the old ones. Several texts are read in one pass
(:class:`.Rows`). Recurrent layers can only be copied, and their texts are read one after the other.
When a model is loaded, :func:`best_cache` finds out which kind of cache gives the logits of a fresh
reading, alone and in a batch. If none does, the model is refused.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ...errors import MemberError, advised
from ..local.cache import Cache
from ..local.strands import Extension, Logits, SequenceKey, Strand
from .forward import Forward, is_out_of_memory
from .lora import Adapter
from .model import TransformersWeights
from .rows import Rows

log = logging.getLogger("langchain_specfuse")

CHUNK, CPU_CHUNK = 1024, 64
"""At most this many tokens are read in one pass, to bound the memory that a long prompt needs. On a
CPU, a pass over 64 tokens takes about as long as drafting ten."""
PADDING = 1024
"""Texts of any lengths are read together if that takes at most so many tokens of padding in the
cache. Above that, at most half of it is padding."""
PER_QUERY = 4
"""About how many strands an open query has: its text, its draft, and its branches."""
LIMITS = {torch.float32: 1e-3}
HALF_LIMIT = 0.12
"""How far logits may differ from those of a fresh reading, relative to their spread. With real
models, rounding makes a difference of up to 1e-5 in float32 and 0.05 in bfloat16, and a wrong mask
or position makes one of 0.3 to 0.8."""
JOINT_LIMIT = 1e-4
"""How far log-probabilities in float32 may differ in a batch: the root of the mean square over the
vocabulary. With real models it was 0.00001. In half precision :data:`HALF_LIMIT` holds for batches,
too; rounding made a difference of 0.04 in bfloat16 and 0.007 in float16."""
CPU_WORK, GPU_WORK = 1.5e11, 5e13
"""The trial reads past a sliding window if its tokens times the model's parameters are at most
this. That takes a few seconds."""


class ModelCache(Cache):
    """The state of a strand is the model's own cache.

    ``kind``: ``keys and values``, which can be cut, or ``states``, which can be copied.
    """

    def __init__(
        self, weights: TransformersWeights, kind: str, adapter: Adapter | None = None
    ) -> None:
        forward = weights.forward
        super().__init__(weights, CPU_CHUNK if forward.device.type == "cpu" else CHUNK)
        self.forward = forward
        self.adapter = adapter
        self.kind = kind
        self.cuts = kind == "keys and values"
        self.joins = False
        """Whether several texts are read in one pass. :meth:`agrees` finds out."""
        self.prefixes.whole = not self.cuts

    @property
    def detail(self) -> str:
        return f"{self.kind} in batches" if self.joins else self.kind

    # --- strands ----------------------------------------------------------------------------------

    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        if self.budget is not None:
            copied = max((self.bytes_of(strand) for strand in self.trunks.values()), default=0)
            while self.bytes_held + copied > self.budget and self.give_up(keys):
                pass
        return Strand(state=self._empty_state())

    def _empty_state(self) -> Any:
        if self.cuts:
            return DynamicCache()
        return DynamicCache(config=self.forward.model.config)

    def release(self, strand: Strand) -> None:
        strand.cut(0)
        strand.state = None

    def copy(self, old: Strand, new: Strand, size: int) -> None:
        if size < len(old.ids) and not self.cuts:
            return
        self._separate(old)
        new.state = self._copied(old.state)
        new.begin_as(old)
        self.cut(new, size)

    def _copied(self, state: Any) -> Any:
        if not self.cuts:
            return copy.deepcopy(state)
        # Keys and values are shared: layers replace these tensors and never write into them.
        copied = DynamicCache()
        copied.layers += [copy.copy(layer) for layer in state.layers]
        return copied

    def cut(self, strand: Strand, size: int) -> bool:
        if size >= len(strand.ids):
            return True
        if not self.cuts or size == 0:
            strand.state = self._empty_state()
            strand.cut(0)
            return False
        self._separate(strand)
        strand.state.crop(size - len(strand.ids))  # minus the number of tokens to remove
        strand.cut(size)
        return True

    def forget(self, key: SequenceKey) -> None:
        strand = self.trunks.get(key)
        if strand is not None and isinstance(strand.state, Rows):
            strand.state.separate(strand)  # a prefix would keep the texts beside it in memory
        super().forget(key)

    def clear(self) -> None:
        for strand in self.strands:
            strand.state = None  # strands and their rows refer to each other
        super().clear()

    def _separate(self, strand: Strand) -> None:
        """Give the strand a state of its own."""
        if isinstance(strand.state, Rows):
            strand.state.dissolve()

    # --- reading ----------------------------------------------------------------------------------

    def read(self, extensions: Sequence[Extension]) -> list[Logits]:
        logits: dict[int, Logits] = {}
        for places in self._passes(extensions):
            parts = [extensions[at] for at in places]
            found = self._read_together(parts) if len(parts) > 1 else [self._read(*parts[0])]
            logits |= zip(places, found, strict=True)
        return [logits[at] for at in range(len(extensions))]

    def _passes(self, extensions: Sequence[Extension]) -> list[list[int]]:
        """Which extensions are read together: as many as have a chunk of tokens, if there is little
        to pad."""
        sizes = [(len(tokens), len(strand.ids)) for strand, tokens, _ in extensions]
        is_joint = self.joins and len({id(strand) for strand, _, _ in extensions}) == len(sizes)
        passes: list[list[int]] = []
        for at in sorted(range(len(sizes)), key=sizes.__getitem__):
            part = [sizes[other] for other in (*passes[-1], at)] if passes else []
            if is_joint and part and self._may_join(part):
                passes[-1].append(at)
            else:
                passes.append([at])
        return passes

    def _may_join(self, sizes: Sequence[tuple[int, int]]) -> bool:
        """``sizes``: new and known tokens of each text, those with the fewest new ones first."""
        if not sizes[0][0] or len(sizes) * sizes[-1][0] > self.chunk:
            return False
        new, known = (_padding(lengths) for lengths in zip(*sizes, strict=True))
        return new <= self.chunk // 2 and known <= max(PADDING, sum(size for _, size in sizes))

    def _read_together(self, extensions: Sequence[Extension]) -> list[Logits]:
        rows = self._rows([strand for strand, _, _ in extensions])
        by_strand = {id(extension.strand): extension for extension in extensions}
        ordered = [by_strand[id(strand)] for strand in rows.strands]
        parts = [list(extension.tokens) for extension in ordered]
        wanted = [extension.rows for extension in ordered]
        try:
            found = self.forward.together(parts, rows, wanted, self.adapter)
        except Exception:
            rows.empty()
            raise
        self.tokens_read += sum(map(len, parts))
        rows.append(parts)
        logits = {
            id(extension.strand): part for extension, part in zip(ordered, found, strict=True)
        }
        return [logits[id(strand)] for strand, _, _ in extensions]

    def _rows(self, strands: Sequence[Strand]) -> Rows:
        """These strands side by side. Between the steps of a draft they stay so."""
        rows = strands[0].state
        if isinstance(rows, Rows) and all(strand.state is rows for strand in strands):
            rows.keep(strands)
            return rows
        for strand in strands:
            self._separate(strand)
        return Rows(strands)

    def _read(self, strand: Strand, tokens: Sequence[int], rows: int) -> Logits:
        self._separate(strand)
        found, left = [], list(tokens)
        while left:
            part, left = left[: self.chunk], left[self.chunk :]
            part_rows = min(len(part), max(rows - len(left), 0))
            self.tokens_read += len(part)
            found.append(self._pass(strand, part, part_rows))
            strand.ids += part
        return np.concatenate(found) if found else np.empty((0, 0), np.float32)

    def _pass(self, strand: Strand, tokens: list[int], rows: int) -> Logits:
        try:
            return self.forward(tokens, cache=strand.state, rows=rows, adapter=self.adapter)
        except Exception:
            self.cut(strand, 0)  # the content of this state no longer corresponds to any tokens
            raise

    # --- the trial --------------------------------------------------------------------------------

    def _tries(
        self,
        strands: tuple[Strand, Strand, Strand],
        ids: list[int],
        limit: float,
        expected: Logits | None,
    ) -> bool:
        agrees = super()._tries(strands, ids, limit, expected)
        if agrees and self.cuts and expected is not None:
            self.joins = self._agrees_together(strands, ids, expected)
        return agrees

    def _agrees_together(self, strands: Sequence[Strand], ids: list[int], expected: Logits) -> bool:
        """Whether reading several texts in one pass gives the same logits. All strands hold
        ``ids``."""
        last = len(ids) - 1
        try:
            for strand, size in zip(strands, (last - 1, last - 4, last - 10), strict=True):
                self.cut(strand, size)
            self._read_together([Extension(s, ids[len(s.ids) : last], 0) for s in strands])
            found = self._read_together([Extension(s, ids[last:], 1) for s in strands])
        except Exception as error:  # a model that takes no mask or no padding raises anything
            log.debug("a trial of batches failed: %s", error)
            return False
        difference = max(_difference(rows[-1], expected) for rows in found)
        log.debug("log-probabilities in a batch differ by %.1e", difference)
        return difference < _joint_limit(self.forward.model.dtype, expected)

    # --- memory -----------------------------------------------------------------------------------

    def bytes_of(self, strand: Strand) -> int:
        rows = strand.state
        if isinstance(rows, Rows):
            return rows.bytes_each
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


def _padding(lengths: Sequence[int]) -> int:
    """How many tokens are missing until all are as long as the longest."""
    return len(lengths) * max(lengths) - sum(lengths)


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


def _difference(row: Logits, expected: Logits) -> float:
    """The root of the mean square of the differences of log-probabilities."""
    errors = row - np.logaddexp.reduce(row) - (expected - np.logaddexp.reduce(expected))
    return float(np.sqrt(np.square(errors).mean()))


def _joint_limit(dtype: torch.dtype, expected: Logits) -> float:
    return JOINT_LIMIT if dtype == torch.float32 else HALF_LIMIT * float(expected.std())


def best_cache(
    weights: TransformersWeights, adapter: Adapter | None = None, member: str = ""
) -> ModelCache:
    """The fastest kind of cache that agrees with a fresh reading of made-up tokens. Raises if none
    does."""
    forward, vocabulary = weights.forward, weights.trial_tokens
    size = 24 + _window(forward)
    text = [vocabulary[(3 * at + at * at // 5) % len(vocabulary)] for at in range(size)]
    limit = LIMITS.get(forward.model.dtype, HALF_LIMIT)
    kinds = ["states"]
    if _holds_keys_and_values(forward.model.config):
        kinds.insert(0, "keys and values")
    for kind in kinds:
        try:
            cache = ModelCache(weights, kind, adapter)
            if cache.agrees(text, limit, forward(text, adapter=adapter)[0]):
                return cache
        except Exception as error:  # a cache that cannot work with this model raises anything
            log.debug("a trial of %s failed: %s", kind, error)
    refused = MemberError(
        f"transformers cannot go back in a text with this model ({type(weights.model).__name__}): "
        "its cache can neither be cut nor copied, or gives other logits then",
        member=member,
    )
    raise advised(refused, "run it on vLLM: VllmMember(...), or vllm: before its name")


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
