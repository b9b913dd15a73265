"""One server over HTTP: pooled connections, limits of time, a few more tries where that can help.

What is asked is computed from the question alone, so it may be asked twice. Knows JSON and status codes; nothing of
members, tokens or engines. Whatever goes wrong is a :class:`.MemberError` whose kind says how.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

from ..errors import MemberError, advised

log = logging.getLogger("langchain_specfuse")

RETRIED = (429, 500, 502, 503, 504)
"""What may be over in a moment."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
SHOWN = 300
"""So many characters of what a server says about an error are passed on."""


class Refused(MemberError):
    """A server answered, and said no."""

    status = 0


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
        key = os.environ.get(address.api_key_env, "")
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            limits=httpx.Limits(max_connections=parallel, max_keepalive_connections=parallel),
            timeout=httpx.Timeout(address.timeout_s, connect=min(5.0, address.timeout_s), pool=None),
            verify=_trusted(address.verify),
        )

    def close(self) -> None:
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
            response, failure = self._tried(method, path, body, max(0.001, deadline - time.monotonic()))
            if response is not None and (response.status_code not in RETRIED or response.status_code in final):
                return self._read(response)
            wait = max(pause or 0.0, _retry_after(response))
            if pause is None or time.monotonic() + wait > deadline:
                self._fail(response, failure, path)
            log.info("%s: trying %s again in %.1f s", self.member, path, wait)
            time.sleep(wait)
        raise AssertionError("the last pause is None")

    def _pauses(self) -> Iterator[float | None]:
        """How long to wait after each try; None: not any more."""
        for number in range(self.address.retries):
            yield min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2**number)
        yield None

    def _tried(
        self, method: str, path: str, body: Mapping[str, Any] | None, left_s: float
    ) -> tuple[httpx.Response | None, httpx.TransportError | None]:
        timeout = httpx.Timeout(left_s, connect=min(5.0, left_s), pool=left_s)
        try:
            return self._client.request(method, self.url(path), json=body, timeout=timeout), None
        except httpx.ReadTimeout as error:  # it may still be at work: asking again would only add to that
            message = f"{self._who(path)} did not answer within {self.address.timeout_s:g} s"
            raise MemberError(message, member=self.member, kind="timeout") from error
        except httpx.TransportError as error:
            self.broken = True
            return None, error

    def _fail(self, response: httpx.Response | None, failure: httpx.TransportError | None, path: str) -> NoReturn:
        """After the last try."""
        if response is not None:
            self._refused(response)
        kind = "timeout" if isinstance(failure, httpx.TimeoutException) else "error"
        how = "cannot be reached" if isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout) else "broke off"
        told = f"{type(failure).__name__}: {failure}" if str(failure) else type(failure).__name__
        message = f"{self._who(path)} {how} ({told}), tried up to {self.address.retries + 1} times"
        error = MemberError(message, member=self.member, kind=kind)
        raise advised(error, "start the server, or look at the address: base_url='http://host:8000/v1'") from failure

    def _read(self, response: httpx.Response) -> Any:
        if response.status_code >= 400:
            self._refused(response)
        try:
            return json.loads(response.content)
        except ValueError as error:
            shown = response.text[:SHOWN]
            message = f"{self._who(response.url.path)} answered with what is no JSON: {shown!r}"
            raise MemberError(message, member=self.member) from error

    def _refused(self, response: httpx.Response) -> NoReturn:
        status, told = response.status_code, _told(response)
        kind = "not_found" if status == 404 else "overflow" if _too_long(told) else "error"
        message = f"{self._who(response.url.path)} answered {status}: {told}"
        error = Refused(message, member=self.member, kind=kind)
        error.status = status
        if status in (401, 403):
            advised(error, f"put the server's key into the environment variable {self.address.api_key_env}")
        raise error

    def _who(self, path: str) -> str:
        return f"the server at {self.address.url} ({path.removeprefix(httpx.URL(self.address.root).path)})"


def _trusted(verify: bool | str) -> bool | ssl.SSLContext:
    return ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify


def _retry_after(response: httpx.Response | None) -> float:
    """How long the server asks to be left alone, as far as anybody waits for it."""
    try:
        asked = float(response.headers.get("retry-after", 0)) if response is not None else 0.0
    except ValueError:  # a date
        return LONGEST_PAUSE_S
    return min(max(asked, 0.0), LONGEST_PAUSE_S)


def _told(response: httpx.Response) -> str:
    """What the server says about it, without the JSON around it."""
    try:
        body = json.loads(response.content)
        inner = body.get("error", body) if isinstance(body, dict) else body
        text = inner.get("message", inner) if isinstance(inner, dict) else inner
    except ValueError:
        text = response.text
    return " ".join(str(text).split())[:SHOWN] or response.reason_phrase


def _too_long(told: str) -> bool:
    low = told.lower()
    return "context" in low and any(word in low for word in ("exceed", "maximum", "longer"))
