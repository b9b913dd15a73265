"""Where the package keeps files of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """``$SPECFUSE_CACHE``, or ``langchain-specfuse`` in the user's cache."""
    own = os.environ.get("SPECFUSE_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        base = os.environ.get("XDG_CACHE_HOME") or usual
    return Path(base).expanduser() / "langchain-specfuse"
