"""Names for functions in cache keys, so that other processes find the same entries."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_MARKS: dict[int, tuple[Any, str]] = {}
"""id -> the object and its mark. Objects are kept alive, so that no other object gets the same
id."""
_DIGESTS: dict[str, str | None] = {}
"""file -> the digest of its text when it was first needed; None: it cannot be read."""


def function_id(function: Callable[..., Any]) -> str:
    """A text that identifies this function in every process.

    There is no such text for a closure, a bound method, a callable object, a function without a
    file, or a file that is first needed on an event loop; these get a text that is unique to this
    process.

    >>> function_id(len), function_id(str.strip)
    ('builtins.len', 'builtins.str.strip')
    """
    if id(function) in _MARKS:
        return _mark(function)
    found = _of_builtin(function) if not isinstance(function, FunctionType) else _of(function)
    return found or _mark(function)


def on_event_loop() -> bool:
    """Whether this thread runs an event loop, which must not be blocked."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _mark(thing: Any) -> str:
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return _MARKS.setdefault(id(thing), (thing, f"{name}-{uuid.uuid4().hex}"))[1]


def _of_builtin(function: Any) -> str | None:
    """The name of a function without Python code, if it can be imported by that name."""
    if not inspect.isbuiltin(function) and not inspect.ismethoddescriptor(function):
        return None
    owner = getattr(function, "__objclass__", None)
    module = getattr(owner or function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is function else None


def _of(function: FunctionType) -> str | None:
    """Its name, and a digest of its place, its code and its file, because the file may contain
    helpers that it calls. None if the function depends on more than that.
    """
    code = function.__code__
    places = list(code.co_positions())
    defaults = [function.__defaults__, function.__kwdefaults__]
    if function.__closure__ or vars(function) or not _is_plain(defaults):
        return None
    if any(None in place for place in places):  # python -X no_debug_ranges
        return None
    if (text := _digest_of(code.co_filename)) is None:
        return None
    parts = [text, places, defaults, _described(code)]
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
    return f"{function.__module__}.{function.__qualname__}-{digest}"


def _is_plain(value: Any) -> bool:
    """Whether its repr is the same in every process."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(one) for key, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | int | float)


def _described(code: CodeType) -> list[Any]:
    """A code object as values whose repr is the same in every process."""
    return [code.co_code, code.co_names, code.co_varnames, *map(_constant, code.co_consts)]


def _constant(one: Any) -> Any:
    if isinstance(one, CodeType):
        return _described(one)
    if isinstance(one, tuple):
        return tuple(map(_constant, one))
    return sorted(map(repr, one)) if isinstance(one, frozenset) else repr(one)


def _digest_of(file: str) -> str | None:
    if file not in _DIGESTS:
        if on_event_loop():
            return None
        try:
            _DIGESTS[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except (OSError, ValueError):  # such as <stdin>
            _DIGESTS[file] = None
    return _DIGESTS[file]
