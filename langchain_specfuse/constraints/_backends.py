"""Which library reads the rules. One is enough; each is imported when it is first needed."""

from __future__ import annotations

import os
import threading
from importlib import util
from typing import Any

from ..errors import UsageError, advised
from ._rules import Backend

NAMES = ("llguidance", "xgrammar")
"""The first that is installed is taken. xgrammar imports torch and transformers, so it is never the first."""
CHOSEN = "SPECFUSE_GRAMMAR"
"""The environment variable that chooses another."""

_made: dict[str, Any] = {}
_lock = threading.Lock()


def backend_named(name: str | None = None) -> Backend:
    """The library of this name; without one, that of ``$SPECFUSE_GRAMMAR`` or the first that is installed."""
    name = name or os.environ.get(CHOSEN) or next((one for one in NAMES if util.find_spec(one)), None)
    if name is None:
        error = UsageError("a constraint on the answer needs llguidance, not installed here")
        raise advised(error, 'pip install "langchain-specfuse[structured]"')
    if name not in NAMES:
        raise advised(UsageError(f"no grammar library is called {name!r}"), f"one of {', '.join(NAMES)}")
    if not util.find_spec(name):
        raise advised(UsageError(f"{name} is not installed here"), f"pip install {name}, or choose another: {CHOSEN}")
    with _lock:
        if name not in _made:
            _made[name] = _llguidance() if name == "llguidance" else _xgrammar()
        found: Backend = _made[name]
    return found


def _llguidance() -> Backend:
    from ._llguidance import LLGuidance

    return LLGuidance()


def _xgrammar() -> Backend:
    from ._xgrammar import XGrammar

    return XGrammar()
