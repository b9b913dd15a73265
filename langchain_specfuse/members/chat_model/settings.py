"""The settings of a chat model: what a request sends besides its messages, and how long nothing may
arrive.

A chat model keeps its own settings, because no other setting is accepted by all providers: some
models refuse temperature 0, or a seed. Ollama accepts the same settings for all its models, so what
its user left open is what the answer asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.caches import BaseCache
from langchain_core.language_models import BaseChatModel

from ...core.values import Sampling

SILENCE_S = 10.0
"""How long nothing may arrive from a provider whose chat model streams."""
LONG_SILENCE_S = 120.0
"""How long nothing may arrive if the model reasons unseen, its reply comes in one piece, or its
rate limiter may let the request wait."""
_LOCAL = ("ollama", "llamacpp")
"""Providers whose models are loaded on demand, or read long prompts on a small machine. Ollama
unloads a model after five minutes. https://github.com/ollama/ollama/blob/main/docs/faq.md"""


def is_ollama(model: BaseChatModel) -> bool:
    """Whether this is langchain-ollama's chat model. That of langchain-community lacks the
    seed."""
    is_ollamas = model._get_ls_params().get("ls_provider") == "ollama"
    return is_ollamas and {"temperature", "seed", "format"} <= type(model).model_fields.keys()


def sampling_of(model: BaseChatModel, sampling: Sampling) -> dict[str, Any]:
    """The settings that this sampling needs, as fields of the chat model.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> sampling_of(FakeListChatModel(responses=[]), Sampling(temperature=0.7, seed=3))
    {'temperature': 0.7}
    """
    is_open = is_ollama(model) and model.temperature is None  # type: ignore[attr-defined]
    if sampling.temperature == 0 and not is_open:
        return {}
    settings: dict[str, Any] = {"temperature": sampling.temperature}
    # Samples with one seed would all be the same text.
    if is_ollama(model) or getattr(model, "seed", None) is not None:
        settings["seed"] = sampling.seed
    return settings


def silence_of(model: BaseChatModel) -> tuple[float, float] | None:
    """How long nothing may arrive from this chat model, before the first part of its reply and
    after it; None: as long as from a server.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> silence_of(FakeListChatModel(responses=[]))
    (10.0, 10.0)
    """
    if model._get_ls_params().get("ls_provider") in _LOCAL:
        return None
    streams = model._should_stream(async_api=False, stream=True) and not model.disable_streaming
    if not streams or isinstance(model.cache, BaseCache) or _reasons_unseen(model):
        return LONG_SILENCE_S, LONG_SILENCE_S
    if model.rate_limiter is not None:  # in LangChain's example, for 10 s
        return LONG_SILENCE_S, SILENCE_S
    return SILENCE_S, SILENCE_S


def _reasons_unseen(model: BaseChatModel) -> bool:
    """Whether the model reasons, and LangChain may hand on nothing meanwhile."""
    for name in ("thinking", "reasoning", "reasoning_effort"):
        setting = getattr(model, name, None)
        if isinstance(setting, Mapping):
            setting = setting.get("effort") or setting.get("type")
        if setting is not None:
            return setting not in ("disabled", "none", False)
    return bool((model.profile or {}).get("reasoning_output"))
