"""Proxies, addresses and HTTP errors of servers, and models of a hub that cannot be reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import MemberError, UsageError, advised
from .chat_model.names import hint_for
from .threads import shown


def through_proxy(url: str) -> str:
    """The proxy for requests to this address, as a part of a message and without its password;
    empty if there is none."""
    address = urlsplit(url)
    proxies = getproxies()
    kind = next((kind for kind in (address.scheme, "all") if proxies.get(kind)), None)
    if kind is None or proxy_bypass(address.hostname or ""):
        return ""
    proxy = proxies[kind].rpartition("@")[2]
    return f", asked through the proxy {proxy} (from {kind.upper()}_PROXY),"


def refuse_secrets(url: str) -> None:
    """Refuse an address with a user, a password or a query, without showing it: addresses appear in
    traces and logs.

    >>> refuse_secrets("http://localhost:8000/v1#my-model")
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        unread = UsageError(f"a server's address cannot be read: {error}")
        raise advised(unread, "for example http://host:8000/v1") from None
    if "@" in parts.netloc or parts.query:
        what = "a user or a password" if "@" in parts.netloc else "a query"
        secret = UsageError(
            f"the address of the server {parts.hostname} contains {what}, but addresses are public"
        )
        advice = (
            "put the key into the environment variable SPECFUSE_API_KEY, or name another: "
            "api_key_env="
        )
        raise advised(secret, f"{advice}; 'Basic ...' is sent as it is")


def to_correct_key(variable: str) -> str:
    """Advice where a server refused the key of this environment variable."""
    return f"set, or correct, the server's key in the environment variable {variable}"


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error that OpenAI's, Anthropic's, Ollama's, Google's, Amazon's or
    httpx's client raised."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        codes = [(response.get("ResponseMetadata") or {}).get("HTTPStatusCode")]
    else:
        own = [getattr(error, name, None) for name in ("status_code", "status", "code")]
        codes = [*own, getattr(response, "status_code", None)]
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), None)


def to_reach(url: str) -> str:
    """Advice where this address cannot be reached."""
    address = urlsplit(url)
    start = "start the server, or correct its address"
    if address.scheme == "https":
        start = "check the network connection, or correct the server's address"
    if address.port == 11434:
        start = "is Ollama running? `ollama serve` starts it"
    if through_proxy(url):
        start += f"; to bypass the proxy, set NO_PROXY={address.hostname}"
    return start


def on_hub(model: str, revision: str | None, member: str) -> str:
    """What transformers should load: ``model`` itself, or its folder in the hub's cache if the hub
    cannot be reached.

    Tries once. transformers would try six times for each file, which takes a minute without a
    network.
    """
    from huggingface_hub import (
        constants,
        errors,
        get_hf_file_metadata,
        hf_hub_url,
        try_to_load_from_cache,
    )

    try:
        if not os.path.exists(model):
            get_hf_file_metadata(hf_hub_url(model, "config.json", revision=revision))
    except (errors.HFValidationError, errors.HfHubHTTPError):
        pass  # transformers says what is wrong
    except Exception as error:  # the HTTP client may raise anything
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
        if isinstance(cached, str):
            return os.path.dirname(cached)
        if isinstance(error, errors.OfflineModeIsEnabled):
            kind, why = "not_found", "HF_HUB_OFFLINE is set"
        else:
            hub = f"{constants.ENDPOINT}{through_proxy(constants.ENDPOINT)}"
            kind, why = "error", f"the hub {hub} cannot be reached ({shown(error)})"
        message = f"{model} is neither a local folder nor in the hub's cache, and {why}"
        absent = MemberError(message, member=member, kind=kind)
        hint = hint_for(model)
        if hint is not None:
            advised(absent, hint)
        advice = "name a folder or a .gguf file, or make sure the hub can be reached"
        raise advised(absent, advice) from error
    return model
