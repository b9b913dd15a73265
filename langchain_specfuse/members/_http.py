"""One server over HTTP: pooled connections, limits of time, a few more tries where that can help.

What is asked is computed from the question alone, so it may be asked twice. Knows JSON and status codes; nothing of
members, tokens or engines. Whatever goes wrong is a :class:`.MemberError` whose kind says how.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import httpx

from ..errors import MemberError, UsageError, advised
from ._lines import Lines, within

log = logging.getLogger("langchain_specfuse")

RETRIED = (429, 500, 502, 503, 504)
"""What may be over in a moment."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SHOWN = 300
"""So many characters of what a server says about an error are passed on."""
MOST_BYTES = 1 << 27
"""No reply is longer: the numbers of a whole vocabulary, the longest that is asked for, take a tenth of it."""


class Refused(MemberError):
    """A server answered, and said no."""

    status = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back, whole."""

    status: int
    content: bytes
    headers: Mapping[str, str]
    path: str

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is, and how to speak to it."""

    url: str
    api_key_env: str = "SPECFUSE_API_KEY"
    """The environment variable that holds the key; none is sent where it is not set."""
    timeout_s: float = 60.0
    """For one question with all its tries."""
    retries: int = 3
    verify: bool | str = True
    """TLS: True checks the certificate, a path names the authorities to trust, False checks nothing."""

    def __post_init__(self) -> None:
        timeout, retries, verify = self.timeout_s, self.retries, cast(object, self.verify)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < threading.TIMEOUT_MAX:
            error = UsageError(f"a server's timeout is a number of seconds above 0, got {timeout!r}")
            raise advised(error, "leave it out: 60 s are for one question with all its retries")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            error = UsageError(f"retries must be a whole number from 0 on, got {retries!r}")
            raise advised(error, "leave it out: 3; retries=0 asks once")
        if not isinstance(verify, bool | str):
            error = UsageError(f"verify must be True, False or the path of a file, got {verify!r}")
            raise advised(error, "verify='./ca.pem' trusts the authorities in that file")

    @property
    def api(self) -> str:
        """What the paths of the OpenAI interface are put behind."""
        url = httpx.URL(self.url)
        return self.url.rstrip("/") if url.path.strip("/") else f"{self.url.rstrip('/')}/v1"

    @property
    def root(self) -> str:
        """What an engine's own paths are put behind."""
        return self.api.removesuffix("/v1")


class Wire:
    """The pooled connections to one server. May be used from several threads."""

    def __init__(self, address: Address, member: str, parallel: int) -> None:
        self.address, self.member = address, member
        self.broken = False
        """A connection was refused or cut since somebody last looked: it may be another server now."""
        self._closed = False
        self._key = _key_in(address.api_key_env)
        self._client = httpx.Client(
            headers={"Authorization": self._key if " " in self._key else f"Bearer {self._key}"} if self._key else {},
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
            timeout=httpx.Timeout(address.timeout_s, connect=min(5.0, address.timeout_s), pool=None),
            verify=_trusted(address.verify),
        )
        self._lines = Lines()
        self._lines.serve(self._client)

    def close(self) -> None:
        """Who is still waiting for a reply gets none."""
        self._closed = True
        self._lines.cut()
        self._client.close()

    def get(self, path: str) -> Any:
        return self._asked("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any], final: Collection[int] = ()) -> Any:
        """``final``: what is not asked again, beside what never is."""
        return self._asked("POST", path, body, final)

    def url(self, path: str) -> str:
        """``/v1/...`` is the OpenAI interface, wherever the server has it; other paths are the engine's own."""
        if path.startswith("/v1/"):
            return self.address.api + path.removeprefix("/v1")
        return self.address.root + path

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None, final: Collection[int] = ()) -> Any:
        deadline = time.monotonic() + self.address.timeout_s
        for pause in self._pauses():
            reply, failure = self._tried(method, path, body, deadline)
            if reply is not None and (reply.status not in RETRIED or reply.status in final):
                return self._read(reply)
            wait = max(pause or 0.0, _retry_after(reply))
            if pause is None or time.monotonic() + wait > deadline or self._closed:
                self._fail(reply, failure, path)
            log.info("%s: trying %s again in %.1f s", self.member, path, wait)
            time.sleep(wait)
        raise AssertionError("the last pause is None")

    def _pauses(self) -> Iterator[float | None]:
        """How long to wait after each try; None: not any more."""
        for number in range(self.address.retries):
            yield min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**number)
        yield None

    def _tried(
        self, method: str, path: str, body: Mapping[str, Any] | None, deadline: float
    ) -> tuple[Reply | None, httpx.TransportError | None]:
        try:
            with self._lines.until(deadline):
                return self._replied(method, path, body, max(0.001, deadline - time.monotonic())), None
        except httpx.ReadTimeout as error:  # it may still be at work: asking again would only add to that
            message = f"{self._who(path)} did not answer within {self.address.timeout_s:g} s"
            raise MemberError(message, member=self.member, kind="timeout") from error
        except httpx.TransportError as error:
            self.broken = True
            return None, error

    def _replied(self, method: str, path: str, body: Mapping[str, Any] | None, left_s: float) -> Reply:
        timeout = httpx.Timeout(left_s, connect=min(5.0, left_s), pool=left_s)
        with self._client.stream(method, self.url(path), json=body, timeout=timeout) as told:
            content = within(told.iter_bytes(), MOST_BYTES)
        if content is None:
            message = f"{self._who(path)} sent more than {MOST_BYTES >> 20} MiB: nothing that long was asked for"
            raise MemberError(message, member=self.member)
        return Reply(told.status_code, content, told.headers, told.url.path)

    def _fail(self, reply: Reply | None, failure: httpx.TransportError | None, path: str) -> NoReturn:
        """After the last try."""
        if reply is not None:
            self._refused(reply)
        kind = "timeout" if isinstance(failure, httpx.TimeoutException) else "error"
        how = "cannot be reached" if isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout) else "broke off"
        told = self._without_key(f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__)
        message = f"{self._who(path)} {how} ({told}), tried up to {self.address.retries + 1} times"
        error = MemberError(message, member=self.member, kind=kind)
        raise advised(error, "start the server, or look at the address: base_url='http://host:8000/v1'") from failure

    def _read(self, reply: Reply) -> Any:
        if reply.status >= 400:
            self._refused(reply)
        try:
            return json.loads(reply.content)
        except (ValueError, RecursionError):
            shown = self._without_key(reply.text)[:SHOWN]
            message = f"{self._who(reply.path)} answered with what is no JSON: {shown!r}"
            raise MemberError(message, member=self.member) from None  # the cause would hold all that was sent

    def _refused(self, reply: Reply) -> NoReturn:
        status, told = reply.status, self._without_key(_told(reply))[:SHOWN]
        kind = "not_found" if status == 404 else "overflow" if _too_long(told) else "error"
        message = f"{self._who(reply.path)} answered {status}: {told}"
        error = Refused(message, member=self.member, kind=kind)
        error.status = status
        if status in (401, 403):
            advised(error, f"put the server's key into the environment variable {self.address.api_key_env}")
        raise error

    def _without_key(self, text: str) -> str:
        """A server may repeat what it was sent, and errors are shown, logged and traced."""
        secret = self._key.rpartition(" ")[2]
        return text.replace(secret, "***") if secret else text

    def _who(self, path: str) -> str:
        return f"the server at {self.address.url} ({path.removeprefix(httpx.URL(self.address.root).path)})"


def _key_in(variable: str) -> str:
    """The key as a header can hold it."""
    key = os.environ.get(variable, "").strip()  # a file that it was read from ends with a new line
    if not (key.isascii() and key.isprintable()) or " " in key.removeprefix("Basic ").removeprefix("Bearer "):
        error = UsageError(f"the key in the environment variable {variable} has characters that no header can hold")
        raise advised(error, "put the key there as it was given to you: ASCII, without spaces")
    return key


def _trusted(verify: bool | str) -> bool | ssl.SSLContext:
    if not isinstance(verify, str):
        return verify
    try:
        return ssl.create_default_context(cafile=verify)
    except OSError as error:  # also what is no certificate
        unread = UsageError(f"the authorities in {verify} cannot be read: {error}")
        raise advised(
            unread, "verify= names a file of certificates in PEM; True trusts what this machine does"
        ) from error


def _retry_after(reply: Reply | None) -> float:
    """How long the server asks to be left alone, as far as anybody waits for it."""
    try:
        asked = float(reply.headers.get("retry-after", 0)) if reply is not None else 0.0
    except ValueError:  # a date
        return LONGEST_PAUSE_S
    return min(max(asked, 0.0), LONGEST_PAUSE_S)


def _told(reply: Reply) -> str:
    """What the server says about it, without the JSON around it."""
    try:
        body = json.loads(reply.content)
        inner = body.get("error", body) if isinstance(body, dict) else body
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
    except (ValueError, RecursionError):
        text = reply.text
    return " ".join(str(text).split()) or "nothing more"


def _too_long(told: str) -> bool:
    low = told.lower()
    return "context" in low and any(word in low for word in ("exceed", "maximum", "longer"))
