"""Adapters: small additions to a model's weights (LoRA), so that members of one base differ and hold the base once.

A pass may read rows of several members, and each row gets the addition of its own adapter, or none. The additions of
all adapters to one module lie side by side in two tensors; what a row is not to get is masked out between the two. So a
module costs two small products however many adapters are in the batch, and the base's own weights are left as they are.

Knows modules, tensors and which row has which adapter; nothing of files, queries or members.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from ..errors import UsageError, advised

AIMS = 64
"""So many mixtures of rows are remembered: a draft's steps have the same one."""
_MARKS = count(1)


@dataclass(frozen=True, eq=False)
class Adapter:
    """One adapter that a model has in memory, for as long as somebody holds this."""

    name: str
    mark: int = field(default_factory=lambda: next(_MARKS))
    """Tells it from all others, also from an earlier one of the same name."""


@dataclass(frozen=True)
class Part:
    """What an adapter adds to one module: ``up @ down``, scaled already."""

    down: Tensor  # (rank, in)
    up: Tensor  # (out, rank)


Spans = tuple[tuple[int, int, int], ...]
"""(mark, first, beyond the last): which ranks are whose, one adapter behind the other."""


@dataclass(frozen=True)
class Stack:
    """What all adapters add to one module."""

    down: Tensor  # (ranks of all, in)
    up: Tensor  # (ranks of all, out)
    spans: Spans


class Aim:
    """Which row of a pass gets which adapter's addition. ``marks``: one per row, 0 for none."""

    def __init__(self, stacks: Mapping[str, Stack], marks: tuple[int, ...]) -> None:
        self.stacks = stacks
        self.marks = marks
        self._known: dict[tuple[Spans, torch.device], tuple[int, int, Tensor | None]] = {}

    def share(self, stack: Stack) -> tuple[int, int, Tensor | None]:
        """The ranks that this pass needs, from where to where, and each row's mask over them: (rows, ranks)."""
        key = (stack.spans, stack.down.device)
        if key not in self._known:
            self._known[key] = self._shared(stack)
        return self._known[key]

    def _shared(self, stack: Stack) -> tuple[int, int, Tensor | None]:
        wanted = [(mark, first, end) for mark, first, end in stack.spans if mark in self.marks]
        if not wanted:
            return 0, 0, None
        low, high = wanted[0][1], wanted[-1][2]
        if set(self.marks) == {wanted[0][0]}:
            return low, high, None
        mask = torch.zeros((len(self.marks), high - low), dtype=stack.down.dtype)
        for mark, first, end in wanted:
            rows = [row for row, own in enumerate(self.marks) if own == mark]
            mask[rows, first - low : end - low] = 1.0
        return low, high, mask.to(stack.down.device)


class Adapters:
    """All adapters of one model in memory. Adding one disturbs no pass that is under way in another thread."""

    def __init__(self, model: Any) -> None:
        self._model = weakref.ref(model)
        self._alive: weakref.WeakValueDictionary[int, Adapter] = weakref.WeakValueDictionary()
        self._stacks: dict[str, Stack] = {}
        self._aims: dict[tuple[int, ...], Aim] = {}
        self._hooks: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._here = threading.local()

    @property
    def bytes(self) -> int:
        """What all of them hold."""
        return sum(stack.down.nbytes + stack.up.nbytes for stack in self._stacks.values())

    def add(self, name: str, parts: Mapping[str, Part]) -> Adapter:
        """One more. Refuses one that does not fit this model."""
        model = self._model()
        modules = dict(model.named_modules()) if model is not None else {}
        for path, part in parts.items():
            _refuse_misfit(name, path, modules.get(path), part)
        adapter = Adapter(name)
        with self._lock:
            self._alive[adapter.mark] = adapter
            self._rebuild({path: (adapter.mark, part, modules[path]) for path, part in parts.items()})
            for path in self._stacks.keys() - self._hooks.keys():
                hook = partial(_added, weakref.ref(self), path)
                self._hooks[path] = modules[path].register_forward_hook(hook)
        return adapter

    def prune(self) -> None:
        """Let go of what nobody holds any more."""
        with self._lock:
            if any(mark not in self._alive for stack in self._stacks.values() for mark, _, _ in stack.spans):
                self._rebuild({})

    @contextmanager
    def reading(self, rows: Sequence[Adapter | None]) -> Iterator[None]:
        """A pass of this thread: each row with this adapter."""
        if not any(rows):
            yield
            return
        self._here.aim = self._aim(tuple(adapter.mark if adapter else 0 for adapter in rows))
        try:
            yield
        finally:
            self._here.aim = None

    def aimed(self) -> Aim | None:
        """At which rows the pass under way in this thread is aimed; None: no row has an adapter."""
        return getattr(self._here, "aim", None)

    def _aim(self, marks: tuple[int, ...]) -> Aim:
        with self._lock:
            found = self._aims.get(marks)
            if found is None:
                if len(self._aims) >= AIMS:
                    self._aims.clear()
                found = self._aims[marks] = Aim(self._stacks, marks)
            return found

    def _rebuild(self, more: Mapping[str, tuple[int, Part, Any]]) -> None:
        """All stacks anew, without the dead. A pass under way keeps those that it was aimed at."""
        stacks: dict[str, Stack] = {}
        for path in [*self._stacks, *(path for path in more if path not in self._stacks)]:
            old, new = self._stacks.get(path), more.get(path)
            pieces = [piece for piece in (_pieces(old) if old else []) if piece[0] in self._alive]
            if new:
                mark, part, module = new
                place, dtype = _place(module, self._dtype())
                pieces.append((mark, part.down.to(place, dtype), part.up.T.to(place, dtype)))
            if pieces:
                stacks[path] = _stacked(pieces)
        for path in self._hooks.keys() - stacks.keys():
            self._hooks.pop(path).remove()
        self._stacks, self._aims = stacks, {}

    def _dtype(self) -> torch.dtype:
        model = self._model()
        dtype = getattr(model, "dtype", torch.float32)
        return dtype if dtype.is_floating_point else torch.float32


def _pieces(stack: Stack) -> list[tuple[int, Tensor, Tensor]]:
    return [(mark, stack.down[first:end], stack.up[first:end]) for mark, first, end in stack.spans]


def _stacked(pieces: Sequence[tuple[int, Tensor, Tensor]]) -> Stack:
    spans, at = [], 0
    for mark, down, _ in pieces:
        spans.append((mark, at, at + len(down)))
        at += len(down)
    down, up = (torch.cat([piece[which] for piece in pieces]).contiguous() for which in (1, 2))
    return Stack(down, up, tuple(spans))


def _added(known: weakref.ref[Adapters], path: str, module: Any, args: tuple[Tensor, ...], told: Tensor) -> Any:
    """A hook behind the module: what it says, and what the adapters of the pass under way add to that."""
    adapters = known()
    aim = adapters.aimed() if adapters is not None else None
    stack = aim.stacks.get(path) if aim else None
    if aim is None or stack is None:
        return None
    low, high, mask = aim.share(stack)
    if low == high:
        return None
    (read, *_) = args
    device = read.device  # a module may have been moved, or be read where its weights are only lent
    down, up = stack.down[low:high].to(device), stack.up[low:high].to(device)
    inner = torch.nn.functional.linear(read.to(down.dtype), down)  # (..., ranks)
    if mask is not None:
        inner = inner * _spread(mask.to(device), inner)
    flat = inner.reshape(-1, inner.shape[-1]).to(told.dtype)
    return torch.addmm(told.reshape(-1, told.shape[-1]), flat, up.to(told.dtype)).view(told.shape)


def _spread(mask: Tensor, inner: Tensor) -> Tensor:
    """The mask of the rows, for what a module makes of them: (rows, ..., ranks), or (rows x tokens, ranks)."""
    rows, size = len(mask), inner.shape[0]
    if size == rows:
        return mask.view(rows, *[1] * (inner.dim() - 2), mask.shape[-1])
    if inner.dim() == 2 and size % rows == 0:
        return mask.repeat_interleave(size // rows, 0)
    raise RuntimeError(f"a module reads {tuple(inner.shape)} of {rows} rows: whose is what cannot be told")


def _place(module: Any, dtype: torch.dtype) -> tuple[torch.device, torch.dtype]:
    """Where a module's additions lie, and in which precision: as its weight, unless that is quantized or elsewhere."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return torch.device("cpu"), dtype
    place = torch.device("cpu") if weight.device.type == "meta" else weight.device
    return place, weight.dtype if weight.is_floating_point() else dtype


def _refuse_misfit(name: str, path: str, module: Any, part: Part) -> None:
    if module is None:
        error = UsageError(f"adapter {name} does not fit its base: that has no module {path}")
        raise advised(error, "name the base that it was trained on (base_model_name_or_path in adapter_config.json)")
    sizes = _sizes(module)
    if sizes is None:
        error = UsageError(f"adapter {name} adapts {path}, which is no linear layer but {type(module).__name__}")
        raise advised(error, "merge it into its base: merge_and_unload() and save_pretrained() of peft")
    if (part.down.shape[1], part.up.shape[0]) != sizes or part.down.shape[0] != part.up.shape[1]:
        shapes = f"{tuple(part.down.shape)} and {tuple(part.up.shape)}"
        wanted = f"(rank, {sizes[0]}) and ({sizes[1]}, rank)"
        error = UsageError(f"adapter {name} does not fit its base: for {path} it has {shapes}, wanted {wanted}")
        raise advised(error, "name the base that it was trained on (base_model_name_or_path in adapter_config.json)")


def _sizes(module: Any) -> tuple[int, int] | None:
    """(in, out) of a linear layer, quantized ones and GPT-2's own kind too; None for all else."""
    if type(module).__name__ == "Conv1D":
        return int(module.weight.shape[0]), int(module.weight.shape[1])
    read, told = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (read, told) if isinstance(read, int) and isinstance(told, int) else None
