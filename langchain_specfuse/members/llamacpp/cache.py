"""A cache on llama.cpp's KV cache: a query is a sequence, and so is each draft that is scored and
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
import weakref
from collections.abc import Callable, Collection, Sequence
from ctypes import POINTER, c_int8, c_int32
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ...errors import MemberError, advised
from ..local.cache import Cache
from ..local.strands import Extension, Logits, SequenceKey, Strand
from .binding import CACHE_TYPES, COMPLAINTS, NO_ROOM, Batch, thread_count
from .model import GgufWeights, LoraAdapter

log = logging.getLogger("langchain_specfuse")
T = TypeVar("T")

SEQUENCES = 32
"""The number of sequences in the cache."""
TOGETHER = 8
"""At most this many questions are answered in one batch."""
PREFIXES = SEQUENCES // 2
"""At most this many prefixes are kept, because drafts need the other sequences."""
CHUNK = 96
"""A long prompt is read in pieces of this many tokens, with other work between them."""
NARROW, WIDE = 48, CHUNK
"""How many tokens are computed together. From 64 tokens on, attention rounds differently, and
replies would depend on other questions. If one token is rounded differently from several anyway
(weights in blocks of 256), passes are wide, and a prompt is read a tenth faster."""
GRAVEYARD = SEQUENCES - 1
"""The sequence of the freed cells."""
CELLS = 512
"""Tokens that the cache holds at first."""
TRIAL_ERROR = 0.15
"""Logits after a cut may differ by this much of their spread: kernels for one token and for many
round differently."""

STEADY = 0.001
"""Logits count as equal if they differ by at most this part of their spread. With weights in blocks
of 256, they differ by several percent."""
TILE = 8
"""Kernels for several tokens compute at most this many at a time, and the rest one by one."""


class NoRoomError(MemoryError):
    """The pool is full. Nothing was read, and no strand was lost."""


class _Token(NamedTuple):
    """A token that is still to be read."""

    extension: int
    """The index of its extension."""
    token: int
    following: int
    """How many tokens of the extension follow it."""


class LlamaCppCache(Cache):
    """Sequences of one model, all with the same adapter. The state of a strand is the number of its
    sequence."""

    together = TOGETHER

    def __init__(self, weights: GgufWeights, adapter: LoraAdapter | None = None) -> None:
        super().__init__(weights, CHUNK)
        self.weights: GgufWeights = weights
        self.adapter = adapter
        self._lib = weights.lib
        self._context: Any = None
        self._close: Any = None
        """Frees the context."""
        self._cells = self._buried = 0
        """How many tokens fit, and how many lie in the graveyard."""
        self._free = list(range(GRAVEYARD))
        """The numbers of unused sequences."""
        self.token_bytes = 1
        self._widest = NARROW
        """At most this many tokens are read in a pass."""
        self._open(CELLS)
        self._find_kind()
        if not self._is_steady():
            self._widest = WIDE
        self.prefixes.whole = not self.cuts
        self.prefixes.most = PREFIXES
        self.kind = "llama.cpp" if self.cuts else "llama.cpp, a state that cannot be cut"

    # --- the trial --------------------------------------------------------------------------------

    def _find_kind(self) -> None:
        """Find out whether strands can be cut, and how large they are."""
        weights = self.weights
        if self.agrees(weights.trial_tokens, TRIAL_ERROR):
            return
        self.cuts = False
        self._open(CELLS)  # without the tokens that the trial left in the graveyard
        if self.agrees(weights.trial_tokens, TRIAL_ERROR):
            return
        error = MemberError(
            f"the cache of llama.cpp is not right for {weights.source.model}: a copy of it differs"
        )
        raise advised(error, "load the original weights: TransformersMember(...)")

    def _is_steady(self) -> bool:
        """Whether a token has the same logits if it is read alone and if it is read with others."""
        ids = self.weights.trial_tokens[:TILE]
        alone, together = self.blank(), self.blank()
        try:
            self.read([Extension(alone, ids[:-1], 0)])
            row = self.read([Extension(alone, ids[-1:], 1)])[0][0]
            expected = self.read([Extension(together, ids, 1)])[0][0]
            return float((row - expected).std()) < STEADY * float(expected.std())
        finally:
            self._release_all([alone, together])
            self.tokens_read = 0

    # --- the context ------------------------------------------------------------------------------

    def _open(self, cells: int) -> None:
        """Open a context of llama.cpp in which all sequences are empty."""
        self._close_context()
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = params.n_ubatch = WIDE
        params.n_seq_max = SEQUENCES
        params.n_outputs_max = params.n_outputs_max_per_seq = SEQUENCES
        params.n_threads = params.n_threads_batch = thread_count()
        params.flash_attention, params.kv_unified = 1, True
        params.type_k = params.type_v = CACHE_TYPES[self.weights.source.cache_type]
        COMPLAINTS.lines.clear()
        self._context = lib.llama_init_from_model(self.weights.handle, params)
        if not self._context:
            self.clear()
            reason = " ".join(COMPLAINTS.lines)[:300]
            raise MemoryError(f"llama.cpp has no room for a cache of {cells} tokens: {reason}")
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self._close.atexit = False  # another thread may still be reading
        self._memory = lib.llama_get_memory(self._context)
        self._cells = cells
        self._buried = 0
        if self.adapter is not None:
            self._apply(self.adapter)

    def _close_context(self) -> None:
        if self._close is not None:
            self._close()
        self._context = self._close = None
        self._cells = self._buried = 0

    def _apply(self, adapter: LoraAdapter) -> None:
        adapters, scales = (ctypes.c_void_p * 1)(adapter.handle), (ctypes.c_float * 1)(1.0)
        if self._lib.llama_set_adapters_lora(self._context, adapters, 1, scales):
            raise MemberError(f"llama.cpp cannot apply the adapter {adapter.path}")

    # --- strands ----------------------------------------------------------------------------------

    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        if self._context is None:
            self._open(self._affordable(CELLS))
        while not self._free:
            if not self.give_up(keys):
                # not a MemoryError, which would empty all caches on the device
                raise RuntimeError("all sequences of the cache are in use")
        return Strand(state=self._free.pop())

    def room_for(self, count: int, keys: Collection[SequenceKey]) -> int:
        while len(self._free) < count and self.give_up_branches(keys):
            pass
        return len(self._free)

    def release(self, strand: Strand) -> None:
        if self._context is None:
            return
        self._empty(strand)
        self._free.append(strand.state)
        if len(self._free) == GRAVEYARD:
            # Nothing is held, so the pool is filled from its first cell again.
            self._lib.llama_memory_seq_rm(self._memory, GRAVEYARD, -1, -1)
            self._buried = 0

    def _empty(self, strand: Strand) -> None:
        self._bury(strand, 0)
        self._lib.llama_memory_seq_rm(self._memory, strand.state, -1, -1)
        strand.cut(0)

    def _bury(self, strand: Strand, size: int) -> None:
        """Keep the cells behind the first ``size`` tokens from being used again."""
        if self.cuts and size < len(strand.ids):
            self._lib.llama_memory_seq_cp(self._memory, strand.state, GRAVEYARD, size, -1)
            self._buried += len(strand.ids) - size

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

    # --- room -------------------------------------------------------------------------------------

    def with_room(self, read: Callable[[], T], keys: Sequence[SequenceKey]) -> T:
        while True:
            try:
                return read()
            except NoRoomError:
                self._make_room(keys)

    def _make_room(self, keys: Sequence[SequenceKey]) -> None:
        """Move what is needed into a fresh pool. If that is too much, free prefixes first, then
        idle queries."""
        if self.cuts:
            for key in list(self.branches):
                self.free_branches(key)
        needed = sum(len(strand.ids) for strand in self.strands)
        dropped: list[Strand] = []
        while needed > self._cells // 2 and self.prefixes.kept:
            dropped.append(self.prefixes.kept.pop(0))
            needed -= len(dropped[-1].ids)
        cells = self._cells
        while needed > cells // 2 and self._affordable(2 * cells) > cells:
            cells = self._affordable(2 * cells)
        idle = [key for key in self.trunks if key not in keys]
        while needed > cells - cells // 4 and idle:
            needed -= len(self.trunks[idle[0]].ids)
            self.drop(idle.pop(0))
        for strand in dropped:
            self.release(strand)
        if cells == self._cells and not self._buried:
            cells = self._affordable(2 * cells)
        if cells == self._cells and not self._buried:
            raise MemoryError(f"a cache of {cells} tokens is full")
        log.debug(
            "%s: a cache of %d tokens, %d of them needed", self.weights.source.model, cells, needed
        )
        self._move(cells)

    def _move(self, cells: int) -> None:
        """Move all strands into a fresh pool of this many cells."""
        saved = [(strand, self._state_of(strand)) for strand in self.strands]
        self._open(cells)
        for strand, state in saved:
            if state and not self._lib.llama_state_seq_set_data(
                self._context, state, len(state), strand.state
            ):
                strand.cut(0)  # it is read again

    def _state_of(self, strand: Strand) -> Any:
        size = self.bytes_of(strand)
        if not size:
            return None
        state = ctypes.create_string_buffer(size)
        self._lib.llama_state_seq_get_data(self._context, state, size, strand.state)
        return state

    def _affordable(self, cells: int) -> int:
        """So many cells, or fewer if the budget does not allow them. Never fewer than the pool has,
        even if the budget was lowered since it was made."""
        if self.budget is None:
            return cells
        return max(NARROW, self._cells, min(cells, self.budget // self.token_bytes))

    # --- reading ----------------------------------------------------------------------------------

    def read(self, extensions: Sequence[Extension]) -> list[Logits]:
        rows: list[list[Logits]] = [[] for _ in extensions]
        left: list[_Token] = []
        for index, extension in enumerate(extensions):
            last = len(extension.tokens) - 1
            left += [_Token(index, token, last - at) for at, token in enumerate(extension.tokens)]
        while left:
            size = self._pass_size(extensions, left)
            tokens, left = left[:size], left[size:]
            owners = [token.extension for token in tokens if _has_row(extensions, token)]
            for owner, row in zip(owners, self._pass(extensions, tokens), strict=True):
                rows[owner].append(row)
        empty = np.empty((0, self.weights.vocabulary_size), np.float32)
        return [np.stack(logits) if logits else empty for logits in rows]

    def _pass_size(self, extensions: Sequence[Extension], left: Sequence[_Token]) -> int:
        """How many of these tokens are read in the next pass."""
        size = rows = 0
        for token in left[: min(self._widest, self._cells)]:
            rows += _has_row(extensions, token)
            if rows > SEQUENCES:
                break
            size += 1
        return size

    def _pass(self, extensions: Sequence[Extension], tokens: Sequence[_Token]) -> Sequence[Logits]:
        """Read these tokens in one call. Returns the rows that are asked for."""
        strands = [extensions[token.extension].strand for token in tokens]
        positions = []
        for strand, token in zip(strands, tokens, strict=True):
            positions.append(len(strand.ids))
            strand.ids.append(token.token)
        has_row = [_has_row(extensions, token) for token in tokens]
        batch = _batch(
            [token.token for token in tokens],
            positions,
            [strand.state for strand in strands],
            has_row,
        )
        code = int(self._lib.llama_decode(self._context, batch))
        if code:
            for strand in strands:
                strand.ids.pop()
            if code == NO_ROOM:
                raise NoRoomError
            # what is cached of these queries is dropped
            raise RuntimeError(f"llama.cpp failed with code {code}")
        self.tokens_read += len(tokens)
        if not any(has_row):
            return []
        shape = (sum(has_row), self.weights.vocabulary_size)
        logits = np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), shape)
        return list(logits.copy())

    # --- memory -----------------------------------------------------------------------------------

    def clear(self) -> None:
        super().clear()
        self._close_context()
        self._free = list(range(GRAVEYARD))

    @property
    def bytes_held(self) -> int:
        return self._cells * self.token_bytes + self.logits_bytes

    def bytes_of(self, strand: Strand) -> int:
        if not strand.ids:
            return 0
        return int(self._lib.llama_state_seq_get_size(self._context, strand.state))

    def bytes_for(self, tokens: int) -> int:
        return (tokens + tokens // 4) * self.token_bytes

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        super().set_budget(budget, prefix_bytes)
        if self._cells * self.token_bytes > budget:
            self.clear()


def _has_row(extensions: Sequence[Extension], token: _Token) -> bool:
    """Whether the logits after this token are asked for."""
    return token.following < extensions[token.extension].rows


def _batch(
    tokens: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[int],
    has_logits: Sequence[bool],
) -> Batch:
    """Tokens of several sequences for one call of llama.cpp. ``has_logits``: whether the logits
    after the token are needed."""
    size = len(tokens)
    ints = c_int32 * size
    numbers = ints(*sequences)
    base, step = ctypes.addressof(numbers), ctypes.sizeof(c_int32)
    lists = (POINTER(c_int32) * size)(
        *[ctypes.cast(base + at * step, POINTER(c_int32)) for at in range(size)]
    )
    batch = Batch(
        size,
        ints(*tokens),
        None,
        ints(*positions),
        ints(*[1] * size),
        lists,
        (c_int8 * size)(*has_logits),
    )
    batch.numbers = numbers  # the lists point there
    return batch
