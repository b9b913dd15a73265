"""The cache of everything that was read with one model and one of its adapters, or none.

A query has a *trunk*, the strand of its prompt and agreed answer, and *branches*, one strand for
each draft that was scored. The branch that is agreed becomes the trunk, so nothing is read twice.
The trunk of a finished query is kept as a prefix for queries that begin alike.

An engine implements how a strand is begun, copied, cut and read. Some states cannot be cut, for
example recurrent ones. With these, drafts are written into copies, and a text that diverges
continues from the agreed text or is read again.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import ClassVar, TypeVar
from weakref import WeakSet

import numpy as np

from .strands import (
    Branches,
    Extension,
    Logits,
    Prefixes,
    SequenceKey,
    Strand,
    closest,
    common_prefix,
)
from .weights import Weights

log = logging.getLogger("langchain_specfuse")

Text = tuple[SequenceKey, list[int]]
"""A sequence, and the tokens that it must hold."""
T = TypeVar("T")

CACHE_SHARE = 0.3
"""The cache of a member may take this part of the memory that is free after loading, or an equal
part where there are too many caches for that: see :func:`cache_share`."""
LEAST = 8
"""At least this many drafts are scored together, even if other strands must be freed for them."""

_CACHES: WeakSet[Cache] = WeakSet()
_LOCK = threading.Lock()
"""Guards the set of caches: one thread may make a cache while another iterates over all of them."""


def caches_on(device: str) -> list[Cache]:
    """The caches of all models on this device."""
    with _LOCK:
        return [cache for cache in _CACHES if cache.weights.device == device]


class Cache(ABC):
    """The strands of all queries of members with the same weights and the same adapter.

    Members with the same cache share batches. There are three ways to read: ``prefill`` (the text
    so far), ``decode`` (one more token of a draft) and ``read_branches`` (several continuations, to
    score them). Only the worker of the device may use a cache.
    """

    kind: str = ""
    """What the engine keeps, in words."""
    cuts: bool = True
    """Whether a strand can be cut back."""
    together: ClassVar[int | None] = None
    """At most this many jobs share a batch. None: as many as fit into memory."""
    token_bytes, strand_bytes = 1, 0
    """Bytes for each token of a strand, and fixed bytes for each strand. :meth:`agrees` measures
        them."""

    def __init__(self, weights: Weights, chunk: int) -> None:
        """``chunk``: at most this many tokens of a long text are read at once."""
        self.weights = weights
        self.chunk = chunk
        self.budget: int | None = None
        """Bytes for open queries and prefixes together. None: no limit."""
        self.tokens_read = 0
        self.trunks: dict[SequenceKey, Strand] = {}
        """Least recently used first."""
        self.branches: dict[SequenceKey, list[Strand]] = {}
        """The drafts that were scored last."""
        self.prefixes = Prefixes()
        self.reused: dict[SequenceKey, int] = {}
        """How many tokens of a sequence were cached when it was last read."""
        self._read_ahead: dict[SequenceKey, int] = {}
        """How many tokens of a sequence were read in chunks since it was last read."""
        self._drafted: Callable[[], Iterable[Logits]] = tuple
        """A function that returns the logits that drafts in progress keep."""
        with _LOCK:
            _CACHES.add(self)

    # --- what an engine implements ----------------------------------------------------------------

    @abstractmethod
    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        """An empty strand. If there is no room, others are freed, except those of these queries."""

    @abstractmethod
    def release(self, strand: Strand) -> None:
        """Free a strand."""

    @abstractmethod
    def copy(self, old: Strand, new: Strand, size: int) -> None:
        """Copy the first ``size`` tokens of another strand into an empty strand, which stays empty
        if that is not possible."""

    @abstractmethod
    def cut(self, strand: Strand, size: int) -> bool:
        """Keep the first ``size`` tokens. Returns False if the state cannot be cut; then the strand
        is emptied."""

    @abstractmethod
    def read(self, extensions: Sequence[Extension]) -> list[Logits]:
        """Append tokens to strands. Returns the logits for each of them: (rows, vocabulary)."""

    @abstractmethod
    def bytes_of(self, strand: Strand) -> int:
        """The size of a strand, without logits."""

    @property
    @abstractmethod
    def bytes_held(self) -> int:
        """The size of all strands and logits."""

    @abstractmethod
    def bytes_for(self, tokens: int) -> int:
        """About how many bytes a query of this many tokens takes."""

    def room_for(self, count: int, keys: Collection[SequenceKey]) -> int:
        """How many of ``count`` more strands fit if only drafts of other queries than these are
        freed."""
        return count

    @property
    def detail(self) -> str:
        """How it keeps what was read, in words for users."""
        return self.kind

    def with_room(self, read: Callable[[], T], keys: Sequence[SequenceKey]) -> T:
        """Read for these queries, after making room if there is too little."""
        return read()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether this error means that the device has no memory left."""
        return isinstance(error, MemoryError)

    # --- reading ----------------------------------------------------------------------------------

    def prefill(self, texts: Sequence[Text], *, drafting: bool = False) -> list[Logits]:
        """Read texts. Returns the logits after the last token of each. ``drafting``: ``decode``
        follows."""
        return self.with_room(partial(self._prefill, texts, drafting), [key for key, _ in texts])

    def _prefill(self, texts: Sequence[Text], drafting: bool) -> list[Logits]:
        keys = {key for key, _ in texts}
        new = {key for key in keys if key not in self.trunks}
        waiting: list[Text] = []
        for key, ids in texts:
            # A new text that begins like one that is waiting is copied from that one.
            if key in new and self._begins_like_one(ids, waiting):
                self._read_missing(waiting, drafting)
                waiting = []
            self._prepare_trunk(key, ids, keys)
            waiting.append((key, ids))
        self._read_missing(waiting, drafting)
        for key, ids in texts:
            trunk = self.trunks[key]
            if key in new:
                trunk.keep_end(len(ids))
            if drafting and not self.cuts:
                draft = self.blank(keys)
                self.copy(trunk, draft, len(ids))
                self.branches[key] = [draft]
        return [self.trunks[key].logits[len(ids)] for key, ids in texts]

    def _begins_like_one(self, ids: list[int], texts: Sequence[Text]) -> bool:
        shortest = self.prefixes.shortest
        return any(common_prefix(ids, other) >= shortest for _, other in texts)

    @property
    def _beginnings(self) -> list[Strand]:
        """Strands with which a new query may begin."""
        return [*self.prefixes.kept, *self.trunks.values()]

    def _prepare_trunk(
        self, key: SequenceKey, ids: list[int], keys: Collection[SequenceKey]
    ) -> Strand:
        """The trunk of a query, with as many of these tokens as are cached anywhere."""
        trunk = self.trunks.pop(key, None)
        if trunk is None:
            trunk = self._new_trunk(ids, keys)
        strands = [trunk, *self.branches.get(key, [])]
        best = max(strands, key=lambda strand: self._usable(strand, ids))
        self.free_branches(key, spared=best)
        if best is not trunk:
            best.ends = trunk.ends
            self.release(trunk)
        self.trunks[key] = best
        return best

    def _new_trunk(self, ids: list[int], keys: Collection[SequenceKey]) -> Strand:
        """A strand for a new query. It begins with what an older query has read of these tokens."""
        if not self.prefixes.limit:
            return self.blank(keys)
        old, shared = closest(self._beginnings, ids)
        if old is not None:
            self.prefixes.touch(old)
        trunk = self.blank(keys)
        # ``old`` is empty if it was freed for the new strand.
        if old is not None and self.prefixes.shortest <= shared <= len(old.ids):
            self.copy(old, trunk, shared)
        return trunk

    def _usable(self, strand: Strand, ids: list[int]) -> int:
        """How many of these tokens the strand holds, if it can continue with the others."""
        shared = common_prefix(strand.ids, ids)
        return shared if self.cuts or shared == len(strand.ids) else 0

    def _read_missing(self, texts: Sequence[Text], drafting: bool) -> None:
        extensions: list[Extension] = []
        for key, ids in texts:
            strand = self.trunks[key]
            known = common_prefix(strand.ids, ids)
            complete = known == len(ids) and known in strand.logits
            if not complete or drafting or not self.cuts:
                self.cut(strand, known if complete else min(known, len(ids) - 1))
                known = len(strand.ids)
            self.reused[key] = max(known - self._read_ahead.pop(key, 0), 0)
            if known < len(ids):
                extensions.append(Extension(strand, ids[known:], 1))
        for (strand, _, _), rows in zip(extensions, self.read(extensions), strict=True):
            strand.keep_logits(len(strand.ids), rows[-1])

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        """Append one token to each sequence. Returns the logits after it."""
        strands = [self.trunks[key] if self.cuts else self.branches[key][0] for key in keys]
        pairs = zip(strands, tokens, strict=True)
        extensions = [Extension(strand, [token], 1) for strand, token in pairs]
        return [rows[-1] for rows in self.with_room(partial(self.read, extensions), keys)]

    def read_branches(self, groups: Sequence[Branches]) -> list[list[Logits]]:
        """For each group and branch, the logits before each new token and after the last:
        (new tokens + 1, vocabulary)."""
        keys = [group.key for group in groups]
        return self.with_room(partial(self._read_branches, groups), keys)

    def _read_branches(self, groups: Sequence[Branches]) -> list[list[Logits]]:
        self._prefill([(group.key, group.ids) for group in groups], False)
        keys = {group.key for group in groups}
        left = [(group, ids) for group in groups for ids in group.branches]
        logits: list[Logits] = []
        while left:
            room = max(self.room_for(len(left), keys), LEAST)
            logits += self._read_some(left[:room], keys)
            left = left[room:]
            # What was just read is freed only if the rest needs the room.
            for group in groups:
                if self.room_for(len(left), keys) < len(left):
                    self.free_branches(group.key)
        rows = iter(logits)
        return [[next(rows) for _ in group.branches] for group in groups]

    def _read_some(
        self, pairs: Sequence[tuple[Branches, list[int]]], keys: Collection[SequenceKey]
    ) -> list[Logits]:
        """For each branch, the logits before each new token and after the last."""
        extensions: list[Extension] = []
        before: list[Logits | None] = []
        for group, ids in pairs:
            trunk = self.trunks[group.key]
            start = common_prefix(group.ids, ids)
            first = trunk.logits[start] if start == len(group.ids) else None
            if first is None:
                start -= 1  # the token before the first new one is read once more
            strand = self.blank(keys)
            self.branches.setdefault(group.key, []).append(strand)
            self.copy(trunk, strand, start)
            before.append(first)
            extensions.append(Extension(strand, ids[len(strand.ids) :], len(ids) - start))
        results = []
        for (strand, _, _), rows, first in zip(
            extensions, self.read(extensions), before, strict=True
        ):
            if len(rows):
                # A copy, because a view would keep all rows in memory.
                strand.keep_logits(len(strand.ids), rows[-1].copy())
            parts = [] if first is None else [first[None]]
            if len(rows):
                parts.append(rows)
            results.append(np.concatenate(parts))
        return results

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        """How many of these tokens must still be read."""
        if key in self.trunks:
            strands = [self.trunks[key], *self.branches.get(key, [])]
            return len(ids) - max(self._usable(strand, ids) for strand in strands)
        shared = max((self._usable(strand, ids) for strand in self._beginnings), default=0)
        return len(ids) - (shared if shared >= self.prefixes.shortest else 0)

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        """Read one chunk of the missing tokens."""

        def read() -> None:
            strand = self._prepare_trunk(key, ids, {key})
            self.cut(strand, common_prefix(strand.ids, ids))
            chunk = ids[len(strand.ids) : -1][: self.chunk]
            self.read([Extension(strand, chunk, 0)])
            self._read_ahead[key] = self._read_ahead.get(key, 0) + len(chunk)

        self.with_room(read, [key])

    def keep_logits(self, key: SequenceKey, length: int, row: Logits) -> None:
        """Keep the logits after the first ``length`` tokens: they will be asked for again."""
        self.trunks[key].keep_logits(length, row)

    @contextmanager
    def holding(self, drafted: Callable[[], Iterable[Logits]]) -> Iterator[None]:
        """While drafts are written, count the logits that they keep as the cache's own."""
        self._drafted = drafted
        try:
            yield
        finally:
            self._drafted = tuple

    # --- forgetting -------------------------------------------------------------------------------

    def forget(self, key: SequenceKey) -> None:
        """End a query: keep its trunk as a prefix while there is room, and free the rest."""
        dropped: list[Strand] = []
        strand = self.trunks.get(key)
        if strand is not None:
            strand.bytes = self.bytes_of(strand) + sum(row.nbytes for row in strand.ends.values())
            dropped = self.prefixes.add(strand)
            del self.trunks[key]
        self.drop(key)
        self._release_all(dropped)

    def drop(self, key: SequenceKey) -> None:
        """Discard everything that is cached for this sequence, because it may be wrong."""
        self.free_branches(key)
        strand = self.trunks.pop(key, None)
        if strand is not None:
            self.release(strand)
        self.reused.pop(key, None)
        self._read_ahead.pop(key, None)

    def lose(self, keys: Iterable[SequenceKey], error: Exception | None = None) -> None:
        """Drop what is cached for these sequences, because it may be wrong. If the error says that
        no memory is left, drop everything."""
        try:
            if error is not None and self.is_out_of_memory(error):
                self.free_memory()
            for key in keys:
                self.drop(key)
        except Exception as worse:  # the device is gone, and everything on it
            log.debug("the cache on %s cannot be cleaned: %s", self.weights.device, worse)

    def drop_prefixes(self) -> None:
        """Free all prefixes."""
        self._release_all(self.prefixes.clear())

    def clear(self) -> None:
        """Discard everything, without freeing strand by strand."""
        self.trunks.clear()
        self.branches.clear()
        self.prefixes.clear()
        self.reused.clear()
        self._read_ahead.clear()

    def give_up(self, spared: Collection[SequenceKey]) -> bool:
        """Free what is quickest to read again, the least recently used first: the drafts of an idle
        query, then a prefix, then everything of an idle query. Returns False if nothing is left."""
        if self.give_up_branches(spared):
            return True
        if self.prefixes.kept:
            self.release(self.prefixes.kept.pop(0))
            return True
        idle = next((key for key in self.trunks if key not in spared), None)
        if idle is not None:
            self.drop(idle)
        return idle is not None

    def give_up_branches(self, spared: Collection[SequenceKey]) -> bool:
        """Free the drafts of an idle query. Returns False if there are none."""
        idle = next((key for key in self.branches if key not in spared), None)
        if idle is not None:
            self.free_branches(idle)
        return idle is not None

    def free_branches(self, key: SequenceKey, spared: Strand | None = None) -> None:
        """Free the drafts of a query, except one strand."""
        for strand in self.branches.pop(key, []):
            if strand is not spared:
                self.release(strand)

    def _release_all(self, strands: Iterable[Strand]) -> None:
        for strand in strands:
            self.release(strand)

    # --- memory -----------------------------------------------------------------------------------

    @property
    def strands(self) -> list[Strand]:
        """Every strand of this cache."""
        branches = [strand for strands in self.branches.values() for strand in strands]
        return [*self.trunks.values(), *branches, *self.prefixes.kept]

    @property
    def logits_bytes(self) -> int:
        """The size of all logits. Strands and drafts may share a row."""
        kept = [row for strand in self.strands for row in strand.rows]
        sizes = {id(row): row.nbytes for row in (*kept, *self._drafted())}
        return sum(sizes.values())

    def take_share(self, prefix_cache: bool | int) -> None:
        """Take a share of the memory that is free now, and lower the budgets of earlier caches on
        the device to the same share."""
        caches = caches_on(self.weights.device)
        budget = int(cache_share(len(caches)) * self.weights.free_bytes())
        for other in caches:
            if other is not self:
                other.lower_budget(budget)
        self.set_budget(budget, prefix_bytes(budget, prefix_cache))

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        """Allow at most ``budget`` bytes, ``prefix_bytes`` of them for prefixes. The excess is
        freed at once."""
        self.budget, self.prefixes.limit = budget, prefix_bytes
        self._release_all(self.prefixes.shrink(prefix_bytes))

    def lower_budget(self, budget: int) -> None:
        """Allow no more than this from now on. Nothing is freed before room is needed again. Unlike
        the other methods, any thread may call this one."""
        if self.budget is not None:
            self.budget = min(self.budget, budget)
            self.prefixes.limit = min(self.prefixes.limit, budget)

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """Split sequences of these lengths into batches that fit into the budget."""
        count = max(1, len(sizes))
        each = self.bytes_for(max(sizes, default=0))
        if self.budget is not None and each:
            count = max(1, self.budget // each)
        parts = []
        for start in range(0, len(sizes), count):
            stop = min(start + count, len(sizes))
            step = self.together or count
            parts += [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
        return parts

    def free_memory(self) -> None:
        """The device is out of memory: free everything here, and the prefixes of all other caches
        on the device."""
        self.clear()
        for cache in caches_on(self.weights.device):
            # They have the same worker, so none of them is reading now.
            cache.drop_prefixes()

    # --- the trial --------------------------------------------------------------------------------

    def agrees(self, ids: list[int], limit: float, expected: Logits | None = None) -> bool:
        """Whether cutting, copying and reading in parts gives the same logits as reading ``ids`` at
        once: to within ``limit`` times their standard deviation.

        ``expected``: these logits, if they are known.
        """
        strands = self.blank(), self.blank(), self.blank()
        try:
            return self._tries(strands, ids, limit, expected)
        finally:
            self._release_all(strands)
            self.tokens_read = 0

    def _tries(
        self,
        strands: tuple[Strand, Strand, Strand],
        ids: list[int],
        limit: float,
        expected: Logits | None,
    ) -> bool:
        whole, cut, copy = strands
        half, last = len(ids) // 2, len(ids) - 1
        undone = ids[:3] if self.cuts else []  # tokens that are appended and cut off again
        copied = half - 2 if self.cuts else half
        self.read([Extension(whole, ids[:last], 0), Extension(cut, [*ids[:half], *undone], 0)])
        size = self.bytes_of(whole)
        self.token_bytes = max(1, (size - self.bytes_of(cut)) // (last - len(cut.ids)))
        self.strand_bytes = max(0, size - self.token_bytes * last)
        if not self.cut(cut, half):
            return False
        self.copy(cut, copy, copied)
        self.read([Extension(cut, undone, 0)])
        if len(copy.ids) != copied or not self.cut(cut, half):
            return False
        self.read([Extension(cut, ids[half:last], 0), Extension(copy, ids[copied:last], 0)])
        logits = self.read([Extension(strand, ids[last:], 1) for strand in strands])
        rows = [strand_logits[-1] for strand_logits in logits]
        if expected is None:
            expected = rows[0]
        if not all(np.isfinite(row).all() for row in rows):
            return False
        bound = limit * max(float(expected.std()), 1e-6)
        return all(float((row - expected).std()) < bound for row in rows)


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
