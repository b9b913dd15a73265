"""One server over HTTP: pooled connections, time limits, retries.

A request depends on its job alone, so it may be sent again. Every failure is a
:class:`.MemberError` whose kind says what went wrong.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any
from weakref import WeakSet

import httpx2
import orjson

from ...errors import MemberError, UsageError, advised
from ..network import through_proxy, to_correct_key, to_reach
from ..threads import SHOWN, interrupted_by, note_sign, refuse_late

log = logging.getLogger("langchain_specfuse")

RETRIES = 3
"""How often a request is sent again."""
RETRIED = (429, 500, 502, 503, 504)
"""Statuses of errors that may be temporary."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
CONNECT_S = 5.0
JSON = {"content-type": "application/json"}
MOST_BYTES = 1 << 27
"""A longer reply is refused. The longest requested reply, the log-probabilities of a whole
vocabulary, takes a tenth of it."""


_THREAD = threading.local()


class _Unlogged(logging.Filter):
    """Drops httpx2's line about each request inside :func:`unlogged`, unless the user has asked for
    httpx2's own log: an answer takes dozens of requests."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_wanted = logging.getLogger("httpx2").level != logging.NOTSET
        return is_wanted or record.levelno > logging.INFO or not getattr(_THREAD, "unlogged", False)


logging.getLogger("httpx2").addFilter(_Unlogged())


@contextmanager
def unlogged() -> Iterator[None]:
    """Keep httpx2 from logging the requests of this thread at the level INFO."""
    _THREAD.unlogged = True
    try:
        yield
    finally:
        _THREAD.unlogged = False


class RefusedError(MemberError):
    """The server replied with an error status."""

    status = 0


class StrayReplyError(MemberError):
    """The server sent no JSON, or no list of models where one was requested."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole reply."""

    status: int
    content: bytes
    headers: Mapping[str, str]
    path: str

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how to reach it."""

    url: str
    api_key_env: str = "SPECFUSE_API_KEY"
    """The environment variable with the key. If it is not set, no key is sent."""
    timeout_s: float = 60.0
    """The time limit of one request with all its retries."""
    verify: bool | str = True
    """For TLS: True checks the certificate, a path names the authorities to trust, and False turns
    the check off."""
    key: str = field(default="", repr=False)
    """The key of a server that this process has started, instead of the variable's. Such a server
    is asked directly, without a proxy."""

    @property
    def api(self) -> str:
        """The prefix of the OpenAI interface's paths."""
        url = httpx2.URL(self.url)
        return self.url.rstrip("/") if url.path.strip("/") else f"{self.url.rstrip('/')}/v1"

    @property
    def root(self) -> str:
        """The prefix of an engine's own paths."""
        return self.api.removesuffix("/v1")


class Client:
    """The connections to one server. May be used from several threads."""

    def __init__(self, address: Address, member: str, max_connections: int) -> None:
        self.address = address
        self.member = member
        self.broken = False
        """Whether a connection was refused or cut. Another server may have taken its place."""
        self.is_denied = False
        """Whether the server has refused the key, or what the key may use."""
        self.last_sign = 0.0
        """When bytes last arrived."""
        self._closed = False
        self._retired = False
        self._uses = 0
        """The jobs that are sending requests."""
        self._lock = threading.Lock()
        self._key = _key_of(address)
        self._now = threading.local()
        """The deadline of the request that this thread waits for."""
        self._streams: WeakSet[Any] = WeakSet()
        """The open connections: a thread that waits for a reply can only be woken by its socket."""
        self.headers = {}
        if self._key:
            has_scheme = " " in self._key
            self.headers["Authorization"] = self._key if has_scheme else f"Bearer {self._key}"
        self.trusted = _trusted(address.verify)
        self._urls: dict[str, httpx2.URL] = {}
        """path -> its address, parsed once."""
        self._proxy = "" if address.key else through_proxy(address.url)
        limits = httpx2.Limits(
            max_connections=max_connections, max_keepalive_connections=max_connections
        )
        try:
            self._client = httpx2.Client(
                headers=self.headers,
                limits=limits,
                verify=self.trusted,
                trust_env=not address.key,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:  # of a proxy
            unusable = UsageError(f"{self._server('/v1')} cannot be reached: {error}")
            raise advised(
                unusable, 'correct or unset the proxy; for SOCKS: pip install "httpx2[socks]"'
            ) from error

    @property
    def is_outdated(self) -> bool:
        """Whether a new connection would send another key."""
        return self._key != _key_of(self.address)

    def close(self) -> None:
        """Close all connections. Requests under way fail."""
        self._closed = True
        for stream in list(self._streams):
            _shut(stream)
        self._client.close()

    def retire(self) -> None:
        """Close all connections as soon as no job uses them."""
        with self._lock:
            self._retired = True
            is_unused = not self._uses
        if is_unused:
            self.close()

    def use(self) -> None:
        """Note that a job is going to send requests, and will call :meth:`leave`."""
        with self._lock:
            self._uses += 1

    def leave(self) -> None:
        with self._lock:
            self._uses -= 1
            is_over = self._retired and not self._uses
        if is_over:
            self.close()

    def note_sign(self) -> None:
        self.last_sign = time.monotonic()

    def get(self, path: str) -> Any:
        return self._request("GET", path, None)

    def models(self) -> list[Any]:
        """The server's models."""
        path = "/v1/models"
        listed = self.get(path)
        models = (listed.get("data") or []) if isinstance(listed, Mapping) else None
        if not isinstance(models, list) or not all(isinstance(item, Mapping) for item in models):
            message = f"{self._server(path)} sent something other than a list of models"
            raise StrayReplyError(message, member=self.member)
        return models

    def post(self, path: str, body: Mapping[str, Any], final: Collection[int] = ()) -> Any:
        """``final``: statuses that are not retried here."""
        return self._request("POST", path, body, final)

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, final: Collection[int] = ()
    ) -> Any:
        deadline = time.monotonic() + self.address.timeout_s
        for attempt in range(RETRIES + 1):
            outcome = self._try(method, path, body, deadline)
            if isinstance(outcome, HttpReply) and (
                outcome.status not in RETRIED or outcome.status in final
            ):
                return self.parsed(outcome)
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**attempt)
            pause = max(pause, _retry_after(outcome))
            if attempt == RETRIES or time.monotonic() + pause > deadline:
                raise self._failure(outcome, path)
            log.info("%s: retrying %s in %.1f s", self.member, path, pause)
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    def _try(
        self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float
    ) -> HttpReply | httpx2.TransportError:
        """One attempt."""
        self._now.deadline = deadline
        self._refuse_over()  # there may have been a long pause since the last attempt
        try:
            return self._reply(method, path, body, deadline)
        except httpx2.TransportError as error:
            self._refuse_over()  # the connection was shut here, which says nothing about the server
            # A server that has not replied in time may still be at work: another request would only
            # add to its load. While no connection is free, earlier requests wait for the server.
            if isinstance(error, httpx2.ReadTimeout | httpx2.PoolTimeout):
                message = f"{self._server(path)} did not answer within {self.address.timeout_s:g} s"
                raise MemberError(message, member=self.member, kind="timeout") from error
            self.broken = True
            return error

    def _refuse_over(self) -> None:
        """Raise if nobody waits for this thread's request any more, or if it cannot be sent."""
        refuse_late()
        if self._closed:
            raise MemberError("its connections were closed meanwhile", member=self.member)

    def _reply(
        self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float
    ) -> HttpReply:
        left = self._left()
        timeout = httpx2.Timeout(left, connect=min(CONNECT_S, left))
        trace = {"trace": self._opened}
        stream = partial(self._client.stream, timeout=timeout, extensions=trace)
        sent: dict[str, Any] = {}
        if body is not None:
            # For long lists of token ids, httpx2's own encoder takes 15 times as long.
            sent = {"content": orjson.dumps(body), "headers": JSON}
        with unlogged(), stream(method, self._url(path), **sent) as response:
            content = bytearray()
            self._note_bytes()
            for chunk in response.iter_bytes():
                self._note_bytes()
                content += chunk
                if len(content) > MOST_BYTES:
                    message = (
                        f"{self._server(path)} sent more than {MOST_BYTES >> 20} MiB, which "
                        "was not asked for"
                    )
                    raise MemberError(message, member=self.member)
                if time.monotonic() > deadline:
                    raise httpx2.ReadTimeout("the reply did not end in time")
        return HttpReply(response.status_code, bytes(content), response.headers, response.url.path)

    def _note_bytes(self) -> None:
        self.note_sign()
        note_sign()

    def _left(self) -> float:
        return max(0.001, float(self._now.deadline) - time.monotonic())

    def _opened(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep a connection when it is opened, and limit all its reads together. httpx2 limits each
        of them alone, so a slow trickle would never end."""
        if event.endswith(
            (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")
        ):
            stream = info["return_value"]
            stream.read = partial(self._read, stream.read, partial(_shut, stream))
            self._streams.add(stream)

    def _read(
        self,
        read: Callable[..., bytes],
        interrupt: Callable[[], None],
        size: int,
        timeout: float | None = None,
    ) -> bytes:
        with interrupted_by(interrupt):
            return read(size, self._left())

    def parsed(self, reply: HttpReply) -> Any:
        """The reply's JSON. Raises if the server sent an error, or something that is not JSON."""
        if reply.status >= 400:
            raise self._refusal(reply)
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            shown = self._without_key(reply.text)[:SHOWN]
            message = f"{self._server(reply.path)} sent a reply that is not JSON: {shown!r}"
            # Without a cause, which would hold the whole reply.
            raise StrayReplyError(message, member=self.member) from None

    def _failure(self, outcome: HttpReply | httpx2.TransportError, path: str) -> MemberError:
        if isinstance(outcome, HttpReply):
            return self._refusal(outcome)
        return self._unreached(outcome, path)

    def _refusal(self, reply: HttpReply) -> RefusedError:
        """The error of a reply with an error status."""
        status = reply.status
        text = self._without_key(_message_in(reply))[:SHOWN]
        kind = {401: "denied", 403: "denied", 404: "not_found"}.get(status, "error")
        if status == 413 or _is_too_long(text):
            kind = "overflow"
        message = f"{self._server(reply.path)} answered {status}: {text}"
        error = RefusedError(message, member=self.member, kind=kind)
        error.status = status
        if status in (401, 403):
            self.is_denied = True
            advised(error, to_correct_key(self.address.api_key_env))
        return error

    def _unreached(self, failure: httpx2.TransportError, path: str) -> MemberError:
        """The error of a request without a reply."""
        kind = "timeout" if isinstance(failure, httpx2.TimeoutException) else "error"
        trouble = "broke off"
        if isinstance(failure, httpx2.ConnectError | httpx2.ConnectTimeout):
            trouble = "cannot be reached"
        why = type(failure).__name__
        if str(failure):
            why += f": {failure}"
        message = (
            f"{self._server(path)} {trouble} ({self._without_key(why)}), tried up to "
            f"{RETRIES + 1} times"
        )
        error = MemberError(message, member=self.member, kind=kind)
        error.__cause__ = failure
        return advised(error, to_reach(self.address.url))

    def _without_key(self, text: str) -> str:
        """The text with the key replaced: a server may repeat what it was sent, and errors are
        shown, logged and traced."""
        secret = self._key.rpartition(" ")[2]
        return text.replace(secret, "***") if secret else text

    def _url(self, path: str) -> httpx2.URL:
        """``/v1/...`` is the OpenAI interface, wherever the server has it; other paths are the
        engine's own."""
        if path not in self._urls:
            address = self.address.root + path
            if path.startswith("/v1/"):
                address = self.address.api + path.removeprefix("/v1")
            self._urls[path] = httpx2.URL(address)
        return self._urls[path]

    def _server(self, path: str) -> str:
        short = path.removeprefix(httpx2.URL(self.address.root).path.rstrip("/"))
        return f"the server at {self.address.url} ({short}){self._proxy}"


def _shut(stream: Any) -> None:
    """Shut a connection, which wakes the thread that reads from it."""
    try:
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        pass


def _key_of(address: Address) -> str:
    """The key for this address: its own, or what its environment variable holds now. Refuses a key
    that no header can hold."""
    if address.key:
        return address.key
    variable = address.api_key_env
    # a key that was read from a file ends with a line break
    key = os.environ.get(variable, "").strip()
    secret = key.removeprefix("Basic ").removeprefix("Bearer ")
    if not key.isascii() or not key.isprintable() or " " in secret:
        error = UsageError(
            f"the key in the environment variable {variable} has characters that no header can hold"
        )
        raise advised(error, "put the key there as it was given to you: ASCII, without spaces")
    return key


@lru_cache(maxsize=1)
def _known_authorities() -> ssl.SSLContext:
    """The authorities of this machine. Reading them takes as long as twenty requests."""
    return httpx2.create_ssl_context()


def _trusted(verify: bool | str) -> bool | ssl.SSLContext:
    """The authorities that ``verify`` names, in the form that httpx2 takes."""
    if not isinstance(verify, str):
        return _known_authorities() if verify else False
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:  # also if the file holds no certificate
        unread = UsageError(f"the authorities in {verify} cannot be read: {error}")
        advice = (
            "verify= names a file of certificates in PEM; True trusts the authorities of this "
            "machine"
        )
        raise advised(unread, advice) from error


def _retry_after(outcome: HttpReply | httpx2.TransportError) -> float:
    """How long the server asks clients to wait, within bounds."""
    if not isinstance(outcome, HttpReply):
        return 0.0
    try:
        asked = float(outcome.headers.get("retry-after", 0))
    except ValueError:  # a date
        return LONGEST_PAUSE_S
    return min(max(asked, 0.0), LONGEST_PAUSE_S)


def _message_in(reply: HttpReply) -> str:
    """The server's error message, without the JSON around it."""
    try:
        body = json.loads(reply.content)
        inner = body.get("error", body) if isinstance(body, dict) else body
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
    except (ValueError, RecursionError):
        text = reply.text
    return " ".join(str(text).split()) or "nothing more"


def _is_too_long(text: str) -> bool:
    low = text.lower()
    return "context" in low and any(word in low for word in ("exceed", "maximum", "longer"))
