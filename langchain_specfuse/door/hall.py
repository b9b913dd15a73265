"""What all requests of one door share: the chat model and its members' state, keys, bounds, seats and numbers.

Knows who may come in; nothing of what is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from fastapi import Request

from .. import _registry
from ..chat_models import SpecFuseChatModel
from ..errors import UsageError, advised
from .faults import Fault
from .gate import Gate
from .lengths import Lengths
from .limits import Limits
from .meters import Meters
from .orders import Order

log = logging.getLogger("langchain_specfuse.door")

LOADING_S = 5
"""When to come again while members load."""


class Hall:
    """Behind the door."""

    def __init__(
        self, llm: SpecFuseChatModel, model: str, keys: Sequence[str], hosts: Sequence[str], limits: Limits
    ) -> None:
        if not model.strip():
            raise advised(UsageError(f"model must be a name, got {model!r}"), "'specfuse' is the default")
        llm._now()  # who opens the door is told what is wrong with the chat model, and no client later
        _tell_smaller(llm, limits)
        # Content blocks are told in another way, and the environment may have chosen them.
        self.llm = llm.model_copy(update={"output_version": "v0"})
        self.model = model
        self.limits = limits
        self.gate = Gate(limits)
        self.meters = Meters(self.gate)
        self._lengths = Lengths(self.llm)
        self._digests = [_digest(key.encode()) for key in keys]
        self._hosts = frozenset(hosts)
        self._ensemble = _registry.ensemble_for(llm.members, llm.verifiers, cluster=llm.cluster)

    def options(self, order: Order) -> dict[str, Any]:
        """The options of this call: never more time or tokens than the door gives."""
        own = self.llm.timeout or self.limits.timeout_s
        budget = min(self.llm.max_tokens, self.limits.most_tokens)
        return {"max_tokens": budget, **order.options, "timeout": min(own, self.limits.timeout_s)}

    async def refuse_too_long(self, order: Order) -> None:
        """Reading a prompt cannot be broken off, and everybody waits for it."""
        most = self.limits.most_prompt_tokens
        if most is None:
            return
        members = list(self._ensemble.members.values())
        tokens = await self._lengths.of(order.messages, order.options.get("tools"), members)
        if tokens > most:
            long = f"prompt is too long: {tokens} tokens, at most {most} are read here\n-> shorten the conversation"
            raise Fault(400, long, code="context_length_exceeded", param="messages")

    # --- members ------------------------------------------------------------------------------------------------

    def loaded(self) -> Future[Mapping[str, Any]]:
        """The members, once they are there; loading begins now if it has not, or if it failed."""
        loading: Future[Any] = self._ensemble.loaded()
        return loading

    @property
    def ready(self) -> bool:
        self._ensemble.load()
        return self._ensemble.ready

    # --- who may come in ----------------------------------------------------------------------------------------

    @contextmanager
    def entered(self, request: Request) -> Iterator[None]:
        """A place inside for who asks a question, if there is one."""
        self.check(request)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            # A page of some other site can send anything but this without being asked whether it may.
            advice = "send it with content-type: application/json"
            raise Fault(415, f"the body is of type {kind!r:.80}\n-> {advice}", code="unsupported_media_type")
        if not self.ready:
            loading = f"members are loading\n-> try again in about {LOADING_S} s"
            raise Fault(503, loading, code="loading", retry_after_s=LOADING_S)
        with self.gate.entered():
            yield

    def check(self, request: Request) -> None:
        """Refuse who has no key, where one is needed, and who was led here under another name."""
        host = request.headers.get("host", "").lower()
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts and name not in self._hosts:
            told = f"this door is not known as {name!r:.80}\n-> ask it by {min(self._hosts)}, or set a key"
            raise Fault(403, told, code="unknown_host")
        if self._digests and not self._has_key(request.headers.get("authorization", "")):
            told = "no key, or a wrong one\n-> send it as Authorization: Bearer KEY"
            raise Fault(401, told, code="invalid_api_key")

    def _has_key(self, told: str) -> bool:
        scheme, _, key = told.partition(" ")
        digest = _digest(key.strip().encode("latin-1"))  # bytes arrive as if they were Latin 1
        # All are compared, each in the same time, whatever is right about it.
        fits = [hmac.compare_digest(digest, one) for one in self._digests]
        return scheme.lower() == "bearer" and any(fits)


def _tell_smaller(llm: SpecFuseChatModel, limits: Limits) -> None:
    """The chat model's own budget was chosen by somebody, who may not know that the door's bound holds for it too."""
    if "max_tokens" in llm.model_fields_set and llm.max_tokens > limits.most_tokens:
        told = "max_tokens is %d, most_tokens is %d: where a client names no budget, the smaller one is an answer's"
        log.warning(told, llm.max_tokens, limits.most_tokens)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
