"""TransformersMember: any decoder-only causal LM that transformers loads, in this process, for many queries at once.

This file has its arguments and its life: loaded when it is first asked, unloaded, pickled. What it does with jobs is in
``batch_group``, because members with the same weights work in one batch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from ...core.member import Probe
from ...core.values import Draft, DraftJob, Failure, Scored, ScoreJob, Tool, Turn
from ...errors import UsageError, advised, refuse_arguments
from ..text.templates import Template
from ..text.words import Words
from .batch_group import GroupMember, MemberSettings, SharedWeights, group_for
from .loading import Source, Weights, expected_size, given, load
from .memory import MemoryBudget

log = logging.getLogger("langchain_specfuse")

_OURS = ("dtype", "torch_dtype", "gguf_file", "revision", "trust_remote_code", "use_safetensors", "weights_only")
"""Arguments of from_pretrained that are not for ``model_kwargs``: they are ours, or would open pickled weights."""
_RENAMED = {
    **{
        name: f"use model_kwargs={{'{name}': ...}}"
        for name in ("device_map", "attn_implementation", "quantization_config")
    },
    "cache_bytes": "use SpecFuseChatModel(..., memory_budget=...), which bounds weights and caches of all members",
    "graphs": "leave it out: drafts are not captured any more. For speed on a GPU use a server, vLLM or SGLang",
}
"""Arguments of version 0.5, and what to use now."""
_PROCESS = ("loaded", "memory_budget", "_given", "_device", "_probe")
"""Attributes that stay in this process."""


class TransformersMember:
    """One LLM in this process.

    >>> member = TransformersMember("Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16")  # loads when first used
    >>> member.name
    'Qwen2.5-0.5B-Instruct'

    ``model``
        A hub id, a local folder, a ``.gguf`` file (or a folder with ``gguf_file``), or a model in memory, then with its
        ``tokenizer``.
    ``adapter``
        A folder or hub id with a LoRA, as peft writes it.
    ``name``
        What it is called (default: the last part of the adapter's or model's name).
    ``dtype``, ``device``
        Default: the checkpoint's precision, where the device computes in it; a GPU that has room, else the CPU.
    ``model_kwargs``
        More arguments of transformers' ``from_pretrained``, such as ``device_map``, ``attn_implementation`` and
        ``quantization_config``.
    ``revision``, ``trust_remote_code``
        As for ``from_pretrained``.
    ``chat_template``, ``chat_template_kwargs``
        A template instead of the tokenizer's; ``"plain"`` is for base models. Arguments for the template.
    ``system_prompt``
        Takes the place of the conversation's system messages.
    ``repetition_penalty``, ``seed``
        The member's own; members with different seeds sample differently.
    ``thinking_tokens``
        A reasoning model thinks before its first word, for at most this many tokens (0: never).
    ``prefix_cache``
        Bytes that what was read for earlier queries may take. True: a third of the cache; False: nothing is kept.

    Members of one model that differ in ``adapter``, ``system_prompt``, ``repetition_penalty`` or ``seed`` share the
    weights and one cache, and write their drafts in one batch.
    """

    spreads = True
    """It is placed on a cluster, where members are."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        adapter: str | os.PathLike[str] | None = None,
        name: str | None = None,
        gguf_file: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        thinking_tokens: int = 1024,
        prefix_cache: bool | int = True,
        **renamed: Any,
    ) -> None:
        refuse_arguments("TransformersMember", renamed, _RENAMED)
        in_memory = not isinstance(model, (str, os.PathLike))
        _refuse_tokenizer(model, tokenizer, in_memory)
        label = type(model).__name__ if in_memory else os.fspath(model)
        self.source = Source(
            label, gguf_file, dtype, device, _checked_kwargs(model_kwargs), revision, trust_remote_code
        )
        self.adapter = _checked_adapter(adapter)
        called = self.adapter or str(gguf_file or label)
        self.name = name or os.path.basename(called.rstrip("/\\")).removesuffix(".gguf") or label
        self.settings = MemberSettings(
            chat_template, dict(chat_template_kwargs or {}), system_prompt, repetition_penalty, seed, thinking_tokens
        )
        self.prefix_cache = _checked_bytes(prefix_cache)
        self._start_unloaded(given(model, tokenizer) if in_memory else None)

    def _start_unloaded(self, weights: Weights | None) -> None:
        self.loaded: GroupMember | None = None
        """How it reads and writes queries, once it is loaded."""
        self.memory_budget: MemoryBudget | None = None
        """Set by chat models that have one. It holds from the next job on, until :meth:`unload`."""
        self._given = weights
        self._device = weights.device if weights else "loading"
        self._probe: Probe | None = None

    def __repr__(self) -> str:
        held = self.prefixes
        kept = f", {held['tokens']} tokens kept in {held['bytes'] / 1e6:.1f} MB" if held["prefixes"] else ""
        return f"TransformersMember({self.source.model!r}, name={self.name!r}{kept})"

    def __getstate__(self) -> dict[str, Any]:
        """What it is made from, and nothing that it has loaded: the process that unpickles it loads for itself."""
        if self._given:
            error = UsageError(f"{self.name} is a model in memory, which stays in its process")
            raise advised(error, "save it (model and tokenizer: save_pretrained(folder)) and name the folder")
        state = {key: value for key, value in vars(self).items() if key not in _PROCESS}
        adapter = _absolute(self.adapter) if self.adapter else None
        return state | {"source": replace(self.source, model=_absolute(self.source.model)), "adapter": adapter}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._start_unloaded(None)

    @property
    def spec(self) -> dict[str, Any]:
        """All that tells this member's answers from another's, as plain JSON."""
        usual = vars(MemberSettings()) | vars(Source("")) | {"adapter": None, "dtype": None}
        everything = vars(self.source) | vars(self.settings) | {"adapter": self.adapter}
        spec = {key: value for key, value in everything.items() if value != usual[key]}
        if self._given:
            spec["mark"] = self._given.id
        return {key: _as_json(value) for key, value in spec.items()}

    @property
    def device(self) -> str:
        return self._device

    @property
    def batch_group(self) -> SharedWeights | None:
        """Members with the same one share batches."""
        return self.loaded.group if self.loaded else None

    # --- the protocol -------------------------------------------------------------------------------------------

    def probe(self) -> Probe:
        self._load()
        assert self._probe is not None
        return self._probe

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._load().group.draft([(self, job) for job in jobs])

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._load().group.score([(self, job) for job in jobs])

    @torch.inference_mode()  # rows may be moved: tensors made in inference mode can be written in no other
    def forget(self, query_id: str) -> None:
        if self.loaded:
            self.loaded.forget(query_id)

    @torch.inference_mode()
    def unload(self) -> None:
        """Free the weights and all caches (weights given in memory stay yours). The next job loads them again.

        What is shared stays while another member has it.
        """
        self._leave()
        self.memory_budget = None

    # --- what it holds ------------------------------------------------------------------------------------------

    @property
    def prefixes(self) -> dict[str, int]:
        """What is kept of queries that are over: the number of prefixes, their tokens and their bytes."""
        kept = self.loaded.store.prefixes.of(self.loaded.adapter_id) if self.loaded else []
        tokens, held = sum(len(prefix.ids) for prefix in kept), sum(prefix.bytes for prefix in kept)
        return {"prefixes": len(kept), "tokens": tokens, "bytes": held}

    def drop_prefixes(self) -> None:
        """Free what is kept of queries that are over. To be called on the member's worker, as everything else."""
        if self.loaded:
            with self.loaded.group.undisturbed():
                self.loaded.store.prefixes.drop(self.loaded.adapter_id)

    # --- text and tokens ----------------------------------------------------------------------------------------

    @property
    def words(self) -> Words:
        return self._load().words

    @property
    def chat_template(self) -> str | None:
        return self.settings.chat_template

    @property
    def template(self) -> Template:
        return self._load().template

    @property
    def stops(self) -> list[int]:
        """Tokens that end a turn."""
        return list(self._load().stops)

    def token_ids(self, text: str) -> list[int]:
        """The text's tokens in this member's tokenizer."""
        return self.words.encode(text)

    def token_count(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> int:
        """The length of the prompt of these turns, with its description of these tools."""
        return len(self._load().prompt_ids(turns, tools))

    # --- loading ------------------------------------------------------------------------------------------------

    def _load(self) -> GroupMember:
        if self.loaded is not None and self.loaded.group.memory_budget is self.memory_budget:
            return self.loaded
        weights = self._given or (self.loaded.weights if self.loaded else None)
        self._leave()  # it was loaded before it was given a budget
        try:
            with torch.inference_mode():
                if self.memory_budget and weights is None:
                    with suppress(Exception):  # loading says what is wrong
                        self.memory_budget.make_room(expected_size(self.source))
                weights = weights or load(self.source, self.name)
                self._device = weights.device
                with weights.movable.in_use():
                    self.loaded = self._joined(weights)
        except UsageError:
            self.memory_budget = None  # a budget that cannot be kept does not stay: the next question raises again
            raise
        self._probe = self._probed(self.loaded)
        return self.loaded

    def _joined(self, weights: Weights) -> GroupMember:
        adapter = weights.adapter(self.adapter, self.name) if self.adapter else None
        budget = self.memory_budget
        group = group_for(weights, adapter, name=self.name, prefix_cache=self.prefix_cache, budget=budget)
        return GroupMember(group, adapter, self.name, self.settings)

    def _probed(self, loaded: GroupMember) -> Probe:
        weights, store = loaded.weights, loaded.store
        dtype = str(weights.model.dtype).removeprefix("torch.")
        detail = f"{weights.device}, {dtype}, {store.forward.attention}, {store.kind}"
        log.info("%s: %s", self.name, detail)
        size = sum(one.numel() for one in weights.model.parameters())
        return Probe(
            self.source.model, True, weights.context_limit, detail, loaded.template.own_calls(loaded.words), size
        )

    def _leave(self) -> None:
        loaded, self.loaded, self._probe = self.loaded, None, None
        if loaded is not None:
            loaded.leave()
            adapters = loaded.weights.adapters
            del loaded
            adapters.prune()


# --- checks -----------------------------------------------------------------------------------------------------


def _refuse_tokenizer(model: Any, tokenizer: Any, in_memory: bool) -> None:
    if in_memory and tokenizer is None:
        error = UsageError(f"a model in memory needs its tokenizer too, got {type(model).__name__} alone")
        raise advised(error, "TransformersMember(model, tokenizer)")
    if not in_memory and tokenizer is not None:
        raise advised(UsageError("a tokenizer is only given along with a model in memory"), "leave it out")
    if not in_memory and not os.fspath(model).strip():
        raise advised(UsageError("a member's model is an empty string"), "name a hub id, a folder or a .gguf file")


def _checked_kwargs(model_kwargs: Any) -> dict[str, Any]:
    checked = dict(model_kwargs or {})
    for name in _OURS:
        if name in checked:
            error = UsageError(f"model_kwargs has {name!r}, which is not chosen there")
            ours = name in ("dtype", "gguf_file", "revision", "trust_remote_code")
            raise advised(error, f"TransformersMember(..., {name}=...)" if ours else "leave it out")
    return checked


def _checked_adapter(adapter: Any) -> str | None:
    if adapter is None or (isinstance(adapter, (str, os.PathLike)) and os.fspath(adapter).strip()):
        return None if adapter is None else os.fspath(adapter)
    raise advised(UsageError(f"adapter={adapter!r} names no adapter"), "name a folder or a hub id, or leave it out")


def _checked_bytes(size: bool | int) -> bool | int:
    if not isinstance(size, int) or size < 0:
        error = UsageError(f"prefix_cache={size!r} is neither True, False nor a number of bytes")
        raise advised(error, "leave it out")
    return size


def _absolute(path: str) -> str:
    """The same file for a process that works in another folder."""
    return os.path.abspath(path) if os.path.exists(path) else path


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _as_json(one) for key, one in value.items()}
    return value if isinstance(value, (str, int, float, bool)) else repr(value)
