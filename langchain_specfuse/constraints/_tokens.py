"""A vocabulary as bytes, with what masks need beside the grammar. Knows no tokenizer and no grammar."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from functools import cached_property

from ._rules import Mask


class Tokens:
    """The bytes of every token, and which tokens end a turn."""

    def __init__(self, words: Sequence[bytes], stop_ids: Sequence[int] = ()) -> None:
        self.words = list(words)
        self._stops = frozenset(stop_ids)
        for stop in self._stops:
            if stop < len(self.words):
                self.words[stop] = b""
        self._crossing: dict[tuple[bytes, int], list[int]] = {}
        self._lock = threading.Lock()

    def stops(self, token: int) -> bool:
        return token in self._stops

    @cached_property
    def stop_mask(self) -> Mask:
        return self._bits([stop for stop in self._stops if stop < len(self.words)])

    def all_but(self, tokens: Sequence[int]) -> Mask:
        import numpy as np

        size = len(self.words)
        mask = np.full(-(-size // 32), -1, dtype=np.int32)
        if size % 32:
            mask[-1] = (1 << size % 32) - 1
        return mask & ~self._bits(tokens)

    def _bits(self, tokens: Sequence[int]) -> Mask:
        import numpy as np  # here: without a constraint it may be missing

        bits = np.zeros(-(-len(self.words) // 32) * 32, dtype=np.uint8)
        bits[list(tokens)] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def crossing(self, begin: bytes, seen: int) -> list[int]:
        """The tokens that finish ``begin``, of which ``seen`` bytes are written, and go on behind it."""
        with self._lock:
            if (begin, seen) not in self._crossing:
                found = {token for token, word in enumerate(self.words) if begin in word[:-1]} if not seen else set()
                # What is written may end with several beginnings of it, as "<<" does before "<<|".
                for size in range(1, seen + 1):
                    if begin[:seen].endswith(begin[:size]):
                        found.update(self._longer(begin[size:]))
                self._crossing[begin, seen] = sorted(found)
            found_inside = self._crossing.get((begin, 0))
        inside = found_inside if found_inside is not None else self.crossing(begin, 0)
        return self._crossing[begin, seen] + inside if seen else inside

    def _longer(self, start: bytes) -> list[int]:
        """The tokens that start so and are longer."""
        order = self._sorted
        first, last = (
            bisect.bisect_right(order, (start, len(self.words))),
            bisect.bisect_left(order, (start + b"\xff",)),
        )
        return [token for _, token in order[first:last]]

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((word, token) for token, word in enumerate(self.words) if word)
