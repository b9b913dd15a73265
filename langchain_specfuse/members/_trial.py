"""Whether a store is right for a model: tried on a made-up text, never told by the model's name.

Knows token ids, stores and logits; nothing of tokenizers or drafts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.values import Sampling
from . import _verdicts
from ._adapters import Adapter
from ._graphs import Graphs
from ._leaps import Leaps, Start
from ._sampling import chosen, logprobs_of
from ._slab import Slab
from ._snapshots import Snapshots
from ._stores import Fan, Key, Read, Rereading, Store

log = logging.getLogger("langchain_specfuse")


Told = list[tuple[list[int], Tensor, Adapter | None]]
"""Tokens, the logits after them, and with which adapter they were read."""


def right(store: Store, vocabulary: Sequence[int], beside: Adapter | None = None) -> bool:
    """Whether this store agrees with a fresh reading about a made-up text: led, drafted, fanned out and gone on.

    ``beside``: texts with this adapter and others without any are read together.

    Differences are measured against the spread of the logits: rounding stays far below the limit, a mask or a position
    that is wrong far above it.
    """
    limit = 1e-3 if store.read.model.dtype == torch.float32 else 0.12
    least, store.prefixes.least = store.prefixes.least, 1
    try:
        told = _trial(store, vocabulary, beside)
        errors = []
        for adapter in {own for _, _, own in told}:
            mine = [(ids, logits) for ids, logits, own in told if own is adapter]
            truth = _read_afresh(store.read, [ids for ids, _ in mine], adapter)
            errors += [_error(logits, truth[tuple(ids)]) for ids, logits in mine]
        return sum(errors) / len(errors) < limit
    except Exception:  # a store that this model cannot work with raises anything
        return False
    finally:
        store.clear()
        store.prefixes.least = least
        store.reused = store.passed = 0


def _trial(store: Store, v: Sequence[int], beside: Adapter | None) -> Told:
    """Two texts of different lengths on every path that drafts and scores take."""
    names = {"short": beside, "long": None, "over": beside, "under way": None}
    keys = {name: Key(name, "trial", own) if beside else name for name, own in names.items()}
    of = store.read.adapter_of
    short, long, over, under_way = keys.values()
    at = {short: [v[i % len(v)] for i in range(1, 8)], long: [v[(3 * i) % len(v)] for i in range(1, 14)]}
    told: Told = []

    def lead(more: dict[str, list[int]]) -> None:
        wants = [(key, at[key] + tail) for key, tail in more.items()]
        rows = store.lead(wants, exact=True)
        told.extend((ids, row, of(key)) for (key, ids), row in zip(wants, rows, strict=True))

    def step(*tokens: int, after: dict[str, list[int]]) -> None:
        for count, token in enumerate(tokens):
            rows = store.step(list(at), [token] * len(at))
            told.extend(
                (at[key] + after[key] + list(tokens[: count + 1]), row, of(key))
                for key, row in zip(at, rows, strict=True)
            )

    ways = [[v[5 % len(v)], v[1], v[6 % len(v)]], [v[3], v[3]]]
    lead({short: [], long: []})
    step(v[1], v[4], after={short: [], long: []})
    fans = [Fan(key, ids, [*(ids + way for way in ways), ids[:-1] + ways[0]]) for key, ids in at.items()]
    for fan, branches in zip(fans, store.fan(fans), strict=True):
        for ids, rows in zip(fan.branches, branches, strict=True):
            told.extend((ids[: len(ids) + 1 - len(rows) + i], row, of(fan.key)) for i, row in enumerate(rows))
    lead({short: [*ways[1], v[1]], long: ways[0]})
    step(v[0], after={short: [*ways[1], v[1]], long: ways[0]})
    if store.can_turn_back:
        tails = {short: [*ways[1], v[1]], long: [*ways[0], v[0]]}
        told += _guessed(store, {key: at[key] + tail for key, tail in tails.items()}, v)
    store.forget(short)
    lead({long: [*ways[0], v[0], v[3]]})
    # Who begins as another did gets a copy: of a query that is over, and of one under way.
    at[over], at[under_way] = [*at[short], *ways[1], v[2]], [*at[long], *ways[0], v[2], v[5 % len(v)]]
    lead({over: [], under_way: []})
    return told


def _guessed(store: Store, at: dict[str, list[int]], v: Sequence[int]) -> Told:
    """Tokens read on a guess, some of them taken back, and a branch that lies apart and is gone on from."""
    told: Told = []
    of = store.read.adapter_of
    store.lead(list(at.items()), exact=True)
    ways = [[v[0], v[2], v[4 % len(v)]], [v[3]]]
    fans = [Fan(key, ids, [ids + way for way in ways], apart=8) for key, ids in at.items()]
    for fan, branches in zip(fans, store.fan(fans), strict=True):
        for ids, rows in zip(fan.branches, branches, strict=True):
            told.extend((ids[: len(ids) + 1 - len(rows) + i], row, of(fan.key)) for i, row in enumerate(rows))
    for known, more in (([], [v[1], v[1], v[5 % len(v)]]), ([v[1]], [v[2], v[3]]), (ways[0][:-1], [v[1]])):
        wants = [(key, more[: len(more) - k]) for k, key in enumerate(at)]  # rows of different lengths in one pass
        for key, ids in at.items():
            store.turn_back(key, ids + known)
        wants = [(key, new) for key, new in wants if new]
        for (key, new), rows in zip(wants, store.stride(wants), strict=True):
            told.extend((at[key] + known + new[: i + 1], row, of(key)) for i, row in enumerate(rows))
    return told


def _read_afresh(read: Read, texts: Sequence[list[int]], adapter: Adapter | None) -> dict[tuple[int, ...], Tensor]:
    """The logits after each of these texts without any cache; one pass serves them all, and all their beginnings."""
    whole: list[tuple[int, ...]] = []
    for text in sorted(set(map(tuple, texts)), key=len, reverse=True):
        if not any(other[: len(text)] == text for other in whole):
            whole.append(text)
    longest = max(map(len, whole))
    # What stands behind a text changes nothing before it: these models are causal.
    ids = torch.tensor([text + text[:1] * (longest - len(text)) for text in whole])
    logits = read(ids, rows=[adapter] * len(ids))
    return {
        text[: i + 1]: row for text, rows in zip(whole, logits, strict=True) for i, row in enumerate(rows[: len(text)])
    }


def _error(one: Tensor, other: Tensor) -> float:
    one, other = one.float(), other.float()
    error = float((one - other).abs().mean() / other.std().clamp_min(1e-6))
    return error if torch.isfinite(one).all() else float("inf")


def best_store(
    read: Read, vocabulary: Sequence[int], budget: int, limit: int, name: str, *, remembered: bool = False
) -> Store:
    """The fastest store that agrees with a fresh reading of the same tokens. ``limit``: of bytes for prefixes.

    ``remembered``: what an earlier trial of such a model found is believed, and this one's verdict kept.
    """
    windows = _windows(read, name)
    stores: dict[str, Store] = {"slab": Slab(read, windows, budget, limit)} if windows else {}
    stores |= {"snapshots": Snapshots(read, True, limit), "snapshots one by one": Snapshots(read, False, limit)}
    known = stores.get(_verdicts.told(read.model)) if remembered else None
    if known is not None and _begun(known, vocabulary):
        return known
    kind = next((kind for kind, store in stores.items() if right(store, vocabulary)), None)
    if kind is None:
        log.warning("%s: no cache agrees with a fresh reading; everything is read anew: right, but slow", name)
        return Rereading(read)
    if remembered:
        _verdicts.tell(read.model, kind)
    return stores[kind]


def _begun(store: Store, vocabulary: Sequence[int]) -> bool:
    """Two short passes instead of a trial: from then on the store knows what a token takes."""
    try:
        for size in (2, 12):
            tokens = [vocabulary[at % len(vocabulary)] for at in range(size)]
            (logits,) = store.lead([(Key("first", "trial"), tokens)])
            if not store.held or not torch.isfinite(logits).all():
                return False
        return True
    except Exception:  # then it is tried, and whatever this is comes up again
        return False
    finally:
        store.clear()
        store.reused = store.passed = 0


def mixes(read: Read, vocabulary: Sequence[int], adapter: Adapter) -> bool:
    """Whether rows with this adapter and rows without any may be read in one pass."""
    windows = _windows(read, adapter.name)
    return windows is not None and right(Slab(read, windows), vocabulary, adapter)


def _windows(read: Read, name: str) -> list[int | None] | None:
    """Each layer's sliding window; None where a slab is not to be tried at all."""
    if not read.can_place:
        return None
    try:
        return Slab.windows_of(read.model.config)
    except Exception as error:  # a config that transformers cannot lay out as a cache
        log.debug("%s: no slab: %s", name, error)
        return None


def graphed(store: Store, stops: Sequence[int], vocabulary: Sequence[int], name: str) -> Leaps | None:
    """Leaps whose steps are captured, on a GPU and for a model with which they come to the same; else None."""
    if not isinstance(store, Slab) or store.read.own is not None or not Graphs.fit(store):
        return None
    store.static = True
    graphs = Graphs(store, name)
    leaps = Leaps(store, stops, graphs)
    if leaps_right(leaps, vocabulary) and not graphs.refused:
        return leaps
    log.warning("%s: its drafts cannot be captured as graphs; they are drawn token by token", name)
    store.static = False
    store.clear()
    return None


def leaps_right(leaps: Leaps, vocabulary: Sequence[int]) -> bool:
    """Whether what is drawn in leaps is what is drawn one by one: the logits nearly, what is picked of them exactly."""
    slab, v = leaps.slab, vocabulary
    limit = 1e-3 if slab.read.model.dtype == torch.float32 else 0.12
    at = {"short": [v[i % len(v)] for i in range(1, 8)], "long": [v[(3 * i) % len(v)] for i in range(1, 14)]}
    try:
        errors: list[float] = []
        for how in (Sampling(), Sampling(1.5, top_p=0.9, top_k=40, seed=3, repetition_penalty=3.0)):
            errors += _leap_errors(leaps, at, how)
        return sum(errors) / len(errors) < limit
    except Exception as error:  # as above
        log.debug("no leaps: %s", error)
        return False
    finally:
        slab.clear()
        slab.reused = slab.passed = 0


def _leap_errors(leaps: Leaps, at: dict[str, list[int]], how: Sampling) -> list[float]:
    """How far the logits of two leaps, one going on from the other, lie from those of single steps."""
    slab, errors = leaps.slab, list[float]()
    rows = slab.lead(list(at.items()), exact=True)
    starts = [Start(key, ids, how, 9, row) for (key, ids), row in zip(at.items(), rows, strict=True)]
    first = leaps.take(starts, 4)
    then = leaps.take([Start(a.key, a.ids + b.tokens, how, 9) for a, b in zip(starts, first, strict=True)], 2)
    drawn = [a.tokens + b.tokens for a, b in zip(first, then, strict=True)]
    truth = list(slab.lead(list(at.items()), exact=True))
    for step in range(6):
        told = [leapt.at(step % 4) for leapt in (first if step < 4 else then)]
        tokens, logits = [token for token, _, _ in told], torch.stack([row for _, _, row in told])
        so_far = [start.ids + all_of_it[:step] for start, all_of_it in zip(starts, drawn, strict=True)]
        far = [abs(p - q) for (_, p, _), q in zip(told, logprobs_of(logits, tokens), strict=True)]
        same = chosen(logits, [how] * len(at), so_far) == tokens and max(far) < 1e-3
        errors += [_error(one, other) for one, other in zip(logits, truth, strict=True)] if same else [float("inf")]
        truth = list(slab.step(list(at), tokens))
    return errors
