"""Reports an answer while it is written.

If anybody listens, each round is turned into plain data once (:meth:`.Round.data`).
:class:`Report` makes from it

- the custom events ``specfuse_round``, ``specfuse_exit`` and, if the answer fails at a check,
  ``specfuse_rejected``, for all callback handlers;
- for tracers such as LangSmith's: metadata of the chat model's run, and below that run a child run
  per round, which begins and ends with it.

The :class:`Summary`, which the message's metadata shows too, is always made.

Text that leads to the answer (drafts, reasons) is in the ``inputs``, ``outputs`` and ``error`` of
runs, where tracers can hide it. Names, tags, metadata and events of runs never contain any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.callbacks import (
    AsyncCallbackManager,
    AsyncCallbackManagerForLLMRun,
    BaseCallbackHandler,
    CallbackManager,
    CallbackManagerForChainRun,
)
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.schemas import Run
from langchain_core.utils.uuid import uuid7

from ..core.options import Method
from ..core.round import Round, RoundData
from ..core.values import Budget, Effort
from ..errors import CheckError, EnsembleError, MemberError
from .options import Call
from .routing import Routing

ROUND_EVENT = "specfuse_round"
EXIT_EVENT = "specfuse_exit"
REJECTED_EVENT = "specfuse_rejected"
"""A draft that a check refused in a round that was never finished."""
TAIL = 80
"""The child run of a round shows this many characters of the agreed text before it."""
REASONS = 5
"""The message contains at most this many reasons of each check."""

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
    call: Call | None = None
    """The options of a stream, validated once: LangChain asks for them several times."""

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
        cls, manager: Any, config: RunnableConfig | None, model: Any, options: Mapping[str, Any]
    ) -> tuple[RunnableConfig, RunScope]:
        """The scope of a run that has not begun, and the config with which it will have this scope.

        The config has configured callbacks and a run id. LangChain configures the callbacks once
        more and adds no handler twice.
        """
        config = ensure_config(config)
        run_id = config.get("run_id") or uuid7()
        scope = cls(run_id, None, model._checked(**options))
        callbacks = manager.configure(
            config.get("callbacks"),
            model.callbacks,
            model.verbose,
            config.get("tags"),
            model.tags,
            {**(config.get("metadata") or {}), **model._get_ls_params(**options, run_scope=scope)},
            model.metadata,
        )
        config = {**config, "callbacks": callbacks, "run_id": run_id}
        return config, replace(scope, callbacks=callbacks)

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
        *,
        is_traced: bool,
        members: Sequence[str],
        verifiers: Sequence[str],
        method: Method,
        checks: Sequence[str] = (),
        routing: Routing | None = None,
    ) -> None:
        self.summary = Summary(members, checks, routing)
        self._scope = scope
        self._ensemble = {
            "members": list(members),
            "verifiers": sorted(verifiers),
            "method": method.rules or "robust",
        }
        if routing is not None:
            self._ensemble["routing"] = routing.as_dict()
        self._tracers = _tracers_of(scope) if is_traced else []
        self._exits: list[dict[str, Any]] = []
        """The members that have left, without the reason: it may quote the text."""
        self._run: CallbackManagerForChainRun | None = None
        """The child run of the round that is under way."""
        self._tail = ""
        self._length = 0

    def __enter__(self) -> Report:
        return self

    def begin(self) -> None:
        """Begin the answer's first round."""
        self._trace_summary(())
        self._begin_round()

    def add(self, round: Round) -> None:
        """Report a finished round."""
        data = round.data() if self._scope.callbacks.handlers else None
        if data is not None:
            self._scope.send(_events(data))
        self.summary.add(round)
        if data is not None:
            self._trace_round(round, data)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        exits = _exits_after(error, self.summary.rounds)
        self._scope.send(_events_of_break(error, exits, self.summary.rounds + 1))
        self._trace_break(error, exits)

    async def __aenter__(self) -> Report:
        return self

    async def abegin(self) -> None:
        """``begin`` for asyncio."""
        await self._in_thread(self.begin)

    async def aadd(self, round: Round) -> None:
        """``add`` for asyncio."""
        data = round.data() if self._scope.callbacks.handlers else None
        if data is not None:
            await self._scope.asend(_events(data))
        self.summary.add(round)
        if data is not None:
            await self._in_thread(self._trace_round, round, data)

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        exits = _exits_after(error, self.summary.rounds)
        await self._scope.asend(_events_of_break(error, exits, self.summary.rounds + 1))
        self._trace_break(error, exits)

    async def _in_thread(self, function: Callable[..., Any], *args: Any) -> None:
        """Run a function, on another thread if a tracer may block, as in LangChain's own calls. It
        runs to its end even if the caller is cancelled."""
        if all(tracer.run_inline for tracer in self._tracers):
            function(*args)
            return
        running = asyncio.ensure_future(asyncio.to_thread(function, *args))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await running
            raise

    def _begin_round(self) -> None:
        if not self._tracers:
            return
        number = self.summary.rounds + 1
        callbacks = _callbacks_of_rounds(self._scope, self._tracers)
        callbacks.add_metadata({"specfuse_round": number})
        inputs = {"agreed_characters": self._length, "agreed_tail": self._tail}
        self._run = callbacks.on_chain_start(None, inputs, name=f"round {number}")

    def _trace_round(self, round: Round, data: RoundData) -> None:
        """End the child run of this round, and begin that of the next one."""
        self._trace_summary(data.left)
        if self._run is None:
            return
        self._length += len(round.text)
        self._tail = (self._tail + round.text)[-TAIL:]
        for departure in data.left:
            if departure["kind"] != "exit":
                self._trace_failure(departure)
        self._run.on_chain_end(_outputs(data))
        self._run = None
        if round.finish is None:
            self._begin_round()

    def _trace_break(self, error: BaseException | None, exits: Sequence[dict[str, Any]]) -> None:
        """End the child run of the round in which the answer failed, if it did."""
        if error is None or self._run is None:
            return
        self._trace_summary(exits)
        for departure in exits:
            self._trace_failure(departure)
        self._run.on_chain_error(error)
        self._run = None

    def _trace_failure(self, departure: Mapping[str, Any]) -> None:
        """A member that failed is a run with an error, below the round."""
        assert self._run is not None
        run = self._run.get_child().on_chain_start(None, {}, name=departure["member"])
        run.on_chain_error(MemberError(f"{departure['kind']}: {departure['reason']}"))

    def _trace_summary(self, exits: Iterable[Mapping[str, Any]]) -> None:
        """Add the ensemble, the summary and new exits to the chat model's own run, as metadata and
        events. They contain no text."""
        new = [{key: exit[key] for key in ("member", "kind", "round")} for exit in exits]
        self._exits += new
        values: dict[str, Any] = dict(self._ensemble)
        if self.summary.rounds or self._exits:
            values |= {**self.summary.as_dict(), "exits": list(self._exits)}
        metadata = {f"specfuse_{key}": value for key, value in values.items()}
        for tracer in self._tracers:
            run = tracer.run_map.get(str(self._scope.run_id))
            if run is not None:
                _update(run, metadata, new)


def _events(data: RoundData) -> Iterator[CustomEvent]:
    """The custom events of a round: the round itself, then one per member that left in it."""
    yield ROUND_EVENT, data.as_dict()
    for departure in data.left:
        yield EXIT_EVENT, {**departure, "weights": dict(data.weights)}


def _events_of_break(
    error: BaseException | None, exits: Iterable[Mapping[str, Any]], number: int
) -> Iterator[CustomEvent]:
    """The drafts that checks refused in a round that was never finished, and the members that
    failed in it."""
    if isinstance(error, CheckError):
        for rejection in error.rejected:
            yield REJECTED_EVENT, {"round": number, **rejection}
    for departure in exits:
        yield EXIT_EVENT, {**departure, "weights": {}}


def _exits_after(error: BaseException | None, round: int) -> list[dict[str, Any]]:
    """The members that failed after the last finished round: no round reports them."""
    if not isinstance(error, EnsembleError):
        return []
    return [
        {
            "member": failure.member,
            "kind": failure.kind,
            "reason": failure.message,
            "round": failure.round,
        }
        for failure in error.failures
        if failure.round > round
    ]


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
        """check -> how many drafts it ``passed`` and ``rejected``, or how many places it
        ``redacted``."""
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

    def add(self, round: Round) -> None:
        """Add a round."""
        self.weights = round.weights
        self.exits += [departure.as_dict() for departure in round.left]
        self.refusals |= round.refusals
        self.rounds += 1
        if round.finish not in ("refusal", "check"):  # else nobody wrote anything
            self._won[round.member] += 1
        self._looped += len(round.looped)
        for name, counts in round.checks.items():
            self.checks.setdefault(name, Counter()).update(counts)
        for rejection in round.rejected:
            self._reasons.setdefault(rejection.check, {})[rejection.reason] = None
        for efforts in round.efforts.values():
            for name, effort in efforts.items():
                billed = effort.requests, effort.input_tokens, effort.output_tokens
                if any(billed) or effort.estimated_requests:
                    self.used[name] = self.used.get(name, Effort()) + effort

    def budget_spent(self, max_calls: int | None, max_cost: float | None) -> str:
        """The name of the bound that the answer has reached; empty if there is none."""
        left = Budget.of(max_calls, max_cost).after(sum(self.used.values(), Effort()))
        if left.dollars <= 0:
            return "max_cost"
        return "max_calls" if left.is_spent else ""

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


# --- child runs -----------------------------------------------------------------------------------


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


def _tracers_of(scope: RunScope) -> list[BaseTracer]:
    """The tracers that record the chat model's run: other handlers get events."""
    return [handler for handler in scope.callbacks.handlers if isinstance(handler, BaseTracer)]


def _callbacks_of_rounds(scope: RunScope, tracers: Sequence[BaseTracer]) -> CallbackManager:
    """Callbacks for child runs of the chat model's run, with the caller's metadata (a thread's id,
    a user's name)."""
    handlers = list[BaseCallbackHandler](tracers)
    callbacks = CallbackManager(handlers, handlers, parent_run_id=scope.run_id)
    metadata = scope.callbacks.metadata
    callbacks.add_metadata(
        {key: metadata[key] for key in metadata if not key.startswith(("ls_", "lc_"))}
    )
    return callbacks


def _update(run: Run, metadata: Mapping[str, Any], exits: Sequence[Mapping[str, Any]]) -> None:
    """Add metadata, and events for members that left, to the chat model's run."""
    # A new dict: the old one may be the caller's own.
    run.extra["metadata"] = {**(run.extra.get("metadata") or {}), **metadata}
    if exits:  # also a tag, by which the run can be found
        now = datetime.now(UTC)
        events = [{"name": EXIT_EVENT, "time": now, "kwargs": dict(exit)} for exit in exits]
        run.events = [*(run.events or []), *events]
        run.tags = list(dict.fromkeys([*(run.tags or []), EXIT_EVENT]))
