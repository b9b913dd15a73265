"""The settings that a request sends to a chat model besides its messages.

A chat model keeps its own settings, because no other setting is accepted by all providers: some
models refuse temperature 0, or a seed. Ollama accepts the same settings for all its models, so what
its user left open is what the answer asks for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from langchain_core.language_models import BaseChatModel

from ...core.values import Constraint, Sampling


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


def format_of(model: BaseChatModel, constraint: Constraint | None) -> Any:
    """Ollama's ``format`` for an answer that begins with this reply; None if it has none.

    Ollama's grammars are made by llama.cpp's converter, which puts required properties first. The
    answer has them in the schema's order. Where these differ, the model reads the schema in its
    prompt alone.
    """
    if constraint is None or not is_ollama(model):
        return None
    if constraint.kind == "json":
        return "json"
    if constraint.kind != "json_schema":
        return None
    schema = json.loads(constraint.body)
    if not isinstance(schema, dict) or any(map(_puts_optional_first, _objects_in(schema))):
        return None
    return schema


def _objects_in(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a JSON value, itself included."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield found
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _puts_optional_first(schema: dict[str, Any]) -> bool:
    """Whether an optional property comes before a required one.

    >>> _puts_optional_first({"properties": {"a": {}, "b": {}}, "required": ["b"]})
    True
    """
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict) or not isinstance(required, list):
        return False
    optional = [name not in required for name in properties]
    return optional != sorted(optional)
