"""Models that transformers loads, in this process. torch is imported with the member, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .member import TransformersMember

__all__ = ["TransformersMember"]


def __getattr__(name: str) -> Any:
    if name != "TransformersMember":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .member import TransformersMember

    return TransformersMember
