"""What you can listen to: every round, every change of the voting weights, every departure, as typed frozen records.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
    >>> llm = SpecFuseChatModel(members=[ScriptedMember("Blue.", name="a"), ScriptedMember("Blue.", name="b")])
    >>> rounds = SpecFuseCallbackHandler(on_round=lambda event: print(event.number, event.winner, event.text))
    >>> answer = llm.invoke("Which colour?", {"callbacks": [rounds]})
    1 a Blue.

The same data reaches any LangChain handler as custom events, ``specfuse_round`` and ``specfuse_exit``, and
``astream_events(version="v2")`` as ``on_custom_event``. Knows the events' JSON, nothing of how they travel.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler

from ._story import EXIT_EVENT
from ._tracing import ROUND_EVENT
from .errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """One finished round."""

    run_id: UUID
    """Of the chat model's own run."""
    number: int
    text: str
    """What may be shown now."""
    segment: str
    """What was agreed: it may hold the beginning of a stop string, which is not shown yet."""
    ended: bool
    """Whether the segment's writer ended the answer."""
    winner: str
    authors: Sequence[str]
    """Everybody who drafted what won, the winner first."""
    margin: float
    """How far the winner's total lies above the best other draft; 1.0 when nobody disagreed."""
    dissent: float
    """The entropy of the vote over the distinct drafts, from 0 (one mind) to 1."""
    runner_up: str | None
    """Who wrote the best draft that says something else."""
    drafts: Mapping[str, Mapping[str, Any]]
    """member -> ``text``, ``ended``, ``tokens`` (how many)."""
    scores: Mapping[str, Mapping[str, float]]
    """verifier -> drafting member -> raw score; empty when nobody had to score."""
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    weights_before: Mapping[str, float]
    weights: Mapping[str, float]
    forced: str
    """What a constraint left no choice about: agreed without a vote, part of ``text``."""
    closed: str
    """What was put behind an answer that its budget cut off, part of ``text``."""
    thoughts: Mapping[str, str]
    """member -> what it thought before its first word."""
    looped: Sequence[str]
    """Members whose drafts only continued a repetition."""
    umpire: str
    """Who decided between drafts of which several members were sure; empty: nobody had to."""
    late: Mapping[str, Sequence[str]]
    """``draft``, ``verify`` -> members whose reply was not there in time: the round went on without it."""
    left: Sequence[Mapping[str, Any]]
    finish: Literal["stop", "stop_string", "length"] | None
    """Why the answer ends here, if it does."""
    seconds: Mapping[str, float]
    """``draft``, ``verify`` -> seconds."""
    tokens: Mapping[str, Mapping[str, Mapping[str, float]]]
    """``draft``, ``verify`` -> member -> tokens ``read``, ``reused``, and its own ``seconds``."""


@dataclass(frozen=True, slots=True)
class WeightsEvent:
    """The voting weights have changed, by feedback or because somebody left."""

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
    """``exit`` when it was voted out, else ``error``, ``timeout``, ``nan``, ``overflow`` or ``not_found``."""
    reason: str
    weights: Mapping[str, float]
    """Of those who stayed."""


Event = RoundEvent | WeightsEvent | ExitEvent


def records(name: str, data: Any, run_id: UUID) -> Iterator[Event]:
    """The typed records of a custom event; none for the events of others."""
    if name == ROUND_EVENT:
        yield RoundEvent(run_id, data["round"], **{key: value for key, value in data.items() if key != "round"})
        if data["weights"] != data["weights_before"]:
            yield WeightsEvent(run_id, data["round"], data["weights_before"], data["weights"])
    elif name == EXIT_EVENT:
        yield ExitEvent(run_id=run_id, **data)


class SpecFuseCallbackHandler(BaseCallbackHandler):
    """Calls you for every round, change of weights and departure. Pass functions, or override the methods."""

    def __init__(
        self,
        *,
        on_round: Callable[[RoundEvent], object] | None = None,
        on_weights: Callable[[WeightsEvent], object] | None = None,
        on_exit: Callable[[ExitEvent], object] | None = None,
    ) -> None:
        given = {"on_round": on_round, "on_weights": on_weights, "on_exit": on_exit}
        for name, function in given.items():
            if inspect.iscoroutinefunction(function):
                error = UsageError(f"{name} must be a plain function, got a coroutine function")
                raise advised(error, "use AsyncSpecFuseCallbackHandler")
        self._given = given

    def on_round(self, event: RoundEvent) -> None:
        """A segment was agreed."""
        self._call("on_round", event)

    def on_weights(self, event: WeightsEvent) -> None:
        """The voting weights have changed."""
        self._call("on_weights", event)

    def on_exit(self, event: ExitEvent) -> None:
        """A member has left."""
        self._call("on_exit", event)

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        for event in records(name, data, run_id):
            if isinstance(event, RoundEvent):
                self.on_round(event)
            elif isinstance(event, WeightsEvent):
                self.on_weights(event)
            else:
                self.on_exit(event)

    def _call(self, name: str, event: Event) -> None:
        function: Callable[[Any], object] | None = self._given[name]
        if function is not None:
            function(event)


class AsyncSpecFuseCallbackHandler(AsyncCallbackHandler):
    """The same for asyncio: its functions and methods may be coroutines. It works in synchronous calls too."""

    def __init__(
        self,
        *,
        on_round: Callable[[RoundEvent], Awaitable[object] | object] | None = None,
        on_weights: Callable[[WeightsEvent], Awaitable[object] | object] | None = None,
        on_exit: Callable[[ExitEvent], Awaitable[object] | object] | None = None,
    ) -> None:
        self._given = {"on_round": on_round, "on_weights": on_weights, "on_exit": on_exit}

    async def on_round(self, event: RoundEvent) -> None:
        """A segment was agreed."""
        await self._call("on_round", event)

    async def on_weights(self, event: WeightsEvent) -> None:
        """The voting weights have changed."""
        await self._call("on_weights", event)

    async def on_exit(self, event: ExitEvent) -> None:
        """A member has left."""
        await self._call("on_exit", event)

    async def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **kwargs: Any) -> None:
        for event in records(name, data, run_id):
            if isinstance(event, RoundEvent):
                await self.on_round(event)
            elif isinstance(event, WeightsEvent):
                await self.on_weights(event)
            else:
                await self.on_exit(event)

    async def _call(self, name: str, event: Event) -> None:
        function: Callable[[Any], Awaitable[object] | object] | None = self._given[name]
        result = function(event) if function is not None else None
        if inspect.isawaitable(result):
            await result
