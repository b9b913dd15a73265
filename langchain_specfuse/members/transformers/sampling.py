"""From logits to one token per row, repeatable whatever else is in the batch.

The noise of a token depends on (seed, position) alone: not on the round, the batch, the device or a global generator.
So what was drafted and cut off comes out the same when it is drafted again. Knows nothing of text or scores.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.values import Sampling


def sample(logits: Tensor, sampling: Sequence[Sampling], contexts: Sequence[Sequence[int]]) -> list[int]:
    """One token per row. ``contexts``: the row's tokens so far (for the penalty; their number is the position)."""
    rows = [_penalised(row, s.repetition_penalty, c) for row, s, c in zip(logits, sampling, contexts, strict=True)]
    best: list[int] = torch.stack(rows).argmax(-1).tolist()
    return [
        _sampled(row, s, len(c)) if s.temperature > 0 else first
        for row, s, c, first in zip(rows, sampling, contexts, best, strict=True)
    ]


def _penalised(row: Tensor, penalty: float | None, context: Sequence[int]) -> Tensor:
    if not penalty or penalty == 1.0:
        return row
    row = row.float().clone()
    seen = torch.tensor(sorted(set(context)), device=row.device)
    row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    return row


def _sampled(row: Tensor, how: Sampling, position: int) -> int:
    """Inverse transform sampling on the sorted, filtered probabilities with one uniform number."""
    values, tokens = (row.float() / how.temperature).sort(descending=True, stable=True)
    # Each filter sees what the one before has left: top_k, top_p, min_p.
    probs = values[: how.top_k or None].softmax(-1)
    keep = torch.ones_like(probs, dtype=torch.bool)
    if how.top_p is not None:
        keep &= probs.cumsum(-1) - probs < how.top_p
    if how.min_p is not None:
        keep &= probs >= how.min_p * probs[0]
    keep[0] = True
    kept = probs[keep].double()
    at = int(torch.searchsorted(kept.cumsum(-1), noise(how.seed, position) * float(kept.sum()), right=True))
    return int(tokens[: len(keep)][keep][min(at, len(kept) - 1)])


def noise(seed: int, position: int) -> float:
    """The uniform number that picks the token at this position."""
    return random.Random(f"{seed}:{position}").random()
