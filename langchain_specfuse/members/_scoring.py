"""From logits to the log-probabilities of a candidate: its tokens, and the end of the turn as one event.

Knows token ids and logits of one member; nothing of where they come from or what they are for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ._sampling import end_logprobs, logprobs_of
from ._text import Words


@dataclass(frozen=True)
class Scoring:
    """What all scores of one member share."""

    stops: Sequence[int]
    """Tokens that end a turn: any of them is the same event."""
    end_ids: Sequence[int]
    """The tokens of the words that end a turn; a candidate that ends was read with them behind it."""

    def logprobs(self, ids: list[int], size: int, ended: bool, logits: Tensor) -> tuple[float, ...]:
        """One number per new token of the candidate, and one for its end.

        ``ids``: prompt, answer, candidate, and the words of its end if it was read with them; ``size``: how many of
        them without these; ``logits``: before each new token and after the last, (new tokens + 1, vocabulary).
        """
        new = ids[len(ids) + 1 - len(logits) :]
        known = logprobs_of(logits[: len(new)], new) if new else []
        count = len(new) - (len(ids) - size)
        if not ended:
            return tuple(known)
        end = end_logprobs(logits[count : count + 1], self.stops)[0]
        if len(ids) > size:
            end = either(end, math.fsum(known[count:]))
        return (*known[:count], end)

    @staticmethod
    def ends(words: Words, ids: list[int], size: int, text: str, logits: Tensor) -> tuple[int, ...]:
        """How many of the candidate's characters are complete after each of its new tokens.

        New tokens may begin before the candidate does, where its beginning is read together with the text before it.
        """
        start = len(ids) + 1 - len(logits)
        told, ends = words.told(ids[:start], ids[start:size])
        before = len(told) - len(text)
        return tuple(max(0, end - before) for end in ends)


def either(one: float, other: float) -> float:
    """log(e^one + e^other), at most 0.

    >>> round(either(math.log(0.25), math.log(0.25)), 6) == round(math.log(0.5), 6)
    True
    """
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else min(0.0, high + math.log1p(math.exp(low - high)))
