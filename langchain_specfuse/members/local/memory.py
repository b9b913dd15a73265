"""``memory_budget``: how many bytes the weights and caches of the members in this process may take on a device.

When they do not all fit, a member that works makes room. From the others, least recently used first, go kept prefixes,
then weights, then caches. Weights come back for their member's turn and dropped caches are computed again, so answers
stay the same.

How weights move is their engine's business (:class:`Weights`).
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ...errors import MemberError, UsageError, advised

log = logging.getLogger("langchain_specfuse")

Limit: TypeAlias = int | str | Mapping[str, int | str]
"""A budget as it is written: bytes on every device, or by device."""
LEAST_TOKENS = 512
"""A member must have room for a question of about this length."""
PATIENCE_S = 60.0
"""A member waits this long for memory that a member holds that hangs in its work."""
_DEVICE = re.compile(r"cpu|mps|(cuda|xpu):\d+")
_SIZE = re.compile(r"([0-9.]+)\s*(?:([KMGT])(I?))?B?")

# --- budgets ----------------------------------------------------------------------------------------------------


def parse_limit(limit: Limit) -> dict[str, int]:
    """Bytes by device; the key "" stands for every device. ValueError for anything else.

    >>> parse_limit("1.5 GiB"), parse_limit({"cuda": "6GB", "cpu": 1000})
    ({'': 1610612736}, {'cuda:0': 6000000000, 'cpu': 1000})
    """
    if not isinstance(limit, Mapping):
        return {"": _parse_bytes(limit)}
    parsed = {_numbered(device): _parse_bytes(size) for device, size in limit.items()}
    if not parsed or len(parsed) < len(limit) or not all(map(_DEVICE.fullmatch, parsed)):
        raise ValueError(f"{list(limit)} are not devices such as 'cpu' or 'cuda:0', each named once")
    return parsed


def _parse_bytes(size: Any) -> int:
    found = None if isinstance(size, bool | float) else _SIZE.fullmatch(str(size).strip().upper())
    if found is None or found[1].count(".") > 1 or found[1] == ".":
        raise ValueError(f"{size!r} is not a number of bytes")
    parsed = int(float(found[1]) * (1024 if found[3] else 1000) ** (" KMGT".index(found[2] or " ")))
    if not 1 <= parsed < 2**63:
        raise ValueError(f"{size!r} is not a number of bytes")
    return parsed


def _numbered(device: str) -> str:
    return f"{device}:0" if device in ("cuda", "xpu") else device


def _shown(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.3g} MB"


class MemoryBudget:
    """The memory that some members share, on each device."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._bytes = parse_limit(limit)
        self._devices: dict[str, DeviceMemory] = {}

    def __repr__(self) -> str:
        return f"memory_budget={self.limit!r}"

    def on(self, device: str) -> DeviceMemory | None:
        """The memory of this device; None: no limit."""
        device = _numbered(device)
        total = self._bytes.get(device, self._bytes.get(""))
        return None if total is None else self._devices.setdefault(device, DeviceMemory(device, total))

    def make_room(self, size: int) -> None:
        """Before a model of this size is loaded, on whatever device."""
        for memory in list(self._devices.values()):
            memory.make_room(size)


_SHARED: weakref.WeakValueDictionary[tuple[tuple[str, int], ...], MemoryBudget] = weakref.WeakValueDictionary()


def share_budget(limit: Limit, members: Sequence[Any]) -> None:
    """Give this budget to all of these members that hold weights in this process, or to none of them.

    Equal budgets are one: a budget counts what lies on the device, whichever chat model asked for it.
    """
    budget = _SHARED.setdefault(tuple(sorted(parse_limit(limit).items())), MemoryBudget(limit))
    hosted = [member for member in members if hasattr(member, "memory_budget")]
    for member in hosted:
        if member.memory_budget not in (None, budget):
            error = UsageError(f"{member.name} has {member.memory_budget!r}, and cannot have {budget!r} too")
            raise advised(error, "members are shared in a process: give the same number, or unload() it first")
    for member in hosted:
        member.memory_budget = budget


class Weights(Protocol):
    """The weights of one model, on their device or away."""

    bytes: int
    here: bool
    movable: bool
    spread: bool
    """Over several devices: none of them has all of it."""

    def in_use(self) -> AbstractContextManager[None]:
        """While this lasts they are on their device, and stay there."""

    def offload(self) -> bool:
        """Move them off the device. False: they are in use, or cannot be moved."""


# --- one device -------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class MemoryUser:
    """Members that share one cache, and what they hold on the device."""

    name: str
    weights: Weights
    store: Any
    prefix_bytes: int | None
    """At most this much for kept prefixes; None: a third of the cache."""

    @property
    def least(self) -> int:
        """The smallest cache that is of use."""
        return int(self.store.bytes_for(LEAST_TOKENS))

    def set_cache(self, size: int) -> None:
        third = size // 3
        self.store.set_budget(size, third if self.prefix_bytes is None else min(self.prefix_bytes, size))


class DeviceMemory:
    """The part of a budget on one device, and those that use it."""

    def __init__(self, device: str, total: int) -> None:
        self.device = device
        self.total = total
        self.moves = 0
        """How often weights have left the device."""
        self.lock = threading.RLock()
        """Held while something is taken from a user, or a user frees something outside its turn."""
        self._news = threading.Condition(self.lock)
        self._users: list[weakref.ref[MemoryUser]] = []
        """Least recently used first."""
        self._at_work: list[MemoryUser] = []

    @property
    def held(self) -> tuple[int, int]:
        """Bytes of weights and of caches on the device now."""
        with self.lock:
            here = sum(weights.bytes for weights in self._weights() if weights.here)
            return here, sum(user.store.bytes_held for user in self._alive())

    def make_room(self, size: int) -> None:
        """Before a model of this size is loaded."""
        with self.lock:
            self._make_room(size, None)

    def join(self, user: MemoryUser) -> None:
        """A user that has been loaded. UsageError if there is not even room for it alone."""
        with self.lock:
            fixed = sum(one.bytes for one in self._weights() if not one.movable and one is not user.weights)
            needed = fixed + user.weights.bytes + user.least
            if needed > self.total:
                error = UsageError(
                    f"{user.name} needs {_shown(needed)} on {self.device} for its weights and the smallest cache, "
                    f"and memory_budget gives {_shown(self.total)}"
                )
                raise advised(error, "give more, load it with a smaller dtype, or leave this member out")
            self._users.append(weakref.ref(user))
            user.set_cache(user.least)

    def leave(self, user: MemoryUser) -> None:
        with self.lock:
            self._users = [one for one in self._users if one() not in (None, user)]
            self._news.notify_all()

    @contextmanager
    def turn(self, user: MemoryUser) -> Iterator[None]:
        """While this lasts there is room for the user's weights and cache, and nothing is taken from it."""
        with self.lock:
            self._users = [*(one for one in self._users if one() not in (None, user)), weakref.ref(user)]
            wanted = max(user.least, user.store.bytes_held)
            if not self._news.wait_for(lambda: self.reserve(user, wanted) >= user.least, PATIENCE_S):
                busy = ", ".join(sorted(other.name for other in self._at_work)) or "another process"
                message = f"{user.name} waited {PATIENCE_S:g} s for memory that {busy} holds"
                error = MemberError(message, member=user.name)
                raise advised(error, "a member that hangs keeps its weights: give a larger memory_budget")
            self._at_work.append(user)
        try:
            yield
        finally:
            with self.lock:
                self._at_work.remove(user)
                self._news.notify_all()

    def reserve(self, user: MemoryUser, cache: int) -> int:
        """Make room for a cache of this size. Returns how large it may be now; that may be less."""
        with self.lock:
            self._make_room(cache, user)
            room = max(self._room(user), 0)
            user.set_cache(room)
            return room

    def _alive(self) -> list[MemoryUser]:
        return [user for one in self._users if (user := one()) is not None]

    def _weights(self) -> list[Weights]:
        return list({id(user.weights): user.weights for user in self._alive()}.values())

    def _room(self, user: MemoryUser | None) -> int:
        """Bytes for this user's cache beside its weights; for no user, bytes that are free."""
        own = user.weights if user else None
        weights = sum(weights.bytes for weights in self._weights() if weights.here or weights is own)
        caches = sum(other.store.bytes_held for other in self._alive() if other is not user)
        return self.total - weights - caches

    def _make_room(self, cache: int, user: MemoryUser | None) -> None:
        """Take from idle users what is needed for this user's weights and a cache of this size."""
        idle = [other for other in self._alive() if other is not user and other not in self._at_work]
        for take in (self._take_prefixes, self._take_weights, self._take_cache):
            for other in idle:
                short = cache - self._room(user)
                if short <= 0:
                    return
                if take is not self._take_weights or user is None or other.weights is not user.weights:
                    take(other, short)

    def _take_prefixes(self, user: MemoryUser, short: int) -> None:
        user.store.prefixes.shrink(max(user.store.prefixes.bytes - short, 0))
        user.store.sweep()

    def _take_weights(self, user: MemoryUser, short: int) -> None:
        if user.weights.here and user.weights.offload():
            self.moves += 1
            log.debug("memory_budget: the weights of %s left %s", user.name, self.device)

    def _take_cache(self, user: MemoryUser, short: int) -> None:
        user.store.set_budget(0, 0)
