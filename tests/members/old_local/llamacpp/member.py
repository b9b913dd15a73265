"""LlamaCppMember: a ``.gguf`` file, read by llama.cpp in this process. Needs neither torch nor
transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil

from langchain_specfuse.errors import UsageError, advised, check_whole_number

from ..local.batch_group import GroupMember, MemberSettings
from ..local.member import LocalMember
from ..local.strands import StrandStore
from .binding import CACHE_TYPES
from .cache import SequenceStore
from .loading import GgufSource, GgufWeights, LoraAdapter, load
from .loading import threads as most_threads


class LlamaCppMember(LocalMember):
    """One ``.gguf`` file as a member. Template, special tokens and stop tokens are those of the
    file.

    >>> member = LlamaCppMember("models/qwen2.5-1.5b-instruct-q4_k_m.gguf")  # loads when first used
    >>> member.name
    'qwen2.5-1.5b-instruct-q4_k_m'

    ``model``
        The file. Of a model in several files, the first.
    ``adapter``
        A LoRA as a ``.gguf`` file. Members with different adapters share the weights of the base.
    ``name``
        What it is called (default: the name of the adapter's or model's file).
    ``n_gpu_layers``
        How many layers a GPU computes. ``"auto"``: all, if this build of llama.cpp knows a GPU
        here.
    ``cache_type``
        How keys and values are kept: ``"f16"``, or ``"q8_0"`` or ``"q4_0"`` for half and a quarter
        of the memory.
    ``threads``
        The number of threads. The default is ``$OMP_NUM_THREADS`` or, if that is not set, at most
        one for each core: while it writes, the member measures whether fewer are faster, as they
        are if the machine has other work to do.
    ``chat_template``, ``chat_template_kwargs``, ``system_prompt``, ``repetition_penalty``, ``seed``
        As those of :class:`.TransformersMember`; so are ``thinking_tokens`` and ``prefix_cache``.
    """

    usual = vars(GgufSource(""))

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        name: str | None = None,
        n_gpu_layers: int | str = "auto",
        cache_type: str = "f16",
        threads: int | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
        thinking_tokens: int = 1024,
        prefix_cache: bool | int = True,
    ) -> None:
        if cache_type not in CACHE_TYPES:
            raise advised(
                UsageError(f"cache_type={cache_type!r} is not known"),
                f"one of {', '.join(CACHE_TYPES)}",
            )
        if n_gpu_layers != "auto":
            check_whole_number("n_gpu_layers", n_gpu_layers, "or leave it at 'auto'", least=0)
        if threads is not None:
            advice = "leave it out to find the fastest number by measuring"
            check_whole_number("threads", threads, advice)
        self.threads = threads
        file = os.fspath(model)
        settings = MemberSettings(
            chat_template,
            dict(chat_template_kwargs or {}),
            system_prompt,
            repetition_penalty,
            seed,
            thinking_tokens,
        )
        super().__init__(
            GgufSource(file, n_gpu_layers, cache_type),
            adapter=adapter,
            name=name,
            called=file,
            settings=settings,
            prefix_cache=prefix_cache,
        )

    # --- loading ----------------------------------------------------------------------------------

    @property
    def _apart(self) -> Any:
        return self.threads

    def _weights(self) -> GgufWeights:
        return load(self.source)

    def _adapter(self, weights: GgufWeights, path: str) -> LoraAdapter:
        return weights.adapter(path, self.name)

    def _store(self, weights: GgufWeights, adapter: LoraAdapter | None) -> tuple[StrandStore, int]:
        return SequenceStore(weights, adapter, self.threads), int(psutil.virtual_memory().available)

    def _details(self, loaded: GroupMember) -> tuple[str, int]:
        weights: GgufWeights = loaded.weights
        on = weights.chip
        if weights.device == "cpu":
            most = self.threads or most_threads()
            on = f"{most} thread{'s' * (most != 1)}"
        return (
            f"{weights.device}, {weights.description}, {on}, {loaded.store.kind}",
            weights.parameters,
        )
