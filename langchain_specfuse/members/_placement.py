"""Where a member goes: the GPU with the most free memory that it fits on whole; several if it must; else the CPU.

The decision is a pure function of sizes; reading the sizes from devices and files is kept beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEADROOM = 1.2
"""Weights times this must fit: passes and caches need room too."""


def placed(weights: int, free: Mapping[int, int]) -> int | str:
    """A GPU's number, ``auto`` (accelerate splits it over GPUs and CPU) or ``cpu``.

    >>> placed(10, {0: 20, 1: 40})
    1
    >>> placed(50, {0: 40, 1: 40})
    'auto'
    >>> placed(10, {})
    'cpu'
    """
    if not free:
        return "cpu"
    roomiest = max(free, key=lambda gpu: (free[gpu], -gpu))
    return roomiest if weights * HEADROOM <= free[roomiest] else "auto"


def free_memory() -> dict[int, int]:
    """Free bytes of every GPU in this machine."""
    import torch

    if not torch.cuda.is_available():
        return {}
    return {gpu: torch.cuda.mem_get_info(gpu)[0] for gpu in range(torch.cuda.device_count())}


def weights_of(config: Any, dtype_bytes: int) -> int:
    """How many bytes a model's weights take, without loading it."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):  # accelerate's empty weights are not tied: those would count twice
        empty = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in empty.parameters()) * dtype_bytes


def available_memory(device: str) -> int:
    """Bytes that are free now on this device."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    info = Path("/proc/meminfo")
    if info.exists():
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines() if ":" in line)
        return int(lines["MemAvailable"].split()[0]) * 1024
    return 4 << 30
