"""Which cache is right for a model: tried on made-up tokens when it is loaded, never decided by its name.

The result is kept on disk, because a trial reads all weights some twenty times. It holds for exactly what was tried:
the model's configuration, precision and kind of attention, the versions of torch and transformers, and our own code.
Knows token ids, stores and logits; nothing of tokenizers or drafts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from ...local.store import Branches, Logits, SequenceKey
from ..loading import cache_folder
from ..lora import Adapter
from .cache import BatchedCache
from .snapshots import Snapshots
from .store import Forward, NoCache, TorchStore

log = logging.getLogger("langchain_specfuse")

LIMITS = {torch.float32: 1e-3}
HALF_LIMIT = 0.12
"""How far logits may lie from those of a fresh reading, relative to their spread. With real models, rounding makes a
difference of up to 1e-5 in float32 and 0.05 in bfloat16, a wrong mask or position one of 0.3 to 0.8."""
CPU_WORK, GPU_WORK = 1.5e11, 5e13
"""The trial reads past a sliding window if its tokens times the model's parameters are at most this: a few seconds, and
only once, as the result is kept. Longer windows are masked by the same code."""
PAST_WINDOW = 16
"""It reads this many tokens more than the window has."""

# --- the trial --------------------------------------------------------------------------------------------------


def agrees(store: TorchStore, vocabulary: Sequence[int], adapter: Adapter | None = None) -> bool:
    """Whether this store agrees with a fresh reading about made-up texts, on every path that drafts and scores take.

    The largest error counts. ``adapter``: texts with this adapter and others without are read together.
    """
    limit = LIMITS.get(store.forward.model.dtype, HALF_LIMIT)
    window = 0 if adapter else _window_to_cross(store.forward)
    shortest, chunk, store.prefixes.shortest = store.prefixes.shortest, store.chunk, 1
    try:
        if _Trial(store, vocabulary, adapter).short_texts() >= limit:
            return False
        store.clear()
        return not window or _Trial(store, vocabulary, None).past_window(window) < limit
    except Exception as error:  # a store that cannot work with this model raises anything
        log.debug("a trial of %s failed: %s", store.kind, error)
        return False
    finally:
        store.clear()
        store.prefixes.shortest, store.chunk = shortest, chunk
        store.tokens_reused = store.tokens_read = 0


class _Trial:
    """Reads made-up texts with a store, and compares the logits with those of a fresh reading."""

    def __init__(self, store: TorchStore, vocabulary: Sequence[int], adapter: Adapter | None) -> None:
        self.store = store
        self.vocabulary = vocabulary
        self.adapter = adapter
        self._seen: list[tuple[SequenceKey, list[int], Logits]] = []

    def short_texts(self) -> float:
        """Two texts of different lengths, then two more that begin like them."""
        v = [self.vocabulary[at % len(self.vocabulary)] for at in range(7)]
        short, long, after, beside = (
            SequenceKey("trial", name, self.adapter if name in ("short", "after") else None)
            for name in ("short", "long", "after", "beside")
        )
        texts = {short: self._text(7, 1), long: self._text(13, 3)}
        ways = [[v[5], v[1], v[6]], [v[3], v[3]]]
        self._prefill(texts)
        texts = self._decode(texts, [v[1], v[4]])
        texts = {key: ids[:-2] for key, ids in texts.items()}  # as if other drafts had been better
        self._branches({key: [*(ids + way for way in ways), ids[:-1] + ways[0]] for key, ids in texts.items()}, texts)
        texts = {short: [*texts[short], *ways[1], v[1]], long: texts[long] + ways[0]}
        self._prefill(texts)
        texts = self._decode(texts, [v[0]])
        self.store.forget(short)
        self._prefill({long: [*texts[long], v[3]]})
        # They get a copy: one of a query that is over, one of a query that is open.
        self._prefill({after: [*texts[short][:-2], v[2]], beside: [*texts[long][:-1], v[2], v[5]]})
        return self._largest_error()

    def past_window(self, window: int) -> float:
        """A text that grows past a sliding window: token by token beside a short one, as a branch, and in a chunk."""
        text, at = self._text(window + PAST_WINDOW, 7), window - 3
        long, short = SequenceKey("trial", "long"), SequenceKey("trial", "short")
        texts = {long: text[:at], short: self._text(5, 2)}
        self.store.chunk = max(self.store.chunk, window)  # one pass is quicker than many
        self._prefill(texts)
        texts = self._decode(texts, text[at : at + 6])
        at += 6
        self._branches({long: [text[: at - 1] + text[:2], text[: at + 8]]}, texts)
        self._prefill({long: text[: at + 9]})
        self._prefill({long: text})
        return self._largest_error()

    def _text(self, size: int, step: int) -> list[int]:
        return [self.vocabulary[(step * at + at * at // 5) % len(self.vocabulary)] for at in range(1, size + 1)]

    def _prefill(self, texts: dict[SequenceKey, list[int]]) -> None:
        for (key, ids), logits in zip(
            texts.items(), self.store.prefill(list(texts.items()), drafting=True), strict=True
        ):
            self._seen.append((key, ids, logits))

    def _decode(self, texts: dict[SequenceKey, list[int]], tokens: Sequence[int]) -> dict[SequenceKey, list[int]]:
        for token in tokens:
            texts = {key: [*ids, token] for key, ids in texts.items()}
            logits = self.store.decode(list(texts), [token] * len(texts))
            self._seen += [(key, ids, row) for (key, ids), row in zip(texts.items(), logits, strict=True)]
        return texts

    def _branches(self, ways: dict[SequenceKey, list[list[int]]], texts: dict[SequenceKey, list[int]]) -> None:
        wants = [Branches(key, texts[key], branches) for key, branches in ways.items()]
        for want, found in zip(wants, self.store.read_branches(wants), strict=True):
            for ids, rows in zip(want.branches, found, strict=True):
                start = len(ids) + 1 - len(rows)
                self._seen += [(want.key, ids[: start + at], row) for at, row in enumerate(rows)]

    def _largest_error(self) -> float:
        errors = []
        for adapter in {self.store.forward.adapter_of(key) for key, _, _ in self._seen}:
            own = [(ids, row) for key, ids, row in self._seen if self.store.forward.adapter_of(key) is adapter]
            fresh = self._fresh({tuple(ids) for ids, _ in own}, adapter)
            errors += [_error(row, fresh[tuple(ids)]) for ids, row in own]
        return max(errors)

    def _fresh(self, texts: set[tuple[int, ...]], adapter: Adapter | None) -> dict[tuple[int, ...], Logits]:
        """The logits after each of these texts without any cache. One pass serves a text and all its beginnings."""
        found: dict[tuple[int, ...], Logits] = {}
        for text in sorted(texts, key=len, reverse=True):
            if text not in found:
                ends = sorted({len(one) for one in texts if text[: len(one)] == one})
                keep = [end - 1 for end in ends]
                rows = self.store.forward(torch.tensor([text]), keep=keep, adapters=[adapter])[0]
                found |= {text[:end]: row for end, row in zip(ends, rows, strict=True)}
        return found


def _error(one: Logits, other: Logits) -> float:
    """The spread of the difference: adding the same to all logits changes nothing, and rounding does that."""
    error = float((one - other).std() / max(float(other.std()), 1e-6))
    return error if np.isfinite(one).all() else float("inf")


def _windows(forward: Forward) -> list[int | None] | None:
    """The sliding window of each layer; None where the batched cache need not be tried."""
    try:
        return BatchedCache.windows_of(forward.model.config) if forward.takes_positions else None
    except Exception as error:  # a config that transformers cannot make a cache for
        log.debug("no batched cache: %s", error)
        return None


def _window_to_cross(forward: Forward) -> int:
    """The longest sliding window that is short enough to be read past; 0 if there is none."""
    config = forward.model.config.get_text_config(decoder=True)
    work = CPU_WORK if forward.device.type == "cpu" else GPU_WORK
    most = work / sum(weight.numel() for weight in forward.model.parameters())
    most = min(most, (getattr(config, "max_position_embeddings", None) or most) - PAST_WINDOW)
    return max((window for window in _windows(forward) or () if window and window <= most), default=0)


# --- the choice -------------------------------------------------------------------------------------------------


def best_store(
    forward: Forward, vocabulary: Sequence[int], prefix_bytes: int, name: str, *, remember: bool = False
) -> TorchStore:
    """The fastest store that agrees with a fresh reading.

    ``remember``: believe an earlier trial of the same kind of model, and keep the result of this one.
    """
    windows = _windows(forward)
    stores: dict[str, TorchStore] = {"batched": BatchedCache(forward, windows, prefix_bytes)} if windows else {}
    stores["snapshots"] = Snapshots(forward, prefix_bytes)
    stores["snapshots, token by token"] = Snapshots(forward, prefix_bytes, whole=False)
    known = stores.get(_known_result(forward.model)) if remember else None
    if known is not None and _works(known, vocabulary):
        return known
    kind = next((kind for kind, store in stores.items() if agrees(store, vocabulary)), None)
    if kind is None:
        log.warning("%s: no cache agrees with a fresh reading, so every pass reads everything: right, but slow", name)
        return NoCache(forward)
    if remember:
        _keep_result(forward.model, kind)
    return stores[kind]


def mixes_adapters(forward: Forward, vocabulary: Sequence[int], adapter: Adapter) -> bool:
    """Whether rows with this adapter and rows without can be read in one pass."""
    windows = _windows(forward)
    return windows is not None and agrees(BatchedCache(forward, windows), vocabulary, adapter)


def _works(store: TorchStore, vocabulary: Sequence[int]) -> bool:
    """Two short passes instead of a trial. They also measure how many bytes a token takes."""
    try:
        keys = [(SequenceKey("trial"), [vocabulary[0]] * size) for size in (2, 12)]
        return all(np.isfinite(store.prefill([key])[0]).all() and store.bytes_held for key in keys)
    except Exception:  # then it is tried, and the error comes up again
        return False
    finally:
        store.clear()
        store.tokens_reused = store.tokens_read = 0


# --- results on disk --------------------------------------------------------------------------------------------


def _known_result(model: Any) -> str:
    try:
        return str(json.loads(_result_file(model).read_text())["store"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def _keep_result(model: Any, kind: str) -> None:
    try:
        file = _result_file(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".half", delete=False) as half:
            half.write(json.dumps({"store": kind, "model": model.config.model_type}))
        os.replace(half.name, file)  # whole or not at all
    except (OSError, ValueError, TypeError):  # a folder that cannot be written to: tried again next time
        return


def _result_file(model: Any) -> Path:
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    attention = getattr(model.config, "_attn_implementation", None)
    device = model.get_input_embeddings().weight.device.type
    about = [config, str(model.dtype), attention, device, type(model).__name__, *_surroundings()]
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "trials" / f"{digest[:32]}.json"


@cache
def _surroundings() -> tuple[str, ...]:
    code = b"".join(file.read_bytes() for file in sorted(Path(__file__).parent.glob("*.py")))
    return platform.machine(), torch.__version__, transformers.__version__, hashlib.sha256(code).hexdigest()
