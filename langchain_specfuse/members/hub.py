"""GGUF files by their name on the Hugging Face hub: ``hf:user/model[:file or quantisation]``.

A name has the same meaning as for ``llama-server -hf``: without a quantisation it is ``Q4_K_M``,
else ``Q8_0``, else the first file. Case does not matter. If a model is split into several files,
all are fetched. Projectors, importance matrices and draft heads are skipped.

huggingface_hub lists, fetches and keeps the files, so other programs share them.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.call import shown
from ..errors import MemberError, SpecFuseError, UsageError, advised, imported
from .chat_model.names import hint_for
from .network import through_proxy

log = logging.getLogger("langchain_specfuse")

PREFIX = "hf:"
USUAL = ("Q4_K_M", "Q8_0")
"""The quantisations that llama.cpp looks for, in this order, if the name has none."""
SIDECARS = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
"""A file whose name contains one of these is not a model, by llama.cpp's rule."""

_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class HubName:
    """The parts of a name."""

    repository: str
    wanted: str = ""
    """A file or a quantisation; empty for the usual one."""


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


# --- files ----------------------------------------------------------------------------------------


def fetched(name: str) -> Path:
    """The file with this name, from the hub or its cache; the first one of a split model.

    The hub is asked whether there is a newer file. If it does not answer, the file in the cache is
    taken.
    """
    imported("huggingface_hub", f"the model {name!r}", "hub")
    from huggingface_hub import errors, hf_hub_download

    hub = parsed(name)
    try:
        files = _chosen(hub, _listed(hub.repository))
        path, *_others = [Path(hf_hub_download(hub.repository, file)) for file in files]
    except SpecFuseError:
        raise
    except Exception as error:  # the HTTP client and the file system may raise anything
        kept = cached(name)
        if kept is None:
            raise _not_fetched(error, name, hub.repository) from error
        path = kept
        if not isinstance(error, errors.OfflineModeIsEnabled):
            log.warning("%s: the cached file is used; the hub says: %s", name, shown(error))
    log.info("%s is %s", name, path)
    return path


def on_hub(model: str, revision: str | None) -> str:
    """What transformers should load: ``model`` itself, or its folder in the hub's cache if the hub
    cannot be reached.

    Tries once. transformers would try six times for each file, which takes a minute without a
    network.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        if not os.path.exists(model):
            get_hf_file_metadata(hf_hub_url(model, "config.json", revision=revision))
    except (errors.HFValidationError, errors.HfHubHTTPError):
        pass  # transformers says what is wrong
    except Exception as error:  # the HTTP client may raise anything
        kept = cached_file(model, "config.json", revision)
        if kept is not None:
            return str(kept.parent)
        absent = _not_fetched(error, model, model)
        hint = hint_for(model)
        raise (absent if hint is None else advised(absent, hint)) from error
    return model


def _listed(repository: str, revision: str | None = None) -> list[str]:
    """The files of a repository on the hub."""
    from huggingface_hub import HfApi, constants

    timeout = constants.HF_HUB_ETAG_TIMEOUT
    about = HfApi().model_info(repository, revision=revision, timeout=timeout)
    return [file.rfilename for file in about.siblings or ()]


def _chosen(hub: HubName, names: Sequence[str]) -> list[str]:
    """The files of this repository that the name means."""
    chosen = files_for(names, hub.wanted)
    if chosen:
        return chosen
    models = sorted(name for name in names if _is_gguf(name) and _is_model(name))
    if not models:
        none = MemberError(f"{hub.repository} has no GGUF model", kind="not_found")
        others = f"transformers loads {hub.repository!r}, and vLLM 'vllm:{hub.repository}'"
        raise advised(none, f"name a repository with GGUF files; {others}")
    what = "file" if _is_gguf(hub.wanted) else "quantisation"
    unknown = MemberError(f"{hub.repository} has no {what} {hub.wanted!r}", kind="not_found")
    raise advised(unknown, f"it has {', '.join(models)}")


def has_only_gguf(repository: str, revision: str | None = None) -> bool:
    """Whether this repository has GGUF files and no weights that transformers loads. False where
    the hub does not answer, and for a folder."""
    if os.path.exists(repository):
        return False
    try:
        names = _listed(repository, revision)
    except Exception:
        return False
    return any(map(_is_gguf, names)) and not any(name.endswith(".safetensors") for name in names)


def _not_fetched(error: Exception, name: str, repository: str) -> MemberError:
    """The error for a file that is not in the cache and could not be fetched."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository}"
    log_in = "log in: hf auth login, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        gated = MemberError(f"{repository} is gated, and you may not read it", kind="not_found")
        return advised(gated, f"accept its licence at {page}, then {log_in}")
    if isinstance(error, errors.RepositoryNotFoundError):
        unknown = MemberError(
            f"the hub {constants.ENDPOINT} has no repository {repository}, or it is private",
            kind="not_found",
        )
        return advised(unknown, f"check the name at {page}; for a private one {log_in}")
    is_offline = isinstance(error, errors.OfflineModeIsEnabled)
    failed = MemberError(
        f"{name} is neither here nor in the hub's cache {constants.HF_HUB_CACHE}, and cannot be "
        f"fetched from {constants.ENDPOINT}{through_proxy(constants.ENDPOINT)}: {shown(error)}",
        kind="not_found" if is_offline else "error",
    )
    if is_offline:
        return advised(failed, "unset HF_HUB_OFFLINE, or name a file or a folder on this disk")
    ways = "HF_ENDPOINT names another hub, HF_HOME another place for the cache"
    return advised(failed, f"try again later; {ways}")


# --- the cache ------------------------------------------------------------------------------------


def cached(name: str) -> Path | None:
    """The file with this name in the hub's cache, without asking the hub; None if it is not there,
    or not completely."""
    hub = parsed(name)
    try:
        folder = _folder(hub.repository)
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        found = [path for path in snapshot.rglob("*") if path.is_file()]
    except (ImportError, OSError):  # there is none
        return None
    there = [path.relative_to(snapshot).as_posix() for path in found]
    parts = files_for(there, hub.wanted)
    part = _PART.fullmatch(parts[0]) if parts else None
    count = int(part["count"]) if part else 1
    return snapshot / parts[0] if len(parts) == count else None


def cached_file(repository: str, name: str, revision: str | None = None) -> Path | None:
    """A file of this repository in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, name, revision=revision)
    return Path(path) if isinstance(path, str) else None


def _folder(repository: str) -> Path:
    from huggingface_hub import constants

    separator = constants.REPO_ID_SEPARATOR
    return Path(constants.HF_HUB_CACHE, f"models--{repository}".replace("/", separator))
