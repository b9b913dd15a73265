"""A store on llama.cpp's KV cache: a query is a sequence, and so is each draft that is scored and
each kept prefix.

Sequences share cells: a copy of one costs nothing until it is continued. Tokens of all sequences
are read together. All cells are one pool (``kv_unified``), in which a sequence's cells must have
the order of its tokens: attention sums in the order of the cells, and with four-bit weights another
order changes logits by several percent of their spread. So freed cells are not reused immediately.
They are kept in an unused sequence, the graveyard, until the pool is full. Then what is still
needed is saved and restored into a fresh pool, larger if necessary. Timing never affects answers.
"""

from __future__ import annotations

import ctypes
import logging
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from langchain_specfuse.errors import MemberError, advised

from ..local.strands import Logits, Reading, SequenceKey, Strand, StrandStore
from .binding import CACHE_TYPES, COMPLAINTS, NO_ROOM, Batch
from .loading import chosen_threads
from .loading import threads as most_threads
from .threads import Threads

if TYPE_CHECKING:
    from .loading import GgufWeights, LoraAdapter

log = logging.getLogger("langchain_specfuse")

BATCH, SEQUENCES, TOGETHER = 512, 32, 8
"""Tokens that are read in one call, sequences in the cache, and questions that are answered in one
batch."""
PREFIXES = SEQUENCES // 2
"""At most this many prefixes are kept, because drafts need the other sequences."""
NARROW = 48
"""Tokens that are computed together. From 64 on attention rounds in another way, and replies would
depend on others."""
STEP = 256
"""Attention processes cells in multiples of this number."""
CHUNK = 96
"""A long prompt is read in pieces of this many tokens, with other work between them."""
GRAVEYARD = SEQUENCES - 1
CELLS = 512
"""Tokens that the cache holds at first."""
TRIAL_ERROR = 0.15
"""Logits after a cut may differ by this much of their spread: kernels for one token and for many
round differently."""


T = TypeVar("T")


class NoRoomError(MemoryError):
    """The pool is full. Nothing was read, and nothing is lost."""


class SequenceStore(StrandStore):
    """Sequences of one model, all with the same adapter. The state of a strand is the number of its
    sequence."""

    def __init__(
        self,
        weights: GgufWeights,
        adapter: LoraAdapter | None = None,
        threads: int | None = None,
    ) -> None:
        """``threads``: a fixed number of threads; None: it is measured."""
        super().__init__(weights.device, CHUNK)
        fixed = threads or chosen_threads()
        self.threads = Threads(fixed or most_threads())
        self._measured = fixed is None and weights.device == "cpu"
        """Whether the number of threads is found by measuring."""
        self.weights, self.adapter = weights, adapter
        self._lib = weights.lib
        self._context: Any = None
        self._close: Any = None
        self._cells = self._dead = 0
        """The number of tokens that fit, and of tokens in the graveyard."""
        self._used = 0
        """An upper bound for the cells that have been used since all were free."""
        self._free: list[int] = []
        self.token_bytes = 1
        self._open(CELLS)
        if not self.tried(weights.trial_tokens, TRIAL_ERROR):
            self.cuts = False
            self._open(CELLS)  # without the tokens that the trial left in the graveyard
            if not self.tried(weights.trial_tokens, TRIAL_ERROR):
                wrong = MemberError(
                    f"the cache of llama.cpp is not right for {weights.source.model}: a copy of it "
                    "differs"
                )
                raise advised(wrong, "load the original weights: TransformersMember(...)")
        self.prefixes.whole = not self.cuts
        self.prefixes.most = PREFIXES
        self.kind = "llama.cpp" if self.cuts else "llama.cpp, a state that cannot be cut"

    # --- the context ------------------------------------------------------------------------------

    def _open(self, cells: int) -> None:
        """A new, empty context of llama.cpp."""
        self.clear()
        lib, params = self._lib, self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = (
            cells,
            BATCH,
            NARROW,
            SEQUENCES,
        )
        params.n_outputs_max = params.n_outputs_max_per_seq = SEQUENCES
        params.n_threads = params.n_threads_batch = self.threads.most
        params.flash_attention, params.kv_unified = 1, True
        params.type_k = params.type_v = CACHE_TYPES[self.weights.source.cache_type]
        COMPLAINTS.clear()
        self._context = lib.llama_init_from_model(self.weights.handle, params)
        if not self._context:
            raise MemoryError(
                f"llama.cpp has no room for a cache of {cells} tokens: {' '.join(COMPLAINTS)[:300]}"
            )
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self._close.atexit = False  # another thread may still be reading
        self._memory = lib.llama_get_memory(self._context)
        self._cells, self._free, self._dead = cells, list(range(GRAVEYARD)), 0
        self._used = 0
        if self.adapter is not None:
            adapters, scales = (ctypes.c_void_p * 1)(self.adapter.handle), (ctypes.c_float * 1)(1.0)
            if lib.llama_set_adapters_lora(self._context, adapters, 1, scales):
                raise MemberError(f"llama.cpp cannot apply the adapter {self.adapter.path}")

    # --- strands ----------------------------------------------------------------------------------

    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        if self._context is None:
            self._open(self._affordable(CELLS))
        self.sweep()
        while not self._free:
            if not self.give_up(keys):
                # not a MemoryError, which would empty all caches on the device
                raise RuntimeError("all sequences of the cache are in use")
        return Strand(state=self._free.pop())

    def room_for(self, count: int, keys: Collection[SequenceKey]) -> int:
        self.sweep()
        while len(self._free) < count and self.give_up_branches(keys):
            pass
        return len(self._free)

    def release(self, strand: Strand) -> None:
        if self._context is not None:
            self._empty(strand)
            self._free.append(strand.state)
            # nothing is held: the pool is filled from its first cell again
            if len(self._free) == GRAVEYARD:
                self._lib.llama_memory_seq_rm(self._memory, GRAVEYARD, -1, -1)
                self._dead = self._used = 0

    def _empty(self, strand: Strand) -> None:
        self._bury(strand, 0)
        self._lib.llama_memory_seq_rm(self._memory, strand.state, -1, -1)
        strand.cut(0)

    def _bury(self, strand: Strand, size: int) -> None:
        """Keep the cells behind the first ``size`` tokens from being used again."""
        if self.cuts and size < len(strand.ids):
            self._lib.llama_memory_seq_cp(self._memory, strand.state, GRAVEYARD, size, -1)
            self._dead += len(strand.ids) - size

    def copy(self, old: Strand, new: Strand, size: int) -> None:
        if size < len(old.ids) and not self.cuts:
            return
        self._lib.llama_memory_seq_cp(self._memory, old.state, new.state, -1, -1)
        new.begin_as(old)
        self.cut(new, size)

    def cut(self, strand: Strand, size: int) -> bool:
        if size >= len(strand.ids):
            return True
        self._bury(strand, size)
        if self.cuts and self._lib.llama_memory_seq_rm(self._memory, strand.state, size, -1):
            strand.cut(size)
            return True
        self._empty(strand)
        return False

    # --- one call of llama.cpp --------------------------------------------------------------------

    def with_room(self, read: Callable[[], T], keys: Sequence[SequenceKey]) -> T:
        while True:
            try:
                return read()
            except NoRoomError:
                self._make_room(keys)

    def _make_room(self, keys: Sequence[SequenceKey]) -> None:
        """Move what is needed into a fresh pool. If that is too much, prefixes go first, then idle
        queries."""
        if self.cuts:
            for key in list(self.branches):
                self.free_branches(key)
        self.sweep()
        needed = sum(len(strand.ids) for strand in self.strands)
        while needed > self._cells // 2 and self.prefixes.kept:
            needed -= len(self.prefixes.kept.pop(0).ids)
        cells = self._cells
        while needed > cells // 2 and self._affordable(2 * cells) > cells:
            cells = self._affordable(2 * cells)
        resting = [key for key in self.trunks if key not in keys]
        while needed > cells - cells // 4 and resting:
            needed -= len(self.trunks[resting[0]].ids)
            self.drop(resting.pop(0))
        self.sweep()
        if cells == self._cells and not self._dead:
            cells = self._affordable(2 * cells)
        if cells == self._cells and not self._dead:
            raise MemoryError(f"a cache of {cells} tokens is full")
        log.debug(
            "%s: a cache of %d tokens, %d of them needed", self.weights.source.model, cells, needed
        )
        saved = [(strand, self._state_of(strand)) for strand in self.strands]
        held = {
            name: getattr(self, name)
            for name in ("trunks", "branches", "read_ahead", "found", "kept", "_free")
        }
        kept = self.prefixes.kept
        for name in held:  # or they would be cleared
            setattr(self, name, type(held[name])())
        self.prefixes.kept = []
        self._open(cells)
        vars(self).update(held)
        self.prefixes.kept = kept
        for strand, state in saved:
            if state and not self._lib.llama_state_seq_set_data(
                self._context, state, len(state), strand.state
            ):
                strand.cut(0)  # it is read again
            self._used += len(strand.ids)

    def _state_of(self, strand: Strand) -> Any:
        size = self._lib.llama_state_seq_get_size(self._context, strand.state) if strand.ids else 0
        state = ctypes.create_string_buffer(size) if size else None
        if state is not None:
            self._lib.llama_state_seq_get_data(self._context, state, size, strand.state)
        return state

    def _affordable(self, cells: int) -> int:
        """So many cells, or fewer if that is all that there is room for."""
        return (
            cells
            if self.budget is None
            else max(NARROW, min(cells, self.budget // self.token_bytes))
        )

    def read(self, wants: Sequence[Reading]) -> list[Logits]:
        todo = [
            (at, token, left)
            for at, (_, ids, _) in enumerate(wants)
            for left, token in _counted(ids)
        ]
        rows: list[list[Logits]] = [[] for _ in wants]
        while todo:
            size = outputs = 0
            for at, _, left in todo[: min(BATCH, self._cells)]:
                outputs += left < wants[at][2]
                if outputs > SEQUENCES:
                    break
                size += 1
            now, todo = todo[:size], todo[size:]
            owners = [at for at, _, left in now if left < wants[at][2]]
            for at, row in zip(owners, self._pass(wants, now), strict=True):
                rows[at].append(row)
        return [
            np.stack(one) if one else np.empty((0, self.weights.vocabulary_size), np.float32)
            for one in rows
        ]

    def _pass(
        self, wants: Sequence[Reading], now: Sequence[tuple[int, int, int]]
    ) -> Sequence[Logits]:
        positions = []
        for at, token, _ in now:
            ids = wants[at][0].ids
            positions.append(len(ids))
            ids.append(token)
        wanted = [left < wants[at][2] for at, _, left in now]
        batch = Batch.of(
            [token for _, token, _ in now],
            positions,
            [wants[at][0].state for at, _, _ in now],
            wanted,
        )
        if code := self._decode(batch, len(now)):
            for at, _, _ in now:
                wants[at][0].ids.pop()
            if code == NO_ROOM:
                raise NoRoomError
            # what is cached of these queries is dropped
            raise RuntimeError(f"llama.cpp failed with code {code}")
        self.tokens_read += len(now)
        self._used += len(now)
        if not any(wanted):
            return []
        shape = (sum(wanted), self.weights.vocabulary_size)
        rows: Logits = np.ctypeslib.as_array(
            self._lib.llama_get_logits(self._context), shape
        ).copy()
        return list(rows)

    def _decode(self, batch: Batch, size: int) -> int:
        """Compute one pass, with the fastest number of threads if that cannot change results."""
        if not self._measured or self._splits_attention(size):
            return int(self._lib.llama_decode(self._context, batch))
        number, most = self.threads.number(size), self.threads.most
        self._lib.llama_set_n_threads(self._context, number, number)
        since = time.perf_counter()
        code = int(self._lib.llama_decode(self._context, batch))
        if not code:
            self.threads.took(size, time.perf_counter() - since)
        self._lib.llama_set_n_threads(self._context, most, most)
        return code

    def _splits_attention(self, size: int) -> bool:
        """Whether attention may be summed in one part per thread, so that the number of threads
        affects the last bits. llama.cpp does this if a single token attends to 512 cells or more,
        and it counts cells in steps of 256."""
        if self._used + size <= STEP:
            return False
        return not self.cuts or (size == 1 and self.weights.source.cache_type == "f16")

    # --- forgetting and memory --------------------------------------------------------------------

    def clear(self) -> None:
        super().clear()
        if self._close is not None:
            self._close()
        self._context = self._close = None
        self._cells = self._dead = 0

    @property
    def bytes_held(self) -> int:
        return self._cells * self.token_bytes + self.logits_bytes

    def bytes_of(self, strand: Strand) -> int:
        return self._lib.llama_state_seq_get_size(self._context, strand.state) if strand.ids else 0

    def bytes_for(self, tokens: int) -> int:
        return (tokens + tokens // 4) * self.token_bytes

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        return [
            slice(at, min(at + TOGETHER, part.stop))
            for part in super().batches(sizes)
            for at in range(part.start, min(part.stop, len(sizes)), TOGETHER)
        ]

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
        if self._cells * self.token_bytes > budget:
            self.clear()


def _counted(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Each token with how many follow it."""
    return [(len(ids) - 1 - at, token) for at, token in enumerate(ids)]
