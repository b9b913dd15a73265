"""One server over HTTP: pooled connections, time limits, retries.

A request depends on its job alone, so it may be sent again. Every failure is a
:class:`.MemberError` whose kind says what went wrong.
"""

from __future__ import annotations

import json
import logging
import math
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
from weakref import WeakSet, finalize

import httpx2
import orjson

from ...core.call import SHOWN, interrupted_by, note_arrival, refuse_closed, rest_s
from ...errors import MemberError, UsageError, advised
from ..network import through_proxy, to_correct_key, to_reach

log = logging.getLogger("langchain_specfuse")

RETRIES = 3
"""How often a request is sent again."""
RETRIED = (429, 500, 502, 503, 504)
"""Statuses of errors that may be temporary."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
CONNECT_S = 5.0
JSON = {"content-type": "application/json"}
EVENT = b"\n\n"
"""What ends an event of a stream. It occurs nowhere else in a response."""

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
class Address:
    """Where a server is, and how to reach it."""

    url: str
    api_key_env: str = "SPECFUSE_API_KEY"
    """The environment variable with the key. If it is not set, no key is sent."""
    timeout_s: float = 60.0
    """The time limit of one request with all its retries; for a stream, until it begins."""
    verify: bool | str = True
    """For TLS: True checks the certificate, a path names the authorities to trust, and False turns
    the check off."""
    key: str = field(default="", repr=False)
    """The key of a server that this process has started, instead of the variable's. Such a server
    is asked directly, without a proxy."""
    ended: threading.Event | None = field(default=None, repr=False, compare=False)
    """Set when the process of such a server has ended."""

    @property
    def api(self) -> str:
        """The prefix of the OpenAI interface's paths."""
        url = httpx2.URL(self.url)
        return self.url.rstrip("/") if url.path.strip("/") else f"{self.url.rstrip('/')}/v1"

    @property
    def root(self) -> str:
        """The prefix of an engine's own paths."""
        return self.api.removesuffix("/v1")


class _Reading(threading.local):
    """What this thread waits for."""

    deadline = math.inf
    """When the request is late. A stream that has begun has no limit here: whoever waits for it
    enforces the limits."""
    events = 0
    """How many ends of events have arrived and are not yet read."""


class Client:
    """The connections to one server. May be used from several threads."""

    def __init__(self, address: Address, member: str) -> None:
        self.address = address
        self.member = member
        self.broken = False
        """Whether a connection was refused or cut. Another server may have taken its place."""
        self.is_denied = False
        """Whether the server has refused the key, or what the key may use."""
        self._closed = False
        self._key = _key_of(address)
        self._now = _Reading()
        self._streams: WeakSet[Any] = WeakSet()
        """The open connections: a thread that waits for a reply can only be woken by its socket."""
        self._being_read: set[httpx2.Response] = set()
        """The streams that have begun and have not ended."""
        self.headers = {}
        if self._key:
            has_scheme = " " in self._key
            self.headers["Authorization"] = self._key if has_scheme else f"Bearer {self._key}"
        self.trusted = _trusted(address.verify)
        self._urls: dict[str, httpx2.URL] = {}
        """path -> its address, parsed once."""
        self._proxy = "" if address.key else through_proxy(address.url)
        try:
            self._client = httpx2.Client(
                headers=self.headers,
                # No limit for requests: the server knows how many it can take. The usual one for
                # idle connections: before each request, httpx2 looks at all of them.
                limits=httpx2.Limits(max_keepalive_connections=20),
                verify=self.trusted,
                trust_env=not address.key,
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:  # of a proxy
            unusable = UsageError(f"{self._server('/v1')} cannot be reached: {error}")
            raise advised(
                unusable, 'correct or unset the proxy; for SOCKS: pip install "httpx2[socks]"'
            ) from error
        # A client that was replaced goes on until the last job that uses it has ended.
        finalize(self, self._client.close).atexit = False

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

    def stream(
        self, path: str, body: Mapping[str, Any], *, limited: bool = True
    ) -> Iterator[list[Any]]:
        """Post a request whose reply is a stream of events. Each list has the data of all events
        that have arrived by now. Closing the iterator closes the connection.

        ``limited``: whether the reply must begin within the time limit. Only a request whose reply
        has not begun is sent again.
        """
        limit_s = self.address.timeout_s if limited else math.inf
        response = self._retried(partial(self._begun, path, body), path, limit_s)
        if response.status_code != 200:
            raise self._refusal(response)
        self._being_read.add(response)
        try:
            yield from self._events(response, path)
        except httpx2.TransportError as error:
            self._refuse_over()  # the connection was shut here
            self.broken = True
            raise self._broke_off(path, self._why(error)) from error
        finally:
            self._being_read.discard(response)
            response.close()

    def rest(self) -> None:
        """Let more arrive for the next chunk of a stream, if others are read, too. All of them are
        read at the same moments: that takes a fifth less processor time than one after another."""
        longest_s = rest_s(len(self._being_read))
        if longest_s:
            time.sleep(longest_s - time.monotonic() % longest_s)

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, final: Collection[int] = ()
    ) -> Any:
        attempt = partial(self._reply, method, path, body)
        return self._parsed(self._retried(attempt, path, self.address.timeout_s, final))

    def _retried(
        self,
        attempt: Callable[[], httpx2.Response],
        path: str,
        limit_s: float,
        final: Collection[int] = (),
    ) -> httpx2.Response:
        """The outcome of the last attempt."""
        deadline = time.monotonic() + limit_s
        for number in range(RETRIES + 1):
            outcome = self._try(attempt, path, deadline)
            if isinstance(outcome, httpx2.Response) and (
                outcome.status_code not in RETRIED or outcome.status_code in final
            ):
                return outcome
            pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**number)
            pause = max(pause, _retry_after(outcome))
            if number == RETRIES or time.monotonic() + pause > deadline:
                raise self._failure(outcome, path)
            log.info("%s: retrying %s in %.1f s", self.member, path, pause)
            self._pause(pause, path)
        raise AssertionError("the last attempt returns or raises")

    def _pause(self, pause_s: float, path: str) -> None:
        """Wait before another attempt, unless the server is known to have ended."""
        ended = self.address.ended
        if ended is None:
            time.sleep(pause_s)
        elif ended.wait(pause_s):
            raise MemberError(f"{self._server(path)} has ended", member=self.member)

    def _try(
        self, attempt: Callable[[], httpx2.Response], path: str, deadline: float
    ) -> httpx2.Response | httpx2.TransportError:
        """One attempt."""
        self._now.deadline = deadline
        self._refuse_over()  # there may have been a long pause since the last attempt
        try:
            with unlogged():
                return attempt()
        except httpx2.TransportError as error:
            self._refuse_over()  # the connection was shut here, which says nothing about the server
            # A server that has not replied in time may still be at work: another request would only
            # add to its load.
            if isinstance(error, httpx2.ReadTimeout):
                message = f"{self._server(path)} did not answer within {self.address.timeout_s:g} s"
                raise MemberError(message, member=self.member, kind="timeout") from error
            self.broken = True
            return error

    def _refuse_over(self) -> None:
        """Raise if nobody waits for this thread's request any more, or if it cannot be sent."""
        refuse_closed()
        if self._closed:
            raise MemberError("its connections were closed meanwhile", member=self.member)

    def _reply(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        """The whole reply."""
        response = self._sent(method, path, body)
        try:
            response.read()
        finally:
            response.close()
        return response

    def _begun(self, path: str, body: Mapping[str, Any]) -> httpx2.Response:
        """The reply as soon as it begins, or the whole reply if the server refuses."""
        self._now.events = 0
        response = self._sent("POST", path, body)
        if response.status_code != 200:
            try:
                response.read()
            finally:
                response.close()
        return response

    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx2.Response:
        """The reply as soon as it begins. Each read is limited in :func:`_read`."""
        left = max(0.001, self._now.deadline - time.monotonic())
        limit = left if left < math.inf else None
        timeout = httpx2.Timeout(limit, connect=min(CONNECT_S, left))
        sent: dict[str, Any] = {}
        if body is not None:
            # For long lists of token ids, httpx2's own encoder takes 15 times as long.
            sent = {"content": orjson.dumps(body), "headers": JSON}
        request = self._client.build_request(
            method,
            self._url(path),
            timeout=timeout,
            extensions={"trace": self._opened},
            **sent,
        )
        return self._client.send(request, stream=True)

    def _events(self, response: httpx2.Response, path: str) -> Iterator[list[Any]]:
        """The data of the events, in lists of those that have arrived together. A list is complete
        when it has an event for each end of an event that the last read received."""
        now, rest = self._now, b""
        events: list[Any] = []
        chunks = response.iter_bytes()
        while True:
            now.deadline = math.inf
            chunk = next(chunks, None)
            if chunk is None:
                break
            *ended, rest = (rest + chunk).split(EVENT)
            now.events -= len(ended)
            for event in ended:
                data = event.partition(b": ")[2]
                if data and data != b"[DONE]" and not event.startswith(b":"):
                    events.append(self._event(data, path))
            if events and now.events <= 0:
                yield events
                events = []
                now.events = 0  # another stream may have been read meanwhile
        if events:
            yield events

    def _event(self, data: bytes, path: str) -> Any:
        """The JSON of one event. Raises if it is the server's error."""
        try:
            event = orjson.loads(data)
        except ValueError:
            shown = self._without_key(data.decode(errors="replace"))[:SHOWN]
            message = f"{self._server(path)} sent an event that is not JSON: {shown!r}"
            raise StrayReplyError(message, member=self.member) from None
        if "error" in event:
            raise self._broke_off(path, self._without_key(_message_of(event))[:SHOWN])
        return event

    def _broke_off(self, path: str, why: str) -> MemberError:
        return MemberError(f"{self._server(path)} broke off ({why})", member=self.member)

    def _opened(self, event: str, info: Mapping[str, Any]) -> None:
        """Keep a connection when it is opened, and limit all its reads together. httpx2 limits each
        of them alone, so a slow trickle would never end."""
        if event.endswith(
            (".connect_tcp.complete", ".connect_unix_socket.complete", ".start_tls.complete")
        ):
            stream = info["return_value"]
            stream.read = partial(_read, self._now, stream.read, partial(_shut, stream))
            self._streams.add(stream)

    def _parsed(self, reply: httpx2.Response) -> Any:
        """The reply's JSON. Raises if the server sent an error, or something that is not JSON."""
        if reply.status_code >= 400:
            raise self._refusal(reply)
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            shown = self._without_key(reply.text)[:SHOWN]
            message = f"{self._server(reply.url.path)} sent a reply that is not JSON: {shown!r}"
            # Without a cause, which would hold the whole reply.
            raise StrayReplyError(message, member=self.member) from None

    def _failure(self, outcome: httpx2.Response | httpx2.TransportError, path: str) -> MemberError:
        if isinstance(outcome, httpx2.Response):
            return self._refusal(outcome)
        return self._unreached(outcome, path)

    def _refusal(self, reply: httpx2.Response) -> RefusedError:
        """The error of a reply with an error status."""
        status = reply.status_code
        text = self._without_key(_message_in(reply))[:SHOWN]
        kind = {401: "denied", 403: "denied", 404: "not_found"}.get(status, "error")
        if status == 413 or _is_too_long(text):
            kind = "overflow"
        message = f"{self._server(reply.url.path)} answered {status}: {text}"
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
        why = self._why(failure)
        message = f"{self._server(path)} {trouble} ({why}), tried up to {RETRIES + 1} times"
        error = MemberError(message, member=self.member, kind=kind)
        error.__cause__ = failure
        return advised(error, to_reach(self.address.url))

    def _why(self, failure: Exception) -> str:
        why = type(failure).__name__
        if str(failure):
            why += f": {failure}"
        return self._without_key(why)

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


def _read(
    now: _Reading,
    read: Callable[..., bytes],
    interrupt: Callable[[], None],
    size: int,
    timeout: float | None = None,
) -> bytes:
    """Read from a connection, for this thread's request."""
    left_s = now.deadline - time.monotonic()
    if left_s <= 0:
        raise httpx2.ReadTimeout("the reply did not end in time")
    with interrupted_by(interrupt):
        data = read(size, left_s if left_s < math.inf else None)
    note_arrival()
    now.events += data.count(EVENT)
    return data


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


def _retry_after(outcome: httpx2.Response | httpx2.TransportError) -> float:
    """How long the server asks clients to wait, within bounds."""
    if not isinstance(outcome, httpx2.Response):
        return 0.0
    try:
        asked = float(outcome.headers.get("retry-after", 0))
    except ValueError:  # a date
        return LONGEST_PAUSE_S
    return min(max(asked, 0.0), LONGEST_PAUSE_S)


def _message_in(reply: httpx2.Response) -> str:
    """The server's error message, without the JSON around it."""
    try:
        return _message_of(json.loads(reply.content))
    except (ValueError, RecursionError):
        return _message_of(reply.text)


def _message_of(body: Any) -> str:
    inner = body.get("error", body) if isinstance(body, dict) else body
    text = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(text).split()) or "nothing more"


def _is_too_long(text: str) -> bool:
    low = text.lower()
    return "context" in low and any(word in low for word in ("exceed", "maximum", "longer"))
