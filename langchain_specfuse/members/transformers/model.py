"""From a name to a model and a tokenizer in memory, once per process: members with the same source
share them.

What is not safe or cannot work (pickled weights, remote code, models that are not decoders) is
refused with an error that says what to do.
"""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import psutil
import torch

from ...errors import MemberError, UsageError, advised, emptied
from .. import hub
from ..chat_model.names import hint_for
from ..files import config_length
from ..local.weights import Weights
from .forward import Forward, is_out_of_memory
from .lora import Adapter, Adapters
from .source import Source


class TransformersWeights(Weights):
    """A model of transformers and its tokenizer in memory."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.id = uuid.uuid4().hex
        self.adapters = Adapters(model)
        self.forward = Forward(model, self.adapters)
        self.device = str(self.forward.device)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        # Tensors that were made in inference mode can be written in no other.
        with torch.inference_mode():
            try:
                yield
            finally:
                self.adapters.off()

    def adapter(self, path: str, member: str) -> Adapter:
        return self.adapters.get(path, member)

    def prune(self) -> None:
        self.adapters.prune()

    def free_bytes(self) -> int:
        """``device`` is a model's: ``cpu``, ``cuda:0``, ``mps:0``."""
        free = free_memory()
        kind = self.device.partition(":")[0]
        if self.device not in free and kind not in free:
            return int(psutil.virtual_memory().available)
        return free.get(self.device, free.get(kind, 0))

    def describe(self) -> str:
        dtype = str(self.model.dtype).removeprefix("torch.")
        return f"{self.device}, {dtype}, {self.forward.attention}"

    @property
    def parameters(self) -> int:
        return sum(weight.numel() for weight in self.model.parameters())

    @property
    def generation_config(self) -> Any:
        return self.model.generation_config

    @property
    def vocabulary_size(self) -> int:  # type: ignore[override]
        head = self.model.get_output_embeddings()
        if head is None:
            head = self.model.get_input_embeddings()
        return int(head.weight.shape[0])

    @property
    def trial_tokens(self) -> list[int]:
        """A few ordinary tokens to try a cache with."""
        special = set(self.tokenizer.all_special_ids)
        embedded = self.model.get_input_embeddings().weight.shape[0]
        size = min(len(self.tokenizer), embedded)
        ordinary = [token for token in range(size // 2, size) if token not in special]
        return ordinary[:29] or list(range(size))

    @cached_property
    def context_limit(self) -> int | None:
        config = self.model.config.get_text_config(decoder=True)
        # Read as an attribute: the config knows the model's own name for it.
        length = getattr(config, "max_position_embeddings", None)
        values = config.to_dict() | {"max_position_embeddings": length}
        return config_length(values, getattr(self.tokenizer, "model_max_length", None))


_LOADED: weakref.WeakValueDictionary[str, TransformersWeights] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def load(source: Source, member: str) -> TransformersWeights:
    """The one copy of these weights in this process. One member loads at a time, so that each sees
    how much memory is left."""
    with _LOADING:
        weights = _LOADED.get(repr(source))
        if weights is None:
            weights = _LOADED[repr(source)] = _load(source, member)
        return weights


def in_memory(model: Any, tokenizer: Any) -> TransformersWeights:
    """A model and a tokenizer that the user has loaded."""
    model.eval()
    return TransformersWeights(model, tokenizer)


# A tensor that is made in inference mode could never be changed.
@torch.inference_mode(False)
@torch.no_grad()
def _load(source: Source, member: str) -> TransformersWeights:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = hub.on_hub(source.located(), source.revision)
    common = source.common
    try:
        _refuse_adapter(folder, source)
        config = _config(folder, common)
        tokenizer = AutoTokenizer.from_pretrained(folder, **common)
        arguments = {
            **source.model_kwargs,
            **common,
            "dtype": _dtype(source.dtype, config, source.device),
            "use_safetensors": True,
            "output_loading_info": True,
        }
        device_map = _device_map(source)
        if device_map is not None:
            arguments["device_map"] = device_map
        model, info = AutoModelForCausalLM.from_pretrained(folder, **arguments)
        _refuse_holes(info, source.model, member)
    except (UsageError, MemberError):
        raise
    except Exception as error:
        raise _explained(emptied(error), source, member) from error
    return in_memory(model, tokenizer)


def _config(folder: str, common: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, **common)
    if getattr(config, "is_encoder_decoder", False):
        error = UsageError(
            f"{folder} is an encoder-decoder model ({config.model_type}); members are decoder-only"
        )
        raise advised(error, "choose a causal language model")
    return config


# --- precision and device -------------------------------------------------------------------------


def _dtype(name: str, config: Any, device: str | None) -> Any:
    """``auto``: the checkpoint's own, but on a CPU a half precision only where the CPU computes in
    it."""
    if name != "auto":
        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            error = UsageError(f"dtype={name!r} is not a torch dtype")
            raise advised(error, "use 'auto', 'float32', 'bfloat16' or 'float16'")
        return dtype
    on_gpu = device not in (None, "cpu") or (device is None and bool(free_memory()))
    own = getattr(config, "dtype", None) or torch.float32
    if on_gpu or own == torch.float32:
        return own
    return torch.bfloat16 if computes_bfloat16() else torch.float32


def computes_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 in hardware; elsewhere it is slower than float32."""
    flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_arm_bf16_supported")
    return any(bool(getattr(torch.cpu, flag, bool)()) for flag in flags)


def _device_map(source: Source) -> Any:
    """The argument of from_pretrained: what the user chose, otherwise the GPU with most free
    memory. None: the CPU."""
    if "device_map" in source.model_kwargs:
        return source.model_kwargs["device_map"]
    if source.device is not None:
        return None if source.device == "cpu" else {"": source.device}
    free = free_memory()
    return {"": max(free, key=lambda gpu: free[gpu])} if free else None


def free_memory() -> dict[str, int]:
    """Free bytes of every GPU in this machine: NVIDIA's and AMD's, or Intel's, or Apple's."""
    for kind, gpus in (("cuda", torch.cuda), ("xpu", torch.xpu)):
        if gpus.is_available():
            return {
                f"{kind}:{gpu}": gpus.mem_get_info(gpu)[0] for gpu in range(gpus.device_count())
            }
    if torch.backends.mps.is_available():
        return {"mps": torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()}
    return {}


# --- what is refused ------------------------------------------------------------------------------


def _refuse_adapter(folder: str, source: Source) -> None:
    """Refuse a folder with an adapter. transformers would load the base that the adapter names, and
    files beside it, without any check."""
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(folder, revision=source.revision) is not None:
        error = UsageError(
            f"{source.model} has an adapter_config.json: it is an adapter, or loads one by itself"
        )
        raise advised(
            error,
            "name its base, and the adapter beside it: base+adapter, or adapter=...; or merge them",
        )


def _refuse_holes(info: Mapping[str, Any], model: str, member: str) -> None:
    """Refuse a checkpoint that lacks tensors. transformers would fill them at random, and the
    member would answer nonsense."""
    holes = []
    for kind in ("missing_keys", "mismatched_keys"):
        holes += [str(key) for key in info.get(kind) or ()]
    if not holes:
        return
    names = ", ".join(sorted(holes)[:3]) + (", ..." if len(holes) > 3 else "")
    error = MemberError(
        f"{model} lacks {len(holes)} of its weights, or has them wrong: {names}", member=member
    )
    raise advised(
        error,
        "the checkpoint is not complete, or belongs to another config.json: copy it again",
    )


def _explained(error: Exception, source: Source, member: str) -> Exception:
    """The same error, with words that say what to do."""
    text, model = str(error), source.model

    def usage(message: str, advice: str) -> UsageError:
        return advised(UsageError(message), advice)

    def failed(message: str, advice: str, kind: str = "error") -> MemberError:
        return advised(MemberError(message, member=member, kind=kind), advice)

    if is_out_of_memory(error):
        advice = (
            "split it with model_kwargs={'device_map': 'auto'}, or choose another dtype, "
            "model or a .gguf file"
        )
        return failed(f"{model} does not fit: out of memory while it was loaded", advice)
    if "trust_remote_code" in text:
        advice = (
            "read that code; if you trust it: "
            "TransformersMember(..., model_kwargs={'trust_remote_code': True})"
        )
        return usage(f"{model} wants to run code of its own to load", advice)
    if isinstance(error, OSError | ValueError) and hub.has_only_gguf(model, source.revision):
        message = f"{model} has GGUF files, which llama.cpp reads, and none for transformers"
        return usage(message, f"put hf: before the name: {hub.PREFIX + model!r}")
    if "safetensors" in text and "not" in text:
        message = f"{model} has no safetensors weights; pickled weights are refused: {text[:300]}"
        return usage(message, "convert it to safetensors, or choose a revision that has them")
    if source.device and any(word in text for word in ("CUDA", "device", "Device", "driver")):
        advice = (
            "leave device out to have a place chosen, or name one that torch sees, such as 'cuda:0'"
        )
        return usage(f"{model} cannot be put on device={source.device!r}: {text[:200]}", advice)
    if "tokenizer" in text.lower():
        advice = "put the tokenizer's files beside the weights: tokenizer.save_pretrained(folder)"
        return failed(f"{model} has no tokenizer that could be loaded: {text[:300]}", advice)
    if "Unrecognized configuration class" in text:
        return usage(
            f"{model} is not a causal language model that transformers can load",
            "choose another model",
        )
    if isinstance(error, OSError):
        advice = "check the name; offline, the model must already be downloaded completely"
        absent = failed(
            f"{model} was not found or could not be read: {text[:400]}", advice, "not_found"
        )
        hint = hint_for(model)
        return absent if hint is None else advised(absent, hint)
    values = vars(source).items()
    options = {key: value for key, value in values if key != "model" and value}
    advice = f"is the model complete, with its tokenizer, and can it be loaded with {options}?"
    if isinstance(error, ImportError):
        advice = "install what it names, or leave out the option that needs it"
    return failed(f"loading {model} failed: {type(error).__name__}: {text[:400]}", advice)
