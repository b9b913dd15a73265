"""What the header of a GGUF file says about its weights."""

from __future__ import annotations

from pathlib import Path

from ..files import gguf_metadata, gguf_tensors

Q6_K = 14
"""ggml's number for this type of weights."""


def share_of(kind: int, path: Path) -> float:
    """The part of the weights in this file that has this ggml type. Of a split model, only this
    file is read."""
    with path.open("rb") as file:
        gguf_metadata(file)
        tensors = gguf_tensors(file)
    all_numbers = sum(tensor.numbers for tensor in tensors)
    return sum(tensor.numbers for tensor in tensors if tensor.kind == kind) / max(1, all_numbers)
