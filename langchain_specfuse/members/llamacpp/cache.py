"""A store on llama.cpp's KV cache: a query is a sequence, and so is each draft that is scored and each kept prefix.

Sequences share cells: a copy of one costs nothing until it goes on. Tokens of all sequences are read together. All
cells are one pool (``kv_unified``), in which a sequence's cells must stand in the order of its tokens: attention adds
up in the order of the cells, and in four bits another order moves logits by some percent. So cells that are given up
are not used again at once. They wait in a graveyard, a sequence that nobody reads, until the pool is full. Then what is
still needed is written down and put into a fresh pool, larger if it must be. No answer depends on when that happens.

Whether a state can be cut back is tried when a model is loaded. Recurrent states cannot: there drafts are written into
copies, and what goes on otherwise goes on from the text that was agreed, or is read again.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ...errors import MemberError
from ..local.prefixes import MOST_ENDS, Prefix, closest, common_prefix
from ..local.store import Branches, Logits, SequenceKey, Store
from .library import CACHE_TYPES, COMPLAINTS, NO_ROOM, Batch

if TYPE_CHECKING:
    from .loading import GgufWeights, LoraAdapter

log = logging.getLogger("langchain_specfuse")

BATCH, SEQUENCES, TOGETHER = 512, 64, 16
"""Tokens that are read in one call, sequences in the cache, and questions that are answered in one batch."""
NARROW = 48
"""Tokens that are computed together. From 64 on attention rounds in another way, and replies would depend on others."""
CHUNK = 96
"""A long prompt is read in pieces of this many tokens, with other work between them."""
GRAVEYARD = SEQUENCES - 1
CELLS = 2048
"""Tokens that the cache holds at first."""
KEPT_LOGITS = 3
TRIAL_ERROR = 0.15
"""Logits after a cut may differ by this much of their spread: kernels for one token and for many round differently."""


@dataclass(eq=False)
class Strand:
    """A sequence in the cache."""

    number: int
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    ends: dict[int, Logits] = field(default_factory=dict)
    """The same where prompts ended."""

    def cut(self, size: int) -> None:
        """Forget what is behind this many tokens."""
        del self.ids[size:]
        self.logits = {n: row for n, row in self.logits.items() if n <= size}
        self.ends = {n: row for n, row in self.ends.items() if n <= size}


Want = tuple[SequenceKey, list[int]]


class NoRoomError(MemoryError):
    """The pool is full. Nothing was read, and nothing is lost."""


Reading = tuple[Strand, Sequence[int], int]
"""A strand, tokens to append, and after how many of the last of them logits are wanted."""
T = TypeVar("T")


class SequenceStore(Store):
    """Sequences of one model, all with the same adapter."""

    def __init__(self, weights: GgufWeights, adapter: LoraAdapter | None = None) -> None:
        super().__init__(weights.device, CHUNK)
        self.weights, self.adapter = weights, adapter
        self._lib = weights.lib
        self._context: Any = None
        self._close: Any = None
        self._cells = self._dead = 0
        """Tokens that there is room for, and tokens in the graveyard."""
        self._free: list[int] = []
        self._trunks: dict[SequenceKey, Strand] = {}
        """What was read of each query, least recently used first."""
        self._branches: dict[SequenceKey, list[Strand]] = {}
        """The drafts that were scored last: one of them may be agreed."""
        self._kept: list[Strand] = []
        """Strands of prefixes, also of those that have been dropped since."""
        self._ahead: dict[SequenceKey, int] = {}
        """How many tokens of a query were read in chunks since it was last asked."""
        self.token_bytes = 1
        self._open(CELLS)
        self.cuts = True
        self.cuts = self._tried()
        """Whether the state can be cut back."""
        if not self.cuts:
            self._open(CELLS)  # without what the trial has buried
        self.prefixes.whole = not self.cuts
        self.kind = "llama.cpp" if self.cuts else "llama.cpp, a state that cannot be cut"

    # --- the context --------------------------------------------------------------------------------------------

    def _open(self, cells: int) -> None:
        """A new, empty context of llama.cpp."""
        self.clear()
        lib, params = self._lib, self._lib.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = cells, BATCH, NARROW, SEQUENCES
        params.n_outputs_max = params.n_outputs_max_per_seq = SEQUENCES
        params.n_threads = params.n_threads_batch = self.weights.threads
        params.flash_attention, params.kv_unified = 1, True
        params.type_k = params.type_v = CACHE_TYPES[self.weights.source.cache_type]
        COMPLAINTS.clear()
        self._context = lib.llama_init_from_model(self.weights.handle, params)
        if not self._context:
            raise MemoryError(f"llama.cpp has no room for a cache of {cells} tokens: {' '.join(COMPLAINTS)[:300]}")
        self._close = weakref.finalize(self, lib.llama_free, self._context)
        self._close.atexit = False  # another thread may still be reading
        self._memory = lib.llama_get_memory(self._context)
        self._cells, self._free, self._dead = cells, list(range(GRAVEYARD)), 0
        if self.adapter is not None:
            adapters, scales = (ctypes.c_void_p * 1)(self.adapter.handle), (ctypes.c_float * 1)(1.0)
            if lib.llama_set_adapters_lora(self._context, adapters, 1, scales):
                raise MemberError(f"llama.cpp cannot apply the adapter {self.adapter.path}")

    def _tried(self) -> bool:
        """Whether texts that were cut, copied and read in parts have the logits of one that is read at once. Also
        measures how many bytes a token takes."""
        ids = self.weights.trial_tokens
        whole, cut, copy = strands = self._strand(), self._strand(), self._strand()
        try:
            self._read([(whole, ids[:15], 0), (cut, [*ids[:8], *ids[:3]], 0)])
            sizes = [self._lib.llama_state_seq_get_size(self._context, one.number) for one in (whole, cut)]
            self.token_bytes = max(1, (sizes[0] - sizes[1]) // 4)
            if not self._cut(cut, 8):
                return False
            self._copy(cut, copy, 6)
            self._read([(cut, ids[5:8], 0)])
            if not (len(copy.ids) == 6 and self._cut(cut, 8)):
                return False
            self._read([(cut, ids[8:15], 0), (copy, ids[6:15], 0)])
            (wanted,), *others = self._read([(strand, ids[15:16], 1) for strand in strands])
            worst = max(float((row - wanted).std()) for (row,) in others)
            return worst < TRIAL_ERROR * max(float(wanted.std()), 1e-6)
        finally:
            for strand in strands:
                self._release(strand)
            self.tokens_read = 0

    # --- strands ------------------------------------------------------------------------------------------------

    def _strand(self, spared: Collection[SequenceKey] = ()) -> Strand:
        """An empty sequence; the least recently used is given up for it if there is none left."""
        if self._context is None:
            self._open(self._affordable(CELLS))
        self._sweep()
        while not self._free:
            if not self._give_up(spared):
                raise MemoryError("all sequences of the cache are in use")
        return Strand(self._free.pop())

    def _release(self, strand: Strand) -> None:
        if self._context is not None:
            self._empty(strand)
            self._free.append(strand.number)

    def _empty(self, strand: Strand) -> None:
        self._bury(strand, 0)
        self._lib.llama_memory_seq_rm(self._memory, strand.number, -1, -1)
        strand.cut(0)

    def _bury(self, strand: Strand, size: int) -> None:
        """Keep the cells behind the first ``size`` tokens from being used again."""
        if self.cuts and size < len(strand.ids):
            self._lib.llama_memory_seq_cp(self._memory, strand.number, GRAVEYARD, size, -1)
            self._dead += len(strand.ids) - size

    def _sweep(self) -> None:
        """Free the strands of prefixes that are not kept any more."""
        wanted = {id(prefix.data) for prefix in self.prefixes.kept}
        gone = [strand for strand in self._kept if id(strand) not in wanted]
        self._kept = [strand for strand in self._kept if id(strand) in wanted]
        for strand in gone:
            self._release(strand)

    def _give_up(self, spared: Collection[SequenceKey]) -> bool:
        """Free what was not used for longest: a prefix, else drafts of a query that rests, else all of such a query."""
        if self.prefixes.kept:
            self.prefixes.kept.pop(0)
            self._sweep()
            return True
        for held, free in ((self._branches, self._free_branches), (self._trunks, self.drop)):
            if resting := next((key for key in held if key not in spared), None):
                free(resting)
                return True
        return False

    def _free_branches(self, key: SequenceKey, but: Strand | None = None) -> None:
        for strand in self._branches.pop(key, []):
            if strand is not but:
                self._release(strand)

    def _copy(self, old: Strand, new: Strand, size: int) -> None:
        """Let an empty strand begin as another does; it stays empty if there is no way to."""
        if size < len(old.ids) and not self.cuts:
            return
        self._lib.llama_memory_seq_cp(self._memory, old.number, new.number, -1, -1)
        new.ids, new.logits, new.ends = list(old.ids), {**old.ends, **old.logits}, dict(old.ends)
        self._cut(new, size)

    def _cut(self, strand: Strand, size: int) -> bool:
        """Keep the first ``size`` tokens. A state that cannot be cut is emptied: False."""
        if size >= len(strand.ids):
            return True
        self._bury(strand, size)
        if self.cuts and self._lib.llama_memory_seq_rm(self._memory, strand.number, size, -1):
            strand.cut(size)
            return True
        self._empty(strand)
        return False

    # --- reading ------------------------------------------------------------------------------------------------

    def prefill(self, wants: Sequence[Want], *, drafting: bool = False) -> list[Logits]:
        return self._with_room(partial(self._prefill, wants, drafting), [key for key, _ in wants])

    def _prefill(self, wants: Sequence[Want], drafting: bool) -> list[Logits]:
        keys = {key for key, _ in wants}
        new = {key for key in keys if key not in self._trunks}
        waiting: list[Want] = []
        for key, ids in wants:
            # A text that begins with something long that is read now copies that.
            if key in new and any(common_prefix(ids, other) >= self.prefixes.shortest for _, other in waiting):
                self._read_missing(waiting, drafting, keys)
                waiting = []
            self._find(key, ids, keys)
            waiting.append((key, ids))
        self._read_missing(waiting, drafting, keys)
        for key, ids in wants:
            trunk = self._trunks[key]
            if key in new:
                _remember(trunk.ends, len(ids), trunk.logits[len(ids)], MOST_ENDS)
            if drafting and not self.cuts:
                draft = self._strand(keys)
                self._copy(trunk, draft, len(ids))
                self._branches[key] = [draft]
        return [self._trunks[key].logits[len(ids)] for key, ids in wants]

    def _find(self, key: SequenceKey, ids: list[int], keys: Collection[SequenceKey]) -> Strand:
        """The trunk of this query, with as much of these tokens as is known anywhere."""
        trunk = self._trunks.pop(key, None)
        if trunk is None:
            open_now = [Prefix(other.ids, other, ends=other.ends) for other in self._trunks.values()]
            found, shared = closest([*self.prefixes_for(key), *open_now], ids)
            if found is not None:
                self.prefixes.use(found)
            trunk = self._strand(keys)
            if found is not None and self.prefixes.shortest <= shared <= len(
                found.data.ids
            ):  # it may have been given up
                self._copy(found.data, trunk, shared)
        best = max([trunk, *self._branches.get(key, [])], key=lambda one: self._use_of(one, ids))
        self._free_branches(key, best)
        if best is not trunk:
            best.ends = trunk.ends
            self._release(trunk)
        self._trunks[key] = best
        return best

    def _use_of(self, strand: Strand, ids: list[int]) -> int:
        """How many of these tokens it holds, in a way that can go on with the others."""
        shared = common_prefix(strand.ids, ids)
        return shared if self.cuts or shared == len(strand.ids) else 0

    def _read_missing(self, wants: Sequence[Want], drafting: bool, keys: Collection[SequenceKey]) -> None:
        readings: list[Reading] = []
        for key, ids in wants:
            strand = self._trunks[key]
            known = common_prefix(strand.ids, ids)
            complete = known == len(ids) and known in strand.logits
            if not complete or drafting or not self.cuts:
                self._cut(strand, known if complete else min(known, len(ids) - 1))
                known = len(strand.ids)
            self.found[key] = max(known - self._ahead.pop(key, 0), 0)
            self.tokens_reused += self.found[key]
            if known < len(ids):
                readings.append((strand, ids[known:], 1))
        for (strand, _, _), rows in zip(readings, self._read(readings), strict=True):
            _remember(strand.logits, len(strand.ids), rows[-1])

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        strands = [self._trunks[key] if self.cuts else self._branches[key][0] for key in keys]
        readings = [(strand, [token], 1) for strand, token in zip(strands, tokens, strict=True)]
        return [rows[-1] for rows in self._with_room(partial(self._read, readings), keys)]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        return self._with_room(partial(self._read_branches, wants), [want.key for want in wants])

    def _read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        self._prefill([(want.key, want.ids) for want in wants], False)
        keys = {want.key for want in wants}
        readings: list[Reading] = []
        before: list[Logits | None] = []
        for want in wants:
            trunk = self._trunks[want.key]
            for ids in want.branches:
                start = common_prefix(want.ids, ids)
                # Where the logits before its first token are not known, the token before that is read once more.
                before.append(trunk.logits[start] if start == len(want.ids) else None)
                start -= before[-1] is None
                strand = self._strand(keys)
                self._branches.setdefault(want.key, []).append(strand)
                self._copy(trunk, strand, start)
                readings.append((strand, ids[len(strand.ids) :], len(ids) - start))
        found = []
        for (strand, _, _), rows, first in zip(readings, self._read(readings), before, strict=True):
            if len(rows):
                _remember(strand.logits, len(strand.ids), rows[-1])
            found.append(rows if first is None else np.concatenate([first[None], rows]))
        parts = iter(found)
        return [[next(parts) for _ in want.branches] for want in wants]

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        own = [self._trunks[key], *self._branches.get(key, [])] if key in self._trunks else []
        others = [prefix.data for prefix in self.prefixes_for(key)] + list(self._trunks.values())
        shared = max((self._use_of(one, ids) for one in own or others), default=0)
        return len(ids) - (shared if own or shared >= self.prefixes.shortest else 0)

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        def read() -> None:
            strand = self._find(key, ids, {key})
            self._cut(strand, common_prefix(strand.ids, ids))
            part = ids[len(strand.ids) : -1][:CHUNK]
            self._read([(strand, part, 0)])
            self._ahead[key] = self._ahead.get(key, 0) + len(part)

        self._with_room(read, [key])

    def keep_logits(self, key: SequenceKey, length: int, logits: Logits) -> None:
        _remember(self._trunks[key].logits, length, logits)

    # --- one call of llama.cpp ----------------------------------------------------------------------------------

    def _with_room(self, read: Callable[[], T], keys: Sequence[SequenceKey]) -> T:
        """Read for these queries, after making room if there is too little."""
        while True:
            try:
                return read()
            except NoRoomError:
                self._make_room(keys)

    def _make_room(self, keys: Sequence[SequenceKey]) -> None:
        """Put what is needed into a fresh pool. Prefixes stay while there is plenty of room, resting queries longer."""
        if self.cuts:
            for key in list(self._branches):
                self._free_branches(key)
        self._sweep()
        needed = sum(len(strand.ids) for strand in self._strands())
        while needed > self._cells // 2 and self.prefixes.kept:
            needed -= len(self.prefixes.kept.pop(0).ids)
        cells = self._cells
        while needed > cells // 2 and self._affordable(2 * cells) > cells:
            cells = self._affordable(2 * cells)
        resting = [key for key in self._trunks if key not in keys]
        while needed > cells - cells // 4 and resting:
            needed -= len(self._trunks[resting[0]].ids)
            self.drop(resting.pop(0))
        self._sweep()
        if cells == self._cells and not self._dead:
            raise MemoryError(f"a cache of {cells} tokens is full")
        log.debug("%s: a cache of %d tokens, %d of them needed", self.weights.source.model, cells, needed)
        saved = [(strand, self._state_of(strand)) for strand in self._strands()]
        held = {name: getattr(self, name) for name in ("_trunks", "_branches", "_ahead", "found", "_kept", "_free")}
        kept = self.prefixes.kept
        for name in held:  # or they would be cleared
            setattr(self, name, type(held[name])())
        self.prefixes.kept = []
        self._open(cells)
        vars(self).update(held)
        self.prefixes.kept = kept
        for strand, state in saved:
            if state and not self._lib.llama_state_seq_set_data(self._context, state, len(state), strand.number):
                strand.cut(0)  # it is read again

    def _state_of(self, strand: Strand) -> Any:
        size = self._lib.llama_state_seq_get_size(self._context, strand.number) if strand.ids else 0
        state = ctypes.create_string_buffer(size) if size else None
        if state is not None:
            self._lib.llama_state_seq_get_data(self._context, state, size, strand.number)
        return state

    def _strands(self) -> list[Strand]:
        return [*self._trunks.values(), *(one for some in self._branches.values() for one in some), *self._kept]

    def _affordable(self, cells: int) -> int:
        """So many cells, or fewer if that is all that there is room for."""
        return cells if self.budget is None else max(NARROW, min(cells, self.budget // self.token_bytes))

    def _read(self, wants: Sequence[Reading]) -> list[Logits]:
        """Append tokens to strands; the logits that are wanted of each."""
        todo = [(at, token, left) for at, (_, ids, _) in enumerate(wants) for left, token in _counted(ids)]
        rows: list[list[Logits]] = [[] for _ in wants]
        while todo:
            size = outputs = 0
            for at, _, left in todo[:BATCH]:
                outputs += left < wants[at][2]
                if outputs > SEQUENCES:
                    break
                size += 1
            now, todo = todo[:size], todo[size:]
            owners = [at for at, _, left in now if left < wants[at][2]]
            for at, row in zip(owners, self._pass(wants, now), strict=True):
                rows[at].append(row)
        return [np.stack(one) if one else np.empty((0, self.weights.vocabulary_size), np.float32) for one in rows]

    def _pass(self, wants: Sequence[Reading], now: Sequence[tuple[int, int, int]]) -> Sequence[Logits]:
        positions = []
        for at, token, _ in now:
            ids = wants[at][0].ids
            positions.append(len(ids))
            ids.append(token)
        wanted = [left < wants[at][2] for at, _, left in now]
        batch = Batch.of([token for _, token, _ in now], positions, [wants[at][0].number for at, _, _ in now], wanted)
        if code := self._lib.llama_decode(self._context, batch):
            for at, _, _ in now:
                wants[at][0].ids.pop()
            if code == NO_ROOM:
                raise NoRoomError
            raise RuntimeError(f"llama.cpp failed with code {code}")  # what is cached of these queries is dropped
        self.tokens_read += len(now)
        if not any(wanted):
            return []
        shape = (sum(wanted), self.weights.vocabulary_size)
        rows: Logits = np.ctypeslib.as_array(self._lib.llama_get_logits(self._context), shape).copy()
        return list(rows)

    # --- forgetting and memory ----------------------------------------------------------------------------------

    def forget(self, key: SequenceKey) -> None:
        strand = self._trunks.get(key)
        if strand is not None:
            held = len(strand.ids) * self.token_bytes + sum(row.nbytes for row in strand.ends.values())
            ends = {n: row for n, row in strand.ends.items() if n <= len(strand.ids)}
            prefix = Prefix(list(strand.ids), None, held, ends, key.adapter.id if key.adapter else 0)
            self.prefixes.keep(prefix, lambda: strand, self.prefixes.limit)
            if prefix.data is strand:
                self._kept.append(self._trunks.pop(key))
        self.drop(key)
        self._sweep()

    def drop(self, key: SequenceKey) -> None:
        self._free_branches(key)
        if strand := self._trunks.pop(key, None):
            self._release(strand)
        self.found.pop(key, None)
        self._ahead.pop(key, None)

    def clear(self) -> None:
        for known in (self._trunks, self._branches, self._ahead, self.found):
            known.clear()
        self._kept.clear()
        self.prefixes.clear()
        if self._close is not None:
            self._close()
        self._context = self._close = None
        self._cells = self._dead = 0

    @property
    def open_sequences(self) -> list[SequenceKey]:
        return list(self._trunks)

    @property
    def bytes_held(self) -> int:
        rows = {id(row): row.nbytes for one in self._strands() for row in (*one.logits.values(), *one.ends.values())}
        return self._cells * self.token_bytes + sum(rows.values())

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


def _remember(known: dict[int, Logits], length: int, row: Logits, most: int = KEPT_LOGITS) -> None:
    known.pop(length, None)
    known[length] = row
    while len(known) > most:
        del known[next(iter(known))]


def _counted(ids: Sequence[int]) -> list[tuple[int, int]]:
    """Each token with how many follow it."""
    return [(len(ids) - 1 - at, token) for at, token in enumerate(ids)]
