"""References to members: the ways in which a user can write a member, and the names that follow.

A reference is a text (a hub id, a folder, a file, ``hf:...``, ``vllm:...``, ``base+adapter``, an
address, ``provider:model``), a dict of arguments, a chat model or a member object. References are
checked as far as possible without loading anything. :mod:`.members` makes members from them.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from ..errors import MemberError, UsageError, advised
from ..members import files as _files
from ..members.chat_model.member import ChatModelMember
from ..members.chat_model.names import PROVIDERS, name_of
from ..members.hub import is_hub_name, parsed, plain_name
from ..members.network import refuse_secrets
from ..secret_values import found_in, is_secret, masked, remember

Reference: TypeAlias = Any
"""A member as the user wrote it: a hub id, folder, file, ``base+adapter``, address, a dict of
arguments, an object."""

VLLM = "vllm:"
"""The beginning of a name of a model for vLLM."""
_ADDRESS = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d+([/#].*)?|localhost([/#].*)?")
"""An address without ``http://``."""
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
"""The beginning of an absolute path on Windows."""
_PATH = re.compile(r"([./~]|[A-Za-z]:/).*|.*/.*/.*|.*\\.*|.*(/|\.safetensors)")
"""A path, rather than a hub id."""


class Arguments(Mapping[str, Any]):
    """A member's arguments that contain secrets. The member gets the secrets; traces, reprs and
    JSON do not."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(masked(self._values))


def members_list(value: Any, field: str) -> list[Any]:
    """Check a list of members, as far as possible without loading them."""
    expected = (
        f"{field} must be a list of hub ids, folders, .gguf files, servers' addresses, names such "
        "as 'hf:user/model', 'vllm:org/model' and 'openai:gpt-4.1-mini', chat models, dicts or "
        "member objects"
    )
    if value is None:
        error = UsageError(f"{expected}, got None")
        raise advised(error, "name one, for example members=['model.gguf']")
    if not isinstance(value, list | tuple):
        error = UsageError(f"{expected}, got {masked(value)!r:.200}")
        raise advised(error, f"put it into a list: {field}=[...]")
    if not value and field == "members":
        error = UsageError(f"{expected}, at least one; got none")
        raise advised(error, "name one, for example 'Qwen/Qwen3-0.6B'")
    return [checked_member(member) for member in value]


def checked_member(reference: Reference) -> Reference:
    """Check a reference to a member. Returns it, with paths as strings."""
    if isinstance(reference, os.PathLike):
        reference = os.fspath(reference)
    if isinstance(reference, str):
        return _checked_name(reference)
    if isinstance(reference, Mapping):
        return _checked_dict(reference)
    if isinstance(reference, BaseChatModel):
        return reference
    # Look at the type, not at the object: `device` may be unknown before the member is loaded.
    needed = ("probe", "draft", "score", "forget")
    is_member = all(callable(getattr(type(reference), name, None)) for name in needed)
    if is_member and isinstance(getattr(reference, "name", None), str):
        return reference
    raise _not_a_member(reference)


def _not_a_member(value: Any) -> UsageError:
    kinds = (
        "a hub id, a folder, a .gguf file, an address, a chat model, a dict or an object like "
        "Member"
    )
    error = UsageError(f"a member is {kinds}, got {value!r:.80} ({type(value).__name__})")
    if isinstance(value, Runnable):
        example = "ChatOllama(model='qwen3', num_ctx=8192)"
        return advised(error, f"pass the chat model itself, with its settings, no chain: {example}")
    if isinstance(value, type):
        return advised(error, f"that is a class: make an object of it, {value.__name__}(...)")
    return advised(error, "a model that is already loaded: TransformersMember(model, tokenizer)")


def _checked_name(name: str) -> str:
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
    if is_server(name) and not urlsplit(name).hostname:
        error = UsageError(f"{name!r} does not name a server")
        raise advised(error, "for example 'http://localhost:8000/v1#my-model'")
    if _WINDOWS.match(name) and os.name != "nt" and not os.path.exists(name):
        error = UsageError(f"there is no model {name!r}")
        in_wsl = f"/mnt/{name[0].lower()}{PureWindowsPath(name).as_posix()[2:]}"
        raise advised(error, f"it is a Windows path; in WSL it is {in_wsl}")
    return name


def _check_vllm_name(name: str) -> None:
    model = split_adapter(name.removeprefix(VLLM))[0]
    if not model.strip():
        error = UsageError(f"{name!r} does not name a model")
        raise advised(error, "for example 'vllm:Qwen/Qwen3-8B'")
    if is_gguf(model):
        error = UsageError(f"{VLLM} takes a hub id or a folder, got the GGUF file {model!r}")
        raise advised(error, f"llama.cpp reads it: {model!r}")


def _checked_dict(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    remember(arguments)
    if "model" not in arguments:
        error = UsageError(
            f"a member given as a dict needs a 'model', got only {sorted(map(str, arguments))}"
        )
        example = {"model": "Qwen/Qwen2.5-0.5B-Instruct", "dtype": "bfloat16"}
        raise advised(error, f"for example {example}")
    secret = next((key for key in arguments if is_secret(key)), None)
    if secret is not None:
        error = UsageError(
            f"a member given as a dict must not hold {secret!r}: traces show all its values"
        )
        variable = "put a server's key into the environment variable SPECFUSE_API_KEY"
        raise advised(error, f"{variable}, or name another: api_key_env=")
    checked = dict(arguments)
    for key, value in arguments.items():
        if isinstance(value, os.PathLike):
            checked[key] = os.fspath(value)
    for key in ("model", "adapter"):
        if isinstance(checked.get(key), str):
            _checked_name(checked[key])
    return Arguments(checked) if any(found_in(checked)) else checked


def check_prices(references: Iterable[Reference], names: Iterable[str]) -> None:
    """Refuse chat models without a price, because their costs cannot be limited."""
    for reference, name in zip(references, names, strict=True):
        if isinstance(reference, Mapping):
            model, price = reference.get("model"), reference.get("price")
        else:
            model, price = reference, getattr(reference, "price", None)
        is_billed = is_chat_model(model) or isinstance(model, BaseChatModel | ChatModelMember)
        if is_billed and price is None:
            error = UsageError(f"max_cost is given, but not the price of {name}")
            dollars = "(dollars per million input tokens, dollars per million output tokens)"
            advice = f"ChatModelMember(..., price={dollars}); (0, 0) if it costs nothing"
            raise advised(error, advice)


def refuse_mistaken(model: str, name: str) -> None:
    """Refuse a text that cannot be a hub id or a folder, before transformers is imported and before
    a download fails."""
    path = Path(model).expanduser()
    refuse_other_kinds(model)
    if path.is_file():
        error = UsageError(f"{model!r} is a file, but not a .gguf file")
        raise advised(error, "name a .gguf file, a folder with a model, or a hub id")
    if get_close_matches(path.suffix.lower(), [".gguf"], cutoff=0.6):
        raise _misspelt_gguf(model, path)
    if path.is_dir():
        _files.refuse_unsafe(path)
    elif _PATH.fullmatch(model) and not path.exists():
        missing = MemberError(f"{path.absolute()} does not exist", member=name, kind="not_found")
        raise advised(missing, "name a folder with a model, a .gguf file or a hub id")


def refuse_other_kinds(model: str) -> None:
    """Refuse a text that was meant as an address or as ``provider:model``."""
    if _ADDRESS.fullmatch(model):
        error = UsageError(f"{model!r} is not a model")
        raise advised(error, f"a server's address begins with http: 'http://{model}'")
    if ":" in model and not _WINDOWS.match(model) and not Path(model).expanduser().exists():
        raise _unknown_provider(model)


def _unknown_provider(model: str) -> UsageError:
    """The error for ``provider:model`` with a provider that LangChain does not have."""
    provider, _, rest = model.partition(":")
    error = UsageError(f"LangChain has no provider {provider!r}")
    if not rest:
        error = UsageError(f"{model!r} does not name a model")
    if rest.startswith("//"):
        return advised(error, "a server's address begins with http:// or https://")
    similar = get_close_matches(provider.lower(), (*PROVIDERS, "hf", "vllm"), n=1, cutoff=0.8)
    if similar:
        return advised(error, f"did you mean '{similar[0]}:{rest or 'MODEL'}'?")
    return advised(error, f"a model of Ollama's is 'ollama:{model}'")


def _misspelt_gguf(model: str, path: Path) -> UsageError:
    """The error for a file whose extension is almost ``.gguf``."""
    error = UsageError(f"there is no model {model!r}")
    corrected = path.with_suffix(".gguf")
    if corrected.exists():
        return advised(error, f"did you mean {str(corrected)!r}?")
    return advised(error, "name an existing file that ends in .gguf")


def is_spec(reference: Reference) -> bool:
    """Whether this reference can be written as JSON. Objects cannot, nor can arguments with
    secrets."""
    try:
        return isinstance(reference, str | Mapping) and bool(json.dumps(reference))
    except (TypeError, ValueError):
        return False


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


def arguments_of(reference: str | Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a member that is written as a text or a dict."""
    arguments = {"model": reference} if isinstance(reference, str) else dict(reference)
    if isinstance(arguments.get("model"), str) and "adapter" not in arguments:
        base, adapter = split_adapter(arguments["model"])
        if adapter is not None:
            arguments |= {"model": base, "adapter": adapter}
    return arguments


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


def names_of(references: Iterable[Reference]) -> list[str]:
    """The members' names: the last part of a path, with #2, #3 ... if the name is already taken.

    >>> names_of(["Qwen/Qwen2.5-0.5B", "models/a.gguf", "Qwen/Qwen2.5-0.5B", "hf:me/b-GGUF:Q8_0"])
    ['Qwen2.5-0.5B', 'a', 'Qwen2.5-0.5B#2', 'b-Q8_0']
    """
    names: list[str] = []
    for reference in references:
        chosen = _chosen_name(reference)
        if chosen is None:
            plain = _last_part(reference)
            numbers = itertools.count(2)
            name = plain
            while name in names:
                name = f"{plain}#{next(numbers)}"
            names.append(name)
        elif chosen in names:
            error = UsageError(f"two members are called {chosen!r}; names must differ")
            raise advised(error, "give one of them another name, for example name='b'")
        else:
            names.append(str(chosen))
    return names


def _chosen_name(reference: Reference) -> Any:
    """The name that the user gave this member, or None."""
    if isinstance(reference, str):
        return None
    if isinstance(reference, Mapping):
        return reference.get("name")
    return reference.name


def _last_part(reference: str | Mapping[str, Any] | BaseChatModel) -> str:
    """The last part of the adapter's path, or of the model's if there is no adapter."""
    if isinstance(reference, BaseChatModel):
        return name_of(reference)
    arguments = arguments_of(reference)
    source = arguments.get("adapter") or arguments["model"]
    if not isinstance(source, str):
        source = str(getattr(source, "name_or_path", "") or type(source).__name__)
    if is_hub_name(source):
        return plain_name(source)
    if is_server(source):
        url = urlsplit(source)
        source = url.fragment or url.hostname or source
    if is_chat_model(source) or is_vllm(source):
        source = source.partition(":")[2]
    last = os.path.basename(os.path.normpath(source))
    if last in (".", ".."):
        last = os.path.basename(os.path.abspath(source))
    return last.removesuffix(".gguf") or source
