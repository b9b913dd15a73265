"""A cache of strands: what was read of each text, copied and cut when texts go on in several ways.

A query has a *trunk* (its prompt and the agreed answer) and *branches*, one for each draft that was
scored; the branch that is agreed becomes the trunk, so that nothing is read twice. A query that is
over leaves its trunk as a prefix for queries that begin alike. An engine says how a strand is
begun, copied, cut and read.

Some states cannot be cut, such as recurrent ones. There drafts are written into copies, and a text
that diverges continues from the agreed text, or is read again.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from .prefixes import MOST_ENDS, Prefix, Prefixes, closest, common_prefix

KEPT_LOGITS = 3
LEAST = 8
"""At least this many drafts are scored together, whatever must be freed for them."""
Logits: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Names a sequence: a query as one member reads it."""

    query_id: str
    member: str = ""


@dataclass(frozen=True)
class Branches:
    """Continuations of ``ids``. Each branch is a whole list of tokens, nearly all of it shared with
    ``ids``."""

    key: SequenceKey
    ids: list[int]
    branches: list[list[int]]


@dataclass(eq=False)
class Strand:
    """Tokens that were read one after the other."""

    state: Any = None
    """Whatever its engine keeps for it."""
    ids: list[int] = field(default_factory=list)
    logits: dict[int, Logits] = field(default_factory=dict)
    """Next-token logits after the first n tokens, for the few n that will be asked for again."""
    ends: dict[int, Logits] = field(default_factory=dict)
    """The same where prompts ended."""

    def begin_as(self, other: Strand) -> None:
        """What is known of another strand, whose state was copied."""
        self.ids, self.logits, self.ends = (
            list(other.ids),
            {**other.ends, **other.logits},
            dict(other.ends),
        )

    def cut(self, size: int) -> None:
        """Forget what is behind this many tokens."""
        del self.ids[size:]
        self.logits = {n: row for n, row in self.logits.items() if n <= size}
        self.ends = {n: row for n, row in self.ends.items() if n <= size}


Want: TypeAlias = tuple[SequenceKey, list[int]]
Reading: TypeAlias = tuple[Strand, Sequence[int], int]
"""A strand, tokens to append, and after how many of the last of them logits are wanted."""
T = TypeVar("T")


_STORES: WeakSet[StrandStore] = WeakSet()
_LOCK = threading.Lock()
"""A model may be loaded, and a store made, while another thread goes through all stores."""


class StrandStore(ABC):
    """Strands of all open queries of one batch group, all read with the same adapter.

    Three ways to read: ``prefill`` (the text so far), ``decode`` (one more token of a draft) and
    ``read_branches`` (several continuations, for scoring). ``chunk``: at most this many tokens of a
    long text are read at once.
    """

    kind = ""
    """For people."""
    cuts = True
    """Whether a strand can be cut back."""
    token_bytes, strand_bytes = 1, 0
    """Bytes for each token of a strand, and for a strand besides. Measured by :meth:`tried`."""

    def __init__(self, device: str, chunk: int) -> None:
        self.device = device
        self.chunk = chunk
        self.tokens_read = 0
        self.found: dict[SequenceKey, int] = {}
        """Per sequence, how many tokens of the text so far were cached when it was last read."""
        self.prefixes = Prefixes()
        self.budget: int | None = None
        """Bytes for open sequences and kept prefixes together. None: no limit."""
        self.trunks: dict[SequenceKey, Strand] = {}
        """What was read of each query, least recently used first."""
        self.branches: dict[SequenceKey, list[Strand]] = {}
        """The drafts that were scored last: one of them may be agreed."""
        self.kept: list[Strand] = []
        """Strands of prefixes, also of those that have been dropped since."""
        self.read_ahead: dict[SequenceKey, int] = {}
        """How many tokens of a query were read in chunks since it was last asked."""
        self._drafted: Callable[[], Iterable[Logits]] = tuple
        """Returns the logits that are held by drafts in progress."""
        with _LOCK:
            _STORES.add(self)

    # --- what an engine does ----------------------------------------------------------------------

    @abstractmethod
    def blank(self, keys: Collection[SequenceKey] = ()) -> Strand:
        """An empty strand. If there is no room, others are freed, except those of these queries."""

    def room_for(self, count: int, keys: Collection[SequenceKey]) -> int:
        """How many of ``count`` more strands fit if only drafts of other queries than these are
        freed."""
        return count

    @abstractmethod
    def release(self, strand: Strand) -> None:
        """It is not needed any more."""

    @abstractmethod
    def copy(self, old: Strand, new: Strand, size: int) -> None:
        """Let an empty strand begin with ``size`` tokens of another; it stays empty if there is no
        way to."""

    @abstractmethod
    def cut(self, strand: Strand, size: int) -> bool:
        """Keep the first ``size`` tokens. A state that cannot be cut is emptied: False."""

    @abstractmethod
    def read(self, wants: Sequence[Reading]) -> list[Logits]:
        """Append tokens to strands; the logits that are wanted of each."""

    @abstractmethod
    def bytes_of(self, strand: Strand) -> int:
        """What it takes, without logits."""

    def with_room(self, read: Callable[[], T], keys: Sequence[SequenceKey]) -> T:
        """Read for these queries, after making room if there is too little."""
        return read()

    def tried(self, ids: list[int], limit: float, wanted: Logits | None = None) -> bool:
        """Whether cutting, copying and reading in parts gives the same logits as reading ``ids`` in
        one go, to within ``limit`` times their standard deviation. ``wanted``: those logits, if
        they are known."""
        whole, cut, copy = strands = self.blank(), self.blank(), self.blank()
        half, most = len(ids) // 2, len(ids) - 1
        wrong = ids[:3] if self.cuts else []  # tokens that are taken back
        back = half - 2 if self.cuts else half
        try:
            self.read([(whole, ids[:most], 0), (cut, [*ids[:half], *wrong], 0)])
            size = self.bytes_of(whole)
            self.token_bytes = max(1, (size - self.bytes_of(cut)) // (most - len(cut.ids)))
            self.strand_bytes = max(0, size - self.token_bytes * most)
            if not self.cut(cut, half):
                return False
            self.copy(cut, copy, back)
            self.read([(cut, wrong, 0)])
            if not (len(copy.ids) == back and self.cut(cut, half)):
                return False
            self.read([(cut, ids[half:most], 0), (copy, ids[back:most], 0)])
            rows = [rows[-1] for rows in self.read([(strand, ids[most:], 1) for strand in strands])]
            right = rows[0] if wanted is None else wanted
            worst = max(
                float((row - right).std()) if np.isfinite(row).all() else np.inf for row in rows
            )
            return worst < limit * max(float(right.std()), 1e-6)
        finally:
            for strand in strands:
                self.release(strand)
            self.tokens_read = 0

    # --- reading ----------------------------------------------------------------------------------

    def prefill(self, wants: Sequence[Want], *, drafting: bool = False) -> list[Logits]:
        """Per (key, ids) the logits after the last token. ``drafting``: ``decode`` follows."""
        return self.with_room(partial(self._prefill, wants, drafting), [key for key, _ in wants])

    def _prefill(self, wants: Sequence[Want], drafting: bool) -> list[Logits]:
        keys = {key for key, _ in wants}
        new = {key for key in keys if key not in self.trunks}
        waiting: list[Want] = []
        for key, ids in wants:
            # A text that begins with something long that is read now copies that.
            if key in new and any(
                common_prefix(ids, other) >= self.prefixes.shortest for _, other in waiting
            ):
                self._read_missing(waiting, drafting)
                waiting = []
            self._find(key, ids, keys)
            waiting.append((key, ids))
        self._read_missing(waiting, drafting)
        for key, ids in wants:
            trunk = self.trunks[key]
            if key in new:
                remember(trunk.ends, len(ids), trunk.logits[len(ids)], MOST_ENDS)
            if drafting and not self.cuts:
                draft = self.blank(keys)
                self.copy(trunk, draft, len(ids))
                self.branches[key] = [draft]
        return [self.trunks[key].logits[len(ids)] for key, ids in wants]

    def _find(self, key: SequenceKey, ids: list[int], keys: Collection[SequenceKey]) -> Strand:
        """The trunk of this query, with as much of these tokens as is known anywhere."""
        trunk = self.trunks.pop(key, None)
        if trunk is None and not self.prefixes.limit:
            trunk = self.blank(keys)
        elif trunk is None:
            open_now = [Prefix(other.ids, other, ends=other.ends) for other in self.trunks.values()]
            found, shared = closest([*self.prefixes.kept, *open_now], ids)
            if found is not None:
                self.prefixes.use(found)
            trunk = self.blank(keys)
            old: Strand | None = found.data if found is not None else None
            # else it was given up for room
            if old is not None and self.prefixes.shortest <= shared <= len(old.ids):
                self.copy(old, trunk, shared)
        best = max([trunk, *self.branches.get(key, [])], key=lambda one: self._use_of(one, ids))
        self.free_branches(key, best)
        if best is not trunk:
            best.ends = trunk.ends
            self.release(trunk)
        self.trunks[key] = best
        return best

    def _use_of(self, strand: Strand, ids: list[int]) -> int:
        """How many of these tokens it holds, in a way that can go on with the others."""
        shared = common_prefix(strand.ids, ids)
        return shared if self.cuts or shared == len(strand.ids) else 0

    def _read_missing(self, wants: Sequence[Want], drafting: bool) -> None:
        readings: list[Reading] = []
        for key, ids in wants:
            strand = self.trunks[key]
            known = common_prefix(strand.ids, ids)
            complete = known == len(ids) and known in strand.logits
            if not complete or drafting or not self.cuts:
                self.cut(strand, known if complete else min(known, len(ids) - 1))
                known = len(strand.ids)
            self.found[key] = max(known - self.read_ahead.pop(key, 0), 0)
            if known < len(ids):
                readings.append((strand, ids[known:], 1))
        for (strand, _, _), rows in zip(readings, self.read(readings), strict=True):
            remember(strand.logits, len(strand.ids), rows[-1])

    def decode(self, keys: Sequence[SequenceKey], tokens: Sequence[int]) -> list[Logits]:
        """One more token for each sequence: the logits after it."""
        strands = [self.trunks[key] if self.cuts else self.branches[key][0] for key in keys]
        readings = [(strand, [token], 1) for strand, token in zip(strands, tokens, strict=True)]
        return [rows[-1] for rows in self.with_room(partial(self.read, readings), keys)]

    def read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        """Per want and branch the logits before each new token and after the last: (new tokens + 1,
        vocabulary)."""
        return self.with_room(partial(self._read_branches, wants), [want.key for want in wants])

    def _read_branches(self, wants: Sequence[Branches]) -> list[list[Logits]]:
        self._prefill([(want.key, want.ids) for want in wants], False)
        keys = {want.key for want in wants}
        todo = [(want, ids) for want in wants for ids in want.branches]
        found: list[Logits] = []
        while todo:
            room = max(self.room_for(len(todo), keys), LEAST)
            found += self._read_some(todo[:room], keys)
            todo = todo[room:]
            # What was just read is freed only if the rest needs the room.
            for want in wants:
                if self.room_for(len(todo), keys) < len(todo):
                    self.free_branches(want.key)
        parts = iter(found)
        return [[next(parts) for _ in want.branches] for want in wants]

    def _read_some(
        self, todo: Sequence[tuple[Branches, list[int]]], keys: Collection[SequenceKey]
    ) -> list[Logits]:
        """For each of these branches, the logits before each new token and after the last."""
        readings: list[Reading] = []
        before: list[Logits | None] = []
        for want, ids in todo:
            trunk = self.trunks[want.key]
            start = common_prefix(want.ids, ids)
            # If the logits before its first token are not known, the preceding token is read once
            # more.
            before.append(trunk.logits[start] if start == len(want.ids) else None)
            start -= before[-1] is None
            strand = self.blank(keys)
            self.branches.setdefault(want.key, []).append(strand)
            self.copy(trunk, strand, start)
            readings.append((strand, ids[len(strand.ids) :], len(ids) - start))
        found = []
        for (strand, _, _), rows, first in zip(readings, self.read(readings), before, strict=True):
            if len(rows):
                # a copy, because a view would keep all rows in memory
                remember(strand.logits, len(strand.ids), rows[-1].copy())
            known = [] if first is None else [first[None]]
            found.append(np.concatenate([*known, rows] if len(rows) else known))
        return found

    def missing(self, key: SequenceKey, ids: list[int]) -> int:
        """How many of these tokens must still be read."""
        own = [self.trunks[key], *self.branches.get(key, [])] if key in self.trunks else []
        others = [prefix.data for prefix in self.prefixes.kept] + list(self.trunks.values())
        shared = max((self._use_of(one, ids) for one in own or others), default=0)
        return len(ids) - (shared if own or shared >= self.prefixes.shortest else 0)

    def prefill_chunk(self, key: SequenceKey, ids: list[int]) -> None:
        """Read one chunk of what is missing of these tokens."""

        def read() -> None:
            strand = self._find(key, ids, {key})
            self.cut(strand, common_prefix(strand.ids, ids))
            part = ids[len(strand.ids) : -1][: self.chunk]
            self.read([(strand, part, 0)])
            self.read_ahead[key] = self.read_ahead.get(key, 0) + len(part)

        self.with_room(read, [key])

    def keep_logits(self, key: SequenceKey, length: int, logits: Logits) -> None:
        """These are the logits after the first ``length`` tokens; they will be asked for again."""
        remember(self.trunks[key].logits, length, logits)

    @contextmanager
    def holding(self, drafted: Callable[[], Iterable[Logits]]) -> Iterator[None]:
        """While drafts are being written, count the logits that they hold as the store's own."""
        self._drafted = drafted
        try:
            yield
        finally:
            self._drafted = tuple

    # --- forgetting -------------------------------------------------------------------------------

    def forget(self, key: SequenceKey) -> None:
        """The query is over: free its memory, or keep it as a prefix while there is room."""
        strand = self.trunks.get(key)
        if strand is not None:
            held = self.bytes_of(strand) + sum(row.nbytes for row in strand.ends.values())
            ends = {n: row for n, row in strand.ends.items() if n <= len(strand.ids)}
            if self.prefixes.keep(Prefix(list(strand.ids), strand, held, ends)):
                self.kept.append(self.trunks.pop(key))
        self.drop(key)
        self.sweep()

    def drop(self, key: SequenceKey) -> None:
        """Discard everything that is cached for this sequence, because it may be wrong."""
        self.free_branches(key)
        if strand := self.trunks.pop(key, None):
            self.release(strand)
        self.found.pop(key, None)
        self.read_ahead.pop(key, None)

    def clear(self) -> None:
        """Free everything, prefixes too."""
        for known in (self.trunks, self.branches, self.read_ahead, self.found):
            known.clear()
        self.kept.clear()
        self.prefixes.clear()

    def sweep(self) -> None:
        """Free the strands of prefixes that are not kept any more."""
        wanted = {id(prefix.data) for prefix in self.prefixes.kept}
        gone = [strand for strand in self.kept if id(strand) not in wanted]
        self.kept = [strand for strand in self.kept if id(strand) in wanted]
        for strand in gone:
            self.release(strand)

    def give_up(self, spared: Collection[SequenceKey]) -> bool:
        """Free what is quickest to read again, the least recently used first: the drafts of an idle
        query, otherwise a prefix, otherwise everything of an idle query."""
        if self.give_up_branches(spared):
            return True
        if self.prefixes.kept:
            self.prefixes.kept.pop(0)
            self.sweep()
            return True
        resting = next((key for key in self.trunks if key not in spared), None)
        if resting is not None:
            self.drop(resting)
        return resting is not None

    def give_up_branches(self, spared: Collection[SequenceKey]) -> bool:
        resting = next((key for key in self.branches if key not in spared), None)
        if resting is not None:
            self.free_branches(resting)
        return resting is not None

    def free_branches(self, key: SequenceKey, but: Strand | None = None) -> None:
        for strand in self.branches.pop(key, []):
            if strand is not but:
                self.release(strand)

    @property
    def strands(self) -> list[Strand]:
        return [
            *self.trunks.values(),
            *(one for some in self.branches.values() for one in some),
            *self.kept,
        ]

    @property
    @abstractmethod
    def bytes_held(self) -> int:
        """What strands, prefixes and logits take."""

    @abstractmethod
    def bytes_for(self, tokens: int) -> int:
        """About how many bytes a query of this many tokens takes."""

    @property
    def logits_bytes(self) -> int:
        kept = (row for one in self.strands for row in (*one.logits.values(), *one.ends.values()))
        rows = {id(row): row.nbytes for row in (*kept, *self._drafted())}
        return sum(rows.values())

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether this error means that the device has no memory left."""
        return isinstance(error, MemoryError)

    def free_memory(self) -> None:
        """The device is out of memory: free everything here, and the kept prefixes of all others on
        the device."""
        self.clear()
        with _LOCK:
            stores = list(_STORES)
        for store in stores:
            if store.device == self.device:  # so it has the same worker, and is not at work now
                store.prefixes.clear()
                store.sweep()

    def set_budget(self, budget: int, prefix_bytes: int) -> None:
        """From now on at most ``budget`` bytes, ``prefix_bytes`` of them for prefixes. The excess
        is freed at once."""
        self.budget, self.prefixes.limit = budget, prefix_bytes
        self.prefixes.shrink(prefix_bytes)

    def batches(self, sizes: Sequence[int]) -> list[slice]:
        """How to split sequences of these lengths into batches that fit into the budget."""
        each = self.bytes_for(max(sizes, default=0))
        count = max(1, self.budget // each if self.budget is not None and each else len(sizes))
        return [slice(at, at + count) for at in range(0, len(sizes), count)]


def remember(known: dict[int, Logits], length: int, row: Logits, most: int = KEPT_LOGITS) -> None:
    known.pop(length, None)
    known[length] = row
    while len(known) > most:
        del known[next(iter(known))]
