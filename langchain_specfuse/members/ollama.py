"""Finds the GGUF file of a model that Ollama keeps on this disk: ``ollama:llama3.2``.

Ollama's store has a manifest per name and tag, which lists the model's parts by their SHA-256, and
a blob per part. Only the GGUF file is read here, with the chat template and the tokens in it.
Ollama's own template, system prompt and parameters are other parts, and are not used.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import MemberError, UsageError, advised, meant

PREFIX = "ollama:"
REGISTRY, NAMESPACE, TAG = "registry.ollama.ai", "library", "latest"
"""What a short name leaves out."""
MODEL = "application/vnd.ollama.image.model"
ADAPTER = "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256:[0-9a-f]+")


def is_ollama_name(name: object) -> bool:
    """Whether this names a model of Ollama."""
    return isinstance(name, str) and name.startswith(PREFIX)


def stores() -> list[Path]:
    """The folders in which Ollama keeps models: the user's, and that of its service on Linux."""
    chosen = os.environ.get("OLLAMA_MODELS")
    if chosen:
        return [Path(chosen).expanduser()]
    # os.path.expanduser raises nothing where the user has no home.
    home = os.path.expanduser("~")
    return [Path(home, ".ollama", "models"), Path("/usr/share/ollama/.ollama/models")]


def cached(name: str) -> Path | None:
    """The GGUF file of this model; None if it is not on this disk."""
    try:
        return located(name)
    except (MemberError, UsageError):
        return None


def without_server(name: str) -> str | None:
    """How to use this model without Ollama's server; None if it is not on this disk."""
    file = cached(name)
    if file is None:
        return None
    link = shlex.join(["ln", "-s", str(file), f"{plain_name(name)}.gguf".replace(":", "-")])
    in_shell = f"in the shell, name a link to it as the member: {link}"
    return f"without Ollama, LlamaCppMember({name!r}) reads its file in place; {in_shell}"


def located(name: str) -> Path:
    """The GGUF file of this model."""
    place = _place(name)
    for store in stores():
        manifest = store / "manifests" / place
        if _is_file(manifest):
            return _model_in(store, manifest, name)
    looked_in = " or ".join(map(str, stores()))
    error = MemberError(
        f"Ollama has no model {name.removeprefix(PREFIX)!r} in {looked_in}",
        kind="not_found",
    )
    fetch = f"ollama pull {name.removeprefix(PREFIX)}; another folder: OLLAMA_MODELS=/some/folder"
    raise advised(error, meant(name, _names(), fetch))


def plain_name(name: str) -> str:
    """What a member with this name is called.

    >>> plain_name("ollama:llama3.2"), plain_name("ollama:me/mine:1b")
    ('llama3.2', 'mine:1b')
    """
    return name.removeprefix(PREFIX).rpartition("/")[2]


def refuse_malformed(name: str) -> None:
    """Refuse a name that no model of Ollama's can have."""
    _place(name)


def _place(name: str) -> Path:
    """Where the manifest of this name is kept, in the folder of the manifests.

    >>> _place("ollama:llama3.2").as_posix(), _place("ollama:hf.co/me/mine-GGUF:Q8_0").as_posix()
    ('registry.ollama.ai/library/llama3.2/latest', 'hf.co/me/mine-GGUF/Q8_0')
    """
    *before, model = name.removeprefix(PREFIX).split("/")
    model, _, tag = model.partition(":")
    usual = [REGISTRY, NAMESPACE]
    parts = [*usual[: max(0, 2 - len(before))], *before, model, tag or TAG]
    if len(parts) == 4 and all(part.strip(".") for part in parts):
        return Path(*parts)
    error = UsageError(f"expected ollama:model or ollama:model:tag, got {name!r}")
    raise advised(error, "for example 'ollama:llama3.2'; `ollama list` shows the names")


def _model_in(store: Path, manifest: Path, name: str) -> Path:
    """The file that this manifest lists as the model."""
    layers = _layers(manifest)
    kinds = [layer.get("mediaType") for layer in layers]
    if ADAPTER in kinds:
        error = UsageError(f"{name} is a model with an adapter, in two files")
        raise advised(error, f"ask Ollama for it: ChatModelMember({name!r})")
    digests = [str(layer.get("digest")) for layer in layers if layer.get("mediaType") == MODEL]
    file = None
    # A registry may have sent anything: the file must be a blob.
    if len(digests) == 1 and _DIGEST.fullmatch(digests[0]):
        file = store / "blobs" / digests[0].replace(":", "-")
    if file is not None and _is_file(file):
        return file
    problem = "lists no GGUF file" if file is None else f"lists {file}, which does not exist"
    broken = MemberError(f"{manifest} {problem}", kind="not_found")
    advice = f"fetch it again, `ollama pull {name.removeprefix(PREFIX)}`, or ask Ollama for it: "
    raise advised(broken, f"{advice}ChatModelMember({name!r})")


def _layers(manifest: Path) -> list[Mapping[str, Any]]:
    """The parts of a model; none if the manifest cannot be read."""
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        return [layer for layer in layers if isinstance(layer, Mapping)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _names() -> Iterator[str]:
    """The names of all models in the stores."""
    for store in stores():
        for manifest in sorted((store / "manifests").glob("*/*/*/*")):
            registry, namespace, model, tag = manifest.parts[-4:]
            shown = model if tag == TAG else f"{model}:{tag}"
            if (registry, namespace) != (REGISTRY, NAMESPACE):
                shown = f"{namespace}/{shown}"
            if registry != REGISTRY:
                shown = f"{registry}/{shown}"
            yield f"{PREFIX}{shown}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a folder that only another user may read
        return False
