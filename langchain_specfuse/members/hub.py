"""GGUF files by their name on the Hugging Face hub: ``hf:user/model[:file or quantisation]``.

A name has the same meaning as for ``llama-server -hf``: without a quantisation it is ``Q4_K_M``,
else ``Q8_0``, else the first file. Case does not matter. If a model is split into several files,
all are fetched. Projectors, importance matrices and draft heads are skipped.

huggingface_hub asks the hub, and its cache keeps the files, so other programs share them. Two parts
are done here:

- huggingface_hub 2 starts an interrupted download from zero and compares only its size. Here the
  next attempt resumes the download, and the whole file must have the SHA-256 that the hub lists.
- huggingface_hub 2 names a file in its cache by whatever ETag and commit a server sends, and reads
  answers of any length. Here names that lead out of the cache are refused, and lists and files are
  bounded. During a download, huggingface_hub still reads the whole body of an error, and waits as
  long as its Retry-After says.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urljoin, urlsplit

from ..errors import MemberError, SpecFuseError, UsageError, advised, imported
from .chat_model.names import hint_for
from .network import status_of, through_proxy
from .threads import shown

log = logging.getLogger("langchain_specfuse")

PREFIX = "hf:"
USUAL = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp looks for, in this order, if the name has none."""
SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""A file whose name contains one of these is not a model, by llama.cpp's rule."""
LARGEST = 50 * 10**9
"""The hub sends larger files only by its own protocol, which huggingface_hub speaks."""
MOST_LIST_BYTES = 50 * 10**6
"""No list of a repository's files is longer. That of 1,000 files has about 300,000 bytes."""
LONGEST_S = 60.0
"""How long a list or the beginning of a file may take to arrive."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HASH = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}")
"""A commit or an ETag that can be part of a path. Mirrors have others than the hub's hashes."""


@dataclass(frozen=True)
class HubName:
    """The parts of a name."""

    repository: str
    wanted: str = ""
    """A file or a quantisation; empty for the usual one."""


@dataclass(frozen=True)
class HubFile:
    """A file of a repository, as the hub describes it."""

    name: str
    size: int | None = None
    sha256: str | None = None
    etag: str | None = None
    """Names the file in the cache if the hub does not know its SHA-256."""

    @property
    def blob(self) -> str:
        """The file's name among the blobs of the cache."""
        name = self.sha256 or self.etag
        assert name, "described files have one of the two"
        return name


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    commit: str
    files: dict[str, HubFile]


@dataclass(frozen=True)
class Choice:
    """The files that a name means, as the hub lists them now."""

    repository: str
    commit: str
    files: Sequence[HubFile]

    @property
    def path(self) -> Path | None:
        """The first file, if all files are in the cache; else None."""
        places = [_place(self.repository, self.commit, file) for file in self.files]
        return places[0] if all(place.is_file() for place in places) else None


# --- names ----------------------------------------------------------------------------------------


def is_hub_name(name: object) -> bool:
    """Whether this names a GGUF file on the hub."""
    return isinstance(name, str) and name.startswith(PREFIX)


def may_be_repository(name: str) -> bool:
    """Whether a repository on the hub can have this name.

    >>> may_be_repository("Qwen/Qwen2.5-3B-Instruct-GGUF"), may_be_repository("models/a.gguf")
    (True, False)
    """
    return _REPOSITORY.fullmatch(name) is not None and not _is_gguf(name)


def parsed(name: str) -> HubName:
    """The parts of a name. Nothing is looked up.

    >>> parsed("hf:Qwen/Qwen2.5-3B-Instruct-GGUF:q8_0")
    HubName(repository='Qwen/Qwen2.5-3B-Instruct-GGUF', wanted='q8_0')
    """
    repository, colon, wanted = name.removeprefix(PREFIX).partition(":")
    if _REPOSITORY.fullmatch(repository) and (wanted or not colon):
        return HubName(repository, wanted)
    error = UsageError(f"expected hf:user/model or hf:user/model:quantisation, got {name!r}")
    if "@" in repository:
        raise advised(error, "files are those of the main branch; fetch another one, and name it")
    example = "hf:ggml-org/gemma-3-4b-it-GGUF:Q8_0"
    raise advised(error, f"for example {example!r}; a file's name, too, follows a colon")


def plain_name(name: str) -> str:
    """The name of a member: that of the model with the quantisation, if there is one, or that of
    the file.

    >>> (
    ...     plain_name("hf:ggml-org/gemma-3-4b-it-GGUF"),
    ...     plain_name("hf:ggml-org/gemma-3-4b-it-GGUF:Q8_0"),
    ... )
    ('gemma-3-4b-it', 'gemma-3-4b-it-Q8_0')
    """
    hub = parsed(name)
    if not _is_gguf(hub.wanted):
        model = re.sub(r"[-_.]gguf$", "", hub.repository.partition("/")[2], flags=re.IGNORECASE)
        return f"{model}-{hub.wanted}" if hub.wanted else model
    file = hub.wanted.rpartition("/")[2]
    part = _PART.fullmatch(file)
    return part["stem"] if part else file[: -len(".gguf")]


def files_for(names: Iterable[str], wanted: str = "") -> list[str]:
    """The files of a repository that a name means: several if the model is split, the first part
    first; none if there is no such file.

    >>> names = ["a-F16.gguf", "a-Q8_0.gguf", "a-Q4_K_M.gguf", "mmproj-a-Q8_0.gguf", "README.md"]
    >>> files_for(names), files_for(names, "q8_0"), files_for(names, "a-f16.gguf")
    (['a-Q4_K_M.gguf'], ['a-Q8_0.gguf'], ['a-F16.gguf'])
    >>> files_for(["a-Q2_K-00002-of-00002.gguf", "a-Q2_K-00001-of-00002.gguf"])
    ['a-Q2_K-00001-of-00002.gguf', 'a-Q2_K-00002-of-00002.gguf']
    """
    ggufs = sorted(filter(_is_gguf, names))
    if _is_gguf(wanted):
        found = [name for name in ggufs if name.lower() == wanted.lower()]
    else:
        models = [name for name in ggufs if _is_model(name)]
        found = list(_of_quantisation(models, wanted) if wanted else _usual(models))
    if not found:
        return []
    part = _PART.fullmatch(found[0])
    if part is None:
        return found[:1]
    pattern = rf"{re.escape(part['stem'])}-\d{{5}}-of-{part['count']}\.gguf"
    return [name for name in ggufs if re.fullmatch(pattern, name, re.IGNORECASE)]


def _usual(models: Sequence[str]) -> Sequence[str]:
    for quantisation in USUAL:
        found = _of_quantisation(models, quantisation)
        if found:
            return found
    return models


def _of_quantisation(models: Sequence[str], quantisation: str) -> list[str]:
    """The models with this quantisation in their names. llama.cpp also takes ``BF16`` for ``F16``;
    here that is the second choice."""
    tag = re.escape(quantisation)
    for pattern in (rf"(^|[-_./]){tag}[-./]", rf"{tag}[-./]"):
        found = [name for name in models if re.search(pattern, name, re.IGNORECASE)]
        if found:
            return found
    return []


def _is_gguf(name: str) -> bool:
    return name.lower().endswith(".gguf")


def _is_model(name: str) -> bool:
    file = name.rpartition("/")[2].lower()
    return not any(mark in file for mark in SIDECARS)


# --- the cache ------------------------------------------------------------------------------------


def cached(name: str, *, sha256: str | None = None) -> Path | None:
    """The file with this name in the hub's cache, without asking the hub; None if it is not there,
    or not completely. ``sha256``: pass over a file that is named by another hash."""
    hub = parsed(name)
    try:
        snapshot = _snapshot(hub.repository)
    except ImportError:  # without huggingface_hub there is no cache
        return None
    if snapshot is None:
        return None
    try:
        found = [path for path in snapshot.rglob("*") if path.is_file()]
    except OSError:  # a folder that only another user may read
        return None
    there = [path.relative_to(snapshot).as_posix() for path in found]
    parts = files_for(there, hub.wanted)
    if not parts or _missing_parts(parts):
        return None
    path = snapshot / parts[0]
    blob = path.resolve().name  # its hash, where the cache has links to its blobs
    if sha256 and _SHA256.fullmatch(blob) and blob != sha256:
        return None
    return path


def _folder(repository: str) -> Path:
    from huggingface_hub import constants

    separator = constants.REPO_ID_SEPARATOR
    return Path(constants.HF_HUB_CACHE, f"models--{repository}".replace("/", separator))


def downloads(repository: str) -> Path:
    """The folder of the hub's cache into which files of this repository are fetched."""
    return _folder(repository) / "blobs"


def cached_file(repository: str, name: str, revision: str | None = None) -> Path | None:
    """A file of this repository in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, name, revision=revision)
    return Path(path) if isinstance(path, str) else None


def _snapshot(repository: str) -> Path | None:
    """The folder with the repository's files as they were when the hub was last asked."""
    folder = _folder(repository)
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except (OSError, ValueError):  # there is none, or it is damaged
        return None
    return folder / "snapshots" / commit if _HASH.fullmatch(commit) else None


def _place(repository: str, commit: str, file: HubFile) -> Path:
    """Where the cache has this file of a commit."""
    return _folder(repository) / "snapshots" / commit / file.name


def _missing_parts(parts: Sequence[str]) -> int:
    """How many parts of a split model are not among these files."""
    known = [part for part in map(_PART.fullmatch, parts) if part]
    numbers = {int(part["number"]) for part in known}
    count = max((int(part["count"]) for part in known), default=0)
    return len(set(range(1, count + 1)) - numbers)


# --- the hub --------------------------------------------------------------------------------------


def fetched(name: str, *, sha256: str | None = None, timeout_s: float | None = None) -> Path:
    """The file with this name, from the hub or its cache; the first one of a split model.

    The hub is asked whether there is a newer file. If it does not answer, the file in the cache is
    taken. ``sha256``: raise for any other file than this one. ``timeout_s``: how long the hub has
    to answer (usually ``HF_HUB_ETAG_TIMEOUT``).
    """
    imported("huggingface_hub", f"the model {name!r}", "hub")
    try:
        choice = _chosen(name, timeout_s=timeout_s)
        if sha256 is not None:
            found = _described(choice, choice.files[0]).sha256 or "unknown"
            if found != sha256:
                another = MemberError(f"the SHA-256 of {name} is {found}, not {sha256}")
                raise advised(another, "name the file that you mean")
        path = _fetch(choice)
    except SpecFuseError:
        raise
    except Exception as error:  # the HTTP client and the file system may raise anything
        path = _without_hub(name, error, sha256)
    log.info("%s is %s", name, path)
    return path


def _chosen(name: str, *, timeout_s: float | None = None) -> Choice:
    """The files that a name means now."""
    hub = parsed(name)
    listing = _listing(hub.repository, timeout_s=timeout_s)
    return Choice(hub.repository, listing.commit, _named(listing, hub))


def _without_hub(name: str, error: Exception, sha256: str | None) -> Path:
    """The file in the cache, if the hub failed with this error."""
    path = cached(name, sha256=sha256)
    if path is None:
        raise explained(error, name) from error
    from huggingface_hub.errors import OfflineModeIsEnabled

    wanted = isinstance(error, OfflineModeIsEnabled)
    level = logging.INFO if wanted else logging.WARNING
    log.log(
        level,
        "%s: using the cached file %s, because the hub gave no usable answer: %s",
        name,
        path.name,
        shown(error),
    )
    return path


def has_only_gguf(repository: str, revision: str | None = None) -> bool:
    """Whether this repository has GGUF files and no weights that transformers loads. False where
    the hub does not answer, and for a folder."""
    if os.path.exists(repository):
        return False
    try:
        names = _listing(repository, revision).files
    except Exception:
        return False
    return any(map(_is_gguf, names)) and not any(name.endswith(".safetensors") for name in names)


def _listing(
    repository: str, revision: str | None = None, *, timeout_s: float | None = None
) -> Listing:
    from huggingface_hub import constants
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    validate_repo_id(repository)
    address = f"{constants.ENDPOINT}/api/models/{repository}"
    if revision is not None:
        address += f"/revision/{quote(revision, safe='')}"
    content = _asked(
        address,
        MOST_LIST_BYTES + 1,
        params={"blobs": True},
        timeout_s=timeout_s or constants.HF_HUB_ETAG_TIMEOUT,
    )
    if len(content) > MOST_LIST_BYTES:
        raise _strange(f"sends a list of files of {repository} above {MOST_LIST_BYTES:,} bytes")
    try:
        listed = json.loads(content)
        commit, siblings = listed["sha"], listed["siblings"]
        files = [file for file in map(_listed_file, siblings) if file and _is_safe(file)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        problem = f"sends no list of files of {repository} ({shown(error)})"
        raise _strange(problem) from error
    if not _is_hash(commit):
        raise _strange(f"lists {repository} at {_cut(commit)}, which cannot be a commit")
    return Listing(commit, {file.name: file for file in files})


def _listed_file(entry: Any) -> HubFile | None:
    """A file, as a list has it; None if it has no name. A hub may list anything."""
    name = entry.get("rfilename") if isinstance(entry, Mapping) else None
    if not isinstance(name, str):
        return None
    stored = entry.get("lfs")
    sha256 = stored.get("sha256") if isinstance(stored, Mapping) else None
    return HubFile(name, _bytes(entry.get("size")), str(sha256).lower() if sha256 else None)


def _bytes(size: object) -> int | None:
    """A number of bytes; None if this is none."""
    if not isinstance(size, int) or isinstance(size, bool):
        return None
    return size if 0 <= size < 2**63 else None


def _is_safe(file: HubFile) -> bool:
    """Whether the file stays in its folder on every system, its name can be printed and be the name
    of a file, and its hash is one."""
    parts = file.name.split("/")
    is_inside = not {"", ".", ".."} & set(parts) and not re.search(r"\\|^[A-Za-z]:", file.name)
    is_hashed = file.sha256 is None or _SHA256.fullmatch(file.sha256) is not None
    return is_inside and is_hashed and file.name.isprintable() and _is_short(parts)


def _is_short(parts: Sequence[str]) -> bool:
    """Whether file systems have names as long as these."""
    lengths = [len(part.encode()) for part in parts]
    return max(lengths) <= 255 and sum(lengths) + len(lengths) <= 1000


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


def _cut(value: object) -> str:
    """What a hub sent, in an error."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _strange(problem: str) -> MemberError:
    """The error for a hub that sends what no hub would send."""
    from huggingface_hub import constants

    error = MemberError(f"the hub {constants.ENDPOINT} {problem}")
    return advised(
        error, "set HF_ENDPOINT to another hub, or unset it to use https://huggingface.co"
    )


def _asked(
    address: str,
    most: int,
    *,
    params: Mapping[str, Any] | None = None,
    timeout_s: float | None = None,
) -> bytes:
    """What the hub sends from this address; no more is read than ``most`` bytes and a few."""
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    # The beginning of a compressed file could not be read, and a few bytes can unpack to gigabytes.
    wanted = build_hf_headers(headers={"Accept-Encoding": "identity"})
    timeout = timeout_s or constants.HF_HUB_DOWNLOAD_TIMEOUT
    end = time.monotonic() + LONGEST_S
    content = bytearray()
    with get_session().stream(
        "GET", address, headers=wanted, params=params, timeout=timeout
    ) as answer:
        if answer.status_code >= 400:
            answer.close()  # huggingface_hub would read the error's body, which may have no end
        hf_raise_for_status(answer)
        for part in answer.iter_raw():
            content += part
            if len(content) >= most:  # all of the file, from a mirror without ranges
                break
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{address} is too slow: {len(content):,} bytes in {LONGEST_S:g} s"
                )
    return bytes(content)


def _named(listing: Listing, hub: HubName) -> list[HubFile]:
    """The files of this repository that the name means."""
    names = files_for(listing.files, hub.wanted)
    repository = hub.repository
    if not names:
        raise _no_such_file(listing, hub)
    missing = _missing_parts(names)
    if missing:
        error = MemberError(
            f"{repository} lacks {missing} of the files of the split model {names[0]}",
            kind="not_found",
        )
        raise advised(error, "name another quantisation, or another repository")
    return [listing.files[name] for name in names]


def _no_such_file(listing: Listing, hub: HubName) -> MemberError:
    ggufs = sorted(filter(_is_gguf, listing.files))
    models = [name for name in ggufs if _is_model(name)]
    if not models:
        error = MemberError(
            f"{hub.repository} has no GGUF model among its {len(listing.files)} files",
            kind="not_found",
        )
        return advised(
            error,
            f"name a repository with GGUF files; transformers loads {hub.repository!r} itself, "
            f"and vLLM 'vllm:{hub.repository}'",
        )
    what = "file" if _is_gguf(hub.wanted) else "quantisation"
    error = MemberError(f"{hub.repository} has no {what} {hub.wanted!r}", kind="not_found")
    listed = ", ".join(models[:30])
    more = f" and {len(models) - 30} more" if len(models) > 30 else ""
    return advised(error, f"it has {listed}{more}")


# --- fetching -------------------------------------------------------------------------------------


def _fetch(choice: Choice) -> Path:
    """Fetch what is missing of these files. Returns the path of the first one."""
    repository, commit = choice.repository, choice.commit
    missing = [file for file in choice.files if not _place(repository, commit, file).is_file()]
    if missing:
        missing = [_described(choice, file) for file in missing]
        folder = downloads(repository)
        absent = [file for file in missing if not (folder / file.blob).is_file()]
        if absent:
            _announce(absent, folder)
        folder.mkdir(parents=True, exist_ok=True)
        for file in missing:
            _fetch_blob(choice, file, folder / file.blob)
        _set_main(repository, commit)
    return _place(repository, commit, choice.files[0])


def _described(choice: Choice, file: HubFile) -> HubFile:
    """The file with its size and hash, which a mirror may leave out of its list."""
    if file.sha256 and file.size is not None:
        return file
    from huggingface_hub import constants, get_hf_file_metadata

    asked = get_hf_file_metadata(_address(choice, file), timeout=constants.HF_HUB_ETAG_TIMEOUT)
    size = file.size if file.size is not None else _bytes(asked.size)
    if size is None:
        raise _strange(f"does not tell the size of {file.name}")
    if file.sha256:
        return replace(file, size=size)
    if not _is_hash(asked.etag):
        raise _strange(
            f"sends {_cut(asked.etag)} as the ETag of {file.name}, which cannot name a file"
        )
    etag = str(asked.etag)
    sha256 = etag.lower() if _SHA256.fullmatch(etag.lower()) else None
    return replace(file, size=size, sha256=sha256, etag=etag)


def _address(choice: Choice, file: HubFile) -> str:
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(
        choice.repository, file.name, revision=choice.commit, endpoint=constants.ENDPOINT
    )


def _announce(files: Sequence[HubFile], folder: Path) -> None:
    """Say what is fetched, and refuse to fetch it if the disk has no room."""
    size = sum(file.size or 0 for file in files)
    there = sum(_size_of(_partial(folder / file.blob)) for file in files)
    amount = f"{size / 1e9:.2f} GB, once"
    if there:
        amount = f"{size / 1e9:.2f} GB, {there / 1e9:.2f} of it already there"
    count = f" and {len(files) - 1} more" if len(files) > 1 else ""
    print(
        f"langchain-specfuse: fetching {files[0].name}{count} ({amount}) into {folder.parent}",
        file=sys.stderr,
        flush=True,
    )
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < size - there:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def _partial(blob: Path) -> Path:
    return blob.with_name(f"{blob.name}.incomplete")


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _fetch_blob(choice: Choice, file: HubFile, blob: Path) -> None:
    """Fetch a file into the cache, or continue an interrupted attempt. It appears there when it is
    complete and has the right hash."""
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    repository = choice.repository
    locks = Path(constants.HF_HUB_CACHE, ".locks", _folder(repository).name)
    locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{blob.name}.lock"):
        place = _place(repository, choice.commit, file)
        if place.is_file():  # another process has fetched it
            return
        if not blob.is_file():
            _download(_address(choice, file), file, _partial(blob))
            _partial(blob).replace(blob)
        _show(blob, place)


def _download(url: str, file: HubFile, path: Path) -> None:
    """Fetch ``file`` into ``path``, after the bytes that are there already, and check its hash."""
    size = file.size or 0
    # Without a hash, nothing would say whether an earlier attempt had the beginning of this file.
    if path.is_symlink() or file.sha256 is None or _size_of(path) > size:
        path.unlink(missing_ok=True)
    if size > LARGEST:
        _download_large(url, file, path)
    else:
        _download_usual(url, file, path)
    if file.sha256 is None:
        return
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    if digest != file.sha256:
        path.unlink()
        error = MemberError(
            f"{file.name} is damaged: its SHA-256 is {digest}, and the hub lists {file.sha256}"
        )
        raise advised(error, "fetch it again; if that does not help, the hub's copy is damaged")


def _download_usual(url: str, file: HubFile, path: Path) -> None:
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    try:
        with path.open("ab") as opened:
            http_get(
                url,
                _Limited(opened, file),  # type: ignore[arg-type]
                resume_size=opened.tell(),
                # The beginning of a compressed file could not be continued.
                headers=build_hf_headers(headers={"Accept-Encoding": "identity"}),
                expected_size=file.size,
                displayed_filename=file.name,
            )
    except MemberError:
        path.unlink()
        raise


class _Limited:
    """An open file that takes no more bytes than the hub lists. huggingface_hub counts them when
    all have arrived."""

    def __init__(self, opened: BinaryIO, file: HubFile) -> None:
        self._opened, self._file = opened, file
        self.seek, self.tell, self.truncate = opened.seek, opened.tell, opened.truncate

    def write(self, content: bytes) -> int:
        size = self._file.size or 0
        if self.tell() + len(content) > size:
            raise _strange(f"sends more than the {size} bytes that it lists for {self._file.name}")
        return self._opened.write(content)


def _download_large(url: str, file: HubFile, path: Path) -> None:
    """Fetch a file by the hub's own protocol, from the beginning."""
    from huggingface_hub import constants, get_hf_file_metadata
    from huggingface_hub.file_download import xet_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    imported("hf_xet", f"{file.name}, which has more than 50 GB,", "hub")
    metadata = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    source = metadata.xet_file_data
    if source is None:
        raise _strange(f"does not offer {file.name} over Xet, its protocol for files above 50 GB")
    route = urljoin(constants.ENDPOINT, source.refresh_route)
    if _origin(route) != _origin(constants.ENDPOINT):  # it would get the token
        raise _strange(
            f"names another host for {file.name}, which would get your token: {_cut(route)}"
        )
    xet_get(
        incomplete_path=path,
        xet_file_data=replace(source, refresh_route=route),
        headers=build_hf_headers(),
        expected_size=file.size,
        displayed_filename=file.name,
    )


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()


def _show(blob: Path, place: Path) -> None:
    """Let the cache show a blob under the file's name, as huggingface_hub does: by a link or, on a
    system without links, by moving it there."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import are_symlinks_supported

    place.parent.mkdir(parents=True, exist_ok=True)
    if are_symlinks_supported(constants.HF_HUB_CACHE):
        place.unlink(missing_ok=True)  # a link to nothing
        place.symlink_to(os.path.relpath(blob, place.parent))
    else:
        blob.replace(place)


def _set_main(repository: str, commit: str) -> None:
    """Remember the commit at which the hub was last asked."""
    main = _folder(repository) / "refs" / "main"
    main.parent.mkdir(parents=True, exist_ok=True)
    written = main.with_name(f"main.{uuid.uuid4().hex}.tmp")
    written.write_text(commit)
    written.replace(main)


# --- errors ---------------------------------------------------------------------------------------


def explained(error: Exception, name: str) -> SpecFuseError:
    """The error for a file that could not be fetched, in words that say what to do. ``name`` may
    also be a hub id, which transformers or vLLM loads."""
    from huggingface_hub import constants, errors

    repository = parsed(name).repository if is_hub_name(name) else name
    address = f"{constants.ENDPOINT}/{repository}"
    hint = None if is_hub_name(name) else hint_for(name)

    def failed(message: str, advice: str, kind: str = "error") -> MemberError:
        failure = MemberError(message, kind=kind)
        if hint is not None:
            advised(failure, hint)
        return advised(failure, advice)

    if isinstance(error, errors.GatedRepoError):
        return failed(
            f"{repository} is gated, and the hub does not know that you may read it",
            f"accept its licence at {address}, then log in: hf auth login, or set HF_TOKEN",
            "not_found",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return failed(
            f"the hub {constants.ENDPOINT} has no repository {repository}, or it is private",
            f"check the name at {address}; for a private one log in: hf auth login, or HF_TOKEN",
            "not_found",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return failed(
            f"{repository} has no such revision: {shown(error)}",
            f"name a branch, a tag or a commit of {address}",
            "not_found",
        )
    if isinstance(error, errors.HFValidationError):
        return failed(
            f"{repository!r} cannot be a repository: {shown(error)}",
            "for example 'hf:ggml-org/gemma-3-4b-it-GGUF'",
            "not_found",
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return failed(
            f"{name} is not in the hub's cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set",
            "fetch it once without HF_HUB_OFFLINE, or name a .gguf file",
            "not_found",
        )
    status = status_of(error)
    if status == 401:
        return failed(
            f"the hub {constants.ENDPOINT} refused the token for {repository}",
            "log in again (hf auth login), or correct or remove HF_TOKEN",
            "not_found",
        )
    if status is not None:
        return failed(
            f"the hub {constants.ENDPOINT} refused {name}: {shown(error)}",
            "try again later; HF_ENDPOINT names another hub",
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return failed(
            f"there is no room for {name} in {constants.HF_HUB_CACHE}: {error.strerror}",
            "free some space there, or name another folder: HF_HOME=/some/folder",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return failed(
            f"the hub's cache cannot be used: {error}",
            "name another folder: HF_HOME=/some/folder",
        )
    return failed(
        f"{name} is not in the hub's cache, and the hub {constants.ENDPOINT}"
        f"{through_proxy(constants.ENDPOINT)} cannot be reached ({shown(error)})",
        "try again when it can be reached: what was fetched is kept. HF_ENDPOINT names another hub",
    )
