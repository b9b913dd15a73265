"""Which proxy a request takes, and what is loaded when the model hub cannot be reached."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import MemberError, UsageError, advised
from .threads import shown


def through_proxy(url: str) -> str:
    """Through which proxy httpx2 asks this address, for a message and without its password; empty
    if through none."""
    address, proxies = urlsplit(url), getproxies()
    kind = next((one for one in (address.scheme, "all") if proxies.get(one)), None)
    if kind is None or proxy_bypass(address.hostname or ""):
        return ""
    return (
        f", asked through the proxy {proxies[kind].rpartition('@')[2]} (from {kind.upper()}_PROXY),"
    )


def refuse_secrets(url: str) -> None:
    """Refuse an address with a user, a password or a query, without showing it, because addresses
    are visible to everybody.

    >>> refuse_secrets("http://localhost:8000/v1#my-model")
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise advised(
            UsageError(f"a server's address cannot be read: {error}"), "http://host:8000/v1"
        ) from None
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
    return start + (
        f"; to bypass the proxy, set NO_PROXY={address.hostname}" if through_proxy(url) else ""
    )


def on_hub(model: str, revision: str | None, member: str) -> str:
    """What transformers should load: ``model`` itself, or its folder in the hub's cache if the hub
    cannot be asked.

    Asks once. transformers would ask six times for each file, which takes a minute without a
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
        hub = (
            f"the hub {constants.ENDPOINT}{through_proxy(constants.ENDPOINT)} cannot be reached "
            f"({shown(error)})"
        )
        offline = isinstance(error, errors.OfflineModeIsEnabled)
        why = "HF_HUB_OFFLINE is set" if offline else hub
        why = f"{model} is neither a local folder nor in the hub's cache, and {why}"
        absent = MemberError(why, member=member, kind="not_found" if offline else "error")
        raise advised(
            absent, "name a folder or a .gguf file, or make sure the hub can be reached"
        ) from error
    return model
