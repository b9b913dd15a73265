"""Rounds as custom events and child runs of the chat model's own run, wherever that run was
started.

LangChain passes ``_stream`` no run manager on most paths, so the chat model passes it a
:class:`RunScope` instead. Tracers get each child run complete, when its round is done, with the
times at which the members worked: LangSmith gets it in one post, and no run can stay open. If a
tracer raises, the error is logged once, and that tracer gets no more of this answer.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.manager import ahandle_event, handle_event
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.langchain import LangChainTracer
from langchain_core.tracers.schemas import Run
from langchain_core.utils.uuid import uuid7

from ..core.round import Round
from ..errors import UsageError
from .spans import EXIT_EVENT, Depth, Span, SpanBuilder, failures_after

ROUND_EVENT = "specfuse_round"
log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True, slots=True)
class RunScope:
    """The chat model's own run: the id of its events, and the handlers that receive them."""

    run_id: UUID
    handlers: list[BaseCallbackHandler]
    tags: list[str]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, run_manager: Any, other: RunScope | None = None) -> RunScope:
        """The scope of a run manager; without one, the other scope, or one without handlers."""
        if run_manager is None:
            return other or cls(UUID(int=0), [], [], {})
        return cls(run_manager.run_id, run_manager.handlers, run_manager.tags, run_manager.metadata)

    def send(self, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Send events to the handlers."""
        for name, data in events if self.handlers else ():
            handle_event(
                self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._about()
            )

    async def asend(self, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """``send`` for asyncio."""
        for name, data in events if self.handlers else ():
            await ahandle_event(
                self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._about()
            )

    def _about(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "tags": self.tags, "metadata": self.metadata}


def prepared(
    manager: Any, config: RunnableConfig | None, model: Any, call: Mapping[str, Any]
) -> tuple[RunnableConfig, RunScope]:
    """The config with its callbacks and run id fixed in advance, and the scope that the run will
    have.

    LangChain configures the callbacks once more from this config; it adds no handler that is
    already there.
    """
    config = ensure_config(config)
    inherited = {**(config.get("metadata") or {}), **model._get_ls_params_with_defaults(**call)}
    callbacks, tags = config.get("callbacks"), config.get("tags")
    configured = manager.configure(
        callbacks, model.callbacks, model.verbose, tags, model.tags, inherited, model.metadata
    )
    run_id = config.get("run_id") or uuid7()
    scope = RunScope(run_id, configured.handlers, configured.tags, configured.metadata)
    return {**config, "callbacks": configured, "run_id": run_id}, scope


def _events(round: Round) -> Iterator[tuple[str, dict[str, Any]]]:
    """A round's custom events, name and plain JSON: the round itself, then one per member that left
    in it."""
    data = round.as_dict()
    yield ROUND_EVENT, data
    for departure in data["left"]:
        yield EXIT_EVENT, {**departure, "weights": data["weights"]}


def _last_exits(error: BaseException | None, after: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The exits of an answer that broke off after this round."""
    for failed in failures_after(error, after):
        exit = {
            "member": failed.member,
            "kind": failed.kind,
            "reason": str(failed),
            "round": failed.round,
        }
        yield EXIT_EVENT, {**exit, "weights": {}}


# --- one answer -----------------------------------------------------------------------------------


class AnswerTrace:
    """Reports one answer: to handlers as events, to tracers as metadata and child runs. A context
    manager."""

    def __init__(self, scope: RunScope, depth: Depth, spans: SpanBuilder) -> None:
        self._scope = scope
        self._depth = depth
        self._spans = spans
        self._runs = {} if depth == "off" else _runs(scope)
        self._last = 0
        self._noted = 0
        """How many exits the tracers know."""

    def __enter__(self) -> AnswerTrace:
        self._report(None)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._scope.send(_last_exits(error, self._last))
        self._cut(error)

    async def __aenter__(self) -> AnswerTrace:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._scope.asend(_last_exits(error, self._last))
        self._cut(error)

    def add(self, round: Round) -> None:
        """A round is done."""
        self._last = round.number
        self._scope.send(_events(round))
        if self._runs:
            self._report(self._spans.round(round))

    async def aadd(self, round: Round) -> None:
        """``add`` for asyncio. As in LangChain's own calls, a tracer that may block works on
        another thread."""
        self._last = round.number
        await self._scope.asend(_events(round))
        if self._runs:
            span = self._spans.round(round)
            if all(tracer.run_inline for tracer, _ in self._runs.values()):
                self._report(span)
            else:
                await asyncio.to_thread(self._report, span)

    def _cut(self, error: BaseException | None) -> None:
        """The answer broke off, unless its last round was done."""
        if (
            self._runs
            and error is not None
            and not self._spans.finished
            and not isinstance(error, UsageError)
        ):
            self._report(self._spans.cut(error))

    def _report(self, span: Span | None) -> None:
        """Report the answer's progress to the tracers. A tracer that fails gets no more of it."""
        exits = self._spans.exits[self._noted :]
        self._noted += len(exits)
        for key, (tracer, run) in list(self._runs.items()):
            try:
                # A new dict: the old one may be the caller's own.
                run.extra["metadata"] = {
                    **(run.extra.get("metadata") or {}),
                    **self._spans.metadata,
                }
                if exits:  # also a tag, by which to find the run
                    events = [
                        {"name": EXIT_EVENT, "time": datetime.now(UTC), "kwargs": dict(one)}
                        for one in exits
                    ]
                    run.events = [*(run.events or []), *events]
                    run.tags = list(dict.fromkeys([*(run.tags or []), EXIT_EVENT]))
                if span is not None and self._depth != "summary":
                    _add(tracer, run, span)
            except Exception:
                del self._runs[key]
                log.warning(
                    "%s failed; it gets no more of this answer",
                    type(tracer).__name__,
                    exc_info=True,
                )


# --- tracers --------------------------------------------------------------------------------------


def _runs(scope: RunScope) -> dict[int, tuple[BaseTracer, Run]]:
    """The tracers that know the run, each with its own record of it."""
    found: dict[int, tuple[BaseTracer, Run]] = {}
    for handler in scope.handlers:
        # LangChain's handlers for streams are tracers too, but a stream has no child runs.
        if isinstance(handler, BaseTracer) and not isinstance(handler, _StreamingCallbackHandler):
            run = handler.run_map.get(str(scope.run_id))
            if run is not None:
                found[id(handler)] = _brief(handler, run), run
    return found


def _brief(tracer: BaseTracer, run: Run) -> BaseTracer:
    """A copy of LangSmith's tracer that does not add the call's options, such as the members and
    the method, to every run below the chat model's run. That run has them already."""
    if not isinstance(tracer, LangChainTracer):
        return tracer
    brief = copy.copy(tracer)
    brief.tracing_metadata = _of_the_caller(run, tracer.tracing_metadata)
    return brief


def _of_the_caller(run: Run, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """The metadata (a thread's id, a user's name) without the options of the model's call."""
    options = run.extra.get("invocation_params") or {}
    return {
        key: value
        for key, value in (metadata or {}).items()
        if key not in options or options[key] != value
    }


def _add(tracer: BaseTracer, parent: Run, span: Span) -> None:
    """Add a child to a run, with its own children."""
    run = _begun(tracer, parent, span)
    # LangSmith's tracer posts a run when it begins: so the run is complete by then (one post), and
    # it begins before its children, as OpenTelemetry needs it. (Where its client writes spans, a
    # post and a patch may change places.)
    posted = isinstance(tracer, LangChainTracer)
    try:
        if posted:
            _finish(run, span)
            run.events = None  # type: ignore[assignment] # an empty list would be posted
        tracer._start_trace(run)
        if not any(child is run for child in parent.child_runs[-1:]):
            # the parent has ended: a stream that is closed early ends before its answer
            parent.child_runs.append(run)
        tracer._on_chain_start(run)
        for child in span.children:
            _add(tracer, run, child)
        _finish(run, span)
        tracer._end_trace(run)
        if not posted:
            (tracer._on_chain_error if run.error else tracer._on_chain_end)(run)
    finally:
        tracer.run_map.pop(str(run.id), None)
        tracer.order_map.pop(run.id, None)


def _begun(tracer: BaseTracer, parent: Run, span: Span) -> Run:
    # Never before its parent: another machine's clock may differ, and runs are ordered by their
    # beginnings.
    began = max(datetime.fromtimestamp(span.began, UTC), parent.start_time)
    inherited = {
        key: value
        for key, value in _of_the_caller(parent, parent.extra.get("metadata")).items()
        if not key.startswith(("ls_", "lc_", "specfuse_"))
    }
    return Run(
        id=uuid7(int(began.timestamp() * 1e9)),
        parent_run_id=parent.id,
        name=span.name,
        run_type="chain",
        serialized=None,
        inputs=dict(span.inputs),
        start_time=began,
        tags=list(span.tags),
        events=[],
        **tracer._get_run_kwargs(parent.id, {"metadata": {**inherited, **span.metadata}}),
    )


def _finish(run: Run, span: Span) -> None:
    run.outputs, run.error = dict(span.outputs), span.error
    run.end_time = max(datetime.fromtimestamp(span.ended, UTC), run.start_time)
