"""What can go wrong with a pass, told apart: no memory left, numbers that are none, anything else.

Knows errors and replies; nothing of stores or of who asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from ..core.values import KINDS, Draft, Failure, Reply, Scored

SHORTAGES = ("DefaultCPUAllocator: can't allocate", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How a shortage of memory is told by what has no class of errors for it."""


def is_shortage(error: BaseException) -> bool:
    """Whether there is no memory left, wherever that was found out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(told in str(error) for told in SHORTAGES)


def failure(error: Exception, device: str) -> Failure:
    """Why a job has no reply."""
    if is_shortage(error):
        return Failure("error", f"out of memory on {device}", error)
    kind = getattr(error, "kind", "error")
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return Failure(kind if kind in KINDS else "error", message, error)


def is_nonsense(reply: Reply) -> bool:
    """Whether numbers in it are none: what was read for it is not to be gone on from."""
    rows: Iterable[Iterable[float]] = ()
    if isinstance(reply, Draft):
        rows = (reply.logprobs or (),)
    elif isinstance(reply, Scored):
        rows = reply.logprobs
    elif isinstance(reply, Failure):
        return reply.kind == "nan"
    return any(math.isnan(sum(row)) for row in rows)
