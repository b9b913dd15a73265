"""Members by name: one object per member in this process, so that chat models, copies and pickles
share its weights.

This module reads the ways to write a member (a name, a dict, an object) and gives each its name. It
loads nothing by itself.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import threading
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path, PureWindowsPath
from typing import Any, TypeAlias
from urllib.parse import urldefrag, urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from ..core.member import Member, Probe
from ..engine.ensemble import Ensemble
from ..engine.worker import refuse_fork, worker_for
from ..errors import MemberError, SpecFuseError, UsageError, advised
from ..members import files as _files
from ..members.chat_model.member import ChatModelMember
from ..members.chat_model.names import PROVIDERS, name_of
from ..members.network import refuse_secrets
from ..members.ray import PLACEMENT
from ..secret_values import found_in, is_secret, masked, remember


class Arguments(Mapping[str, Any]):
    """A member's arguments, if they contain secrets: these reach the member, but no trace, repr or
    JSON."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = dict(given)

    def __getitem__(self, key: str) -> Any:
        return self._given[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __repr__(self) -> str:
        return repr(masked(self._given))


Given: TypeAlias = Any
"""A member as the user wrote it: a hub id, folder, file, ``base+adapter``, address, a dict of
arguments, an object."""

_ADDRESS = re.compile(r"(localhost|[\w-]+(\.[\w-]+)+):\d+([/#].*)?|localhost([/#].*)?")
"""An address whose ``http://`` was forgotten."""
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
UNLOAD_WAIT_S = 30.0  # a member that hangs frees its weights when it comes back

_LOCK = threading.RLock()
_MEMBERS: dict[tuple[str, str], Member] = {}
"""The members made here, by specification and name."""
_SHARED: weakref.WeakValueDictionary[tuple[int, ...], Ensemble] = weakref.WeakValueDictionary()
"""All ensembles. Those of the user's own objects live as long as a chat model holds them."""
_KEPT: dict[tuple[int, ...], Ensemble] = {}
"""The ensembles of members made here live until :func:`unload`."""
_IDS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_CHAT_MODELS: weakref.WeakValueDictionary[tuple[int, str], ChatModelMember] = (
    weakref.WeakValueDictionary()
)
"""The members made of chat models that were given, by the chat model's id and name. They hold
it."""


def members_list(given: Any, field: str) -> list[Any]:
    """The members of a list, each checked as far as possible without loading it."""
    expected = (
        f"{field} must be a list of hub ids, folders, .gguf files, servers' addresses, names such "
        "as 'openai:gpt-4.1-mini', chat models, dicts or member objects"
    )
    if given is None:
        error = UsageError(f"{expected}, got None")
        raise advised(error, "name one, for example members=['model.gguf']")
    if not isinstance(given, list | tuple):
        error = UsageError(f"{expected}, got {masked(given)!r:.200}")
        raise advised(error, f"put it into a list: {field}=[...]")
    if not given and field == "members":
        error = UsageError(f"{expected}, at least one; got none")
        raise advised(error, "name one, for example 'Qwen/Qwen3-0.6B'")
    return [checked_member(member) for member in given]


def checked_member(given: Given) -> Given:
    """The same, if it can name a member; paths become strings."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        return _checked_name(given)
    if isinstance(given, Mapping):
        return _checked_dict(given)
    if isinstance(given, BaseChatModel):
        return given
    # Look at the type, not at the object: `device` may be unknown before the member is loaded.
    missing = [
        need
        for need in ("probe", "draft", "score", "forget")
        if not callable(getattr(type(given), need, None))
    ]
    if missing or not isinstance(getattr(given, "name", None), str):
        expected = (
            "a hub id, a folder, a .gguf file, an address, a chat model, a dict or an "
            "object like Member"
        )
        error = UsageError(f"a member is {expected}, got {given!r:.80} ({type(given).__name__})")
        made = (
            f"that is a class: make an object of it, {given.__name__}(...)"
            if isinstance(given, type)
            else ""
        )
        if isinstance(given, Runnable):
            made = (
                "pass the chat model itself, with its settings, no chain: "
                "ChatOllama(model='qwen3', num_ctx=8192)"
            )
        raise advised(
            error, made or "a model that is already loaded: TransformersMember(model, tokenizer)"
        )
    return given


def _checked_name(name: str) -> str:
    if not name.strip():
        error = UsageError(f"a member's name is empty, got {name!r}")
        raise advised(error, "name a model, for example 'Qwen/Qwen3-0.6B'")
    if address := re.search(r"\w+://.*", name):  # also that of an adapter: base+https://...
        refuse_secrets(address[0])
    if is_server(name) and not urlsplit(name).hostname:
        raise advised(
            UsageError(f"{name!r} does not name a server"),
            "for example 'http://localhost:8000/v1#my-model'",
        )
    if _WINDOWS.match(name) and os.name != "nt" and not os.path.exists(name):
        advice = (
            "it is a Windows path; in WSL it is "
            f"/mnt/{name[0].lower()}{PureWindowsPath(name).as_posix()[2:]}"
        )
        raise advised(UsageError(f"there is no model {name!r}"), advice)
    return name


def _refuse_mistaken(model: str, name: str) -> None:
    """Refuse what cannot be a hub id or a folder, before transformers is imported and before a
    download fails."""
    path = Path(model).expanduser()
    error: Exception
    if _ADDRESS.fullmatch(model):
        error, advice = (
            UsageError(f"{model!r} is not a model"),
            f"a server's address begins with http: 'http://{model}'",
        )
    elif ":" in model and not _WINDOWS.match(model) and not path.exists():
        provider, _, rest = model.partition(":")
        error = UsageError(
            f"{model!r} does not name a model"
            if not rest
            else f"LangChain has no provider {provider!r}"
        )
        near = get_close_matches(provider, PROVIDERS, n=1, cutoff=0.8)
        advice = (
            f"did you mean '{near[0]}:{rest or 'MODEL'}'?"
            if near
            else f"a model of Ollama's is 'ollama:{model}'"
        )
        advice = (
            "a server's address begins with http:// or https://"
            if rest.startswith("//")
            else advice
        )
    elif path.is_file():
        error = UsageError(f"{model!r} is a file, but not a .gguf file")
        advice = "name a .gguf file, a folder with a model, or a hub id"
    elif get_close_matches(path.suffix.lower(), [".gguf"], cutoff=0.6):
        right, error = path.with_suffix(".gguf"), UsageError(f"there is no model {model!r}")
        advice = (
            f"did you mean {str(right)!r}?"
            if right.exists()
            else "name an existing file that ends in .gguf"
        )
    elif (
        re.fullmatch(r"([./~]|[A-Za-z]:/).*|.*/.*/.*|.*\\.*|.*(/|\.safetensors)", model)
        and not path.exists()
    ):
        error = MemberError(f"{path.absolute()} does not exist", member=name, kind="not_found")
        advice = "name a folder with a model, a .gguf file or a hub id"
    else:
        return _files.refuse_unsafe(path) if path.is_dir() else None
    raise advised(error, advice)


def _checked_dict(given: Mapping[str, Any]) -> Mapping[str, Any]:
    remember(given)
    if "model" not in given:
        error = UsageError(
            f"a member given as a dict needs a 'model', got only {sorted(map(str, given))}"
        )
        raise advised(
            error, "for example {'model': 'Qwen/Qwen2.5-0.5B-Instruct', 'dtype': 'bfloat16'}"
        )
    secret = next((key for key in given if is_secret(key)), None)
    if secret is not None:
        error = UsageError(
            f"a member given as a dict must not hold {secret!r}: traces show all its values"
        )
        advice = (
            "put a server's key into the environment variable SPECFUSE_API_KEY, or name "
            "another: api_key_env="
        )
        raise advised(error, advice)
    written = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value
        for key, value in given.items()
    }
    for key in ("model", "adapter"):
        if isinstance(written.get(key), str):
            _checked_name(written[key])
    return Arguments(written) if any(found_in(written)) else written


def is_server(name: Any) -> bool:
    """Whether this is the address of a server: ``http://host:8000/v1#model``."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def is_gguf(name: Any) -> bool:
    """Whether this is a ``.gguf`` file, which llama.cpp reads."""
    return isinstance(name, str) and name.lower().endswith(".gguf")


def is_chat_model(name: Any) -> bool:
    """Whether this names a chat model as LangChain's ``init_chat_model`` does: ``provider:model``.

    >>> (
    ...     is_chat_model("ollama:llama3.2"),
    ...     is_chat_model("Qwen/Qwen3-0.6B"),
    ...     is_chat_model("C:/models/a.gguf"),
    ... )
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and name.partition(":")[0] in PROVIDERS
        and bool(name.partition(":")[2])
    )


def check_prices(given: Iterable[Given], names: Iterable[str]) -> None:
    """Refuse chat models whose price is not known: what they cost cannot be bounded."""
    for one, name in zip(given, names, strict=True):
        model = one.get("model") if isinstance(one, Mapping) else one
        chats = is_chat_model(model) or isinstance(model, BaseChatModel | ChatModelMember)
        if (
            chats
            and (one.get("price") if isinstance(one, Mapping) else getattr(one, "price", None))
            is None
        ):
            error = UsageError(f"max_cost is given, but not the price of {name}")
            dollars = "(dollars per million input tokens, dollars per million output tokens)"
            raise advised(
                error, f"ChatModelMember(..., price={dollars}); (0, 0) if it costs nothing"
            )


def split_adapter(name: str) -> tuple[str, str | None]:
    """The base and the adapter in ``base+adapter``. A path that exists is never split.

    >>> (
    ...     split_adapter("Qwen/Qwen2.5-0.5B-Instruct+./adapters/law"),
    ...     split_adapter("Qwen/Qwen2.5-0.5B-Instruct"),
    ... )
    (('Qwen/Qwen2.5-0.5B-Instruct', './adapters/law'), ('Qwen/Qwen2.5-0.5B-Instruct', None))
    """
    if "+" not in name or is_server(name) or is_chat_model(name):
        return name, None
    return _split_path(name)


@lru_cache(maxsize=1024)
def _split_path(name: str) -> tuple[str, str | None]:
    """Cached, because it looks for files, and names are split again in every call, even on an event
    loop."""
    cuts = [at for at, sign in enumerate(name) if sign == "+"]
    existing = [at for at in (*cuts, len(name)) if os.path.exists(os.path.expanduser(name[:at]))]
    if len(name) in existing:
        return name, None
    at = (existing or cuts)[0]
    return name[:at], name[at + 1 :]


def is_spec(given: Given) -> bool:
    """Whether this can be written as JSON, so that it can be serialized without weights. Arguments
    with secrets cannot."""
    try:
        return isinstance(given, str | Mapping) and bool(json.dumps(given))
    except (TypeError, ValueError):
        return False


def names_of(given: Iterable[Given]) -> list[str]:
    """The members' names: the last part of a path, with #2, #3 ... where a name repeats.

    >>> names_of(["Qwen/Qwen2.5-0.5B", "models/a.gguf", "Qwen/Qwen2.5-0.5B"])
    ['Qwen2.5-0.5B', 'a', 'Qwen2.5-0.5B#2']
    """
    names: list[str] = []
    for one in given:
        chosen = (
            one.get("name")
            if isinstance(one, Mapping)
            else None
            if isinstance(one, str)
            else one.name
        )
        if chosen is None:
            plain = _last_part(one)
            numbered = (
                plain if number == 1 else f"{plain}#{number}" for number in itertools.count(1)
            )
            names.append(next(name for name in numbered if name not in names))
        elif chosen in names:
            error = UsageError(f"two members are called {chosen!r}; names must differ")
            raise advised(error, "give one of them another name, for example name='b'")
        else:
            names.append(str(chosen))
    return names


def _last_part(given: str | Mapping[str, Any] | BaseChatModel) -> str:
    """The last part of the adapter's path if there is an adapter, else of the model's."""
    if isinstance(given, BaseChatModel):
        return name_of(given)
    arguments = _arguments(given)
    source = arguments.get("adapter") or arguments["model"]
    if not isinstance(source, str):
        source = str(getattr(source, "name_or_path", "") or type(source).__name__)
    if is_server(source):
        url = urlsplit(source)
        source = url.fragment or url.hostname or source
    if is_chat_model(source):
        source = source.partition(":")[2]
    last = os.path.basename(os.path.normpath(source))
    if last in (".", ".."):
        last = os.path.basename(os.path.abspath(source))
    return last.removesuffix(".gguf") or source


def identity(given: Given, name: str) -> dict[str, Any]:
    """Everything that affects this member's output, as plain JSON for caches and traces. Loads
    nothing. Secrets are left out: answers do not depend on whose key is used."""
    return dict(masked(_identity(given, name)))


def _identity(given: Given, name: str) -> dict[str, Any]:
    if isinstance(given, str):
        return {"name": name, "model": given}
    if isinstance(given, Mapping):
        values = {
            key: value if is_spec({key: value}) else id_of(value) for key, value in given.items()
        }
        return {"name": name, **values}
    spec = getattr(
        _member(given, name) if isinstance(given, BaseChatModel) else given, "spec", None
    )
    return {"name": name, **(spec if isinstance(spec, Mapping) else {"object": id_of(given)})}


def id_of(thing: Any) -> str:
    """A text that no other object has, in this process or another (``id`` is reused, and reprs can
    be equal)."""
    try:
        return _IDS.setdefault(thing, f"{type(thing).__name__}-{uuid.uuid4().hex[:12]}")
    except TypeError:  # not hashable, or no weak references
        return f"{type(thing).__name__}-{id(thing):x}"


def previews(given: Sequence[Given]) -> dict[str, Probe | None]:
    """What is known of each member before it is loaded, by its name. Asks no server and imports no
    engine."""
    return {name: _preview(one, name) for one, name in zip(given, names_of(given), strict=True)}


def _preview(given: Given, name: str) -> Probe | None:
    if isinstance(given, str | Mapping):
        arguments = _arguments(given)
        if is_server(arguments["model"]):
            return None
        if isinstance(arguments["model"], str) and not is_chat_model(arguments["model"]):
            return _files.preview(arguments)
    try:
        with _LOCK:
            member = _member(given, name)
    except SpecFuseError:  # raised again when the member is needed
        return None
    known: Probe | None = getattr(member, "preview", lambda: None)()
    return known


def ensemble_for(members: Sequence[Given], verifiers: Sequence[Given] = ()) -> Ensemble:
    """The one ensemble of these members in this process. Makes members, loads nothing."""
    given = [*members, *verifiers]
    refuse_fork()  # a thread that is not here may hold the lock
    with _LOCK:
        made = [_member(one, name) for one, name in zip(given, names_of(given), strict=True)]
        key = (len(members), *map(id, made))
        ensemble = _SHARED.get(key)
        if ensemble is None:
            ensemble = _SHARED[key] = Ensemble(made[: len(members)], made[len(members) :])
            if all(isinstance(one, str | Mapping) for one in given):
                _KEPT[key] = ensemble
        return ensemble


def _member(given: Given, name: str) -> Member:
    if isinstance(given, BaseChatModel):
        known = _CHAT_MODELS.get((id(given), name)) or ChatModelMember(given, name=name)
        return _CHAT_MODELS.setdefault((id(given), name), known)
    if not isinstance(given, str | Mapping):
        member: Member = given
        return member
    key = (_written(given), name)
    if key not in _MEMBERS:
        _MEMBERS[key] = _made({**_arguments(given), "name": name})
    return _MEMBERS[key]


def _arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    arguments = {"model": given} if isinstance(given, str) else dict(given)
    if isinstance(arguments.get("model"), str) and "adapter" not in arguments:
        base, adapter = split_adapter(arguments["model"])
        arguments |= {} if adapter is None else {"model": base, "adapter": adapter}
    return arguments


def _written(given: str | Mapping[str, Any]) -> str:
    """The specification as text, without the name. It includes secrets, because a member with
    another key is another member, and never leaves this process."""
    return json.dumps({**_identity(_arguments(given), ""), "name": ""}, sort_keys=True)


def _made(arguments: dict[str, Any]) -> Member:
    on_server = is_server(arguments["model"])
    try:
        if on_server:
            from ..members.server.member import ServerMember

            address, model = urldefrag(arguments["model"])
            return ServerMember(
                address,
                model or None,
                **{key: arguments[key] for key in arguments if key != "model"},
            )
        if is_chat_model(arguments["model"]) or isinstance(arguments["model"], BaseChatModel):
            return ChatModelMember(**arguments)
        if is_gguf(arguments["model"]):
            from ..members.llamacpp.member import LlamaCppMember as Local
        else:
            if isinstance(arguments["model"], str) and "cluster" not in arguments:
                _refuse_mistaken(arguments["model"], arguments["name"])
            from ..members.transformers.member import TransformersMember as Local  # type: ignore[assignment]

        if "cluster" not in arguments:
            return Local(**arguments)
        from ..members.ray import RayMember

        where = {key: arguments[key] for key in arguments if key in PLACEMENT}
        what = {key: arguments[key] for key in arguments if key not in PLACEMENT}
        return RayMember(Local(**what), **where)
    except ModuleNotFoundError as error:
        model, needs = str(arguments["model"]), f"needs {error.name}, which is not installed"
        missing = UsageError(f"a member named {arguments['name']!r} {needs}")
        extra = "server" if on_server else "llamacpp" if is_gguf(model) else "transformers"
        advice = f'pip install "langchain-specfuse[{extra}]"'
        if extra == "transformers":
            advice += " (this brings PyTorch: up to several GB)"
        if extra == "transformers" and not os.path.exists(model):
            missing = UsageError(
                f"there is no file or folder {model!r}; as the name of a model on the hub it "
                f"{needs}"
            )
            advised(
                missing,
                'a chat model is named with its provider: "openai:gpt-4.1-mini", "ollama:llama3.2"',
            )
        raise advised(missing, advice) from error


def with_identities(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, with its members as plain JSON, for caches and traces."""
    return _with_members(options, identities)


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, with chat models and arguments with secrets wrapped in objects whose
    repr hides the secrets, so that traces can show them."""
    return _with_members(options, _hiding)


def _with_members(
    options: Mapping[str, Any], convert: Callable[[list[Given]], list[Any]]
) -> dict[str, Any]:
    """The options of a call, with the members that they name converted."""
    found = dict(options)
    for field in ("members", "verifiers"):
        given = found.get(field)
        if isinstance(given, list | tuple):
            found[field] = convert([checked_member(member) for member in given])
    if found.get("model") is not None:
        (found["model"],) = convert([checked_member(found["model"])])
    return found


def identities(given: Sequence[Given]) -> list[dict[str, Any]]:
    """The identity of each of these members."""
    pairs = zip(given, names_of(given), strict=True)
    return [identity(member, name) for member, name in pairs]


def _hiding(given: Sequence[Given]) -> list[Any]:
    """These members, with chat models wrapped so that their secrets are hidden."""
    hidden = list(given)
    for place, name in enumerate(names_of(given)):
        if isinstance(given[place], BaseChatModel):
            hidden[place] = _member(given[place], name)
    return hidden


def unload(*given: Given) -> None:
    """Free the weights of these members, or of all members that this process made from names.

    Answers under way are not disturbed; the next question loads again. A member given as an object
    frees its weights too, if it can.

    >>> unload("Qwen/Qwen2.5-0.5B-Instruct")
    """
    with _LOCK:
        written = {_written(one) for one in given if isinstance(one, str | Mapping)}
        keys = [key for key in _MEMBERS if not given or key[0] in written]
        leaving = [one for one in given if not isinstance(one, str | Mapping)] + [
            _MEMBERS.pop(key) for key in keys
        ]
        leaving += [
            one for one in _CHAT_MODELS.values() if any(one.model is model for model in given)
        ]
        ids = {id(member) for member in leaving}
        for ensembles in (_KEPT, _SHARED):
            for key in [key for key in list(ensembles) if ids.intersection(key[1:])]:
                ensembles.pop(key, None)
    for member in leaving:
        free = getattr(member, "unload", None)
        if callable(free):  # on the member's own worker, or it would race with the running batch
            done: Future[Any] = Future()
            worker_for(member.device).call(member, free, done.set_result)
            wait([done], timeout=UNLOAD_WAIT_S)
