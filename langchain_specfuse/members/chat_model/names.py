"""Names of chat models: create a model from a name, name a model in answers, and distinguish models
in caches."""

from __future__ import annotations

import hashlib
import json
import re
from contextlib import suppress
from typing import Any

from langchain_core.language_models import BaseChatModel

from ...errors import UsageError, advised

PROVIDERS = (
    "anthropic",
    "anthropic_bedrock",
    "azure_ai",
    "azure_openai",
    "baseten",
    "bedrock",
    "bedrock_converse",
    "cohere",
    "deepseek",
    "fireworks",
    "google_genai",
    "google_vertexai",
    "groq",
    "huggingface",
    "ibm",
    "litellm",
    "meta",
    "mistralai",
    "nvidia",
    "ollama",
    "openai",
    "openrouter",
    "perplexity",
    "together",
    "upstage",
    "xai",
)
"""What may stand before the colon in a name such as ``"ollama:llama3.2"``: the providers of
``init_chat_model``."""


def chat_model_named(name: str) -> BaseChatModel:
    """The chat model that LangChain creates from a name such as ``"ollama:llama3.2"``."""
    package = f"langchain-{name.partition(':')[0].replace('_', '-')}"
    try:
        from langchain.chat_models import init_chat_model
    except ModuleNotFoundError as error:
        missing = UsageError(f"a member named {name!r} needs langchain and {package}")
        raise advised(missing, f"pip install langchain {package}") from error
    if not name:  # LangChain would return a model that is chosen in a call
        empty = UsageError("a chat model's name must not be empty, got ''")
        raise advised(empty, "for example ChatModelMember('ollama:llama3.2')")
    try:
        return init_chat_model(name)
    except ImportError as error:
        missing = UsageError(f"a member named {name!r} needs {package}, which is not installed")
        raise advised(missing, f"pip install {package}") from error
    except Exception as error:
        refused = UsageError(
            f"LangChain could not create a chat model from {name!r}: {type(error).__name__}: "
            f"{error}"
        )
        advice = "create it yourself and pass the object: members=[ChatOpenAI(...)]"
        key = re.search(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN)\b", str(error))
        if key:
            advice = f"set the environment variable: export {key[0]}=...; or in Python {advice}"
        raise advised(refused, advice) from error


def hint_for(model: str) -> str | None:
    """What may have been meant by a name that is no model on the hub.

    >>> hint_for("ollama/llama3.2"), hint_for("Qwen/Qwen3-8B")
    ("if you mean a chat model, it is named 'ollama:llama3.2'", None)
    >>> hint_for("Qwen3-8B")
    "a hub model is named 'owner/Qwen3-8B', an Ollama model 'ollama:Qwen3-8B'"
    """
    provider, slash, rest = model.partition("/")
    if not slash:
        return f"a hub model is named 'owner/{model}', an Ollama model 'ollama:{model}'"
    if provider in PROVIDERS:
        # Some providers have models on the hub as well.
        return f"if you mean a chat model, it is named '{provider}:{rest}'"
    return None


def name_of(model: BaseChatModel) -> str:
    """The last part of the model's name, or its class's name."""
    name = str(model._get_ls_params().get("ls_model_name") or type(model).__name__)
    return name.rstrip("/").rsplit("/", 1)[-1]


def key_of(model: BaseChatModel) -> str:
    """A digest of a chat model's settings. LangChain's own key is not enough: for a ChatOllama it
    contains only the class. Keys are left out, because a ``SecretStr`` does not show its value."""
    own: dict[str, Any] = {}
    for name in sorted(type(model).model_fields.keys() - BaseChatModel.model_fields.keys()):
        with suppress(TypeError, ValueError):  # a SecretStr or a client is not JSON
            own[name] = json.dumps({name: getattr(model, name)}, sort_keys=True)
    kind = type(model)
    params = model._get_invocation_params()
    text = json.dumps([kind.__module__, kind.__qualname__, params, own], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
