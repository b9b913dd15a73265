"""Where a model's weights lie while nobody works with them: in the CPU's memory; where that is the device, on disk.

The model itself stays: its parameters are exchanged for empty ones and back, so whatever holds the model, its caches
and its masks goes on holding them. Numbers come back to the bit, and as ordinary tensors, though it is members at work
(in inference mode) that move them. On the CPU the checkpoint's own file is read in place again, where it holds the very
numbers; what was converted when it was loaded is written to a file once. Knows modules and files; nothing of budgets,
members or jobs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from ..errors import MemberError, advised

PIECE = 1 << 24


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight lies in a file."""

    file: str
    key: str
    written_ns: int
    """When the file was written last: another's numbers must not be taken for ours."""


class Shelf:
    """The weights of one model. ``files``: its checkpoint, if there is one to be read again."""

    def __init__(self, model: Any, files: tuple[Path, ...] = (), movable: bool = True) -> None:
        self.model = model
        self.files = files
        self.movable = movable
        self.here = True
        self.moves = 0
        self._users = 0
        self._lock = threading.RLock()
        self._slots = _slots(model)
        self._homes = {name: slots[0][0]._parameters[slots[0][1]].device for name, slots in self._slots.items()}
        self.spread = len(set(self._homes.values())) > 1
        """Over several devices: no one of them has all of it."""
        self.size = sum(self._weight(name).nbytes for name in self._slots)
        self.size += 0 if movable else sum(buffer.nbytes for buffer in model.buffers())
        self._copies: dict[str, Tensor] = {}
        self._places: dict[str, Place] = {}

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The weights are where they belong, and stay there for as long as this lasts."""
        with self._lock:
            if not self.here:
                self._bring()
                self.here = True
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def put_away(self) -> bool:
        """Off the device. False: they are in use, or cannot be moved."""
        with self._lock:
            if self._users or not self.movable:
                return False
            if self.here:
                self._leave()
                self.here = False
                self.moves += 1
            return True

    # --- moving -------------------------------------------------------------------------------------------------

    @torch.inference_mode(False)
    @torch.no_grad()
    def _leave(self) -> None:
        on_cpu = [name for name, home in self._homes.items() if home.type == "cpu"]
        missing = [name for name in on_cpu if name not in self._places]
        if missing:
            self._places |= self._found(missing)
            self._places |= self._written([name for name in missing if name not in self._places])
        for name, home in self._homes.items():
            if home.type != "cpu" and name not in self._copies:
                self._copies[name] = self._weight(name).detach().to("cpu", copy=True)
        for name, home in self._homes.items():
            self._put(name, torch.empty(0, dtype=self._weight(name).dtype, device=home))
        if any(home.type == "cuda" for home in self._homes.values()):
            torch.cuda.empty_cache()  # else the bytes stay with torch, and no other process has them

    @torch.inference_mode(False)
    @torch.no_grad()
    def _bring(self) -> None:
        for name, tensor in self._read().items():
            self._put(name, tensor)
        for name, copy in self._copies.items():
            self._put(name, copy.to(self._homes[name]))

    def _read(self) -> dict[str, Tensor]:
        """The weights that lie in files, read in place: nothing is copied until it is looked at."""
        from safetensors import safe_open

        by_file: dict[str, list[str]] = {}
        for name, place in self._places.items():
            by_file.setdefault(place.file, []).append(name)
        found: dict[str, Tensor] = {}
        for file, names in by_file.items():
            if _written_ns(file) != self._places[names[0]].written_ns:
                error = MemberError(f"{file} has changed or gone since its weights were read")
                raise advised(error, "unload() this member, so that all of it is loaded anew")
            with safe_open(file, "pt") as opened:
                found |= {name: opened.get_tensor(self._places[name].key) for name in names}
        return found

    def _found(self, names: list[str]) -> dict[str, Place]:
        """Those of these weights that the checkpoint's files hold to the bit, under the same name."""
        found: dict[str, Place] = {}
        for file in map(str, self.files):
            with open(file, "rb") as opened:
                size = int.from_bytes(opened.read(8), "little")
                told = json.loads(opened.read(size))
                for name in (name for name in names if name in told):
                    opened.seek(8 + size + told[name]["data_offsets"][0])
                    if _same(opened, told[name], self._weight(name)):
                        found[name] = Place(file, name, _written_ns(file))
        return found

    def _written(self, names: list[str]) -> dict[str, Place]:
        """The others, in a file of their own that goes with this shelf."""
        if not names:
            return {}
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        folder = tempfile.mkdtemp(prefix="specfuse-weights-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = str(Path(folder) / "weights.safetensors")
        try:
            save_file({name: _whole(self._weight(name)) for name in names}, file)
        except (OSError, SafetensorError) as error:  # a full disk is told by either
            told = MemberError(f"idle weights cannot be written to {folder}: {error}")
            raise advised(told, "free room there, or name another folder: TMPDIR=/some/folder") from error
        return {name: Place(file, name, _written_ns(file)) for name in names}

    def _weight(self, name: str) -> Tensor:
        module, attribute = self._slots[name][0]
        weight = module._parameters[attribute]
        assert weight is not None
        return weight

    def _put(self, name: str, tensor: Tensor) -> None:
        weight = nn.Parameter(tensor, requires_grad=False)
        for module, attribute in self._slots[name]:  # tied weights stay tied
            module._parameters[attribute] = weight


def _slots(model: Any) -> dict[str, list[tuple[nn.Module, str]]]:
    """Every weight by its first name, and all places in the model where it is."""
    names: dict[int, str] = {}
    slots: dict[str, list[tuple[nn.Module, str]]] = {}
    for prefix, module in model.named_modules():
        for attribute, weight in module._parameters.items():
            if weight is not None:
                name = names.setdefault(id(weight), f"{prefix}.{attribute}" if prefix else attribute)
                slots.setdefault(name, []).append((module, attribute))
    return slots


def _same(file: BinaryIO, told: Mapping[str, Any], weight: Tensor) -> bool:
    """Whether these numbers stand there in the file. Read piece by piece: mapped, they would count as memory twice."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    if told["dtype"] != names.get(weight.dtype) or told["shape"] != list(weight.shape) or not weight.is_contiguous():
        return False
    flat = weight.detach().view(-1).view(torch.uint8)
    pieces = (flat[at : at + PIECE] for at in range(0, flat.numel(), PIECE))
    return all(file.read(piece.numel()) == piece.numpy().tobytes() for piece in pieces)


def _whole(weight: Tensor) -> Tensor:
    """The weight in memory of its own: a part of another tensor cannot be saved."""
    own = weight.is_contiguous() and weight.untyped_storage().nbytes() == weight.nbytes
    return weight.detach() if own else weight.detach().clone(memory_format=torch.contiguous_format)


def _written_ns(file: str) -> int:
    try:
        return Path(file).stat().st_mtime_ns
    except OSError:
        return -1


def checkpoint_files(model: str, revision: str | None) -> tuple[Path, ...]:
    """The safetensors files that a folder or a hub id's place in the cache holds."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(model, revision=revision, local_files_only=True))
        except Exception:  # not a hub id, or not in the cache: then the weights are written once
            return ()
    return tuple(sorted(folder.glob("*.safetensors")))


def can_move(model: Any) -> bool:
    """Whether this model's weights are plain tensors on one device: quantized ones often keep more than numbers."""
    weights, buffers = list(model.parameters()), list(model.buffers())
    plain = all(type(w) is nn.Parameter and type(w.data) is Tensor and w.is_floating_point() for w in weights)
    size, beside = sum(w.nbytes for w in weights), sum(b.nbytes for b in buffers)
    devices = {str(weight.device) for weight in weights}
    return plain and len(devices) == 1 and "meta" not in devices and beside * 50 <= size
