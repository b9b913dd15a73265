"""Whether a store is right for a model: tried on a made-up text, never told by the model's name.

Knows token ids, stores and logits; nothing of tokenizers or drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ._slab import Slab
from ._snapshots import Snapshots
from ._stores import Fan, Read, Rereading, Store

log = logging.getLogger("langchain_specfuse")


def right(store: Store, vocabulary: Sequence[int]) -> bool:
    """Whether this store agrees with a fresh reading about a made-up text: led, drafted, fanned out and gone on.

    Differences are measured against the spread of the logits: rounding stays far below the limit, a mask or a position
    that is wrong far above it.
    """
    limit = 1e-3 if store.read.model.dtype == torch.float32 else 0.12
    least, store.prefixes.least = store.prefixes.least, 1
    try:
        told = _trial(store, vocabulary)
        truth = _read_afresh(store.read, [ids for ids, _ in told])
        errors = [_error(logits, truth[tuple(ids)]) for ids, logits in told]
        return sum(errors) / len(errors) < limit
    except Exception:  # a store that this model cannot work with raises anything
        return False
    finally:
        store.clear()
        store.prefixes.least = least
        store.reused = store.passed = 0


def _trial(store: Store, v: Sequence[int]) -> list[tuple[list[int], Tensor]]:
    """Two texts of different lengths on every path that drafts and scores take: tokens, and the logits after them."""
    at = {"short": [v[i % len(v)] for i in range(1, 8)], "long": [v[(3 * i) % len(v)] for i in range(1, 14)]}
    told: list[tuple[list[int], Tensor]] = []

    def lead(**more: list[int]) -> None:
        wants = [(key, at[key] + tail) for key, tail in more.items()]
        told.extend((ids, row) for (_, ids), row in zip(wants, store.lead(wants, exact=True), strict=True))

    def step(*tokens: int, after: dict[str, list[int]]) -> None:
        for count, token in enumerate(tokens):
            rows = store.step(list(at), [token] * len(at))
            told.extend(
                (at[key] + after[key] + list(tokens[: count + 1]), row) for key, row in zip(at, rows, strict=True)
            )

    ways = [[v[5 % len(v)], v[1], v[6 % len(v)]], [v[3], v[3]]]
    lead(short=[], long=[])
    step(v[1], v[4], after={"short": [], "long": []})
    fans = [Fan(key, ids, [*(ids + way for way in ways), ids[:-1] + ways[0]]) for key, ids in at.items()]
    for fan, branches in zip(fans, store.fan(fans), strict=True):
        for ids, rows in zip(fan.branches, branches, strict=True):
            told.extend((ids[: len(ids) + 1 - len(rows) + i], row) for i, row in enumerate(rows))
    lead(short=[*ways[1], v[1]], long=ways[0])
    step(v[0], after={"short": [*ways[1], v[1]], "long": ways[0]})
    store.forget("short")
    lead(long=[*ways[0], v[0], v[3]])
    # Who begins as another did gets a copy: of a query that is over, and of one under way.
    at["over"], at["under way"] = [*at["short"], *ways[1], v[2]], [*at["long"], *ways[0], v[2], v[5 % len(v)]]
    lead(over=[], **{"under way": []})
    return told


def _read_afresh(read: Read, texts: Sequence[list[int]]) -> dict[tuple[int, ...], Tensor]:
    """The logits after each of these texts without any cache; one pass serves them all, and all their beginnings."""
    whole: list[tuple[int, ...]] = []
    for text in sorted(set(map(tuple, texts)), key=len, reverse=True):
        if not any(other[: len(text)] == text for other in whole):
            whole.append(text)
    longest = max(map(len, whole))
    # What stands behind a text changes nothing before it: these models are causal.
    logits = read(torch.tensor([text + text[:1] * (longest - len(text)) for text in whole]))
    return {
        text[: i + 1]: row for text, rows in zip(whole, logits, strict=True) for i, row in enumerate(rows[: len(text)])
    }


def _error(one: Tensor, other: Tensor) -> float:
    one, other = one.float(), other.float()
    error = float((one - other).abs().mean() / other.std().clamp_min(1e-6))
    return error if torch.isfinite(one).all() else float("inf")


def best_store(read: Read, vocabulary: Sequence[int], budget: int, limit: int, name: str) -> Store:
    """The fastest store that agrees with a fresh reading of the same tokens. ``limit``: of bytes for prefixes."""
    windows = None
    if read.can_place:
        try:
            windows = Slab.windows_of(read.model.config)
        except Exception as error:  # a config that transformers cannot lay out as a cache
            log.debug("%s: no slab: %s", name, error)
    stores: list[Store] = [Slab(read, windows, budget, limit)] if windows else []
    stores += [Snapshots(read, True, limit), Snapshots(read, False, limit)]
    best = next((store for store in stores if right(store, vocabulary)), None)
    if best is None:
        log.warning("%s: no cache agrees with a fresh reading; everything is read anew: right, but slow", name)
    return best or Rereading(read)
