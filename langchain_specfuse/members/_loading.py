"""From a name to a model and a tokenizer in memory, once per process: members with the same weights share them.

Refuses what is not safe or cannot work (pickled weights, remote code, models that are no decoders) with an error that
says what to do. Knows nothing of drafts and scores.
"""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import MemberError, UsageError, advised, emptied
from ._adapter_files import adapter_parts
from ._adapters import Adapter, Adapters
from ._mishaps import is_shortage
from ._placement import free_memory, placed, weights_of
from ._refusals import refuse_adapter, refuse_holes, refuse_missing, refuse_unsafe
from ._shelf import Shelf, can_move, checkpoint_files
from ._stores import Stores

log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True)
class Source:
    """What to load and how: everything that makes two loads the same."""

    model: str
    gguf_file: str | None = None
    dtype: str = "auto"
    device: str | None = None
    device_map: Any = None
    attn_implementation: str | None = None
    quantization_config: Any = None
    revision: str | None = None
    trust_remote_code: bool = False

    @property
    def key(self) -> str:
        return repr(self)


@dataclass(eq=False)
class Weights:
    """A model and its tokenizer, ready to be read."""

    model: Any
    tokenizer: Any
    device: str
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells two models in memory apart, which have no name to do so."""
    stores: Stores = field(default_factory=Stores)
    """The memories of all members with these weights."""
    adapters: Adapters = field(init=False)
    kin: weakref.WeakValueDictionary[Any, Any] = field(default_factory=weakref.WeakValueDictionary)
    """Members with these weights whose jobs are one batch, by what makes them alike."""
    shelf: Shelf = field(init=False)
    """Where the weights are while nobody works with them."""
    files: tuple[Path, ...] = ()
    """The checkpoint that they were read from, if it can be read again in place."""
    yours: bool = False
    """Given in memory: nobody else moves them."""
    _adapted: weakref.WeakValueDictionary[str, Adapter] = field(default_factory=weakref.WeakValueDictionary)

    def __post_init__(self) -> None:
        self.adapters = Adapters(self.model)
        self.shelf = Shelf(self.model, self.files, movable=not self.yours and can_move(self.model))

    def adapted(self, adapter: str, name: str) -> Adapter:
        """The one copy of this adapter beside these weights. ``name``: the member that wants it."""
        with _LOADING:
            found = self._adapted.get(adapter)
            if found is None:
                found = self._adapted[adapter] = self.adapters.add(adapter, adapter_parts(adapter, name))
            return found


_LOADED: weakref.WeakValueDictionary[str, Weights] = weakref.WeakValueDictionary()
_LOADING = threading.Lock()


def weights_for(source: Source, name: str) -> Weights:
    """The one copy of these weights in this process. One member loads at a time: each sees what memory is left."""
    with _LOADING:
        found = _LOADED.get(source.key)
        if found is None:
            found = _LOADED[source.key] = _load(source, name)
        return found


def given(model: Any, tokenizer: Any) -> Weights:
    """A model and a tokenizer that are in memory already."""
    model.eval()
    return Weights(model, tokenizer, str(model.get_input_embeddings().weight.device), yours=True)


@torch.inference_mode(False)  # members load when they are first asked; a tensor made then could never be changed
@torch.no_grad()
def _load(source: Source, name: str) -> Weights:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, gguf = _resolved(source)
    common: dict[str, Any] = {"revision": source.revision, "trust_remote_code": source.trust_remote_code}
    if gguf:
        common["gguf_file"] = gguf
    try:
        if not gguf:
            refuse_adapter(folder, source.model, source.revision)
        config = None if gguf else _config(folder, common)
        tokenizer = AutoTokenizer.from_pretrained(folder, **common)
        dtype = _dtype(source.dtype, config, source.device)
        model, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            output_loading_info=True,
            **common,
            **_where(source, config, dtype),
            **({} if gguf else {"use_safetensors": True}),
            **_given(attn_implementation=source.attn_implementation, quantization_config=source.quantization_config),
        )
        refuse_holes(info, source.model, name)
        if source.device and not getattr(model, "hf_device_map", None) and source.quantization_config is None:
            model.to(source.device)
    except (UsageError, MemberError):
        raise
    except Exception as error:
        raise _explained(emptied(error), source, name) from error
    model.eval()
    files = () if gguf else checkpoint_files(folder, source.revision)
    return Weights(model, tokenizer, str(model.get_input_embeddings().weight.device), files=files)


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _resolved(source: Source) -> tuple[str, str | None]:
    """The folder or hub id, and the GGUF file in it if that is what to load."""
    path = Path(source.model).expanduser()
    if source.gguf_file:
        if path.is_dir():
            refuse_missing(path / source.gguf_file)
        return str(path) if path.exists() else source.model, source.gguf_file
    if source.model.lower().endswith(".gguf"):
        refuse_missing(path)
        return str(path.parent), path.name
    looks_local = source.model.startswith((".", "/", "~", "\\")) or path.exists()
    if looks_local and not path.is_dir():
        what = "is a file, not a folder with a model" if path.exists() else "does not exist"
        error = MemberError(f"{source.model} {what}", kind="not_found")
        raise advised(error, "name a folder with config.json and *.safetensors, a .gguf file, or a hub id")
    if looks_local:
        refuse_unsafe(path)
        return str(path), None
    return source.model, None


def _config(folder: str, common: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, **common)
    if getattr(config, "is_encoder_decoder", False):
        error = UsageError(f"{folder} is an encoder-decoder model ({config.model_type}); members are decoder-only")
        raise advised(error, "choose a causal language model")
    return config


def _dtype(wanted: str, config: Any, device: str | None) -> Any:
    """``auto``: the checkpoint's own, but on a CPU a half precision only where the CPU computes in it."""
    if wanted != "auto":
        found = getattr(torch, wanted, None)
        if not isinstance(found, torch.dtype):
            error = UsageError(f"dtype={wanted!r} is no torch dtype")
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


def _where(source: Source, config: Any, dtype: Any) -> dict[str, Any]:
    """The device_map argument for from_pretrained."""
    if source.device_map is not None:
        return {"device_map": source.device_map}
    if source.device is not None:
        return {} if source.device == "cpu" else {"device_map": {"": source.device}}
    free = free_memory()
    if not free:
        return {}
    if config is None:  # a GGUF file tells its size only when loaded: the roomiest GPU
        return {"device_map": {"": max(free, key=lambda gpu: free[gpu])}}
    place = placed(weights_of(config, dtype.itemsize), free)
    return {"device_map": "auto" if place == "auto" else {"": place}}


def _explained(error: Exception, source: Source, name: str) -> Exception:
    """The same failure in words that say what to do."""
    text = str(error)
    if is_shortage(error):
        short: Exception = MemberError(f"{source.model} does not fit: out of memory while it was loaded", member=name)
        return advised(short, "choose another device or dtype, a smaller model, or memory_budget= for all members")
    if "trust_remote_code" in text:
        told: Exception = UsageError(f"{source.model} wants to run code of its own to load")
        return advised(told, "read that code; if you trust it: TransformersMember(..., trust_remote_code=True)")
    if "safetensors" in text and "not" in text:
        told = UsageError(f"{source.model} has no safetensors weights; pickled weights are refused: {text[:300]}")
        return advised(told, "convert it to safetensors, or choose a revision that has them")
    if "gguf" in text.lower() and isinstance(error, ImportError):
        return advised(
            UsageError("loading a GGUF file needs the package gguf"), 'pip install "langchain-specfuse[gguf]"'
        )
    if source.device and any(word in text for word in ("CUDA", "device", "Device", "driver")):
        told = UsageError(f"{source.model} cannot be put on device={source.device!r}: {text[:200]}")
        return advised(told, "leave device out to have a place chosen, or name one that torch sees, such as 'cuda:0'")
    if "JSON" in text:
        told = MemberError(f"{source.model} has a broken config.json: {text[:300]}", member=name)
        return advised(told, "copy or save the model again")
    if source.model.lower().endswith(".gguf") or source.gguf_file:
        told = MemberError(f"{source.gguf_file or source.model} could not be read as GGUF: {text[:300]}", member=name)
        return advised(told, "is it whole, of an architecture that transformers reads from GGUF, and no other format?")
    if "tokenizer" in text.lower():
        told = MemberError(f"{source.model} has no tokenizer that could be loaded: {text[:300]}", member=name)
        return advised(told, "put the tokenizer's files beside the weights: tokenizer.save_pretrained(folder)")
    if "Unrecognized configuration class" in text:
        told = UsageError(f"{source.model} is no causal language model that transformers can load")
        return advised(told, "choose a decoder-only model")
    if isinstance(error, OSError):
        told = MemberError(
            f"{source.model} was not found or could not be read: {text[:400]}", member=name, kind="not_found"
        )
        return advised(told, "check the name; a folder must exist, a hub id needs a network or a filled cache")
    told = MemberError(f"loading {source.model} failed: {type(error).__name__}: {text[:400]}", member=name)
    if isinstance(error, ImportError):
        return advised(told, "install what it names, or leave out the option that needs it")
    options = {key: value for key, value in vars(source).items() if key != "model" and value not in (None, False)}
    return advised(told, f"is the model whole, tokenizer and all, and can it be loaded with {options}?")


def width(weights: Weights) -> int:
    """How many tokens there are logits for: often more than the tokenizer knows."""
    head = weights.model.get_output_embeddings()
    return int((head if head is not None else weights.model.get_input_embeddings()).weight.shape[0])


def context_limit(weights: Weights) -> int | None:
    """The longest text that it reads, in tokens, if that is known."""
    config = weights.model.config.get_text_config(decoder=True)
    told = [getattr(config, "max_position_embeddings", None), getattr(weights.tokenizer, "model_max_length", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond this length all positions turn otherwise, in a whole batch at once and in what is cached already.
        told.append(rope.get("original_max_position_embeddings"))
    known = [int(limit) for limit in told if limit and 0 < limit < 10**9]
    return min(known, default=None)
