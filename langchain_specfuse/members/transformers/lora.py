"""LoRA adapters: members of one base differ by small additions to its weights, and hold the base once.

A pass is read with one adapter or none; the base's own weights are not changed. Files are read as peft writes them;
peft itself is not needed. Knows modules, tensors and files; nothing of queries.
"""

from __future__ import annotations

import json
import math
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import MemberError, UsageError, advised

_IDS = count(1)


@dataclass(frozen=True)
class Matrices:
    """What an adapter adds to one module: ``up @ down``, scaled already."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory, for as long as something refers to this object."""

    name: str
    parts: Mapping[str, Matrices]
    """By module."""
    id: int = field(default_factory=lambda: next(_IDS))


# --- in memory --------------------------------------------------------------------------------------------------


class Adapters:
    """All adapters of one model in memory. Adding one does not disturb a pass in another thread."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._alive: weakref.WeakSet[Adapter] = weakref.WeakSet()
        self._hooks: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._thread = threading.local()

    @property
    def bytes(self) -> int:
        return sum(part.down.nbytes + part.up.nbytes for adapter in self._alive for part in adapter.parts.values())

    def add(self, name: str, parts: Mapping[str, Matrices]) -> Adapter:
        """One more adapter; ``parts`` by module. Refuses one that does not fit this model."""
        model: Any = self._model()
        modules = dict(model.named_modules())
        for path, part in parts.items():
            _refuse_misfit(name, path, modules.get(path), part)
        adapter = Adapter(name, {path: _placed(part, modules[path], model.dtype) for path, part in parts.items()})
        with self._lock:
            self._alive.add(adapter)
            for path in parts.keys() - self._hooks.keys():
                hook = partial(_add_lora, weakref.ref(self), path)
                self._hooks[path] = modules[path].register_forward_hook(hook)
        return adapter

    def prune(self) -> None:
        """Remove the hooks of adapters that nothing refers to any more."""
        with self._lock:
            for path in self._hooks.keys() - {path for adapter in self._alive for path in adapter.parts}:
                self._hooks.pop(path).remove()

    @contextmanager
    def reading(self, adapter: Adapter | None) -> Iterator[None]:
        """Within this, passes of this thread are read with this adapter."""
        self._thread.adapter = adapter
        try:
            yield
        finally:
            self._thread.adapter = None

    def part(self, path: str) -> Matrices | None:
        """What the adapter of the pass under way in this thread adds to this module."""
        adapter: Adapter | None = getattr(self._thread, "adapter", None)
        return adapter.parts.get(path) if adapter else None


def _placed(part: Matrices, module: Any, dtype: torch.dtype) -> Matrices:
    """An adapter's matrices on the module's device, in the precision of its weight or, if quantized, of the model."""
    weight = module.weight
    device = torch.device("cpu") if weight.device.type == "meta" else weight.device
    dtype = weight.dtype if weight.is_floating_point() else dtype
    return Matrices(part.down.to(device, dtype), part.up.to(device, dtype))


def _add_lora(known: weakref.ref[Adapters], path: str, module: Any, args: tuple[Tensor, ...], output: Tensor) -> Any:
    """A forward hook: the module's output, plus what the adapter of this pass adds to it."""
    adapters = known()
    part = adapters.part(path) if adapters is not None else None
    if part is None:
        return None
    (read, *_) = args
    device = read.device  # the module may have been moved, or be read where its weights are only lent
    inner = torch.nn.functional.linear(read.to(part.down.dtype), part.down.to(device)).to(output.dtype)
    return output + torch.nn.functional.linear(inner, part.up.to(device, output.dtype))


def _refuse_misfit(name: str, path: str, module: Any, part: Matrices) -> None:
    other_base = "name the base that it was trained on (base_model_name_or_path in adapter_config.json)"
    if module is None:
        raise advised(UsageError(f"adapter {name} does not fit its base: that has no module {path}"), other_base)
    sizes = _sizes(module)
    if sizes is None:
        error = UsageError(f"adapter {name} adapts {path}, which is no linear layer but {type(module).__name__}")
        raise advised(error, MERGE)
    if (part.down.shape[1], part.up.shape[0]) != sizes or part.down.shape[0] != part.up.shape[1]:
        shapes = f"{tuple(part.down.shape)} and {tuple(part.up.shape)}"
        wanted = f"(rank, {sizes[0]}) and ({sizes[1]}, rank)"
        error = UsageError(f"adapter {name} does not fit its base: for {path} it has {shapes}, wanted {wanted}")
        raise advised(error, other_base)


def _sizes(module: Any) -> tuple[int, int] | None:
    """(in, out) of a linear layer, also of quantized ones and of GPT-2's own kind; None for all else."""
    if type(module).__name__ == "Conv1D":
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    inputs, outputs = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (inputs, outputs) if isinstance(inputs, int) and isinstance(outputs, int) else None


# --- files ------------------------------------------------------------------------------------------------------

CONFIG, MATRICES = "adapter_config.json", "adapter_model.safetensors"
MERGE = "merge it into its base: merge_and_unload() and save_pretrained() of peft"
UNCHANGED_BASE = (True, False, None, "gaussian", "orthogonal", "eva")
"""Values of init_lora_weights that leave the base's weights as they are."""
UNSUPPORTED = (
    "use_dora alora_invocation_tokens layer_replication lora_bias modules_to_save target_parameters "
    "trainable_token_indices use_bdlora use_qalora arrow_config kasa_config monteclora_config"
)
"""What a LoRA can have besides two matrices per linear layer."""


def read_adapter(adapter: str, member: str) -> dict[str, Matrices]:
    """The matrices of a folder that peft wrote, or of a hub id, by module. ``member``: who wants it, for errors."""
    folder = _folder(adapter, member)
    config = _config(folder, adapter)
    found: dict[str, dict[str, Tensor]] = {}
    for key, matrix in _tensors(folder, adapter).items():
        parsed = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if parsed is None or matrix.dim() != 2:
            raise advised(UsageError(f"{adapter} has a tensor that is no matrix of a linear layer: {key}"), MERGE)
        found.setdefault(parsed[1], {})[parsed[2]] = matrix
    half = next((path for path, pair in found.items() if len(pair) < 2), None)
    if half or not found:
        error = UsageError(f"{adapter} is not complete: " + (f"half of {half} is missing" if half else "it is empty"))
        raise advised(error, "copy or save the adapter again")
    return {
        path: Matrices(pair["A"], pair["B"] * _scale(path, len(pair["A"]), config))
        for path, pair in sorted(found.items())
    }


def _folder(adapter: str, member: str) -> Path:
    path = Path(adapter).expanduser()
    if path.is_dir():
        return path
    if adapter.startswith((".", "/", "~", "\\")) or path.exists():
        what = "is a file, not a folder" if path.exists() else "does not exist"
        error = MemberError(f"adapter {adapter} {what}", member=member, kind="not_found")
        raise advised(error, f"name a folder with {CONFIG} and {MATRICES}, or a hub id")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(adapter, allow_patterns=["adapter_*"]))
    except Exception as error:  # offline, no such repository, no access: the hub's client raises anything
        message = f"adapter {adapter} was not found or could not be read: {str(error)[:300]}"
        missing = MemberError(message, member=member, kind="not_found")
        raise advised(missing, "a folder must exist, a hub id needs a network or a filled cache") from error


def _config(folder: Path, adapter: str) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        error = UsageError(f"{adapter} holds no adapter: it has no {CONFIG}")
        raise advised(error, "name a folder that save_pretrained() of peft wrote; a whole model is given as the model")
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        broken = UsageError(f"{adapter} has a broken {CONFIG}: {error}")
        raise advised(broken, "copy or save the adapter again") from error
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if kind != "LORA":
        raise advised(UsageError(f"{adapter} is an adapter of the kind {kind}; members take LORA"), MERGE)
    more = [key for key in UNSUPPORTED.split() if config.get(key)]
    if config.get("bias", "none") != "none":
        more.append("bias")
    if config.get("init_lora_weights") not in UNCHANGED_BASE:
        more.append(f"init_lora_weights={config['init_lora_weights']!r}")
    if more:
        raise advised(UsageError(f"{adapter} is more than two matrices per linear layer: {', '.join(more)}"), MERGE)
    return dict(config)


def _tensors(folder: Path, adapter: str) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    if not (folder / MATRICES).is_file():
        pickled = sorted(file.name for file in folder.glob("adapter_model.*") if file.suffix in (".bin", ".pt", ".pth"))
        if pickled:
            error = UsageError(f"{adapter} has only pickled weights ({pickled[0]}): loading them could run any code")
            raise advised(error, "convert it once: model.save_pretrained(folder, safe_serialization=True) of peft")
        raise advised(UsageError(f"{adapter} has no {MATRICES}"), "copy or save the adapter again")
    try:
        return dict(load_file(folder / MATRICES))
    except Exception as error:  # safetensors has its own error classes
        broken = UsageError(f"{adapter} has a broken {MATRICES}: {error}")
        raise advised(broken, "copy or save the adapter again") from error


def _scale(path: str, rank: int, config: Mapping[str, Any]) -> float:
    """How much the addition to this module counts.

    >>> config = {"lora_alpha": 8, "alpha_pattern": {"q_proj": 2}}
    >>> _scale("layers.0.k_proj", 4, config), _scale("layers.0.q_proj", 4, config)
    (2.0, 0.5)
    >>> _scale("layers.0.k_proj", 4, config | {"use_rslora": True})
    4.0
    """
    patterns = config.get("alpha_pattern") or {}
    own = next((patterns[key] for key in patterns if re.match(rf"(.*\.)?({key})$", path)), None)
    alpha = config.get("lora_alpha", 8) if own is None else own
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
