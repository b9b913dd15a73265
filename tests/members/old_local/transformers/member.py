"""TransformersMember: any decoder-only causal LM that transformers loads, in this process, for many
queries at once.

This file has its arguments, and which members share a cache. The rest of its life is that of every
member in this process (:mod:`..local`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, cast

import psutil
import torch

from langchain_specfuse.errors import UsageError, advised

from ..local.batch_group import GroupMember, MemberSettings
from ..local.member import LocalMember
from ..local.strands import StrandStore
from .cache import Forward, ModelCache, best_cache
from .loading import Source, Weights, free_memory, given, load
from .lora import Adapter

_OURS = ("dtype", "torch_dtype", "revision", "trust_remote_code", "use_safetensors", "weights_only")
"""Arguments of from_pretrained that are not for ``model_kwargs``: they are ours, or would open
pickled weights."""


class TransformersMember(LocalMember):
    """One LLM in this process.

    >>> member = TransformersMember(
    ...     "Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16"
    ... )  # loads when first used
    >>> member.name
    'Qwen2.5-0.5B-Instruct'

    ``model``
        A hub id, a local folder, or a model in memory, then with its ``tokenizer``.
    ``adapter``
        A folder or hub id with a LoRA, as peft writes it.
    ``name``
        What it is called (default: the last part of the adapter's or model's name).
    ``dtype``, ``device``
        Default: the checkpoint's precision, where the device computes in it; the GPU with most
        room, else the CPU.
    ``model_kwargs``
        More arguments of transformers' ``from_pretrained``, such as ``device_map``,
        ``attn_implementation`` and ``quantization_config``.
    ``revision``, ``trust_remote_code``
        As for ``from_pretrained``.
    ``chat_template``, ``chat_template_kwargs``
        A template instead of the tokenizer's; ``"plain"`` is for base models. Arguments for the
        template.
    ``system_prompt``
        Takes the place of the conversation's system messages.
    ``repetition_penalty``, ``seed``
        The member's own; members with different seeds sample differently.
    ``thinking_tokens``
        A reasoning model thinks before its first word, for at most this many tokens (0: never).
    ``prefix_cache``
        Bytes that what was read for earlier queries may take. True: a third of the cache; False:
        nothing is kept.

    Members of one model that differ in ``adapter``, ``system_prompt``, ``repetition_penalty`` or
    ``seed`` share the weights. Texts are read one after the other: for many questions at once a
    server or a ``.gguf`` file is quicker.
    """

    usual = vars(Source("")) | {"dtype": None}

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        adapter: str | os.PathLike[str] | None = None,
        name: str | None = None,
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
    ) -> None:
        in_memory = not isinstance(model, (str, os.PathLike))
        _refuse_tokenizer(model, tokenizer, in_memory)
        label = type(model).__name__ if in_memory else os.fspath(model)
        super().__init__(
            Source(
                label, dtype, device, _checked_kwargs(model_kwargs), revision, trust_remote_code
            ),
            adapter=adapter,
            name=name,
            called=label,
            settings=MemberSettings(
                chat_template,
                dict(chat_template_kwargs or {}),
                system_prompt,
                repetition_penalty,
                seed,
                thinking_tokens,
            ),
            prefix_cache=prefix_cache,
            given=given(model, tokenizer) if in_memory else None,
        )

    # rows may be moved: tensors made in inference mode can be written in no other
    @torch.inference_mode()
    def forget(self, query_id: str) -> None:
        super().forget(query_id)

    @torch.inference_mode()
    def unload(self) -> None:
        super().unload()

    # --- loading ----------------------------------------------------------------------------------

    def _weights(self) -> Weights:
        with torch.inference_mode():
            return load(self.source, self.name)

    def _adapter(self, weights: Weights, path: str) -> Adapter:
        return weights.adapters.get(path, self.name)

    def _store(self, weights: Weights, adapter: Adapter | None) -> tuple[StrandStore, int]:
        forward = Forward(weights.model, weights.adapters)
        return best_cache(forward, _trial_tokens(weights), self.name, adapter), _free_bytes(
            weights.device
        )

    def _details(self, loaded: GroupMember) -> tuple[str, int]:
        weights, store = loaded.weights, cast("ModelCache", loaded.store)
        dtype = str(weights.model.dtype).removeprefix("torch.")
        detail = f"{weights.device}, {dtype}, {store.forward.attention}, {store.kind}"
        return detail, sum(one.numel() for one in weights.model.parameters())


def _free_bytes(device: str) -> int:
    """``device`` is a model's: ``cpu``, ``cuda:0``, ``mps:0``."""
    free = free_memory()
    found = free.get(device, free.get(device.partition(":")[0]))
    return int(psutil.virtual_memory().available if found is None else found)


def _trial_tokens(weights: Weights) -> list[int]:
    """A few ordinary tokens to try things with."""
    special = set(weights.tokenizer.all_special_ids)
    size = min(len(weights.tokenizer), weights.model.get_input_embeddings().weight.shape[0])
    return [token for token in range(size // 2, size) if token not in special][:29] or list(
        range(size)
    )


# --- checks ---------------------------------------------------------------------------------------


def _refuse_tokenizer(model: Any, tokenizer: Any, in_memory: bool) -> None:
    if in_memory and tokenizer is None:
        error = UsageError(
            f"a model in memory needs its tokenizer too, got {type(model).__name__} alone"
        )
        raise advised(error, "TransformersMember(model, tokenizer)")
    if not in_memory and tokenizer is not None:
        raise advised(
            UsageError("a tokenizer is only given along with a model in memory"), "leave it out"
        )
    if not in_memory and not os.fspath(model).strip():
        raise advised(
            UsageError("a member's model is an empty string"), "name a hub id or a folder"
        )


def _checked_kwargs(model_kwargs: Any) -> dict[str, Any]:
    checked = dict(model_kwargs or {})
    for name in _OURS:
        if name in checked:
            error = UsageError(f"model_kwargs must not contain {name!r}")
            ours = name in ("dtype", "revision", "trust_remote_code")
            raise advised(error, f"TransformersMember(..., {name}=...)" if ours else "leave it out")
    return checked
