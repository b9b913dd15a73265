"""References to members: the ways in which a user can write a member, and the names that follow.

A reference is a text (a hub id, a folder, a file, ``hf:...``, ``vllm:...``, ``base+adapter``, an
address, ``provider:model``), a chat model or a member object. References are checked as far as
possible without loading anything. :mod:`.members` makes members from them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urldefrag, urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from ..core.member import Member
from ..errors import UsageError, advised
from ..members.chat_model.member import ChatModelMember
from ..members.chat_model.names import name_of
from ..members.hub import is_hub_name, plain_name
from ..members.names import (
    VLLM,
    check_name,
    is_chat_model,
    is_gguf,
    is_server,
    is_vllm,
    split_adapter,
)
from ..removed import removed

Reference: TypeAlias = Any
"""A member as the user wrote it: a hub id, folder, file, ``base+adapter``, address, an object."""


def members_list(value: Any, field: str) -> list[Any]:
    """Check a list of members, as far as possible without loading them."""
    expected = (
        f"{field} must be a list of hub ids, folders, .gguf files, servers' addresses, names such "
        "as 'hf:user/model', 'vllm:org/model' and 'openai:gpt-4.1-mini', chat models or member "
        "objects"
    )
    if value is None:
        error = UsageError(f"{expected}, got None")
        raise advised(error, "name one, for example members=['model.gguf']")
    if isinstance(value, Mapping):
        raise removed("a member as a dict")
    if not isinstance(value, list | tuple):
        error = UsageError(f"{expected}, got {value!r:.200}")
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
        check_name(reference)
        return reference
    if isinstance(reference, Mapping):
        raise removed("a member as a dict")
    if isinstance(reference, BaseChatModel):
        return reference
    # Look at the type, not at the object: `device` may be unknown before the member is loaded.
    needed = ("probe", "draft", "score", "forget")
    is_member = all(callable(getattr(type(reference), name, None)) for name in needed)
    if is_member and isinstance(getattr(reference, "name", None), str):
        return reference
    raise _not_a_member(reference)


def _not_a_member(value: Any) -> UsageError:
    kinds = "a hub id, a folder, a .gguf file, an address, a chat model or an object like Member"
    error = UsageError(f"a member is {kinds}, got {value!r:.80} ({type(value).__name__})")
    if isinstance(value, Runnable):
        example = "ChatOllama(model='qwen3', num_ctx=8192)"
        return advised(error, f"pass the chat model itself, with its settings, no chain: {example}")
    if isinstance(value, type):
        return advised(error, f"that is a class: make an object of it, {value.__name__}(...)")
    return advised(error, "a model that is already loaded: TransformersMember(model, tokenizer)")


def new_member(reference: str, name: str) -> Member:
    """Make the member that a text means, in this process or on a server. This imports no engine and
    loads nothing."""
    if is_chat_model(reference):
        return ChatModelMember(reference, name=name)
    if is_server(reference):
        from ..members.server.member import ServerMember

        address, served = urldefrag(reference)
        return ServerMember(address, served or None, name=name)
    model, adapter = split_adapter(reference)
    if is_vllm(model):
        from ..members.server.vllm_member import VllmMember

        return VllmMember(model.removeprefix(VLLM), adapter=adapter, name=name)
    if is_gguf(model):
        from ..members.llamacpp.member import LlamaCppMember

        return LlamaCppMember(model, adapter=adapter, name=name)
    from ..members.transformers.member import TransformersMember

    return TransformersMember(model, adapter=adapter, name=name)


def has_chat_model(references: Any) -> bool:
    """Whether one of these is a chat model."""
    if not isinstance(references, list | tuple):
        return False
    return any(
        is_chat_model(reference)
        if isinstance(reference, str)
        else isinstance(reference, BaseChatModel | ChatModelMember)
        for reference in references
    )


def are_chat_models(references: Any) -> bool:
    """Whether all of these are chat models."""
    return all(has_chat_model([reference]) for reference in references)


def check_prices(references: Iterable[Reference], names: Iterable[str]) -> None:
    """Refuse chat models without a price, because their costs cannot be limited."""
    for reference, name in zip(references, names, strict=True):
        is_billed = isinstance(reference, BaseChatModel | ChatModelMember)
        if is_chat_model(reference) or (is_billed and getattr(reference, "price", None) is None):
            error = UsageError(f"max_cost is given, but not the price of {name}")
            dollars = "(dollars per million input tokens, dollars per million output tokens)"
            advice = f"ChatModelMember(..., price={dollars}); (0, 0) if it costs nothing"
            raise advised(error, advice)


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
    return None if isinstance(reference, str) else reference.name


def _last_part(reference: str | BaseChatModel) -> str:
    """The last part of the adapter's path, or of the model's if there is no adapter."""
    if isinstance(reference, BaseChatModel):
        return name_of(reference)
    model, adapter = split_adapter(reference)
    source = adapter or model
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
