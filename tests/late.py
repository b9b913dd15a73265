"""Limits of time in tests, on machines that pause for a second: a member is late only where a test
wants it to be."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from langchain_specfuse.engine.drive import _Deadline
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


@contextmanager
def answers_only_where(hangs: Callable[[], object]) -> Iterator[None]:
    """The time limit of an answer holds only once something hangs."""
    wait_s, check = _Deadline.wait_s, _Deadline.check

    def looks_again_s(deadline: Any, run: Any) -> float | None:
        limit_s = wait_s(deadline, run)
        return None if limit_s is None else max(limit_s, 0.01)

    def check_if_it_hangs(deadline: Any, run: Any) -> None:
        if hangs():
            check(deadline, run)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Deadline, "wait_s", looks_again_s)
        patch.setattr(_Deadline, "check", check_if_it_hangs)
        yield


def three_tries(test: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test that must not be interrupted by a pause of the machine up to three times. A
    promise that is broken fails each time."""

    @functools.wraps(test)
    def tried(*args: Any, **options: Any) -> None:
        for _ in range(2):
            try:
                return test(*args, **options)
            except (AssertionError, TimeoutError):
                pass
        return test(*args, **options)

    @functools.wraps(test)
    async def atried(*args: Any, **options: Any) -> None:
        for _ in range(2):
            try:
                return await test(*args, **options)
            except (AssertionError, TimeoutError):
                pass
        return await test(*args, **options)

    return atried if inspect.iscoroutinefunction(test) else tried
