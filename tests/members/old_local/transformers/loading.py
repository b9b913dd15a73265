"""From a name to a model and a tokenizer in memory, once per process: members with the same weights
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
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from langchain_specfuse.errors import MemberError, UsageError, advised, emptied
from langchain_specfuse.members.files import config_length, refuse_unsafe
from langchain_specfuse.members.network import on_hub
from langchain_specfuse.secret_values import masked

from .cache import is_out_of_memory
from .lora import Adapters


@dataclass(frozen=True)
class Source:
    """What to load and how: everything that makes two loads the same."""

    model: str
    dtype: str = "auto"
    device: str | None = None
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of ``from_pretrained``."""
    revision: str | None = None
    trust_remote_code: bool = False

    def __repr__(self) -> str:
        return f"Source({masked(vars(self))})"

    @property
    def common(self) -> dict[str, Any]:
        return {"revision": self.revision, "trust_remote_code": self.trust_remote_code}

    def located(self) -> str:
        """The folder or hub id."""
        path = Path(self.model).expanduser()
        looks_local = self.model.startswith((".", "/", "~", "\\")) or path.exists()
        if looks_local and not path.is_dir():
            what = "is a file, not a folder with a model" if path.exists() else "does not exist"
            error = MemberError(f"{self.model} {what}", kind="not_found")
            raise advised(
                error, "name a folder with *.safetensors, or a hub id; .gguf is for LlamaCppMember"
            )
        if looks_local:
            refuse_unsafe(path)
            return str(path)
        return self.model


@dataclass(eq=False)
class Weights:
    """A model and its tokenizer in memory."""

    model: Any
    tokenizer: Any
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Models in memory have no name that would tell them apart."""
    adapters: Adapters = field(init=False)
    groups: weakref.WeakValueDictionary[Any, Any] = field(
        default_factory=weakref.WeakValueDictionary
    )
    """The batch groups of these weights."""

    def __post_init__(self) -> None:
        self.adapters = Adapters(self.model)
        self.device = str(self.model.get_input_embeddings().weight.device)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While this lasts, passes are computed."""
        with torch.inference_mode():
            try:
                yield
            finally:
                self.adapters.off()

    def left(self) -> None:
        """A member has left: adapters that nobody uses any more are freed."""
        self.adapters.prune()

    @property
    def generation_config(self) -> Any:
        return self.model.generation_config

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are logits for: often more than the tokenizer knows."""
        head = self.model.get_output_embeddings()
        return int(
            (head if head is not None else self.model.get_input_embeddings()).weight.shape[0]
        )

    @cached_property
    def context_limit(self) -> int | None:
        """The longest text that the model reads, in tokens, if that is known."""
        config = self.model.config.get_text_config(decoder=True)
        # Read as an attribute: the config knows the model's own name for it.
        known = config.to_dict() | {
            "max_position_embeddings": getattr(config, "max_position_embeddings", None)
        }
        return config_length(known, getattr(self.tokenizer, "model_max_length", None))


_LOADED: weakref.WeakValueDictionary[str, Weights] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def load(source: Source, member: str) -> Weights:
    """The one copy of these weights in this process. One member loads at a time: each sees what
    memory is left."""
    with _LOADING:
        found = _LOADED.get(repr(source))
        if found is None:
            found = _LOADED[repr(source)] = _load(source, member)
        return found


def given(model: Any, tokenizer: Any) -> Weights:
    """A model and a tokenizer that are in memory already."""
    model.eval()
    return Weights(model, tokenizer)


# members load when they are first asked; a tensor made then could never be changed
@torch.inference_mode(False)
@torch.no_grad()
def _load(source: Source, member: str) -> Weights:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, common = on_hub(source.located(), source.revision, member), source.common
    try:
        _refuse_adapter(folder, source)
        config = _config(folder, common)
        tokenizer = AutoTokenizer.from_pretrained(folder, **common)
        dtype = _dtype(source.dtype, config, source.device)
        device_map = _device_map(source)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            use_safetensors=True,
            **common,
            **{**source.model_kwargs, **({} if device_map is None else {"device_map": device_map})},
        )
        _refuse_holes(info, source.model, member)
    except (UsageError, MemberError):
        raise
    except Exception as error:
        raise _explained(emptied(error), source, member) from error
    model.eval()
    return Weights(model, tokenizer)


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


def _dtype(wanted: str, config: Any, device: str | None) -> Any:
    """``auto``: the checkpoint's own, but on a CPU a half precision only where the CPU computes in
    it."""
    if wanted != "auto":
        found = getattr(torch, wanted, None)
        if not isinstance(found, torch.dtype):
            error = UsageError(f"dtype={wanted!r} is not a torch dtype")
            raise advised(error, "use 'auto', 'float32', 'bfloat16' or 'float16'")
        return found
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
    """The argument of from_pretrained: what was chosen, else the GPU with most free memory. None:
    the CPU."""
    if "device_map" in source.model_kwargs:
        return source.model_kwargs["device_map"]
    if source.device is not None:
        return None if source.device == "cpu" else {"": source.device}
    free = free_memory()
    return {"": max(free, key=lambda gpu: free[gpu])} if free else None


def free_memory() -> dict[str, int]:
    """Free bytes of every GPU in this machine: NVIDIA's and AMD's, else Intel's, else Apple's."""
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
    """transformers would load the base that an adapter names, and files beside it, without any
    check."""
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
    """A tensor that is not in the checkpoint would be made up at random, and the member would
    answer all the same."""
    holes = [
        str(key) for what in ("missing_keys", "mismatched_keys") for key in info.get(what) or ()
    ]
    if holes:
        shown = ", ".join(sorted(holes)[:3]) + (", ..." if len(holes) > 3 else "")
        error = MemberError(
            f"{model} lacks {len(holes)} of its weights, or has them wrong: {shown}", member=member
        )
        raise advised(
            error,
            "the checkpoint is not complete, or belongs to another config.json: copy it again",
        )


def _explained(error: Exception, source: Source, member: str) -> Exception:
    """The same error in words that say what to do."""
    text, model = str(error), source.model

    def usage(message: str, advice: str) -> Exception:
        return advised(UsageError(message), advice)

    def failed(message: str, advice: str, kind: str = "error") -> Exception:
        return advised(MemberError(message, member=member, kind=kind), advice)

    if is_out_of_memory(error):
        advice = (
            "split it with model_kwargs={'device_map': 'auto'}, or choose another dtype, "
            "model or a .gguf file"
        )
        return failed(f"{model} does not fit: out of memory while it was loaded", advice)
    if "trust_remote_code" in text:
        advice = "read that code; if you trust it: TransformersMember(..., trust_remote_code=True)"
        return usage(f"{model} wants to run code of its own to load", advice)
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
        return failed(
            f"{model} was not found or could not be read: {text[:400]}", advice, "not_found"
        )
    options = masked({key: one for key, one in vars(source).items() if key != "model" and one})
    advice = f"is the model complete, with its tokenizer, and can it be loaded with {options}?"
    if isinstance(error, ImportError):
        advice = "install what it names, or leave out the option that needs it"
    return failed(f"loading {model} failed: {type(error).__name__}: {text[:400]}", advice)
