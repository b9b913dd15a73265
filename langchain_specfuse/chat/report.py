"""Reports an answer while it is written.

Each round is turned into plain data once (:meth:`.Round.data`). :class:`Report` makes from it

- the custom events ``specfuse_round``, ``specfuse_exit`` and, if the answer fails at a check,
  ``specfuse_rejected``, for all callback handlers;
- for tracers such as LangSmith's: metadata of the chat model's run, and below that run a child run
  per round, with what each member did;
- the :class:`Summary`, which the message's metadata shows too.

Text that leads to the answer (drafts, reasons) is in the ``inputs``, ``outputs`` and ``error`` of
runs, where tracers can hide it. Names, tags, metadata and events of runs never contain any.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    CallbackManager,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.langchain import LangChainTracer
from langchain_core.tracers.schemas import Run
from langchain_core.utils.uuid import uuid7

from ..core.options import Method
from ..core.round import Round, RoundData
from ..core.values import Effort
from ..errors import CheckError, EnsembleError, MemberError, UsageError
from .routing import Routing

Depth = Literal["off", "summary", "rounds", "members"]
ROUND_EVENT = "specfuse_round"
EXIT_EVENT = "specfuse_exit"
REJECTED_EVENT = "specfuse_rejected"
"""A draft that a check refused in a round that was never finished."""
TAIL = 80
"""The child run of a round shows this many characters of the agreed text before it."""
REASONS = 5
"""The message contains at most this many reasons of each check."""
log = logging.getLogger("langchain_specfuse")

CustomEvent = tuple[str, dict[str, Any]]
"""A custom event of LangChain: its name and its data."""


# --- the run of the chat model --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunScope:
    """The chat model's own run: its id and its callbacks.

    LangChain calls ``_stream`` without a run manager on most paths, so the chat model passes it the
    scope of the run instead.
    """

    run_id: UUID
    callbacks: Any
    """A ``CallbackManager``; in asynchronous calls an ``AsyncCallbackManager``."""

    @classmethod
    def of(cls, run_manager: Any, other: RunScope | None = None) -> RunScope:
        """The scope of a run manager. Without one: the other scope, or one without handlers."""
        if run_manager is None:
            return other or cls(UUID(int=0), CallbackManager([]))
        is_async = isinstance(run_manager, AsyncCallbackManagerForLLMRun)
        manager: Any = AsyncCallbackManager if is_async else CallbackManager
        callbacks = manager(
            list(run_manager.handlers), tags=run_manager.tags, metadata=run_manager.metadata
        )
        return cls(run_manager.run_id, callbacks)

    @classmethod
    def of_stream(
        cls, manager: Any, config: RunnableConfig | None, model: Any, call: Mapping[str, Any]
    ) -> tuple[RunnableConfig, RunScope]:
        """The scope of a run that has not begun, and the config with which it will have this scope.

        The config has configured callbacks and a run id. LangChain configures the callbacks once
        more and adds no handler twice.
        """
        config = ensure_config(config)
        callbacks = manager.configure(
            config.get("callbacks"),
            model.callbacks,
            model.verbose,
            config.get("tags"),
            model.tags,
            {**(config.get("metadata") or {}), **model._get_ls_params(**call)},
            model.metadata,
        )
        run_id = config.get("run_id") or uuid7()
        return {**config, "callbacks": callbacks, "run_id": run_id}, cls(run_id, callbacks)

    def child_config(self) -> RunnableConfig:
        """A config for runs inside this run, such as a chat model that judges drafts. LangGraph's
        tag ``nostream`` keeps their text out of the answer's stream."""
        callbacks = self.callbacks
        children = type(callbacks)(
            list(callbacks.handlers),
            list(callbacks.handlers),
            parent_run_id=self.run_id if self.run_id.int else None,
        )
        return ensure_config(
            {
                "callbacks": children,
                "tags": [*callbacks.tags, "nostream"],
                "metadata": dict(callbacks.metadata),
            }
        )

    def send(self, events: Iterable[CustomEvent]) -> None:
        """Send events to the handlers."""
        if not self.callbacks.handlers:
            return
        for name, data in events:
            self.callbacks.on_custom_event(name, data, run_id=self.run_id)

    async def asend(self, events: Iterable[CustomEvent]) -> None:
        """``send`` for asyncio."""
        if not self.callbacks.handlers:
            return
        for name, data in events:
            await self.callbacks.on_custom_event(name, data, run_id=self.run_id)


# --- one answer -----------------------------------------------------------------------------------


class Report:
    """Reports one answer. As a context manager, it also reports an answer that fails."""

    def __init__(
        self,
        scope: RunScope,
        depth: Depth,
        *,
        members: Sequence[str],
        verifiers: Sequence[str],
        method: Method,
        checks: Sequence[str] = (),
        routing: Routing | None = None,
    ) -> None:
        self.summary = Summary(members, checks, routing)
        self._scope = scope
        self._depth = depth
        self._ensemble = {
            "members": list(members),
            "verifiers": sorted(verifiers),
            "method": method.changes or "robust",
        }
        if routing is not None:
            self._ensemble["routing"] = routing.as_dict()
        self._spans = SpanBuilder(verifiers, with_members=depth == "members")
        self._runs = {} if depth == "off" else _runs_by_tracer(scope)
        self._exits: list[dict[str, Any]] = []
        """The members that have left, without the reason: it may quote the text."""
        self._is_finished = False

    def __enter__(self) -> Report:
        self._trace(None)
        return self

    def add(self, round: Round) -> None:
        """Report a finished round."""
        data = round.data()
        self._scope.send(_events(data))
        self._count(round, data)
        self._trace_round(round, data)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        failures = _failures_after(error, self.summary.rounds)
        self._scope.send(_events_of_rejections(error, self.summary.rounds + 1))
        self._scope.send(_events_of_failures(failures))
        self._trace_break(error, failures)

    async def __aenter__(self) -> Report:
        return self.__enter__()

    async def aadd(self, round: Round) -> None:
        """``add`` for asyncio. As in LangChain's own calls, tracers that may block work on another
        thread."""
        data = round.data()
        await self._scope.asend(_events(data))
        self._count(round, data)
        if all(tracer.run_inline for tracer, _ in self._runs.values()):
            self._trace_round(round, data)
        else:
            await _in_thread(self._trace_round, round, data)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        failures = _failures_after(error, self.summary.rounds)
        await self._scope.asend(_events_of_rejections(error, self.summary.rounds + 1))
        await self._scope.asend(_events_of_failures(failures))
        self._trace_break(error, failures)

    def _count(self, round: Round, data: RoundData) -> None:
        # Only after its events: if sending them is cancelled, the answer has broken off in this
        # round.
        self.summary.add(round, data)
        self._is_finished = round.finish is not None

    def _trace_round(self, round: Round, data: RoundData) -> None:
        if self._runs:
            self._trace(self._spans.of_round(round, data), data.left)

    def _trace_break(self, error: BaseException | None, failures: Sequence[MemberError]) -> None:
        """Trace the round in which the answer failed, if it did."""
        if error is None or self._is_finished or isinstance(error, UsageError) or not self._runs:
            return
        span = self._spans.of_break(error, failures, self.summary.rounds + 1)
        self._trace(span, [_exit_of(failure) for failure in failures])

    def _trace(self, span: Span | None, exits: Iterable[Mapping[str, Any]] = ()) -> None:
        """Give the tracers the summary, new exits and a span. A tracer that fails gets no more of
        this answer."""
        new = [{key: exit[key] for key in ("member", "kind", "round")} for exit in exits]
        self._exits += new
        metadata = self._metadata()
        for key, (tracer, run) in list(self._runs.items()):
            try:
                _update(run, metadata, new)
                if span is not None and self._depth != "summary":
                    _add(tracer, run, span)
            except Exception:
                del self._runs[key]
                log.warning(
                    "%s failed; it gets no more of this answer",
                    type(tracer).__name__,
                    exc_info=True,
                )

    def _metadata(self) -> dict[str, Any]:
        """The metadata of the chat model's run: the ensemble and the summary, without any text."""
        values: dict[str, Any] = dict(self._ensemble)
        if self.summary.rounds or self._exits:
            values |= {**self.summary.as_dict(), "exits": list(self._exits)}
        return {f"specfuse_{key}": value for key, value in values.items()}


async def _in_thread(function: Callable[..., None], *args: Any) -> None:
    """Run a function on another thread. It runs to its end even if the caller is cancelled, and the
    caller does not continue before that."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await running
        raise


def _events(data: RoundData) -> Iterator[CustomEvent]:
    """The custom events of a round: the round itself, then one per member that left in it."""
    yield ROUND_EVENT, data.as_dict()
    for departure in data.left:
        yield EXIT_EVENT, {**departure, "weights": dict(data.weights)}


def _events_of_failures(failures: Iterable[MemberError]) -> Iterator[CustomEvent]:
    """The exits of members that failed in a round that was never finished."""
    for failure in failures:
        yield EXIT_EVENT, {**_exit_of(failure), "weights": {}}


def _events_of_rejections(error: BaseException | None, number: int) -> Iterator[CustomEvent]:
    """The drafts that checks refused in a round that was never finished."""
    if isinstance(error, CheckError):
        for rejection in error.rejected:
            yield REJECTED_EVENT, {"round": number, **rejection}


def _exit_of(failure: MemberError) -> dict[str, Any]:
    """A failed member's exit, as plain JSON."""
    return {
        "member": failure.member,
        "kind": failure.kind,
        "reason": str(failure),
        "round": failure.round,
    }


def _failures_after(error: BaseException | None, round: int) -> list[MemberError]:
    """The failures after the last finished round: no round reports them."""
    if not isinstance(error, EnsembleError):
        return []
    return [failure for failure in error.failures if failure.round > round]


class Summary:
    """The summary of the rounds of one answer."""

    def __init__(
        self,
        members: Sequence[str],
        checks: Sequence[str] = (),
        routing: Routing | None = None,
    ) -> None:
        self.members = tuple(members)
        self.routing = routing
        """Who leads, and why; None if only one member writes."""
        self.checks = {name: Counter(passed=0, rejected=0) for name in checks}
        """check -> how many drafts it ``passed`` and ``rejected``."""
        self.rounds = 0
        self.weights: Mapping[str, float] = {}
        self.exits: list[Mapping[str, Any]] = []
        """The members that left, with the reason: it may quote the text."""
        self.refusals: dict[str, str] = {}
        """member -> the text of its last refusal to draft."""
        self.used: dict[str, Effort] = {}
        """What members that send requests have used, including verifiers."""
        self._reasons: dict[str, dict[str, None]] = {name: {} for name in checks}
        """check -> the distinct reasons that it gave. They may quote the text."""
        self._won: Counter[str] = Counter()
        self._looped = 0

    def add(self, round: Round, data: RoundData) -> None:
        """Add a round, given also as data."""
        self.weights = data.weights
        self.exits += data.left
        self.refusals |= data.refusals
        self.rounds += 1
        if round.finish not in ("refusal", "check"):  # else nobody wrote anything
            self._won[round.member] += 1
        self._looped += len(round.looped)
        for name, counts in round.checks.items():
            self.checks.setdefault(name, Counter(passed=0, rejected=0)).update(counts)
        for rejection in round.rejected:
            self._reasons.setdefault(rejection.check, {})[rejection.reason] = None
        for efforts in round.efforts.values():
            for name, effort in efforts.items():
                if effort.requests or effort.input_tokens or effort.output_tokens:
                    self.used[name] = self.used.get(name, Effort()) + effort

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain JSON, without exits, refusals and reasons of checks: they contain
        text."""
        values: dict[str, Any] = {
            "members": list(self.members),
            "rounds": self.rounds,
            "weights": dict(self.weights),
            "shares": {
                name: self._won[name] / self.rounds for name in self.members if self._won[name]
            },
            "looped": self._looped,
            "late": {},  # as in RoundData
            "usage": {name: _usage(effort) for name, effort in self.used.items()},
        }
        if self.routing is not None:
            values["routing"] = self.routing.as_dict()
        if self.checks:
            values["checks"] = {name: dict(counts) for name, counts in self.checks.items()}
        return values

    def checks_with_reasons(self) -> dict[str, dict[str, Any]]:
        """check -> its counts and its first :data:`REASONS` distinct reasons, as plain JSON."""
        return {
            name: {**counts, "reasons": list(self._reasons.get(name, ()))[:REASONS]}
            for name, counts in self.checks.items()
        }


def _usage(effort: Effort) -> dict[str, Any]:
    """What a member that sends requests has used, as plain JSON."""
    usage: dict[str, Any] = {
        "requests": effort.requests,
        "input_tokens": effort.input_tokens,
        "output_tokens": effort.output_tokens,
    }
    if effort.cost:
        usage["cost"] = effort.cost
    if effort.estimated:
        usage["estimated"] = True
    return usage


# --- spans: what child runs contain ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of work with its start and end, in seconds of ``time.time()``."""

    name: str
    began: float
    ended: float
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    children: tuple[Span, ...] = ()


class SpanBuilder:
    """Builds the spans of one answer, round by round.

    The times are those of the work, not of the report: LangSmith shows when each member drafted.
    """

    def __init__(self, verifiers: Sequence[str], *, with_members: bool) -> None:
        self._verifiers = frozenset(verifiers)
        self._with_members = with_members
        """Whether each member's drafting and scoring is a span, too. A failure always is."""
        self._tail = ""
        self._length = 0
        self._last_end = time.time()

    def of_round(self, round: Round, data: RoundData) -> Span:
        """The span of a finished round."""
        began, _ = _phase(round, "draft")
        ended = max((sum(_phase(round, phase)) for phase in round.seconds), default=began)
        span = Span(
            f"round {round.number}",
            began,
            ended,
            self._inputs(),
            _outputs(data),
            tags=(EXIT_EVENT,) if round.left else (),
            metadata={"specfuse_round": round.number, "specfuse_winner": round.winner},
            children=tuple(self._children(round)),
        )
        self._last_end = ended
        self._length += len(round.text)
        self._tail = (self._tail + round.text)[-TAIL:]
        return span

    def of_break(self, error: BaseException, failures: Sequence[MemberError], number: int) -> Span:
        """The span of the round in which the answer broke off."""
        began = self._last_end
        ended = time.time()
        children = [
            Span(
                f"{self._last_work(failure.member)} {failure.member}",
                began,
                ended,
                error=f"{failure.kind}: {failure}",
                metadata={"specfuse_round": number, "specfuse_member": failure.member},
            )
            for failure in failures
        ]
        metadata: dict[str, Any] = {"specfuse_round": number}
        if isinstance(error, CheckError):
            metadata["specfuse_check"] = error.check
            children += [
                Span(
                    f"draft {item['member']}",
                    began,
                    ended,
                    outputs={"text": item["text"]},
                    error=_reason(item),
                    metadata={"specfuse_round": number, "specfuse_member": item["member"]},
                )
                for item in (error.rejected if self._with_members else ())
            ]
        name = type(error).__name__
        return Span(
            f"round {number}",
            began,
            ended,
            self._inputs(),
            error=f"{name}: {error}" if str(error) else name,
            tags=(EXIT_EVENT,) if failures else (),
            metadata=metadata,
            children=tuple(children),
        )

    def _inputs(self) -> dict[str, Any]:
        """The state of the answer before the round."""
        return {"agreed_characters": self._length, "agreed_tail": self._tail}

    def _children(self, round: Round) -> Iterator[Span]:
        """What the members did in this round."""
        if self._with_members:
            yield from self._work(round)
        for departure in round.left:
            if departure.kind != "exit":
                phase = _PHASES[self._last_work(departure.member, round)]
                error = f"{departure.kind}: {departure.reason}"
                yield _member_span(round, phase, departure.member, error=error)

    def _work(self, round: Round) -> Iterator[Span]:
        refused = [item.as_dict() for item in round.rejected]
        for name, effort in round.efforts.get("draft", {}).items():
            if name in round.drafts and name not in round.refusals:
                inputs = {"agreed_characters": self._length}
                outputs = _draft_outputs(round, name)
                error = None
                for item in refused:
                    if (item["member"], item["text"]) == (name, round.drafts[name].text):
                        error = _reason(item)
                        refused.remove(item)
                        break
                yield _member_span(
                    round, "draft", name, effort, inputs=inputs, outputs=outputs, error=error
                )
        for position, item in enumerate(refused):  # drafts that others have replaced
            span = _member_span(
                round, "draft", item["member"], outputs={"text": item["text"]}, error=_reason(item)
            )
            # runs are ordered by their beginnings, and the loop does not know these
            yield replace(span, began=span.began + position * 1e-6)
        for name, effort in round.efforts.get("verify", {}).items():
            if name in round.scores:
                inputs, outputs = _score_contents(round, name)
                yield _member_span(round, "verify", name, effort, inputs=inputs, outputs=outputs)
        for name, refusal in round.refusals.items():
            yield _member_span(round, "draft", name, outputs={"refusal": refusal})

    def _last_work(self, member: str, round: Round | None = None) -> str:
        """What a member was doing when it failed. One that had drafted in this round failed in
        scoring."""
        has_drafted = round is not None and member in round.drafts
        return "score" if has_drafted or member in self._verifiers else "draft"


_PHASES = {"draft": "draft", "score": "verify"}
_WORK = {phase: work for work, phase in _PHASES.items()}


def _member_span(
    round: Round, phase: str, name: str, effort: Effort | None = None, **contents: Any
) -> Span:
    """A member's part of a phase: with its own times, or those of the phase if they are unknown."""
    began, seconds = _phase(round, phase)
    if effort is not None:
        contents["outputs"] |= {"read": effort.read, "reused": effort.reused}
        if effort.began:
            began, seconds = effort.began, effort.seconds
    metadata = {"specfuse_round": round.number, "specfuse_member": name}
    return Span(f"{_WORK[phase]} {name}", began, began + seconds, metadata=metadata, **contents)


def _reason(rejection: Mapping[str, Any]) -> str:
    """Why a check refused a draft, as the error of a run."""
    return f"check {rejection['check']}: {rejection['reason']}"


def _draft_outputs(round: Round, name: str) -> dict[str, Any]:
    draft = round.drafts[name]
    outputs: dict[str, Any] = {
        "text": draft.text,
        "ended": draft.ended,
        "tokens": len(draft.tokens),
    }
    if name in round.thoughts:
        outputs["thought"] = round.thoughts[name]
    if draft.logprobs:
        outputs["logprob"] = sum(draft.logprobs)
    return outputs


def _score_contents(round: Round, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The question to a verifier, and its reply."""
    scores = round.scores[name]
    inputs = {"drafts": {author: round.drafts[author].text for author in scores}}
    outputs = {"scores": dict(scores), "votes": dict(round.votes.get(name, {}))}
    return inputs, _short(outputs)


def _outputs(data: RoundData) -> dict[str, Any]:
    """The round without values that are empty or repeat another one: a tracer posts each of the
    many rounds of an answer."""
    values = data.as_dict()
    del values["round"]
    repeats = {
        "segment": data.text,
        "weights_before": data.weights,
        "authors": [data.winner],
    }
    for efforts in values["tokens"].values():
        for effort in efforts.values():
            del effort["seconds"]  # the member's own run has them
    return {
        key: _short(value)
        for key, value in values.items()
        if not _is_empty(value) and repeats.get(key) != value
    }


def _is_empty(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _short(value: Any) -> Any:
    """The value with numbers rounded to four digits, and without ``False``."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items() if item is not False}
    return value


def _phase(round: Round, phase: str) -> tuple[float, float]:
    """The start of a phase, and its duration."""
    seconds = round.seconds.get(phase, 0.0)
    return round.began.get(phase) or time.time() - seconds, seconds


# --- tracers --------------------------------------------------------------------------------------


def _runs_by_tracer(scope: RunScope) -> dict[int, tuple[BaseTracer, Run]]:
    """The tracers that have the chat model's run, each with its own record of it."""
    runs: dict[int, tuple[BaseTracer, Run]] = {}
    for handler in scope.callbacks.handlers:
        if isinstance(handler, BaseTracer):
            run = handler.run_map.get(str(scope.run_id))
            if run is not None:
                runs[id(handler)] = handler, run
    return runs


def _update(run: Run, metadata: Mapping[str, Any], exits: Sequence[Mapping[str, Any]]) -> None:
    """Add metadata, and events for members that left, to the chat model's run."""
    # A new dict: the old one may be the caller's own.
    run.extra["metadata"] = {**(run.extra.get("metadata") or {}), **metadata}
    if exits:  # also a tag, by which the run can be found
        now = datetime.now(UTC)
        events = [{"name": EXIT_EVENT, "time": now, "kwargs": dict(exit)} for exit in exits]
        run.events = [*(run.events or []), *events]
        run.tags = list(dict.fromkeys([*(run.tags or []), EXIT_EVENT]))


def _add(tracer: BaseTracer, parent: Run, span: Span) -> None:
    """Add a span, with those below it, to a run. The tracer gets it complete: LangSmith in one
    post, and no run can stay open."""
    # Never before its parent: another machine's clock may differ, and runs are ordered by their
    # beginnings.
    began = max(datetime.fromtimestamp(span.began, UTC), parent.start_time)
    ended = max(datetime.fromtimestamp(span.ended, UTC), began)
    run = parent.create_child(
        span.name,
        inputs=dict(span.inputs),
        outputs=dict(span.outputs),
        error=span.error,
        start_time=began,
        end_time=ended,
        tags=list(span.tags),
    )
    run.extra = {"metadata": {**_inherited(parent), **span.metadata}}
    run.serialized = None
    if isinstance(tracer, LangChainTracer):
        _post(tracer, parent, run)
        for child in span.children:
            _add(tracer, run, child)
    elif _exports(tracer):
        with _exported(tracer, parent, run):
            for child in span.children:
                _add(tracer, run, child)
    else:
        for child in span.children:
            _add(tracer, run, child)


def _inherited(parent: Run) -> dict[str, Any]:
    """The caller's metadata (a thread's id, a user's name) for a child run.

    Options of the call, such as the members and the method, stay out: ``create_child`` copies them
    to every child, but the chat model's run has them already.
    """
    options = parent.extra.get("invocation_params") or {}
    return {
        key: value
        for key, value in (parent.extra.get("metadata") or {}).items()
        if not key.startswith(("ls_", "lc_", "specfuse_"))
        and (key not in options or options[key] != value)
    }


def _post(tracer: LangChainTracer, parent: Run, run: Run) -> None:
    """Send a finished run to LangSmith."""
    run.tags = sorted({*(run.tags or []), *tracer.tags})
    run.events = None  # type: ignore[assignment] # an empty list would be posted
    if parent.extra.get("__disabled"):  # within ``tracing_context(enabled=False)``
        run.extra["__disabled"] = True
    else:
        run.post()


_HOOKS = ("_start_trace", "_end_trace", "_on_chain_start", "_on_chain_end", "_on_chain_error")


def _exports(tracer: BaseTracer) -> bool:
    """Whether the tracer works while runs begin and end, as exporters of OpenTelemetry spans do."""
    return any(
        getattr(type(tracer), name, None) is not getattr(BaseTracer, name, None) for name in _HOOKS
    )


@contextmanager
def _exported(tracer: Any, parent: Run, run: Run) -> Iterator[None]:
    """Let a tracer export a finished run; the runs below it are exported within the ``with``.

    LangChain has no public way to do this: ``on_chain_start`` and ``on_chain_end`` set the times to
    now.
    """
    parent.child_runs.pop()  # the tracer adds it, unless the parent has ended
    try:
        tracer._start_trace(run)
        if not any(child is run for child in parent.child_runs[-1:]):
            parent.child_runs.append(run)
        tracer._on_chain_start(run)
        yield
        tracer._end_trace(run)
        finish = tracer._on_chain_error if run.error else tracer._on_chain_end
        finish(run)
    finally:
        tracer.run_map.pop(str(run.id), None)
        tracer.order_map.pop(run.id, None)
