"""GGUF files by their name on the Hugging Face hub: ``hf:user/model[:file or quantisation]``.

A name has the same meaning as for ``llama-server -hf``: without a quantisation it is ``Q4_K_M``,
else ``Q8_0``, else the first file. Case does not matter. If a model is split into several files,
all are fetched. Projectors, importance matrices and draft heads are skipped.

huggingface_hub asks the hub, and its cache keeps the files, so other programs share them. One part
is done here: huggingface_hub 2 starts an interrupted download from zero and compares only its size.
Here the next attempt resumes the download, and the whole file must have the SHA-256 that the hub
lists.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

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

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_SHA256 = re.compile(r"[0-9a-f]{64}")


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


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    commit: str | None
    files: dict[str, HubFile]


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
    there = [
        path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()
    ]
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


def is_cached(model: str) -> bool:
    """Whether the hub's cache has the config of this model."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(model, "config.json"), str)


def _snapshot(repository: str) -> Path | None:
    """The folder with the repository's files as they were when the hub was last asked."""
    folder = _folder(repository)
    try:
        commit = (folder / "refs" / "main").read_text().strip()
    except (OSError, ValueError):  # there is none, or it is damaged
        return None
    return folder / "snapshots" / commit if commit.isalnum() else None


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
    hub = parsed(name)
    imported("huggingface_hub", f"the model {name!r}", "hub")
    try:
        listing = _listing(hub.repository, timeout_s=timeout_s)
        files = _named(listing, hub)
        if sha256 not in (None, files[0].sha256):
            another = MemberError(f"{name} has the SHA-256 {files[0].sha256}, not {sha256}")
            raise advised(another, "name the file that you mean")
        path = _fetch(hub.repository, listing.commit, files)
    except SpecFuseError:
        raise
    except Exception as error:  # the HTTP client and the file system may raise anything
        path = _without_hub(name, error, sha256)
    log.info("%s is %s", name, path)
    return path


def _without_hub(name: str, error: Exception, sha256: str | None) -> Path:
    """The file in the cache, if the hub failed with this error."""
    path = cached(name, sha256=sha256)
    if path is None:
        raise explained(error, name) from error
    from huggingface_hub.errors import OfflineModeIsEnabled

    wanted = isinstance(error, OfflineModeIsEnabled)
    level = logging.INFO if wanted else logging.WARNING
    log.log(level, "%s: using the cached file, because the hub sent none: %s", name, shown(error))
    return path


def found(name: str) -> list[HubFile]:
    """The files that ``fetched`` would fetch, with their sizes, as the hub lists them."""
    imported("huggingface_hub", f"the model {name!r}", "hub")
    hub = parsed(name)
    try:
        return _named(_listing(hub.repository), hub)
    except SpecFuseError:
        raise
    except Exception as error:
        raise explained(error, name) from error


def beginning(name: str, size: int) -> tuple[list[HubFile], bytes]:
    """The files that ``fetched`` would fetch, with their sizes, and the first bytes of the first
    one."""
    imported("huggingface_hub", f"the model {name!r}", "hub")
    from huggingface_hub import constants
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    repository = parsed(name).repository
    try:
        listing = _listing(repository)
        files = [
            _described(repository, listing.commit, file) for file in _named(listing, parsed(name))
        ]
        address = _address(repository, listing.commit, files[0])
        # The beginning of a compressed file could not be read.
        headers = build_hf_headers(
            headers={"Range": f"bytes=0-{size - 1}", "Accept-Encoding": "identity"}
        )
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        session = get_session()
        with session.stream("GET", address, headers=headers, timeout=timeout) as answer:
            hf_raise_for_status(answer)
            content = b""
            for part in answer.iter_bytes():  # all of the file, from a mirror without ranges
                content += part
                if len(content) >= size:
                    break
    except SpecFuseError:
        raise
    except Exception as error:
        raise explained(error, name) from error
    return files, content[:size]


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
    from huggingface_hub import HfApi, constants

    info = HfApi(endpoint=constants.ENDPOINT).model_info(
        repository,
        revision=revision,
        files_metadata=True,
        timeout=timeout_s or constants.HF_HUB_ETAG_TIMEOUT,
    )
    files = {}
    for file in info.siblings or ():
        sha256 = (file.lfs.sha256 if file.lfs else "") or ""
        listed = HubFile(file.rfilename, file.size, sha256.lower() or None)
        if _is_safe(listed):
            files[listed.name] = listed
    return Listing(info.sha, files)


def _is_safe(file: HubFile) -> bool:
    """Whether the file stays in its folder, its name can be printed, and its hash is one. A hub may
    list anything."""
    name = file.name
    is_inside = ".." not in re.split(r"[/\\]", name) and not name.startswith(("/", "\\"))
    is_hashed = file.sha256 is None or _SHA256.fullmatch(file.sha256) is not None
    return is_inside and name.isprintable() and is_hashed


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


def _fetch(repository: str, commit: str | None, files: Sequence[HubFile]) -> Path:
    """Fetch what is missing of these files. Returns the path of the first one."""
    paths = [_in_snapshot(repository, commit, file) for file in files]
    missing = [file for file, path in zip(files, paths, strict=True) if path is None]
    if missing:
        missing = [_described(repository, commit, file) for file in missing]
        folder = downloads(repository)
        _announce(missing, folder)
        for file in missing:
            blob = folder / file.sha256 if file.sha256 else None
            if blob and (file.size or 0) <= LARGEST:
                _fetch_blob(repository, commit, file, blob)
            if not _link(repository, file).is_symlink() and blob:
                with suppress(OSError):  # another process may be copying it, too
                    blob.unlink()  # a system without links: the file was copied
    path = paths[0] or _in_snapshot(repository, commit, files[0])
    if path is None:  # the repository has changed since it was listed
        path = _link(repository, files[0])
    return path


def _in_snapshot(repository: str, commit: str | None, file: HubFile) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, file.name, revision=commit) if commit else None
    return Path(path) if isinstance(path, str) and os.path.exists(path) else None


def _described(repository: str, commit: str | None, file: HubFile) -> HubFile:
    """The file with its size and hash, which a mirror may leave out of its list."""
    if file.sha256 and file.size:
        return file
    from huggingface_hub import constants, get_hf_file_metadata

    asked = get_hf_file_metadata(
        _address(repository, commit, file), timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    etag = asked.etag or ""
    sha256 = etag if _SHA256.fullmatch(etag) else None
    return replace(file, size=file.size or asked.size, sha256=file.sha256 or sha256)


def _address(repository: str, commit: str | None, file: HubFile) -> str:
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(repository, file.name, revision=commit, endpoint=constants.ENDPOINT)


def _announce(files: Sequence[HubFile], folder: Path) -> None:
    """Say what is fetched, and refuse to fetch it if the disk has no room."""
    size = sum(file.size or 0 for file in files)
    there = sum(_size_of(_partial(folder / file.sha256)) for file in files if file.sha256)
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


def _fetch_blob(repository: str, commit: str | None, file: HubFile, blob: Path) -> None:
    """Fetch a file into the cache, or continue an interrupted attempt. It appears there when it is
    complete and has the right hash."""
    from huggingface_hub import constants
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    locks = Path(constants.HF_HUB_CACHE, ".locks", _folder(repository).name)
    locks.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(locks / f"{blob.name}.lock"):
        if not blob.exists() and _in_snapshot(repository, commit, file) is None:
            download(_address(repository, commit, file), file, _partial(blob))
            _partial(blob).replace(blob)


def download(url: str, file: HubFile, path: Path) -> None:
    """Fetch ``file`` into ``path``, after the bytes that are there already, and check its hash."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    if file.size is not None and _size_of(path) > file.size:
        path.unlink()
    with path.open("ab") as opened:
        http_get(
            url,
            opened,
            resume_size=opened.tell(),
            # The beginning of a compressed file could not be continued.
            headers=build_hf_headers(headers={"Accept-Encoding": "identity"}),
            expected_size=file.size,
            displayed_filename=file.name,
        )
    with path.open("rb") as written:
        digest = hashlib.file_digest(written, "sha256").hexdigest()
    if digest != file.sha256:
        path.unlink()
        error = MemberError(
            f"{file.name} is damaged: its SHA-256 is {digest}, and the hub lists {file.sha256}"
        )
        raise advised(error, "fetch it again; if that does not help, the hub's copy is damaged")


def _link(repository: str, file: HubFile) -> Path:
    """Let the cache show the file under its name. huggingface_hub fetches it if it is missing."""
    from huggingface_hub import constants, hf_hub_download

    return Path(
        hf_hub_download(
            repository,
            file.name,
            endpoint=constants.ENDPOINT,
            etag_timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
    )


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
