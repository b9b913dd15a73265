"""LoRA adapters: members of one base differ by small additions to its weights, and hold the base once.

One pass may read rows of several members; each row gets the addition of its own adapter, or none. The matrices of all
adapters of a module lie side by side, and a mask between the two products removes what is not the row's. So a module
costs two small products however many adapters are in the batch: four adapters add 18% to a step of four rows, where
peft's mixed batches add 92% (docs/log.md). The base's own weights are not changed.

Files are read as peft writes them; peft itself is not needed. Knows modules, tensors and files; nothing of queries.
"""

from __future__ import annotations

import json
import math
import re
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
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


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory, for as long as something refers to this object."""

    name: str
    id: int = field(default_factory=lambda: next(_IDS))


@dataclass(frozen=True)
class Matrices:
    """What an adapter adds to one module: ``up @ down``, scaled already."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)


# --- in memory --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stack:
    """What all adapters add to one module."""

    down: Tensor  # (ranks of all, in)
    up: Tensor  # (ranks of all, out)
    owners: tuple[int, ...]
    """For each rank the adapter's id."""


@dataclass
class _Assignment:
    """Which row of a pass has which adapter."""

    stacks: Mapping[str, _Stack]
    ids: tuple[int, ...]
    """One adapter id per row, 0 for none."""
    masks: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def ranks(self, stack: _Stack) -> slice:
        """The ranks that this pass needs. Where all rows have one adapter, it needs no mask."""
        if not self.is_uniform:
            return slice(None)
        first = stack.owners.index(self.ids[0])
        return slice(first, first + stack.owners.count(self.ids[0]))

    @property
    def is_uniform(self) -> bool:
        return len(set(self.ids)) == 1

    def mask(self, stack: _Stack, like: Tensor) -> Tensor:  # (rows, ranks)
        if stack.owners not in self.masks:
            own = [[float(owner == row) for owner in stack.owners] for row in self.ids]
            self.masks[stack.owners] = torch.tensor(own, dtype=like.dtype)
        return self.masks[stack.owners].to(like)


class Adapters:
    """All adapters of one model in memory. Adding one does not disturb a pass in another thread."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._alive: weakref.WeakValueDictionary[int, Adapter] = weakref.WeakValueDictionary()
        self._stacks: dict[str, _Stack] = {}
        self._hooks: dict[str, Any] = {}
        self._last: _Assignment | None = None
        self._lock = threading.Lock()
        self._thread = threading.local()

    @property
    def bytes(self) -> int:
        return sum(stack.down.nbytes + stack.up.nbytes for stack in self._stacks.values())

    def add(self, name: str, parts: Mapping[str, Matrices]) -> Adapter:
        """One more adapter; ``parts`` by module. Refuses one that does not fit this model."""
        model: Any = self._model()
        modules = dict(model.named_modules())
        for path, part in parts.items():
            _refuse_misfit(name, path, modules.get(path), part)
        adapter = Adapter(name)
        with self._lock:
            self._alive[adapter.id] = adapter
            self._rebuild({path: _placed(adapter, part, modules[path], model.dtype) for path, part in parts.items()})
            for path in self._stacks.keys() - self._hooks.keys():
                hook = partial(_add_lora, weakref.ref(self), path)
                self._hooks[path] = modules[path].register_forward_hook(hook)
        return adapter

    def prune(self) -> None:
        """Free the adapters that nothing refers to any more."""
        with self._lock:
            if any(own not in self._alive for stack in self._stacks.values() for own in stack.owners):
                self._rebuild({})

    @contextmanager
    def reading(self, rows: Sequence[Adapter | None]) -> Iterator[None]:
        """Within this, a pass of this thread reads each row with this adapter."""
        if any(rows):
            ids = tuple(adapter.id if adapter else 0 for adapter in rows)
            with self._lock:  # the steps of a draft have the same one
                if self._last is None or self._last.ids != ids:
                    self._last = _Assignment(self._stacks, ids)
                self._thread.assignment = self._last
        try:
            yield
        finally:
            self._thread.assignment = None

    def assignment(self) -> _Assignment | None:
        """That of the pass under way in this thread; None: no row has an adapter."""
        return getattr(self._thread, "assignment", None)

    def _rebuild(self, more: Mapping[str, _Stack]) -> None:
        """Rebuild all stacks, without adapters that nothing refers to. A pass under way keeps the old ones."""
        stacks: dict[str, _Stack] = {}
        for path in {**self._stacks, **more}:
            parts = [one for one in (self._stacks.get(path), more.get(path)) if one]
            owners = [own for part in parts for own in part.owners]
            kept = [at for at, own in enumerate(owners) if own in self._alive]
            if kept:
                down, up = torch.cat([one.down for one in parts])[kept], torch.cat([one.up for one in parts])[kept]
                stacks[path] = _Stack(down, up, tuple(owners[at] for at in kept))
        for path in self._hooks.keys() - stacks.keys():
            self._hooks.pop(path).remove()
        self._stacks, self._last = stacks, None


def _placed(adapter: Adapter, part: Matrices, module: Any, dtype: torch.dtype) -> _Stack:
    """An adapter's matrices on the module's device, in the precision of its weight or, if quantized, of the model."""
    weight = module.weight
    device = torch.device("cpu") if weight.device.type == "meta" else weight.device
    dtype = weight.dtype if weight.is_floating_point() else dtype
    down, up = part.down.to(device, dtype), part.up.T.to(device, dtype)
    return _Stack(down, up, (adapter.id,) * len(down))


def _add_lora(known: weakref.ref[Adapters], path: str, module: Any, args: tuple[Tensor, ...], output: Tensor) -> Any:
    """A forward hook: the module's output, plus what the adapters of this pass add to it."""
    adapters = known()
    assignment = adapters.assignment() if adapters is not None else None
    stack = assignment.stacks.get(path) if assignment else None
    if assignment is None or stack is None or not set(assignment.ids).intersection(stack.owners):
        return None
    (read, *_) = args
    device = read.device  # the module may have been moved, or be read where its weights are only lent
    ranks = assignment.ranks(stack)
    inner = torch.nn.functional.linear(read.to(stack.down.dtype), stack.down[ranks].to(device))  # (..., ranks)
    if not assignment.is_uniform:
        inner = inner * _per_row(assignment.mask(stack, inner), inner)
    flat = inner.reshape(-1, inner.shape[-1]).to(output.dtype)
    up = stack.up[ranks].to(device, output.dtype)
    return torch.addmm(output.reshape(-1, output.shape[-1]), flat, up).view(output.shape)


def _per_row(mask: Tensor, inner: Tensor) -> Tensor:
    """The rows' mask in the shape of what a module computes: (rows, ..., ranks), or (rows x tokens, ranks)."""
    rows, size = len(mask), inner.shape[0]
    if size == rows:
        return mask.view(rows, *[1] * (inner.dim() - 2), mask.shape[-1])
    if inner.dim() == 2 and size % rows == 0:
        return mask.repeat_interleave(size // rows, 0)
    raise RuntimeError(f"a module reads {tuple(inner.shape)} of {rows} rows: their adapters cannot be told apart")


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
