"""From a ``.gguf`` file to a model in memory, once per process: members with the same file share
its weights."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import psutil

from langchain_specfuse.errors import MemberError, UsageError, advised
from langchain_specfuse.members.files import gguf_length

from .binding import COMPLAINTS, gpu, llamacpp
from .tokenizer import GgufTokenizer

_IDS = count(1)


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
    handle: int
    id: int


class GgufWeights:
    """A model, its tokenizer and its adapters."""

    def __init__(self, source: GgufSource) -> None:
        self.lib = lib = llamacpp()
        self.source = source
        path = Path(source.model).expanduser()
        _refuse_foreign(path)
        there = gpu() if source.n_gpu_layers != 0 else None
        if there is None and source.n_gpu_layers not in ("auto", 0):
            wrong = UsageError(
                f"n_gpu_layers={source.n_gpu_layers}, but this build of llama.cpp computes on the "
                "CPU alone"
            )
            raise advised(
                wrong,
                "leave it out, or install a build for your GPU: docs/how-to/choose-an-engine.md",
            )
        params = lib.llama_model_default_params()
        params.n_gpu_layers = (
            0 if there is None else -1 if source.n_gpu_layers == "auto" else source.n_gpu_layers
        )
        COMPLAINTS.clear()
        self.handle = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            said = "; ".join(COMPLAINTS)
            error = MemberError(
                f"llama.cpp cannot load {path}: {said[:400] or 'no reason is given'}"
            )
            # invalid: perhaps new
            cut = "file bounds" in said or ("failed to read" in said and "invalid" not in said)
            again = (
                f"the file of {path.stat().st_size:,} bytes seems incomplete or damaged: "
                "download it again"
            )
            other = (
                "update llama.cpp if it does not know the architecture; choose a smaller file "
                "if memory is short"
            )
            raise advised(error, again if cut else other)
        # Its caches hold a reference to this object, so it is freed after them.
        weakref.finalize(self, lib.llama_model_free, self.handle).atexit = False
        if lib.llama_model_has_encoder(self.handle) or not lib.llama_model_has_decoder(self.handle):
            raise advised(
                UsageError(f"{path} is not a causal language model"),
                "choose a decoder-only model",
            )
        self.device, self.chip = there or ("cpu", "CPU")
        self.tokenizer = GgufTokenizer(lib, self.handle)
        self.generation_config = self.tokenizer  # the tokens that end a turn
        self.vocabulary_size = len(self.tokenizer)
        self.parameters = int(lib.llama_model_n_params(self.handle))
        self.groups: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._adapters: dict[str, LoraAdapter] = {}

    def at_work(self) -> AbstractContextManager[None]:
        """While this lasts, passes are computed."""
        return nullcontext()

    @property
    def description(self) -> str:
        """Architecture, size and precision, as llama.cpp tells them."""
        text = ctypes.create_string_buffer(256)
        self.lib.llama_model_desc(self.handle, text, len(text))
        return text.value.decode("utf-8", "replace")

    @property
    def trial_tokens(self) -> list[int]:
        """A few ordinary tokens to try things with."""
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.eos_token_id}
        ordinary = (
            token
            for token in range(self.vocabulary_size // 2, self.vocabulary_size)
            if token not in special
        )
        return list(islice(ordinary, 0, 70, 7))

    @cached_property
    def context_limit(self) -> int | None:
        """The longest text that the model was trained to read, in tokens."""
        return gguf_length(self.tokenizer.meta)

    def adapter(self, path: str, member: str) -> LoraAdapter:
        """The one copy of this adapter."""
        if path not in self._adapters:
            file = Path(path).expanduser()
            _refuse_foreign(file)
            COMPLAINTS.clear()
            handle = self.lib.llama_adapter_lora_init(self.handle, os.fsencode(file))
            if not handle:
                why = "; ".join(COMPLAINTS)[:300] or "no reason is given"
                error = MemberError(
                    f"{file} is not an adapter for {self.source.model}: {why}", member=member
                )
                raise advised(
                    error,
                    "use a LoRA of this base, converted by llama.cpp's convert_lora_to_gguf.py",
                )
            self._adapters[path] = LoraAdapter(path, handle, next(_IDS))
        return self._adapters[path]

    def left(self) -> None:
        """A member has left. Adapters are freed with their base."""


def _refuse_foreign(path: Path) -> None:
    try:
        with path.open("rb") as file:
            mark = file.read(4)
    except OSError as error:
        what = (
            "is a folder"
            if path.is_dir()
            else "does not exist"
            if not path.exists()
            else str(error)
        )
        near = get_close_matches(path.name, [one.name for one in path.parent.glob("*.gguf")], n=1)
        advice = (
            f"did you mean {str(path.with_name(near[0]))!r}?"
            if near
            else "name an existing .gguf file"
        )
        raise advised(MemberError(f"{path.absolute()} {what}", kind="not_found"), advice) from error
    if mark != b"GGUF":
        what = "is empty" if not mark else "is not a GGUF file, whatever its name says"
        raise advised(MemberError(f"{path} {what}"), "download or copy it again")


def chosen_threads() -> int | None:
    """``$OMP_NUM_THREADS``, if it is set."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdigit() and int(chosen) > 0 else None


def threads() -> int:
    """The largest number of threads: ``$OMP_NUM_THREADS``, otherwise one for each core that this
    process may use."""
    if chosen := chosen_threads():
        return chosen
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))


_LOADED: weakref.WeakValueDictionary[GgufSource, GgufWeights] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def load(source: GgufSource) -> GgufWeights:
    """The one copy of these weights in this process."""
    with _LOADING:
        found = _LOADED.get(source)
        if found is None:
            found = _LOADED[source] = GgufWeights(source)
        return found
