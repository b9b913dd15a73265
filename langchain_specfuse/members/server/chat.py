"""Makes a LangChain chat model for a server that only chats: Ollama is asked through its own API,
any other server through OpenAI's."""

from __future__ import annotations

from typing import Any

from ...errors import MemberError, UsageError, advised
from .client import Client

LIBRARY = "library"
"""``owned_by`` in Ollama's list of models."""


def chat_model_of(client: Client, model: str, owner: str) -> Any:
    """A chat model for this server, with the client's key, certificate authorities and time
    limit."""
    address = client.address
    # a request with a temperature above 0 replaces both
    common: dict[str, Any] = {"model": model, "temperature": 0.0, "seed": 0}
    try:
        if owner == LIBRARY or is_ollama(client):
            from langchain_ollama import ChatOllama

            http = {
                "headers": client.headers,
                "verify": client.trusted,
                "timeout": address.timeout_s,
            }
            return ChatOllama(**common, base_url=address.root, logprobs=True, client_kwargs=http)
        from langchain_openai import ChatOpenAI

        if address.verify is not True:
            from openai import DefaultHttpxClient

            common["http_client"] = DefaultHttpxClient(verify=client.trusted)
        common |= {
            "timeout": address.timeout_s,
            "default_headers": client.headers,
            "stream_usage": True,
        }
        return ChatOpenAI(**common, base_url=address.api, api_key="none")  # type: ignore[arg-type]
    except ModuleNotFoundError as error:
        package = "langchain-ollama" if error.name == "langchain_ollama" else "langchain-openai"
        missing = UsageError(
            f"the server at {address.url} chats and takes no token ids: it needs {package}"
        )
        raise advised(missing, f"pip install {package}") from error


def is_ollama(client: Client) -> bool:
    """Whether it has Ollama's own API."""
    try:
        return isinstance(client.get("/api/version").get("version"), str)
    except (MemberError, AttributeError):  # no such path, or no object
        return False
