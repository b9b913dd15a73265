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
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from ..._version import __version__
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
    token_bytes: NonNegativeInt
    strand_bytes: NonNegativeInt
    steady: bool
    """Whether a token's logits are the same, whatever is read with it."""
    halves: bool
    """Whether two passes take less time than one of twice their size."""


_FILE = TypeAdapter(dict[str, TrialResult])


def trial_key(files: Sequence[Path], *settings: Any) -> str | None:
    """A name for the trial of these files with these settings on this machine; None if a file is
    gone meanwhile."""
    try:
        identities = [_identity(file) for file in files]
    except OSError:
        return None
    parts = [identities, settings, _machine()]
    return sha256(json.dumps(parts).encode()).hexdigest()


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
    except OSError as error:
        log.debug("the result of a trial cannot be kept: %s", error)


def _path() -> Path:
    return cache_folder() / "trials.json"


def _read() -> dict[str, TrialResult]:
    try:
        return _FILE.validate_json(_path().read_bytes(), strict=True)
    except (OSError, ValidationError):  # there is none yet, or it is damaged
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


def _identity(path: Path) -> list[Any]:
    known = path.stat()
    return [os.fspath(path.resolve()), known.st_size, known.st_mtime_ns]


@cache
def _machine() -> list[Any]:
    """Everything besides the files that decides how numbers are rounded and states are kept."""
    built_for = llamacpp().llama_print_system_info().decode()
    return [__version__, version("xllamacpp"), built_for, platform.machine(), _processor(), gpu()]


def _processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")
