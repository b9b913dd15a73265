"""Send one answer as an HTTP response, streamed or whole, and count it. The answer is cancelled
when its client disconnects."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Response
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages.ai import UsageMetadata
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Summary
from starlette.types import Receive, Scope, Send

from ..chat.report import EXIT_EVENT, REJECTED_EVENT, ROUND_EVENT
from ..engine.drive import Admission
from ..errors import EnsembleError
from .errors import ApiError, api_error, failed_members
from .replies import Reply, to_json

log = logging.getLogger("langchain_specfuse.serve")

GRACE_S = 5.0
"""The chat model ends an answer that is late. The response ends this many seconds later, even if
the client does not read."""
RETRY_S = 5
"""The ``retry-after`` of requests while members load or the server stops."""
BUCKETS_S = (0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_STREAM = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


class AnswerResponse(Response):
    """The chunks of an answer as a response."""

    def __init__(
        self, chunks: Any, reply: Reply, metrics: Metrics, *, stream: bool, timeout: float
    ) -> None:
        super().__init__()
        self._chunks = chunks
        self._reply = reply
        self._metrics = metrics
        self._stream = stream
        self._timeout = timeout
        self._began = time.monotonic()
        self._streaming = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = asyncio.create_task(self._answer(scope, receive, send))
        leaving = asyncio.create_task(_disconnected(receive))
        outcome = "gone"
        error: BaseException | None = None
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the time for a graceful stop is over
            error = ApiError(
                503, "the server is stopping\n-> ask again", code="closing", retry_after_s=RETRY_S
            )
        answering.cancel()
        leaving.cancel()
        if error is None or answering.done():
            await asyncio.wait({answering, leaving})
            if not answering.cancelled():
                outcome = self._reply.finish or "stop"
                error = answering.exception()
        if error is not None:
            outcome = await self._fail(error, send)
        seconds = time.monotonic() - self._began
        self._metrics.answered(outcome, seconds, self._reply.usage, self._reply.summary)
        log.info("answer %s: %s in %.2f s", self._reply.id, outcome, seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with asyncio.timeout(self._timeout + GRACE_S), aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                if not self._reply.pieces:
                    self._metrics.first_segment_s.observe(time.monotonic() - self._began)
                events = self._reply.add(chunk)
                if events and self._stream:
                    await self._send(self._encoded(events), send)
            if self._stream:
                last = self._encoded(self._reply.closing()) + self._reply.end
                await self._send(last, send, last=True)
                return
            body = to_json(self._reply.whole())
            headers = {"x-request-id": self._reply.id}
            await Response(body, headers=headers, media_type="application/json")(
                scope, receive, send
            )

    def _encoded(self, events: Iterable[Mapping[str, Any]]) -> bytes:
        return b"".join(map(self._reply.encoded, events))

    async def _send(self, data: bytes, send: Send, *, last: bool = False) -> None:
        """Send events. The headers are sent with the first one, so that an earlier error has a
        status of its own."""
        if not self._streaming:
            self._streaming = True
            headers = {"x-request-id": self._reply.id, **_STREAM}
            raw = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
        await send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _fail(self, error: BaseException, send: Send) -> str:
        """Raise the error as a response if nothing has been sent, otherwise send it as the last
        event. Returns its code."""
        failure = api_error(error)
        # Exceptions may quote the question. Only the level "debug" logs them in full.
        level = logging.INFO if failure.status < 500 else logging.WARNING
        what = type(error).__name__
        if isinstance(error, EnsembleError):
            what += f": {failed_members(error)}"
        log.log(level, "answer %s: %s (%s)", self._reply.id, failure.code, what)
        log.debug("answer %s failed", self._reply.id, exc_info=error)
        if not self._streaming:
            raise failure from None
        try:
            async with asyncio.timeout(GRACE_S):
                await self._send(self._reply.failed(failure), send, last=True)
        except TimeoutError:
            log.info("answer %s: its client has stopped reading", self._reply.id)
        return failure.code


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Metrics(BaseCallbackHandler):
    """Prometheus metrics of one endpoint. They contain numbers and names of members, and no text.
    Rounds and exits are counted from the chat model's events."""

    run_inline = True

    def __init__(self, admission: Admission) -> None:
        self.registry = reg = CollectorRegistry()
        self.answers = Counter(
            "specfuse_answers", "Finished answers by outcome", ["outcome"], registry=reg
        )
        self.refused = Counter(
            "specfuse_refused", "Requests refused before an answer began", ["code"], registry=reg
        )
        self.rounds = Counter("specfuse_rounds", "Rounds of all answers", registry=reg)
        self.segments = Counter(
            "specfuse_segments", "Segments by the member that wrote them", ["member"], registry=reg
        )
        self.exits = Counter(
            "specfuse_exits", "Members that left an answer", ["member", "kind"], registry=reg
        )
        self.rejected = Counter(
            "specfuse_rejected", "Drafts that a check refused", ["check"], registry=reg
        )
        self.tokens = Counter("specfuse_tokens", "Tokens read and written", ["kind"], registry=reg)
        self.weight = Summary(
            "specfuse_weight", "Voting weights at the end of answers", ["member"], registry=reg
        )
        timed: Any = {"registry": reg, "buckets": BUCKETS_S}
        self.first_segment_s = Histogram(
            "specfuse_first_segment_seconds", "From request to first segment", **timed
        )
        self.answer_s = Histogram(
            "specfuse_answer_seconds", "From request to the end of the answer", **timed
        )
        Gauge("specfuse_answers_in_flight", "Answers under way", registry=reg).set_function(
            lambda: admission.under_way
        )
        Gauge("specfuse_answers_waiting", "Answers that wait", registry=reg).set_function(
            lambda: admission.waiting
        )

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        if name == ROUND_EVENT:
            winner = data["winner"]
            self.rounds.inc()
            self.segments.labels(data["samples"].get(winner, winner)).inc()
            for rejection in data["rejected"]:
                self.rejected.labels(rejection["check"]).inc()
        elif name == REJECTED_EVENT:
            self.rejected.labels(data["check"]).inc()
        elif name == EXIT_EVENT:
            self.exits.labels(data["member"], data["kind"]).inc()
            if data["kind"] != "exit":
                # The ensemble has logged the exit, but a provider's error may quote the question.
                log.debug("%s left because: %s", data["member"], data["reason"])

    def answered(
        self,
        outcome: str,
        seconds: float,
        usage: UsageMetadata | None,
        summary: Mapping[str, Any],
    ) -> None:
        """Count an answer that has ended in any way."""
        self.answers.labels(outcome).inc()
        self.answer_s.observe(seconds)
        tokens = {
            "prompt": usage["input_tokens"] if usage else 0,
            "answer": usage["output_tokens"] if usage else 0,
            **summary.get("tokens", {}),
        }
        for kind, count in tokens.items():
            self.tokens.labels(kind).inc(count)
        for member, weight in summary.get("weights", {}).items():
            self.weight.labels(member).observe(weight)
