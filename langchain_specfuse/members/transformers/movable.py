"""How the weights of a transformers model leave their device for others (``memory_budget``), and come back.

Weights leave a GPU for the CPU's memory by ``model.to``. accelerate's ``cpu_offload_with_hook`` does that within
the forward pass, where inference mode would make tensors that cannot be changed later. On a CPU they are written to
temporary files once, and mapped from there when they are needed, which copies nothing. accelerate's ``disk_offload``
copies all weights in every pass.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ...errors import MemberError, advised


class MovableWeights:
    """The weights of one model, on their device or away."""

    def __init__(self, model: Any, *, movable: bool = True) -> None:
        self._model = model
        self._parameters = list(model.parameters())  # tied weights once
        self._device = self._parameters[0].device
        self.spread = any(weight.device != self._device for weight in self._parameters)
        """Over several devices: none of them has all of it."""
        self.movable = movable and not self.spread and self._device.type != "meta" and _is_plain(model)
        self.bytes = sum(one.nbytes for one in (*self._parameters, *model.buffers()))
        self.here = True
        self._files: list[tuple[Path, Any]] = []
        self._in_use = 0
        self._lock = threading.RLock()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """The weights are on their device, and stay there while this lasts."""
        with self._lock:
            if not self.here:
                self._bring_back()
                self.here = True
            self._in_use += 1
        try:
            with torch.inference_mode():
                yield
        finally:
            with self._lock:
                self._in_use -= 1

    def offload(self) -> bool:
        """Move them off the device. False: they are in use, or cannot be moved."""
        with self._lock:
            if self._in_use or not self.movable:
                return False
            self._send_away()
            self.here = False
            return True

    def _send_away(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            if self._device.type != "cpu":
                self._model.to("cpu")
                torch.cuda.empty_cache()  # else torch keeps the memory, and no other process gets it
                return
            if not self._files:
                self._files = self._written()
            for weight in self._parameters:
                weight.data = torch.empty(0, dtype=weight.dtype)

    def _bring_back(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            if self._device.type != "cpu":
                self._model.to(self._device)
                return
            for weight, (file, shape) in zip(self._parameters, self._files, strict=True):
                mapped = torch.from_file(str(file), shared=False, size=shape.numel(), dtype=weight.dtype)
                weight.data = mapped.view(shape)

    def _written(self) -> list[tuple[Path, Any]]:
        """Each weight's file and shape."""
        try:
            folder = Path(tempfile.mkdtemp(prefix="specfuse-weights-"))
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            files = [(folder / str(number), weight.shape) for number, weight in enumerate(self._parameters)]
            for weight, (file, _) in zip(self._parameters, files, strict=True):
                weight.data.reshape(-1).view(torch.uint8).numpy().tofile(file)
        except OSError as error:
            full = MemberError(f"the weights of an idle member cannot be written to {tempfile.gettempdir()}: {error}")
            raise advised(full, "free space there, name another folder in TMPDIR, or give a larger budget") from error
        return files


def _is_plain(model: Any) -> bool:
    """Whether all weights are ordinary tensors that nothing else moves: quantized ones often hold more than numbers."""
    hooked = any(hasattr(module, "_hf_hook") for module in model.modules())  # accelerate's
    return not hooked and all(
        type(weight) is torch.nn.Parameter and type(weight.data) is torch.Tensor and weight.is_floating_point()
        for weight in model.parameters()
    )
