"""Loads a ``.gguf`` file into memory, once per process: members with the same file share its
weights."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import defaultdict
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path

import psutil

from ...errors import MemberError, UsageError, advised
from .. import hub
from ..files import gguf_length
from ..local.weights import Weights
from .binding import COMPLAINTS, gpu, llamacpp, thread_count
from .tokenizer import GgufTokenizer


@dataclass(frozen=True)
class GgufSource:
    """What to load and how."""

    model: str
    n_gpu_layers: int | str = "auto"
    cache_type: str = "f16"


@dataclass(eq=False)
class LoraAdapter:
    """A LoRA in memory. It is freed with its base."""

    path: str
    """Its name, as the member was given it."""
    handle: int


class GgufWeights(Weights):
    """A model, its tokenizer and its adapters."""

    at_work = staticmethod(nullcontext)

    def __init__(self, source: GgufSource) -> None:
        super().__init__()
        self.source = source
        self.lib = lib = llamacpp()
        self.path = path = Path(source.model)
        _refuse_foreign(path)
        accelerator = _accelerator(source)
        params = lib.llama_model_default_params()
        params.n_gpu_layers = _gpu_layers(source, accelerator is not None)
        COMPLAINTS.lines.clear()
        self.handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise _load_error(path)
        # Its caches hold a reference to this object, so it is freed after them.
        weakref.finalize(self, lib.llama_model_free, self.handle).atexit = False
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            error = UsageError(f"{path} is not a causal language model")
            raise advised(error, "choose a decoder-only model")
        self.device, self.chip = accelerator or ("cpu", "CPU")
        self.tokenizer = GgufTokenizer(lib, self.handle)
        self.generation_config = self.tokenizer  # it knows the tokens that end a turn
        self.vocabulary_size = len(self.tokenizer)
        self._adapters: dict[str, LoraAdapter] = {}

    @property
    def parameters(self) -> int:
        return int(self.lib.llama_model_n_params(self.handle))

    @property
    def trial_tokens(self) -> list[int]:
        """A few ordinary tokens to try a cache with."""
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.eos_token_id}
        upper_half = range(self.vocabulary_size // 2, self.vocabulary_size)
        ordinary = (token for token in upper_half if token not in special)
        return list(islice(ordinary, 0, 70, 7))

    @cached_property
    def context_limit(self) -> int | None:
        """The longest text that the model was trained to read, in tokens."""
        return gguf_length(self.tokenizer.meta)

    def adapter(self, path: str, member: str) -> LoraAdapter:
        if path not in self._adapters:
            file = _located(path)
            _refuse_foreign(file)
            COMPLAINTS.lines.clear()
            handle = self.lib.llama_adapter_lora_init(self.handle, os.fsencode(file))
            if not handle:
                reason = "; ".join(COMPLAINTS.lines)[:300] or "no reason is given"
                error = MemberError(
                    f"{file} is not an adapter for {self.source.model}: {reason}", member=member
                )
                raise advised(
                    error,
                    "use a LoRA of this base, converted by llama.cpp's convert_lora_to_gguf.py",
                )
            self._adapters[path] = LoraAdapter(path, handle)
        return self._adapters[path]

    def free_bytes(self) -> int:
        # Weights are mapped from their file, and the system counts such memory as available.
        mapped = getattr(psutil.Process().memory_info(), "shared", 0)
        return max(0, int(psutil.virtual_memory().available) - mapped)

    def describe(self) -> str:
        chip = self.chip
        if self.device == "cpu":
            count = thread_count()
            chip = f"{count} thread{'s' * (count != 1)}"
        text = ctypes.create_string_buffer(256)
        self.lib.llama_model_desc(self.handle, text, len(text))
        architecture = text.value.decode("utf-8", "replace")
        return f"{self.device}, {architecture}, {chip}"


# --- what the file needs --------------------------------------------------------------------------


def _accelerator(source: GgufSource) -> tuple[str, str] | None:
    """The GPU that computes layers of this model. None: the CPU computes all."""
    device = gpu() if source.n_gpu_layers != 0 else None
    if device is None and source.n_gpu_layers not in ("auto", 0):
        error = UsageError(
            f"n_gpu_layers={source.n_gpu_layers}, but this build of llama.cpp computes on the CPU "
            "alone"
        )
        raise advised(
            error,
            "leave it out, or install a build for your GPU: docs/local-models.md#choose-an-engine",
        )
    return device


def _gpu_layers(source: GgufSource, accelerated: bool) -> int:
    """How many layers a GPU computes; -1 for all."""
    if not accelerated:
        return 0
    return -1 if isinstance(source.n_gpu_layers, str) else source.n_gpu_layers


def _load_error(path: Path) -> MemberError:
    """The error for a file that llama.cpp cannot load, with its reason, if any, and what to do."""
    reason = "; ".join(COMPLAINTS.lines)
    error = MemberError(f"llama.cpp cannot load {path}: {reason[:400] or 'no reason is given'}")
    # An invalid value may come from a newer version of the format.
    unreadable = "failed to read" in reason and "invalid" not in reason
    if unreadable or "file bounds" in reason:
        size = path.stat().st_size
        advice = f"the file of {size:,} bytes seems incomplete or damaged: download it again"
    else:
        advice = (
            "update llama.cpp if it does not know the architecture; choose a smaller file if "
            "memory is short"
        )
    advised(error, advice)
    return error


def _located(model: str) -> Path:
    """The file that this names: a path, or a file on the hub."""
    if hub.is_hub_name(model):
        return hub.fetched(model)
    return Path(model).expanduser()


def _refuse_foreign(path: Path) -> None:
    """Refuse a path that is not a GGUF file."""
    try:
        with path.open("rb") as file:
            mark = file.read(4)
    except OSError as error:
        raise _unreadable(path, error) from error
    if mark != b"GGUF":
        problem = "is not a GGUF file, whatever its name says" if mark else "is empty"
        raise advised(MemberError(f"{path} {problem}"), "download or copy it again")


def _unreadable(path: Path, error: OSError) -> MemberError:
    if path.is_dir():
        problem = "is a folder"
    elif path.exists():
        problem = str(error)
    else:
        problem = "does not exist"
    names = [file.name for file in path.parent.glob("*.gguf")]
    near = get_close_matches(path.stem, [name.removesuffix(".gguf") for name in names], n=1)
    advice = "name an existing .gguf file"
    if hub.may_be_repository(str(path)):
        advice += f"; for a model on the hub, put hf: before its name: {hub.PREFIX + str(path)!r}"
    if near:
        advice = f"did you mean {str(path.with_name(near[0] + '.gguf'))!r}?"
    return advised(MemberError(f"{path.absolute()} {problem}", kind="not_found"), advice)


# --- one copy per process -------------------------------------------------------------------------

_LOADED: weakref.WeakValueDictionary[GgufSource, GgufWeights] = weakref.WeakValueDictionary()
_LOADING: defaultdict[GgufSource, threading.Lock] = defaultdict(threading.Lock)
"""Different files may load at the same time."""
_LOCK = threading.Lock()
"""The library itself is loaded by one thread."""


def load(source: GgufSource) -> GgufWeights:
    """The one copy of these weights in this process. A file on the hub is fetched first."""
    with _LOCK:
        llamacpp()
    source = replace(source, model=str(_located(source.model)))
    with _LOCK:
        loading = _LOADING[source]
    with loading:
        weights = _LOADED.get(source)
        if weights is None:
            weights = _LOADED[source] = GgufWeights(source)
        return weights


def load_early(source: GgufSource) -> Future[GgufWeights]:
    """Load these weights in a thread of their own."""
    future: Future[GgufWeights] = Future()

    def run() -> None:
        try:
            future.set_result(load(source))
        except BaseException as error:  # handed to whoever waits for the weights
            future.set_exception(error)

    threading.Thread(target=run, name="specfuse-weights", daemon=True).start()
    return future
