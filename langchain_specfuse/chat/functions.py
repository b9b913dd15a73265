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
from types import CodeType, FunctionType
from typing import Any

from ..core.checks import Check

_LOCAL_IDS: dict[int, tuple[Callable[[], Any], str]] = {}
"""``id(function)`` -> a reference to the function, and its id in this process. The entry is removed
with the function, because another object may then get the same ``id``."""
_DIGESTS: dict[str, str | None] = {}
"""file -> the digest of its content when it was first needed; None if it cannot be read."""


def function_id(function: Callable[..., Any]) -> str:
    """A text that identifies this function in every process.

    A closure, a bound method, a callable object or a function without a file has no such text; nor
    has a function whose file would have to be read on an event loop. These get a text that is
    unique to this process.

    >>> function_id(len), function_id(str.strip)
    ('builtins.len', 'builtins.str.strip')
    """
    if id(function) in _LOCAL_IDS:
        return _local_id(function)
    if isinstance(function, FunctionType):
        shared_id = _id_of_function(function)
    else:
        shared_id = _id_of_builtin(function)
    return shared_id or _local_id(function)


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


def _id_of_builtin(function: Any) -> str | None:
    """The name of a function without Python code, if it can be imported by that name."""
    if not inspect.isbuiltin(function) and not inspect.ismethoddescriptor(function):
        return None
    owner = getattr(function, "__objclass__", None)
    module = getattr(owner or function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    imported: Any = sys.modules.get(str(module))
    for part in name.split("."):
        imported = getattr(imported, part, None)
    return f"{module}.{name}" if imported is function else None


def _id_of_function(function: FunctionType) -> str | None:
    """The function's name, and a digest of its position, its code and its file. The file belongs to
    it, because it may contain functions that this one calls. None if the function depends on more
    than that.
    """
    code = function.__code__
    positions = list(code.co_positions())
    defaults = [function.__defaults__, function.__kwdefaults__]
    if function.__closure__ or vars(function) or not _has_stable_repr(defaults):
        return None
    if any(None in position for position in positions):  # python -X no_debug_ranges
        return None
    content = _digest_of(code.co_filename)
    if content is None:
        return None
    parts = [content, positions, defaults, _parts_of_code(code)]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return f"{function.__module__}.{function.__qualname__}-{digest}"


def _has_stable_repr(value: Any) -> bool:
    """Whether the value's repr is the same in every process."""
    if isinstance(value, dict):
        keys_are_texts = all(isinstance(key, str) for key in value)
        return keys_are_texts and all(map(_has_stable_repr, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_has_stable_repr, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _parts_of_code(code: CodeType) -> list[Any]:
    """A code object as values whose repr is the same in every process."""
    return [code.co_code, code.co_names, code.co_varnames, *map(_constant, code.co_consts)]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _parts_of_code(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return repr(value)


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
