"""Proxies, addresses and HTTP errors of servers."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..errors import UsageError, advised


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
