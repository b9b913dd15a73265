"""What is not loaded: what could run code, what names something else to be loaded, what is not there or not whole.

Knows files, and what loading tells; loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import MemberError, UsageError, advised

PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def refuse_adapter(folder: str, model: str, revision: str | None) -> None:
    """transformers would load the base that an adapter names, and what lies beside it, by itself and unlooked at."""
    from transformers.utils import find_adapter_config_file

    if find_adapter_config_file(folder, revision=revision) is not None:
        error = UsageError(f"{model} has an adapter_config.json: it is an adapter, or loads one by itself")
        raise advised(error, "name its base, and the adapter beside it: base+adapter, or adapter=...; or merge them")


def refuse_holes(info: Mapping[str, Any], model: str, name: str) -> None:
    """A tensor that is not in the checkpoint would be made up at random, and the member would answer all the same."""
    holes = [str(key) for what in ("missing_keys", "mismatched_keys") for key in info.get(what) or ()]
    if holes:
        shown = ", ".join(sorted(holes)[:3]) + (", ..." if len(holes) > 3 else "")
        error = MemberError(f"{model} lacks {len(holes)} of its weights, or has them wrong: {shown}", member=name)
        raise advised(error, "the checkpoint is not whole, or belongs to another config.json: copy or save it again")


def refuse_missing(file: Path) -> None:
    if not file.is_file():
        raise advised(MemberError(f"no such file: {file}", kind="not_found"), "name an existing .gguf file")


def refuse_unsafe(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(file.name for pattern in PICKLED for file in folder.glob(pattern))
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if pickled:
        error = UsageError(
            f"{folder} has only pickled weights ({', '.join(pickled[:3])}): loading them could run any code"
        )
        raise advised(error, "convert them once: model.save_pretrained(folder, safe_serialization=True)")
    if ggufs:
        error = UsageError(f"{folder} has no *.safetensors, but GGUF files: {', '.join(ggufs[:3])}")
        raise advised(error, f"name the file itself: {folder / ggufs[0]}")
    if not (folder / "config.json").exists():
        missing = MemberError(f"{folder} holds no model: neither config.json nor *.safetensors", kind="not_found")
        raise advised(missing, "name a folder that save_pretrained wrote")
