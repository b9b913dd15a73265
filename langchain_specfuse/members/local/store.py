"""What a cache is asked for, and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Logits: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SequenceKey:
    """Names a sequence: a query as one member reads it, with its adapter."""

    query_id: str
    member: str = ""
    adapter: Any = None


@dataclass(frozen=True)
class Branches:
    """Continuations of ``ids``. Each branch is a whole list of tokens, nearly all of it shared with ``ids``."""

    key: SequenceKey
    ids: list[int]
    branches: list[list[int]]
