"""Which of an engine's slots has which query's context: each its own while there are enough.

Knows names and numbers; nothing of engines or caches.
"""

from __future__ import annotations

import threading


class Slots:
    """So many slots. May be used from several threads.

    >>> slots = Slots(2)
    >>> slots.of("a"), slots.of("b"), slots.of("a"), slots.of("c")
    (0, 1, 0, 1)
    """

    def __init__(self, count: int) -> None:
        self._keys: dict[int, set[str]] = {slot: set() for slot in range(max(1, count))}
        """The slots, the least recently used first."""
        self._slot: dict[str, int] = {}
        self._lock = threading.Lock()

    def of(self, key: str) -> int:
        """The key's slot; for a new key that with the fewest others, of these the one that was idle for longest."""
        with self._lock:
            if key not in self._slot:
                self._slot[key] = min(self._keys, key=lambda slot: len(self._keys[slot]))
            slot = self._slot[key]
            keys = self._keys[slot] = self._keys.pop(slot)
            keys.add(key)
            return slot

    def forget(self, key: str) -> None:
        with self._lock:
            slot = self._slot.pop(key, None)
            if slot is not None:
                self._keys[slot].discard(key)
