"""What the header of a GGUF file says about its weights."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path

from ..files import gguf_metadata

Q6_K = 14
"""ggml's number for this type of weights."""


def share_of(kind: int, path: Path) -> float:
    """The part of the weights in this file that has this ggml type. Of a split model, only this
    file is read."""
    counts: dict[int, int] = {}
    with path.open("rb") as file:
        _magic, _version, tensors, _values = struct.unpack("<4sIQQ", file.read(24))
        file.seek(0)
        gguf_metadata(file)
        for _ in range(tensors):
            (length,) = struct.unpack("<Q", file.read(8))
            file.seek(length, 1)
            (dimensions,) = struct.unpack("<I", file.read(4))
            shape = struct.unpack(f"<{dimensions}Q", file.read(8 * dimensions))
            found, _offset = struct.unpack("<IQ", file.read(12))
            counts[found] = counts.get(found, 0) + prod(shape)
    return counts.get(kind, 0) / max(1, sum(counts.values()))
