"""LlamaCppMember: a ``.gguf`` file, read by llama.cpp in this process. Needs neither torch nor
transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ..arguments import checked
from ..local.member import (
    LocalMember,
    MemberSettings,
    PrefixCache,
    RepetitionPenalty,
    ThinkingTokens,
)
from ..local.weights import Weights
from ..names import check_argument
from .cache import LlamaCppCache
from .model import GgufSource, GgufWeights, load, load_early


class LlamaCppMember(LocalMember):
    """One ``.gguf`` file as a member. Template, special tokens and stop tokens are those of the
    file.

    >>> member = LlamaCppMember("models/qwen2.5-1.5b-instruct-q4_k_m.gguf")  # loads when first used
    >>> member.name
    'qwen2.5-1.5b-instruct-q4_k_m'

    ``model``
        The file; for a model in several files, the first one. ``hf:user/model:quantisation`` is a
        file on the Hugging Face hub.
    ``adapter``
        A LoRA as a ``.gguf`` file. Members with different adapters share the weights of the base.
    ``name``
        The member's name (default: the name of the adapter's or model's file).
    ``n_gpu_layers``
        How many layers a GPU computes. ``"auto"``: all, if this build of llama.cpp supports a GPU
        of this machine.
    ``cache_type``
        How keys and values are kept: ``"f16"``, or ``"q8_0"`` or ``"q4_0"`` for half and a quarter
        of the memory.
    ``chat_template``, ``chat_template_kwargs``, ``system_prompt``, ``repetition_penalty``
        As those of :class:`.TransformersMember`; so are ``thinking_tokens`` and ``prefix_cache``.

    It uses ``$OMP_NUM_THREADS`` threads or, if that is not set, one for each core.
    """

    usual_source: ClassVar[Mapping[str, Any]] = vars(GgufSource(""))

    @checked(elsewhere={"threads": "set $OMP_NUM_THREADS"})
    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        adapter: str | os.PathLike[str] | None = None,
        name: str | None = None,
        n_gpu_layers: Annotated[int, Field(ge=0, description="the number of layers, or 'auto'")]
        | Literal["auto"] = "auto",
        cache_type: Literal["f16", "q8_0", "q4_0"] = "f16",
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: RepetitionPenalty = None,
        thinking_tokens: ThinkingTokens = 1024,
        prefix_cache: PrefixCache = True,
    ) -> None:
        settings = MemberSettings(
            chat_template,
            dict(chat_template_kwargs or {}),
            system_prompt,
            repetition_penalty,
            thinking_tokens,
        )
        file = os.fspath(model)
        check_argument(file, "LlamaCppMember", ["gguf", "transformers"], "a .gguf file")
        super().__init__(
            GgufSource(file, n_gpu_layers, cache_type),
            settings,
            adapter=adapter,
            name=name,
            prefix_cache=prefix_cache,
        )

    def _start_unloaded(self, in_memory: Weights | None) -> None:
        super()._start_unloaded(in_memory)
        self._early: Future[GgufWeights] | None = None
        """The weights, if they began to load before the member."""

    def start_loading(self) -> None:
        """Begin to load the weights, so that they load beside those of other members."""
        if self.cache is None and self._early is None:
            self._early = load_early(self.source)

    def unload(self) -> None:
        self._early = None
        super().unload()

    def _new_cache(self, weights: Any, adapter: Any) -> LlamaCppCache:
        return LlamaCppCache(weights, adapter)

    def _load_weights(self) -> GgufWeights:
        early, self._early = self._early, None
        return load(self.source) if early is None else early.result()
