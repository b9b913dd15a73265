"""Identify functions in cache keys, so that other processes find the same entries."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

from ..core.checks import Check

_LOCAL_IDS: dict[int, tuple[Callable[[], Any], str]] = {}
"""``id(function)`` -> a reference to the function, and its id in this process. The entry is removed
with the function, because another object may then get the same ``id``."""
_DIGESTS: dict[str, str | None] = {}
"""file -> the digest of its content when it was first needed; None if it cannot be read."""


def function_id(function: Callable[..., Any]) -> str:
    """A text that identifies this function in every process.

    Only a function of a module has such a text. It contains a digest of the module's file, which
    may have functions that this one calls. All others, and one whose file would have to be read on
    an event loop, get a text that is unique to this process.

    >>> function_id(len), function_id(str.strip)
    ('builtins.len', 'builtins.str.strip')
    """
    if id(function) in _LOCAL_IDS:
        return _local_id(function)
    return _shared_id(function) or _local_id(function)


def check_id(check: Check) -> dict[str, Any]:
    """What distinguishes this check from others, as plain JSON."""
    return {
        "name": check.name,
        "at": check.at,
        "judges_reasoning": check.judges_reasoning,
        "judges_calls": check.judges_calls,
        "function": check.identity or function_id(check.function),
    }


def on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _local_id(function: Any) -> str:
    """A text that identifies this function in this process only."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    text = f"{name}-{uuid.uuid4().hex}"
    return _LOCAL_IDS.setdefault(id(function), (_reference_to(function), text))[1]


def _reference_to(function: Any) -> Callable[[], Any]:
    """A reference to the function: a weak one, if the function supports it."""
    key = id(function)

    def forget(_: object) -> None:
        _LOCAL_IDS.pop(key, None)

    try:
        return weakref.ref(function, forget)
    except TypeError:  # an object with __slots__
        return lambda: function


def _shared_id(function: Any) -> str | None:
    """The function's name, with a digest of its file if it has Python code; None if it cannot be
    imported by that name."""
    owner = getattr(function, "__objclass__", None)
    module = getattr(owner or function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    imported: Any = sys.modules.get(str(module))
    for part in name.split("."):
        imported = getattr(imported, part, None)
    if imported is not function:
        return None
    if inspect.isbuiltin(function) or inspect.ismethoddescriptor(function):
        return f"{module}.{name}"
    # A closure depends on more than its file; a function that wraps another is one.
    if not isinstance(function, FunctionType) or function.__closure__:
        return None
    content = _digest_of(function.__code__.co_filename)
    return content and f"{module}.{name}-{content}"


def _digest_of(file: str) -> str | None:
    """A digest of the file's content; None if it cannot be read, or not now."""
    if file not in _DIGESTS:
        if on_event_loop():
            return None
        try:
            _DIGESTS[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (OSError, ValueError):  # such as <stdin>
            _DIGESTS[file] = None
    return _DIGESTS[file]
