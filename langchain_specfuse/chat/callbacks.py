"""Callback handlers for the events of an answer.

:class:`SpecFuseCallbackHandler` gets rounds, rejected drafts, changes of the voting weights and
exits as typed, frozen records. :class:`TraceCallbackHandler` records rounds as traces.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(
    ...     members=[ScriptedMember("Blue.", name="a"), ScriptedMember("Blue.", name="b")]
    ... )
    >>> rounds = SpecFuseCallbackHandler(
    ...     on_round=lambda event: print(event.number, event.winner, event.text)
    ... )
    >>> answer = llm.invoke("Which colour?", {"callbacks": [rounds]})
    1 a Blue.

Other LangChain handlers get the same data as custom events, ``specfuse_round`` and
``specfuse_exit`` (``specfuse_rejected`` for drafts of a round that was never finished), and
``astream_events(version="v2")`` yields them as ``on_custom_event``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import BaseMessage

from ..core.round import RoundData
from ..errors import SpecFuseError, UsageError, advised
from ..show.trace import Trace
from .report import EXIT_EVENT, REJECTED_EVENT, ROUND_EVENT


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvent(RoundData):
    """One finished round, as plain data. ``docs/reference/events.md`` explains every field."""

    run_id: UUID
    """The run of the chat model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEvent:
    """A check has refused a draft. Its text may be something that nobody must see."""

    run_id: UUID
    round: int
    member: str
    text: str
    """The draft."""
    check: str
    """The check's name."""
    reason: str
    kept: int
    """How many characters at the beginning of the draft were kept."""
    held_back: str
    """The end of the agreed text before the draft that was held back. The fault may lie here."""
    is_shown: bool
    """The draft became part of the answer anyway (``on_failure="keep"``)."""
    tokens: int
    """Its length in its author's tokens."""


@dataclass(frozen=True, slots=True)
class WeightsEvent:
    """The voting weights have changed, by feedback or because a member left."""

    run_id: UUID
    round: int
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ExitEvent:
    """A member has left for the rest of this answer."""

    run_id: UUID
    round: int
    member: str
    kind: str
    """``exit`` when it was voted out, else ``error``, ``timeout``, ``nan``, ``overflow``,
    ``bad_request``, ``denied`` or ``not_found``."""
    reason: str
    weights: Mapping[str, float]
    """The weights of the members that stay."""


OnRound = Callable[[RoundEvent], object] | None
OnRejected = Callable[[RejectedEvent], object] | None
OnWeights = Callable[[WeightsEvent], object] | None
OnExit = Callable[[ExitEvent], object] | None
Event = RoundEvent | RejectedEvent | WeightsEvent | ExitEvent


def typed_events(name: str, data: Any, run_id: UUID) -> Iterator[Event]:
    """The typed records of a custom event; none for events of others."""
    if name == ROUND_EVENT:
        fields = {"number" if key == "round" else key: value for key, value in data.items()}
        event = RoundEvent(run_id=run_id, **fields)
        for rejection in event.rejected:
            yield RejectedEvent(run_id=run_id, round=event.number, **rejection)
        yield event
        if event.weights != event.weights_before:
            yield WeightsEvent(run_id, event.number, event.weights_before, event.weights)
    elif name == REJECTED_EVENT:
        yield RejectedEvent(run_id=run_id, **data)
    elif name == EXIT_EVENT:
        yield ExitEvent(run_id=run_id, **data)


class SpecFuseCallbackHandler(BaseCallbackHandler):
    """Calls a function for every rejected draft, round, change of weights and exit. Pass functions,
    or override the methods."""

    # For a subclass whose own __init__ does not call this one.
    _on_round: OnRound = None
    _on_rejected: OnRejected = None
    _on_weights: OnWeights = None
    _on_exit: OnExit = None

    def __init__(
        self,
        *,
        on_round: OnRound = None,
        on_rejected: OnRejected = None,
        on_weights: OnWeights = None,
        on_exit: OnExit = None,
    ) -> None:
        self._on_round = on_round
        self._on_rejected = on_rejected
        self._on_weights = on_weights
        self._on_exit = on_exit
        functions = {
            "on_round": on_round,
            "on_rejected": on_rejected,
            "on_weights": on_weights,
            "on_exit": on_exit,
        }
        for name, function in functions.items():
            if inspect.iscoroutinefunction(function) and not isinstance(self, AsyncCallbackHandler):
                error = UsageError(f"{name} must be a plain function, got a coroutine function")
                raise advised(error, "use AsyncSpecFuseCallbackHandler")

    def on_round(self, event: RoundEvent) -> Any:
        """A segment was agreed."""
        return self._on_round(event) if self._on_round else None

    def on_rejected(self, event: RejectedEvent) -> Any:
        """A check has refused a draft. Called before the round's own event."""
        return self._on_rejected(event) if self._on_rejected else None

    def on_weights(self, event: WeightsEvent) -> Any:
        """The voting weights have changed."""
        return self._on_weights(event) if self._on_weights else None

    def on_exit(self, event: ExitEvent) -> Any:
        """A member has left."""
        return self._on_exit(event) if self._on_exit else None

    def _handle(self, event: Event) -> Any:
        """Call the method for this event."""
        if isinstance(event, RoundEvent):
            return self.on_round(event)
        if isinstance(event, RejectedEvent):
            return self.on_rejected(event)
        if isinstance(event, WeightsEvent):
            return self.on_weights(event)
        return self.on_exit(event)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> Any:
        for event in typed_events(name, data, run_id):
            self._handle(event)


class AsyncSpecFuseCallbackHandler(SpecFuseCallbackHandler, AsyncCallbackHandler):
    """The handler for asyncio: functions and methods may be coroutine functions. It also works in
    synchronous calls."""

    async def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        for event in typed_events(name, data, run_id):
            result = self._handle(event)
            if inspect.isawaitable(result):
                await result


class TraceCallbackHandler(BaseCallbackHandler):
    """Records a :class:`Trace` of every answer.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel, TraceCallbackHandler
    >>> llm = SpecFuseChatModel(
    ...     members=[ScriptedMember("Blue.", name="a"), ScriptedMember("Blue.", name="b")]
    ... )
    >>> recorder = TraceCallbackHandler()
    >>> answer = llm.invoke("Which colour?", {"callbacks": [recorder]})
    >>> recorder.trace
    <Trace of 1 round by a, b: 'Blue.'>

    ``recorder.trace`` is the trace of the latest answer. ``recorder.traces`` has the last ``kept``
    traces by the run id of the chat model. Older ones are dropped, so that the memory of a server
    that records every answer does not grow without end. The trace of an answer that failed has its
    ``error``.
    """

    def __init__(self, *, kept: int = 100) -> None:
        if kept < 1:
            raise advised(
                UsageError(f"kept must be at least 1, got {kept!r}"), "the default is 100"
            )
        self.kept = kept
        self.traces: dict[UUID, Trace] = {}
        """run id of the chat model -> the trace of its answer, in the order in which the answers
        began."""
        self._questions: dict[UUID, str] = {}

    @property
    def trace(self) -> Trace:
        """The trace of the latest answer."""
        if self.traces:
            return next(reversed(self.traces.values()))
        advice = (
            "pass this handler to a SpecFuseChatModel's call; answers from LangChain's cache "
            "have no rounds"
        )
        raise advised(UsageError("no answer with a round has been recorded"), advice)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        **kwargs: Any,
    ) -> None:
        human = [message for message in messages[0] if message.type == "human"]
        self._questions[run_id] = str(human[-1].text) if human else ""
        while len(self._questions) > self.kept:
            del self._questions[next(iter(self._questions))]

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        if name == ROUND_EVENT:
            self._trace_of(run_id).add(data)
        elif name == REJECTED_EVENT:
            self._trace_of(run_id).rejected.append(dict(data))

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self._questions.pop(run_id, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        # other chat models fail with other errors
        if run_id in self.traces or isinstance(error, SpecFuseError):
            self._trace_of(run_id).error = f"{type(error).__name__}: {error}"
        self._questions.pop(run_id, None)

    def _trace_of(self, run_id: UUID) -> Trace:
        if run_id not in self.traces:
            self.traces[run_id] = Trace(question=self._questions.get(run_id, ""))
        while len(self.traces) > self.kept:
            del self.traces[next(iter(self.traces))]
        return self.traces[run_id]
