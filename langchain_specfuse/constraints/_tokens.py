"""A vocabulary as bytes, with what masks need beside the grammar. Knows no tokenizer and no grammar."""

from __future__ import annotations

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
                left, head = begin[seen:], begin[:seen]
                self._crossing[begin, seen] = [
                    token
                    for token, word in enumerate(self.words)
                    if (len(word) > len(left) and word.startswith(left))
                    or (seen and len(word) > 1 and _inside(head + word, begin))
                    or begin in word[:-1]
                ]
            return self._crossing[begin, seen]


def _inside(text: bytes, begin: bytes) -> bool:
    at = text.find(begin)
    return at >= 0 and at + len(begin) < len(text)
