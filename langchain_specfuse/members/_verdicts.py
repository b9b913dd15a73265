"""Which store a model was found to agree with, kept on disk: a trial reads all weights some twenty times.

A verdict holds for exactly what was tried: the model's configuration, precision and kind of attention, the versions of
torch and transformers, and the text of our own files that had a part in it. When one of them changes it is tried anew.
Knows configurations and files; nothing of stores or tokens.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

TRIED = (
    "_slab.py",
    "_seats.py",
    "_rows.py",
    "_passes.py",
    "_layers.py",
    "_snapshots.py",
    "_stores.py",
    "_prefixes.py",
    "_trial.py",
)
"""What a verdict is about."""


def cache_folder() -> Path:
    """Where things are kept: ``$SPECFUSE_CACHE``, or our place in the user's cache folder."""
    if own := os.environ.get("SPECFUSE_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = os.environ.get("XDG_CACHE_HOME") or "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "langchain-specfuse"


def told(model: Any) -> str:
    """The store that was found right for this model; nothing if none was, or if that cannot be known."""
    try:
        return str(json.loads(_file(model).read_text())["store"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def tell(model: Any, store: str) -> None:
    """Keep it for the next start. A folder that cannot be written to is no reason to fail."""
    try:
        file = _file(model)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".half", delete=False) as half:
            half.write(json.dumps({"store": store, "model": model.config.model_type}))
        os.replace(half.name, file)  # whole or not at all
    except (OSError, ValueError, TypeError):
        return


def _file(model: Any) -> Path:
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    kind = getattr(model.config, "_attn_implementation", None)
    device = model.get_input_embeddings().weight.device.type
    about = [config, str(model.dtype), kind, device, type(model).__name__, *_surroundings()]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()
    return cache_folder() / "trials" / f"{mark[:32]}.json"


@cache
def _surroundings() -> tuple[str, ...]:
    import torch
    import transformers

    ours = hashlib.sha256(b"".join((Path(__file__).parent / name).read_bytes() for name in TRIED)).hexdigest()
    return platform.machine(), torch.__version__, transformers.__version__, ours
