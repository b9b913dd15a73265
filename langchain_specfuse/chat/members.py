"""Share members and their ensembles in this process: one object per member, so that chat models,
copies and pickles use one copy of its weights.

Members are made from references (see :mod:`.references`) and load when they are first asked.
"""

from __future__ import annotations

import os
import threading
import uuid
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from langchain_core.language_models import BaseChatModel

from ..core.member import Member, Probe
from ..engine.ensemble import Ensemble
from ..engine.worker import call
from ..errors import SpecFuseError, UsageError, advised
from ..members import files as _files
from ..members.chat_model.member import ChatModelMember
from ..members.names import (
    is_chat_model,
    is_gguf,
    is_server,
    is_vllm,
    kind_of,
    refuse_mistaken,
    refuse_mistaken_adapter,
    split_adapter,
)
from .references import Reference, checked_member, names_of, new_member

UNLOAD_WAIT_S = 30.0
"""A member that hangs for longer frees its weights when it replies."""

# What the chat models of this process share. Members that were made from names, and the ensembles
# of such members, live until unload(). Objects of the user, and ensembles with one of
# them, live only as long as a chat model holds them.
_LOCK = threading.RLock()
"""Guards the following."""
_MEMBERS: dict[tuple[str, str], Member] = {}
"""(text, name) -> the member that was made from it."""
_CHAT_MODELS: weakref.WeakValueDictionary[tuple[int, str], ChatModelMember] = (
    weakref.WeakValueDictionary()
)
"""(id of a chat model, name) -> the member around it, which holds it."""
_SHARED: weakref.WeakValueDictionary[tuple[int, ...], Ensemble] = weakref.WeakValueDictionary()
"""(number of writers, ids of all members) -> their ensemble."""
_KEPT: dict[tuple[int, ...], Ensemble] = {}
"""The part of ``_SHARED`` that lives until :func:`unload`."""
_IDS: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""The texts of :func:`id_of`."""


def identity(reference: Reference, name: str) -> dict[str, Any]:
    """Everything that affects this member's output, as plain JSON for caches and traces."""
    if isinstance(reference, str):
        return {"name": name, "model": reference}
    member = _member(reference, name) if isinstance(reference, BaseChatModel) else reference
    spec = getattr(member, "spec", None)
    if isinstance(spec, Mapping):
        return {"name": name, **spec}
    return {"name": name, "object": id_of(reference)}


def id_of(thing: Any) -> str:
    """A text that no other object has, in this process or another (``id`` is reused, and reprs can
    be equal)."""
    try:
        return _IDS.setdefault(thing, f"{type(thing).__name__}-{uuid.uuid4().hex[:12]}")
    except TypeError:  # not hashable, or no weak references
        return f"{type(thing).__name__}-{id(thing):x}"


def previews(references: Sequence[Reference]) -> dict[str, Probe | None]:
    """The properties of each member that are known before it is loaded, by its name. This asks no
    server and imports no engine."""
    pairs = zip(references, names_of(references), strict=True)
    return {name: _preview(reference, name) for reference, name in pairs}


def _preview(reference: Reference, name: str) -> Probe | None:
    if is_server(reference) or is_vllm(reference):
        return None
    if isinstance(reference, str) and not is_chat_model(reference):
        return _files.preview({"model": split_adapter(reference)[0]})
    try:
        with _LOCK:
            member = _member(reference, name)
    except SpecFuseError:  # raised again when the member is needed
        return None
    preview: Probe | None = getattr(member, "preview", lambda: None)()
    return preview


def leading_chat_model(call: Any) -> BaseChatModel | None:
    """The chat model that is asked first, if that is known before the question."""
    is_led = call.method.segment == "draft" and call.method.margin is not None
    name = call.writers[0] if call.lead == "auto" and not call.calibration else call.lead
    if not is_led or name not in call.writers:
        return None
    reference = call.members[call.writers.index(name)]
    if isinstance(reference, str) and is_chat_model(reference):
        reference = _member(reference, name)
    model = reference.model if isinstance(reference, ChatModelMember) else reference
    return model if isinstance(model, BaseChatModel) else None


def ensemble_for(members: Sequence[Reference], verifiers: Sequence[Reference] = ()) -> Ensemble:
    """The only ensemble of these members in this process. This makes members, but loads nothing."""
    references = [*members, *verifiers]
    with _LOCK:
        pairs = zip(references, names_of(references), strict=True)
        everybody = [_member(reference, name) for reference, name in pairs]
        key = (len(members), *map(id, everybody))
        ensemble = _SHARED.get(key)
        if ensemble is None:
            ensemble = Ensemble(everybody[: len(members)], everybody[len(members) :])
            _SHARED[key] = ensemble
            if all(isinstance(reference, str) for reference in references):
                _KEPT[key] = ensemble
        return ensemble


def _member(reference: Reference, name: str) -> Member:
    """The only member with this reference and name in this process."""
    if isinstance(reference, BaseChatModel):
        shared = _CHAT_MODELS.get((id(reference), name)) or ChatModelMember(reference, name=name)
        return _CHAT_MODELS.setdefault((id(reference), name), shared)
    if not isinstance(reference, str):
        member: Member = reference
        return member
    key = (reference, name)
    if key not in _MEMBERS:
        _MEMBERS[key] = _new_member(reference, name)
    return _MEMBERS[key]


def _new_member(reference: str, name: str) -> Member:
    """Make the member that a text means."""
    model, adapter = split_adapter(reference)
    try:
        # Refuse a text that cannot name a model or an adapter, before an engine starts and takes
        # half a minute to find that out.
        if kind_of(model) in ("vllm", "transformers"):
            refuse_mistaken(model, name)
        if is_vllm(model) and adapter is not None:
            refuse_mistaken_adapter(adapter, name)
        return new_member(reference, name)
    except ModuleNotFoundError as error:
        raise _missing_extra(model, name, error) from error


def _missing_extra(model: str, name: str, error: ModuleNotFoundError) -> UsageError:
    """The error for a member whose engine is not installed."""
    needs = f"needs {error.name}, which is not installed"
    missing = UsageError(f"a member named {name!r} {needs}")
    if is_server(model) or is_vllm(model):
        return advised(missing, 'pip install "langchain-specfuse[server]"')
    if is_gguf(model):
        return advised(missing, 'pip install "langchain-specfuse[llamacpp]"')
    install = 'pip install "langchain-specfuse[transformers]"'
    install += " (this brings PyTorch: up to several GB)"
    if os.path.exists(model):
        return advised(missing, install)
    missing = UsageError(
        f"there is no file or folder {model!r}; as the name of a model on the hub it {needs}"
    )
    provider = 'a chat model is named with its provider: "openai:gpt-4.1-mini", "ollama:llama3.2"'
    return advised(advised(missing, provider), install)


def with_identities(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call, with its members as plain JSON, for caches and traces."""
    converted = dict(options)
    references = options.get("members")
    if isinstance(references, list | tuple):
        converted["members"] = identities([checked_member(member) for member in references])
    if options.get("model") is not None:
        (converted["model"],) = identities([checked_member(options["model"])])
    return converted


def identities(references: Sequence[Reference]) -> list[dict[str, Any]]:
    """The identity of each of these members."""
    pairs = zip(references, names_of(references), strict=True)
    return [identity(member, name) for member, name in pairs]


def unload(*references: Reference) -> None:
    """Free the weights of these members, or of all members that this process made from names.

    Answers under way are not disturbed, and the next question loads the members again. A member
    object frees its weights too, if it has a method ``unload``.

    >>> unload("Qwen/Qwen2.5-0.5B-Instruct")
    """
    with _LOCK:
        leaving = _removed(references)
        ids = {id(member) for member in leaving}
        for ensembles in (_KEPT, _SHARED):
            for key in list(ensembles):
                if ids.intersection(key[1:]):
                    ensembles.pop(key, None)
    for member in leaving:
        free = getattr(member, "unload", None)
        if callable(free):  # on the member's own worker, or it would race with the running batch
            done: Future[Any] = Future()
            call(member, free, done.set_result)
            wait([done], timeout=UNLOAD_WAIT_S)


def _removed(references: Sequence[Reference]) -> list[Any]:
    """Remove these members from the registry, or all without references, and return them."""
    keys = [key for key in _MEMBERS if not references or key[0] in references]
    members = [member for member in references if not isinstance(member, str)]
    members += [_MEMBERS.pop(key) for key in keys]
    for member in list(_CHAT_MODELS.values()):
        if any(member.model is model for model in references):
            members.append(member)
    return members
