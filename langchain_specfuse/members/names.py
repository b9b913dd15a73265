"""The names of models: which kind of member a name means, and what cannot be a name.

Names in lists of members and the first arguments of member objects are checked here, so both are
refused with the same words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

from ..errors import MemberError, UsageError, advised, meant
from . import files as _files
from .chat_model.names import PROVIDERS
from .hub import PREFIX as HUB
from .hub import is_hub_name, parsed
from .network import refuse_secrets

Kind: TypeAlias = Literal["server", "vllm", "chat model", "gguf", "transformers"]
VLLM = "vllm:"
"""The beginning of a name of a model for vLLM."""
_ADDRESS = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d+([/#].*)?|localhost([/#].*)?")
"""An address without ``http://``."""
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
"""The beginning of an absolute path on Windows."""
_PATH = re.compile(r"([./~]|[A-Za-z]:/).*|.*/.*/.*|.*\\.*|.*(/|\.safetensors)")
"""A path, rather than a hub id."""
_REVISION = re.compile(r"([\w.-]+/[\w.-]+)@([\w./-]+)")
"""A hub id with a revision, as other programs write it."""
_PAGE = re.compile(
    r"(https?://)?(www\.)?(huggingface\.co|hf\.co)/(?P<model>[\w.-]+/[\w.-]+)(?P<rest>/.*)?"
)
"""The page of a model on the hub, or of one of its files."""
MEMBERS: dict[Kind, str] = {
    "server": "ServerMember",
    "vllm": "VllmMember",
    "chat model": "ChatModelMember",
    "gguf": "LlamaCppMember",
    "transformers": "TransformersMember",
}
"""The class of members for each kind of name."""


_MODEL = "a folder with a model, a .gguf file or a hub id"
_VLLM_MODEL = "a folder with a model, or a hub id"
_ADAPTER = "a folder with an adapter, or a hub id"
"""What errors say that a user may name: as a model, as a model on vLLM, and as an adapter."""


# --- kinds ----------------------------------------------------------------------------------------


def kind_of(name: str) -> Kind:
    """The kind of member that a name in a list means.

    >>> names = ["http://localhost:8000", "vllm:a/b", "ollama:llama3.2", "hf:a/b", "a/b"]
    >>> list(map(kind_of, names))
    ['server', 'vllm', 'chat model', 'gguf', 'transformers']
    """
    if is_server(name):
        return "server"
    if is_vllm(name):
        return "vllm"
    if is_chat_model(name):
        return "chat model"
    return "gguf" if is_gguf(name) else "transformers"


def is_server(name: Any) -> bool:
    """Whether this is the address of a server: ``http://host:8000/v1#model``."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def is_vllm(name: Any) -> bool:
    """Whether this names a model for a vLLM server that this process starts:
    ``vllm:org/model``."""
    return isinstance(name, str) and name.startswith(VLLM)


def is_gguf(name: Any) -> bool:
    """Whether this is a ``.gguf`` file, here or on the hub, which llama.cpp reads."""
    return is_hub_name(name) or (isinstance(name, str) and name.lower().endswith(".gguf"))


def is_chat_model(name: Any) -> bool:
    """Whether this names a chat model as LangChain's ``init_chat_model`` does: ``provider:model``.

    >>> names = ["ollama:llama3.2", "Qwen/Qwen3-0.6B", "C:/models/a.gguf"]
    >>> [is_chat_model(name) for name in names]
    [True, False, False]
    """
    if not isinstance(name, str):
        return False
    provider, _, model = name.partition(":")
    return provider in PROVIDERS and model != ""


def split_adapter(name: str) -> tuple[str, str | None]:
    """The base and the adapter in ``base+adapter``. A path that exists is never split.

    >>> split_adapter("Qwen/Qwen2.5-0.5B-Instruct+./adapters/law")
    ('Qwen/Qwen2.5-0.5B-Instruct', './adapters/law')
    >>> split_adapter("Qwen/Qwen2.5-0.5B-Instruct")
    ('Qwen/Qwen2.5-0.5B-Instruct', None)
    >>> split_adapter("vllm:Qwen/Qwen3-8B+./adapters/law")
    ('vllm:Qwen/Qwen3-8B', './adapters/law')
    """
    if "+" not in name or is_server(name) or is_chat_model(name):
        return name, None
    if is_vllm(name):
        base, adapter = _split_path(name.removeprefix(VLLM))
        return VLLM + base, adapter
    return _split_path(name)


@lru_cache(maxsize=1024)
def _split_path(name: str) -> tuple[str, str | None]:
    """Split ``base+adapter`` at a plus that does not belong to an existing path. The result is
    cached, because this looks for files, and every call splits the names again, even on an event
    loop."""
    cuts = [at for at, sign in enumerate(name) if sign == "+"]
    existing = [at for at in (*cuts, len(name)) if os.path.exists(os.path.expanduser(name[:at]))]
    if len(name) in existing:
        return name, None
    at = (existing or cuts)[0]
    return name[:at], name[at + 1 :]


# --- checks ---------------------------------------------------------------------------------------


def check_name(name: str) -> None:
    """Refuse a text that cannot name a model, whatever would read it."""
    if not name.strip():
        error = UsageError(f"a member's name is empty, got {name!r}")
        raise advised(error, "name a model, for example 'Qwen/Qwen3-0.6B'")
    address = re.search(r"\w+://.*", name)  # also that of an adapter: base+https://...
    if address:
        refuse_secrets(address[0])
    if is_hub_name(name):
        parsed(split_adapter(name)[0])
    if is_vllm(name):
        _check_vllm_name(name)
    _refuse_page(name)
    if is_server(name) and not urlsplit(name).hostname:
        error = UsageError(f"{name!r} does not name a server")
        raise advised(error, "for example 'http://localhost:8000/v1#my-model'")


def _check_vllm_name(name: str) -> None:
    model = split_adapter(name.removeprefix(VLLM))[0]
    if not model.strip():
        error = UsageError(f"{name!r} does not name a model")
        raise advised(error, "for example 'vllm:Qwen/Qwen3-8B'")
    if is_gguf(model):
        error = UsageError(f"{VLLM} takes a hub id or a folder, got the GGUF file {model!r}")
        raise advised(error, f"llama.cpp reads it: {model!r}")


def _refuse_page(name: str) -> None:
    """Refuse the address of a page of the hub, which people copy from their browsers."""
    page = _PAGE.fullmatch(name)
    if page is None:
        return
    model, file = page["model"], (page["rest"] or "").rpartition("/")[2]
    error = UsageError(f"{name!r} is a page of the hub, not a model or a server")
    if is_gguf(file):
        raise advised(error, f"the file on it is {f'{HUB}{model}:{file}'!r}")
    advice = f"the model on it is {model!r}, or {HUB + model!r} if it has GGUF files"
    raise advised(error, f"{advice}; on vLLM it is {VLLM + model!r}")


def check_argument(name: str, member: str, takes: Collection[Kind], expected: str) -> None:
    """Refuse the first argument of a member object if it cannot be a name, or is one for another
    class.

    ``member``: the class. ``takes``: the kinds of names that it reads. ``expected``: the same in
    words.

    >>> check_argument("vllm:a/b", "LlamaCppMember", ["gguf"], "a .gguf file")
    Traceback (most recent call last):
    langchain_specfuse.errors.UsageError: LlamaCppMember takes a .gguf file, got 'vllm:a/b'
    -> VllmMember('a/b') reads it
    """
    check_name(name)
    kind = kind_of(name)
    if "transformers" in takes and os.path.isdir(os.path.expanduser(name)):
        return  # whatever its name looks like
    if kind not in takes:
        error = UsageError(f"{member} takes {expected}, got {name!r}")
        shown = f"{MEMBERS[kind]}({name.removeprefix(VLLM)!r})"
        if MEMBERS[kind] == member:
            raise advised(error, f"leave out {VLLM!r}: {shown}")
        raise advised(error, f"{shown} reads it")
    if kind == "transformers":
        refuse_other_kinds(name)


def refuse_mistaken(model: str, name: str) -> None:
    """Refuse a text that cannot name the model of the member ``name``, before an engine is imported
    or started, and before a download fails. The name of a ``.gguf`` file is not checked here."""
    if is_vllm(model):
        _refuse_mistaken(model.removeprefix(VLLM), name, _VLLM_MODEL)
    else:
        _refuse_mistaken(model, name, _MODEL)


def refuse_mistaken_adapter(adapter: str, name: str) -> None:
    """Refuse a text that cannot name an adapter of the member ``name``."""
    _refuse_mistaken(adapter, name, _ADAPTER)


def _refuse_mistaken(model: str, name: str, expected: str) -> None:
    """``expected``: what may be named, in words."""
    path = Path(model).expanduser()
    refuse_other_kinds(model)
    if _REVISION.fullmatch(model) and not path.exists():
        raise _named_revision(model, expected)
    if path.is_file():
        lacks = "but not a .gguf file" if expected == _MODEL else "not a folder"
        error = UsageError(f"{model!r} is a file, {lacks}")
        whatever = f"LlamaCppMember({model!r}) reads a GGUF file of any name"
        raise advised(error, f"name {expected}; {whatever}")
    if path.is_dir():
        _files.refuse_unsafe(path)
    elif _PATH.fullmatch(model) and not path.exists():
        missing = MemberError(f"{path.absolute()} does not exist", member=name, kind="not_found")
        raise advised(missing, f"name {expected}")


def refuse_other_kinds(model: str) -> None:
    """Refuse a text that was meant as an address or as ``provider:model``."""
    if _ADDRESS.fullmatch(model):
        error = UsageError(f"{model!r} is not a model")
        raise advised(error, f"a server's address begins with http: 'http://{model}'")
    if ":" in model and not _WINDOWS.match(model) and not Path(model).expanduser().exists():
        raise _unknown_provider(model)


def _named_revision(model: str, expected: str) -> UsageError:
    error = UsageError(f"{model!r} names a revision, which no hub id contains")
    hub_id, _, revision = model.partition("@")
    if expected == _ADAPTER:
        return advised(error, f"{hub_id!r} is that of the main branch; for another one, fetch it")
    member, where = "TransformersMember", "model_kwargs"
    if expected == _VLLM_MODEL:
        member, where = "VllmMember", "engine_args"
    given = {"revision": revision}
    return advised(error, f"name it apart: {member}({hub_id!r}, {where}={given})")


def _unknown_provider(model: str) -> UsageError:
    """The error for ``provider:model`` with a provider that LangChain does not have."""
    provider, _, rest = model.partition(":")
    if not rest:
        unnamed = UsageError(f"{model!r} does not name a model")
        return advised(unnamed, "for example 'ollama:llama3.2'")
    error = UsageError(f"LangChain has no provider {provider!r}")
    if rest.startswith("//"):
        return advised(error, "a server's address begins with http:// or https://")
    ollama = f"an Ollama model is named 'ollama:{model}'"
    return advised(error, meant(provider.lower(), (*PROVIDERS, "hf", "vllm"), ollama, cutoff=0.8))
