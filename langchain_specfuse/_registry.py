"""One object per member in this process: chat models, copies, pickles and ``configurable_fields`` share weights.

Knows how a member may be written down (a name, a dict, an object) and what it is called; loads nothing by itself and
knows nothing of messages or of how members work.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeAlias
from urllib.parse import urldefrag, urlsplit

from ._secrets import refuse_secrets
from ._spread import PLACED, placement, spread
from .core.member import Member
from .engine.desk import desk_for
from .engine.ensemble import Ensemble
from .engine.task import Task
from .errors import UsageError, advised
from .members import _addresses, _budget

Given: TypeAlias = Any
"""A member as the user wrote it: a hub id, folder, file, ``base+adapter``, address, a dict of arguments, an object."""

FREEING_S = 30.0
"""A member that hangs frees what it holds when it comes back; nobody waits longer than this for it."""

_LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: globals().update(_LOCK=threading.RLock()))  # it may be held there
_MEMBERS: dict[tuple[str, str], Member] = {}
"""What was made here, by specification and name."""
_KEPT: dict[tuple[int, ...], Ensemble] = {}
"""Ensembles of members made here: they live until :func:`unload`."""
_SEEN: weakref.WeakValueDictionary[tuple[int, ...], Ensemble] = weakref.WeakValueDictionary()
"""All ensembles. Those of the user's own objects live as long as somebody holds them."""
_BUDGETS: weakref.WeakValueDictionary[Hashable, _budget.Budget] = weakref.WeakValueDictionary()
"""The budgets that members share now."""
_MARKS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def checked_member(given: Given) -> Given:
    """What was given, if it can name a member; paths become strings."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        return _checked_name(given)
    if isinstance(given, Mapping):
        if "model" not in given:
            error = UsageError(f"a member given as a dict needs a 'model', got only {sorted(map(str, given))}")
            raise advised(error, "for example {'model': 'Qwen/Qwen2.5-0.5B-Instruct', 'dtype': 'bfloat16'}")
        refuse_secrets(given)
        if isinstance(given["model"], str | os.PathLike):
            given = {**given, "model": _checked_name(os.fspath(given["model"]))}
        paths = {key: os.fspath(value) for key, value in given.items() if isinstance(value, os.PathLike)}
        return {**given, **paths}
    # The type is asked, not the object: `device` may not be known before the member is loaded.
    missing = [need for need in ("probe", "draft", "score", "forget") if not callable(getattr(type(given), need, None))]
    if missing or not isinstance(getattr(given, "name", None), str):
        wanted = "a hub id, a folder, a .gguf file, an address, a dict or an object with the methods of Member"
        error = UsageError(f"a member is {wanted}, got {given!r:.80} ({type(given).__name__})")
        raise advised(error, "a model that is loaded already: TransformersMember(model, tokenizer)")
    return given


def _checked_name(name: str) -> str:
    if not name.strip():
        raise advised(
            UsageError(f"a member's name is empty, got {name!r}"), "name a model, for example 'Qwen/Qwen3-0.6B'"
        )
    if is_server(name):
        _addresses.refuse_secrets(name)
    if is_server(name) and not urlsplit(name).hostname:
        raise advised(UsageError(f"{name!r} names no server"), "for example 'http://localhost:8000/v1#my-model'")
    return name


def is_server(name: Any) -> bool:
    """Whether this is the address of a server: ``http://host:8000/v1#model``."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def parted(name: str) -> tuple[str, str | None]:
    """The base and the adapter in ``base+adapter``. A path that exists is taken as it is, whatever it is called.

    >>> parted("Qwen/Qwen2.5-0.5B-Instruct+./adapters/law"), parted("Qwen/Qwen2.5-0.5B-Instruct")
    (('Qwen/Qwen2.5-0.5B-Instruct', './adapters/law'), ('Qwen/Qwen2.5-0.5B-Instruct', None))
    """
    cuts = [at for at, sign in enumerate(name) if sign == "+"]
    if not cuts or is_server(name) or _exists(name):
        return name, None
    at = next((at for at in cuts if _exists(name[:at])), cuts[0])
    return name[:at], name[at + 1 :]


def _exists(path: str) -> bool:
    return os.path.exists(os.path.expanduser(path))


def is_spec(given: Given) -> bool:
    """Whether this can be written down as JSON: then it can be serialized without weights."""
    try:
        return isinstance(given, str | Mapping) and bool(json.dumps(given))
    except (TypeError, ValueError):
        return False


def names_of(given: Iterable[Given]) -> list[str]:
    """What the members are called: the last part of a path, with #2, #3 ... for those that come again.

    >>> names_of(["Qwen/Qwen2.5-0.5B", "models/a.gguf", "Qwen/Qwen2.5-0.5B"])
    ['Qwen2.5-0.5B', 'a', 'Qwen2.5-0.5B#2']
    """
    names: list[str] = []
    for one in given:
        own = _own_name(one)
        if own is None:
            names.append(_unused(_last_part(one), names))
        elif own in names:
            error = UsageError(f"two members are called {own!r}; names must differ")
            raise advised(error, "give one of them another name, for example name='b'")
        else:
            names.append(own)
    return names


def _own_name(given: Given) -> str | None:
    """The name that the user chose, if any."""
    if isinstance(given, str):
        return None
    name = given.get("name") if isinstance(given, Mapping) else given.name
    return None if name is None else str(name)


def _last_part(given: Given) -> str:
    """Of the adapter, if there is one: it is what sets a member apart."""
    told = _arguments(given) if isinstance(given, str | Mapping) else {"model": given}
    source = told.get("adapter") or told["model"]
    if not isinstance(source, str):
        source = str(getattr(source, "name_or_path", "") or type(source).__name__)
    if is_server(source):
        url = urlsplit(source)
        source = url.fragment or url.hostname or source
    last = os.path.basename(os.path.abspath(source))
    return last.removesuffix(".gguf") or source


def _unused(name: str, taken: Sequence[str]) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def identity(given: Given, name: str) -> dict[str, Any]:
    """What tells this member's answers from another's, as plain JSON: for caches and traces. Loads nothing."""
    if isinstance(given, str):
        return {"name": name, "model": given}
    if isinstance(given, Mapping):
        return {"name": name, **{key: value if is_spec({key: value}) else _mark(value) for key, value in given.items()}}
    spec = getattr(given, "spec", None)
    return {"name": name, **(spec if isinstance(spec, Mapping) else {"object": _mark(given)})}


def _mark(thing: Any) -> str:
    """A mark that no other object has, in this process or another (``id`` is used again, and reprs are alike)."""
    try:
        return _MARKS.setdefault(thing, f"{type(thing).__name__}-{uuid.uuid4().hex[:12]}")
    except TypeError:  # not hashable, or no weak references
        return f"{type(thing).__name__}-{id(thing):x}"


def ensemble_for(
    members: Sequence[Given],
    verifiers: Sequence[Given] = (),
    memory_budget: _budget.Told | None = None,
    cluster: str | None = None,
) -> Ensemble:
    """The one ensemble of these members in this process. Makes members, loads nothing.

    Whoever is given equal budgets shares one: it counts what lies on the device, whoever asked for it. Members that
    would work in this process work on the ``cluster``, if one is named.
    """
    given = spread([*members, *verifiers], cluster)
    with _LOCK:
        everyone = [_member(one, name) for one, name in zip(given, names_of(given), strict=True)]
        if memory_budget is not None:
            _share(everyone, memory_budget)
        key = (len(members), *map(id, everyone))
        ensemble = _SEEN.get(key)
        if ensemble is None:
            ensemble = Ensemble(everyone[: len(members)], everyone[len(members) :])
            _SEEN[key] = ensemble
            if all(isinstance(one, str | Mapping) for one in given):
                _KEPT[key] = ensemble
        return ensemble


def _member(given: Given, name: str) -> Member:
    if not isinstance(given, str | Mapping):
        member: Member = given
        return member
    key = (_written(given), name)
    if key not in _MEMBERS:
        _MEMBERS[key] = _made({**_arguments(given), "name": name})
    return _MEMBERS[key]


def _share(members: Sequence[Member], told: _budget.Told) -> None:
    _BUDGETS.setdefault(_budget.key_of(told), _budget.Budget(told)).bind(members)


def _arguments(given: str | Mapping[str, Any]) -> dict[str, Any]:
    told = {"model": given} if isinstance(given, str) else dict(given)
    if isinstance(told.get("model"), str) and "adapter" not in told:
        base, adapter = parted(told["model"])
        told |= {} if adapter is None else {"model": base, "adapter": adapter}
    return told


def _written(given: str | Mapping[str, Any]) -> str:
    """The specification as text, without the name; objects in it (a loaded model) are told apart by their marks."""
    arguments = {key: value for key, value in identity(_arguments(given), "").items() if key != "name"}
    return json.dumps(arguments, sort_keys=True)


def _made(arguments: dict[str, Any]) -> Member:
    kind = "ServerMember" if is_server(arguments["model"]) else "TransformersMember"
    try:
        make = _served if kind == "ServerMember" else _hosted if "cluster" not in arguments else _placed
        return make(arguments)
    except ModuleNotFoundError as error:
        extra = "server" if kind == "ServerMember" else "transformers"
        missing = UsageError(f"a member named {arguments['name']!r} needs {error.name}, which is not installed")
        raise advised(missing, f'pip install "langchain-specfuse[{extra}]"') from error
    except TypeError as error:
        wrong = UsageError(f"member {arguments['name']!r} cannot be made from {sorted(arguments)}: {error}")
        there = "" if kind == "ServerMember" else f"; with 'cluster', also {', '.join(PLACED[1:])}"
        raise advised(wrong, f"the keys of a member's dict are the arguments of {kind}{there}") from error


def _hosted(arguments: dict[str, Any]) -> Member:
    from .members.transformers import TransformersMember

    return TransformersMember(**arguments)


def _placed(arguments: dict[str, Any]) -> Member:
    from .members.ray import RayMember

    where, what = placement(arguments)
    return RayMember(_hosted(what), **where)


def _served(arguments: dict[str, Any]) -> Member:
    from .members.server import ServerMember

    address, model = urldefrag(arguments["model"])
    return ServerMember(address, model or None, **{key: value for key, value in arguments.items() if key != "model"})


def unload(*given: Given, cluster: str | None = None) -> None:
    """Let go of these members' weights, or of all members that this process made from names.

    Answers under way are not disturbed; the next question loads again. A member given as an object is told to free
    what it holds, if it can. ``cluster``: the one that they were spread over, as the chat model has it.

    >>> unload("Qwen/Qwen2.5-0.5B-Instruct")
    """
    with _LOCK:
        given = tuple(spread(given, cluster))
        written = {_written(one) for one in given if isinstance(one, str | Mapping)}
        keys = [key for key in _MEMBERS if not given or key[0] in written]
        leaving = [one for one in given if not isinstance(one, str | Mapping)] + [_MEMBERS.pop(key) for key in keys]
        ids = {id(member) for member in leaving}
        for cached in (_KEPT, _SEEN):
            for of in [key for key in list(cached) if ids.intersection(key[1:])]:
                cached.pop(of, None)
    for member in leaving:
        _free(member)


def _free(member: Member) -> None:
    """On the member's own desk, or it would race with the batch that is running."""
    free = getattr(member, "unload", None)
    if callable(free):
        done: Future[Any] = Future()
        desk_for(member.device).put(Task(member, "call", free, done.set_result))
        wait([done], timeout=FREEING_S)
