"""Remembers the trials of caches that passed, in a file of the user's cache folder.

A trial of a large model takes most of a second, and its result depends only on what is in its key:
files, library and processor. If the file cannot be read or written, the trial simply runs each
time.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from ..._version import __version__
from ...errors import UsageError
from ..folders import cache_folder
from .binding import gpu, llamacpp

log = logging.getLogger("langchain_specfuse")

MOST = 64
"""At most this many results are kept, the newest ones."""


@dataclass(frozen=True)
class TrialResult:
    """What the trial of a cache has found."""

    cuts: bool
    """Whether a strand can be cut back."""
    token_bytes: PositiveInt
    strand_bytes: NonNegativeInt
    steady: bool
    """Whether a token's logits are the same, whatever is read with it."""


_FILE = TypeAdapter(dict[str, TrialResult])


def file_identity(path: Path) -> list[Any] | None:
    """Which file this is now; None if it is gone."""
    try:
        known = path.stat()
        return [os.fspath(path.resolve()), known.st_size, known.st_mtime_ns]
    except OSError:
        return None


def trial_key(files: Sequence[list[Any] | None], *settings: Any) -> str | None:
    """A name for the trial of these files with these settings on this machine; None if it is not
    known which files or which release of the library they are.

    ``files``: their :func:`file_identity` when they were loaded. Others may have their names now.
    """
    machine = _machine()
    if machine is None or None in files:
        return None
    return sha256(json.dumps([files, settings, machine]).encode()).hexdigest()


def recall(key: str) -> TrialResult | None:
    """The result of this trial, if it is known."""
    return _read().get(key)


def remember(key: str, result: TrialResult) -> None:
    """Keep the result of a trial for other processes."""
    known = _read()
    known.pop(key, None)
    known[key] = result
    newest = dict(list(known.items())[-MOST:])
    try:
        _write(_FILE.dump_json(newest, indent=1))
    except (OSError, UsageError) as error:
        log.debug("the result of a trial cannot be kept: %s", error)


def _path() -> Path:
    return cache_folder() / "trials.json"


def _read() -> dict[str, TrialResult]:
    try:
        return _FILE.validate_json(_path().read_bytes(), strict=True)
    # There is none yet, it is damaged, or the user has no folder for it.
    except (OSError, ValidationError, UsageError):
        return {}


def _write(text: bytes) -> None:
    """Replace the file at once, so that no other process reads half of it."""
    path = _path()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, half = tempfile.mkstemp(dir=path.parent, prefix=".trials-")
    try:
        with open(handle, "wb") as file:
            file.write(text)
        os.replace(half, path)
    except OSError:
        os.unlink(half)
        raise


@cache
def _machine() -> list[Any] | None:
    """Everything besides the files that decides how numbers are rounded and states are kept; None
    if the library's release is unknown."""
    try:
        library = version("xllamacpp")
    except PackageNotFoundError:  # a program that was packed without metadata
        return None
    built_for = llamacpp().llama_print_system_info().decode()
    return [__version__, library, built_for, platform.machine(), _processor(), gpu()]


def _processor() -> str:
    """The processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")
