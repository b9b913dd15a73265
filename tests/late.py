"""Limits of time in tests, on machines that pause for a second: a member is late only where a test
wants it to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from langchain_specfuse.engine.limits import Waiting


@contextmanager
def only_where(hangs: Callable[[Any], object]) -> Iterator[None]:
    """The limits of members hold, however short they are, only for one that hangs:
    ``hangs(name)``. Another that is late was kept waiting by the machine."""
    left_s, late = Waiting.left_s, Waiting.late

    def looks_again_s(waiting: Waiting) -> float | None:
        limit_s = left_s(waiting)
        return None if limit_s is None else max(limit_s, 0.01)

    def is_late(waiting: Waiting) -> list[Any]:
        return [(name, limit) for name, limit in late(waiting) if hangs(name)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Waiting, "left_s", looks_again_s)
        patch.setattr(Waiting, "late", is_late)
        yield
