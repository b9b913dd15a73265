"""Spans become child runs of the chat model's run, in the tracers that listen to it and nowhere else.

Each child is handed over whole when its round is done, with the times at which the members worked, so that LangSmith
gets it in one post and nothing can be left open. Whatever a tracer does wrong stays here: it is told once in the log,
and that tracer hears no more of this answer. Knows tracers and spans, nothing of rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.langchain import LangChainTracer
from langchain_core.tracers.schemas import Run
from langchain_core.utils.uuid import uuid7

from ._story import Span

log = logging.getLogger("langchain_specfuse")


class Tracers:
    """The tracers of one run, each with its own record of it."""

    def __init__(self, handlers: Sequence[BaseCallbackHandler], run_id: UUID) -> None:
        self._runs: dict[int, tuple[BaseTracer, Run]] = {}
        for handler in handlers:
            # What streams events to a caller is a tracer by birth only: children are no events of the caller's.
            if isinstance(handler, BaseTracer) and not isinstance(handler, _StreamingCallbackHandler):
                run = handler.run_map.get(str(run_id))
                if run is not None:
                    self._runs[id(handler)] = handler, run

    def __bool__(self) -> bool:
        return bool(self._runs)

    @property
    def inline(self) -> bool:
        """Whether all of them may be called on the event loop's own thread."""
        return all(tracer.run_inline for tracer, _ in self._runs.values())

    def describe(self, metadata: Mapping[str, Any]) -> None:
        """Metadata of the chat model's run."""
        self._each(lambda _, run: _describe(run, metadata))

    def note(self, name: str, facts: Sequence[Mapping[str, Any]]) -> None:
        """Events of the chat model's run, and a tag by which to find it."""
        self._each(lambda _, run: _note(run, name, facts))

    def add(self, span: Span) -> None:
        """A child of the chat model's run, with its own children."""
        self._each(lambda tracer, run: _add(tracer, run, span))

    def _each(self, tell: Callable[[BaseTracer, Run], None]) -> None:
        for key, (tracer, run) in list(self._runs.items()):
            try:
                tell(tracer, run)
            except Exception:
                del self._runs[key]
                log.warning("%s failed; it hears no more of this answer", type(tracer).__name__, exc_info=True)


def _describe(run: Run, metadata: Mapping[str, Any]) -> None:
    # A new dict: the old one may be the caller's own.
    run.extra["metadata"] = {**(run.extra.get("metadata") or {}), **metadata}


def _note(run: Run, name: str, facts: Sequence[Mapping[str, Any]]) -> None:
    now = datetime.now(UTC)
    run.events = [*(run.events or []), *({"name": name, "time": now, "kwargs": dict(fact)} for fact in facts)]
    run.tags = list(dict.fromkeys([*(run.tags or []), name]))


def _add(tracer: BaseTracer, parent: Run, span: Span) -> None:
    run = _begun(tracer, parent, span)
    # LangSmith's tracer posts a run when it is begun: whole, so that it is one post, and before its children, as
    # OpenTelemetry needs it. (Where its client writes spans, a post and a patch may change places, and one is lost.)
    posted = isinstance(tracer, LangChainTracer)
    try:
        if posted:
            _finish(run, span)
        tracer._start_trace(run)
        if not any(child is run for child in parent.child_runs[-1:]):
            parent.child_runs.append(run)  # the parent is over: a stream that is closed early ends before its answer
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
    # Never before its parent: the clock of another machine may differ, and runs are ordered by their beginnings.
    began = max(_time(span.began), parent.start_time)
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
        **tracer._get_run_kwargs(parent.id, {"metadata": {**_inherited(parent), **span.metadata}}),
    )


def _finish(run: Run, span: Span) -> None:
    run.outputs, run.error = dict(span.outputs), span.error
    run.end_time = max(_time(span.ended), run.start_time)


def _inherited(parent: Run) -> dict[str, Any]:
    """The caller's metadata (a thread's id, a user's name), as every child run has it; not what says it is a model."""
    metadata = parent.extra.get("metadata") or {}
    return {key: value for key, value in metadata.items() if not key.startswith(("ls_", "lc_", "specfuse_"))}


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
