"""The settings that a request sends to a chat model besides its messages.

A chat model keeps its own settings, because no other setting is accepted by all providers: some
models refuse temperature 0, or a seed. Ollama accepts the same settings for all its models, so what
its user left open is what the answer asks for.
"""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from ...core.values import Sampling


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
