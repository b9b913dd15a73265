"""Where the package keeps files of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..errors import UsageError, advised


def cache_folder() -> Path:
    """``$SPECFUSE_CACHE``, or ``langchain-specfuse`` in the user's cache.

    Raises :class:`.UsageError` if neither is known.
    """
    try:
        return _cache_folder()
    except RuntimeError as error:  # a container's user may have no home
        unknown = UsageError(f"the folder for this package's files is unknown: {error}")
        raise advised(unknown, "name one: SPECFUSE_CACHE=/some/folder") from error


def _cache_folder() -> Path:
    own = os.environ.get("SPECFUSE_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        base = os.environ.get("XDG_CACHE_HOME") or usual
    return Path(base).expanduser() / "langchain-specfuse"
