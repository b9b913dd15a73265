"""Wrong versions of an input."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

TOKENS = ['{"', '": ', "[[[[", "}", "null", "1e999", "-0", "\\u", "\\ud800", "\x00", "\xff", "NaN", '"name"', "9" * 40]
TOKENS += ["<tool_call>\n", "\n</tool_call>", '"tool_calls"', '"role"', '"content"', "true", "\u2028", "é", "😀"]


def mutations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """The input cut, doubled, with bytes changed, and with text inserted that often breaks parsers."""
    rng = random.Random(hashlib.sha256(data).digest() + bytes([seed]))
    for _ in range(count):
        new = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at, to = sorted((rng.randint(0, len(new)), rng.randint(0, len(new))))
            match rng.randrange(5):
                case 0:
                    del new[at:to]
                case 1:
                    new[at:at] = new[at:to] * rng.choice((1, 1, 20))
                case 2:
                    new[at:at] = rng.choice(TOKENS).encode("utf-8", "surrogatepass")
                case 3 if new:
                    new[min(at, len(new) - 1)] = rng.randrange(256)
                case 4:
                    new[at:to] = rng.choice(TOKENS).encode("utf-8", "surrogatepass")
        yield bytes(new[:100_000])
