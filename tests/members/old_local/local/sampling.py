"""From logits to one token per row, repeatable whatever else is in the batch.

The noise of a token depends on (seed, position) alone: not on the round, the batch, the device or a
global generator. So text that was drafted and cut off is the same when it is drafted again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from langchain_specfuse.core.values import Sampling

from .strands import Logits


def sample(
    logits: Logits, sampling: Sequence[Sampling], contexts: Sequence[Sequence[int]]
) -> list[int]:
    """One token per row. ``contexts``: the row's tokens so far (for the penalty; their number is
    the position)."""
    return [
        _sampled(row, how, len(context)) if how.temperature > 0 else int(row.argmax())
        for row, how, context in (
            (_penalised(row, how.repetition_penalty, context), how, context)
            for row, how, context in zip(logits, sampling, contexts, strict=True)
        )
    ]


def _penalised(row: Logits, penalty: float | None, context: Sequence[int]) -> Logits:
    if not penalty or penalty == 1.0:
        return row
    row, seen = row.copy(), np.fromiter(set(context), dtype=np.int64)
    row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return row


def _sampled(row: Logits, how: Sampling, position: int) -> int:
    """Inverse transform sampling on the sorted, filtered probabilities with one uniform number."""
    tokens = np.argsort(-row, kind="stable")[: how.top_k or None]
    # Divided by a temperature near 0, distances from the best token become -inf. The logits
    # themselves would become inf, and their differences NaN.
    distances = (row[tokens] - row[tokens[0]]).astype(np.float64)
    with np.errstate(over="ignore"):
        weights = np.exp(distances / how.temperature)
    # Each filter gets what the one before has left: top_k, top_p, min_p.
    probs = weights / weights.sum()
    keep = np.ones(len(probs), dtype=bool)
    if how.top_p is not None:
        keep &= probs.cumsum() - probs < how.top_p
    if how.min_p is not None:
        keep &= probs >= how.min_p * probs[0]
    keep[0] = True
    sums = probs[keep].cumsum()
    at = int(np.searchsorted(sums, noise(how.seed, position) * sums[-1], side="right"))
    return int(tokens[keep][min(at, len(sums) - 1)])


def noise(seed: int, position: int) -> float:
    """The uniform number that picks the token at this position."""
    return random.Random(f"{seed}:{position}").random()
