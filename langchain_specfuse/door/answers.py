"""One request for an answer, from the first byte of its body to the last of the reply.

All of it happens inside one call, so whatever is taken (a place, a seat, the members' caches) is given back however
it ends: said, refused, late, or because the client has gone. Knows ASGI; what is answered is the chat model's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, cast

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..errors import BusyError
from .bodies import body_of
from .faults import Fault, fault_of
from .hall import LOADING_S, Hall
from .orders import Order
from .replies import DONE, Reply, encoded, event_bytes

log = logging.getLogger("langchain_specfuse.door")

GRACE_S = 10.0
"""The chat model ends an answer that takes too long; this much later the door does, if a client does not read it."""
_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Answers:
    """The endpoint ``/v1/chat/completions``."""

    def __init__(self, hall: Hall) -> None:
        self._hall = hall

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hall = self._hall
        request = Request(scope, receive)
        began = time.monotonic()
        try:
            with hall.entered(request):
                order = Order.of(await body_of(request, hall.limits), hall.model, hall.limits)
                await Answer(hall, order, send, began).given(receive)
        except ClientDisconnect:
            hall.meters.refused("gone")
        except Fault:
            raise
        except Exception as error:  # here, or a log of the server's would quote it
            log.warning("a request could not be read: %s", type(error).__name__)
            log.debug("what was raised", exc_info=error)
            raise fault_of(error) from None


class Answer:
    """One answer under way."""

    def __init__(self, hall: Hall, order: Order, send: Send, began: float) -> None:
        self._hall = hall
        self._order = order
        self._send = send
        self._began = began
        self._reply = Reply(hall.model, with_usage=order.with_usage)
        self._seated = False
        self._started = False
        self.said = False
        """Whether everything has been handed over; who goes then has missed nothing."""

    async def given(self, receive: Receive) -> None:
        """Answer, as long as the client is there and the server has time."""
        try:
            await _unless_gone(self, self._given(), receive)
            if not self._seated:
                self._hall.meters.refused("gone")
        except asyncio.CancelledError:  # by the server, which stops: its time for answers under way is over
            if not self._seated:
                self._hall.meters.refused("closing")
            closing = Fault(503, "the door closes\n-> ask again", code="closing", retry_after_s=LOADING_S)
            await self._tell(closing)

    async def _given(self) -> None:
        """Wait for a seat, answer, and book how it ended."""
        async with self._hall.gate.seat():
            self._seated = True
            outcome: str | None = "gone"
            try:
                async with asyncio.timeout(self._hall.limits.timeout_s + GRACE_S):
                    await self._hall.refuse_too_long(self._order)
                    await (self._streamed() if self._order.streamed else self._whole())
                outcome = self._reply.finish or "stop"
            except BusyError as error:  # no answer has begun: told and counted as what the door itself refuses
                outcome = None
                raise fault_of(error) from None
            except Exception as error:
                outcome = await self._failed(error)
            finally:
                if outcome is not None:
                    self._book(outcome)

    async def _streamed(self) -> None:
        """Nothing is sent before the first chunk is there: until then a failure has a status of its own."""
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                told = b"".join(map(event_bytes, self._reply.events(chunk)))
                if told:
                    await self._more(told)
        last = b"".join(map(event_bytes, self._reply.closing())) + DONE
        self.said = True
        await self._more(last, last=True)

    async def _whole(self) -> None:
        async with aclosing(self._chunks()) as chunks:
            async for chunk in chunks:
                self._reply.read(chunk)
        self.said = True
        body = encoded(self._reply.whole())
        await self._start({"content-type": "application/json", "content-length": str(len(body))})
        await self._send({"type": "http.response.body", "body": body})

    async def _chunks(self) -> AsyncGenerator[Any, None]:
        hall = self._hall
        asked = hall.llm.astream(self._order.messages, {"callbacks": [hall.meters]}, **hall.options(self._order))
        async with aclosing(cast("AsyncGenerator[Any, None]", asked)) as chunks:
            first = True
            async for chunk in chunks:
                if first:
                    hall.meters.begun(time.monotonic() - self._began)
                    first = False
                yield chunk

    async def _failed(self, error: Exception) -> str:
        """Log what went wrong, and tell the client. The code of it."""
        fault = fault_of(error)
        # The message of an error may quote the question: only who asks for it gets it into the log.
        level = logging.INFO if fault.status < 500 else logging.WARNING
        log.log(level, "answer %s: %s (%s)", self._reply.id, fault.code, type(error).__name__)
        log.debug("answer %s: what was raised", self._reply.id, exc_info=error)
        await self._tell(fault)
        return fault.code

    async def _tell(self, fault: Fault) -> None:
        """With a status while nothing has been sent, else as the last event of the stream."""
        self.said = True
        try:
            async with asyncio.timeout(GRACE_S):
                if self._started:
                    await self._more(b"data: " + fault.json + b"\n\n", last=True)
                else:
                    await self._start({"content-type": "application/json", **fault.headers}, fault.status)
                    await self._send({"type": "http.response.body", "body": fault.json})
        except TimeoutError:
            log.info("answer %s: its client does not read", self._reply.id)

    async def _more(self, told: bytes, *, last: bool = False) -> None:
        if not self._started:
            await self._start(_STREAM)
        await self._send({"type": "http.response.body", "body": told, "more_body": not last})

    async def _start(self, headers: dict[str, str], status: int = 200) -> None:
        self._started = True
        told = {"x-request-id": self._reply.id, **headers}
        raw = [(name.encode(), value.encode()) for name, value in told.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    def _book(self, outcome: str) -> None:
        seconds = time.monotonic() - self._began
        self._hall.meters.ended(outcome, seconds)
        self._hall.meters.told(self._reply.usage, self._reply.summary)
        log.info("answer %s: %s in %.2f s, %s rounds", self._reply.id, outcome, seconds,
                 self._reply.summary.get("rounds", 0))  # fmt: skip


async def _unless_gone(answer: Answer, work: Coroutine[Any, Any, None], receive: Receive) -> None:
    """Do this work; let go of it as soon as the client goes."""
    doing, leaving = asyncio.create_task(work), asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done() or answer.said:
            await doing
    finally:
        leaving.cancel()
        if not doing.done():
            doing.cancel()
        await asyncio.wait({doing, leaving})
        if not doing.cancelled():
            doing.exception()  # if it failed while its client left, nobody is there to hear


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
