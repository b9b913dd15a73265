"""Rounds become custom events and child runs of the chat model's own run, wherever that run was started.

LangChain hands ``_stream`` no run manager on most paths, so the scope of a run travels in a context variable: set
around the call that makes LangChain start the model, read by ``_stream`` as its first act. Knows callbacks and
rounds, nothing of messages or members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.callbacks.manager import ahandle_event, handle_event
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.uuid import uuid7

from ._half_read import aclosed
from ._story import EXIT_EVENT, Depth, Story, departed, exits
from ._tracers import Tracers
from .core.values import Round
from .errors import UsageError

ROUND_EVENT = "specfuse_round"

_T = TypeVar("_T")
log = logging.getLogger("langchain_specfuse")


@dataclass(frozen=True, slots=True)
class RunScope:
    """The chat model's own run: under which id events are booked, and who hears them."""

    run_id: UUID
    handlers: list[BaseCallbackHandler]
    tags: list[str]
    metadata: Mapping[str, Any]

    @classmethod
    def of(cls, manager: Any, run_id: UUID | None = None) -> RunScope:
        """The scope of a run manager, or of a callback manager that will start a run under ``run_id``."""
        return cls(run_id or manager.run_id, manager.handlers, manager.tags, manager.metadata)

    def tell(self, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Hand events to the handlers."""
        for name, data in events if self.handlers else ():
            handle_event(self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._run())

    async def atell(self, events: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """``tell`` for asyncio."""
        for name, data in events if self.handlers else ():
            await ahandle_event(self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._run())

    def answer(self, depth: Depth, *, members: Sequence[str], verifiers: Sequence[str], preset: str) -> Account:
        """The account of one answer of this run: tell it every round, inside its ``with``."""
        return Account(self, depth, Story(members, verifiers, preset, whole=depth == "members"))

    def _run(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "tags": self.tags, "metadata": self.metadata}


class Account:
    """One answer as it is told: to handlers as events, to tracers as metadata and child runs, as deep as is wanted.

    No trouble with a trace becomes trouble of the answer.
    """

    def __init__(self, scope: RunScope, depth: Depth, story: Story) -> None:
        self._scope = scope
        self._depth = depth
        self._story = story
        self._tracers = Tracers(() if depth == "off" else scope.handlers, scope.run_id)
        self._last = 0

    def __enter__(self) -> Account:
        self._safely(self._begin)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._scope.tell(last_exits(error, self._last))
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if error is not None and not self._story.finished and not isinstance(error, UsageError):
            self._safely(self._cut, error)

    async def __aenter__(self) -> Account:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._scope.atell(last_exits(error, self._last))
        self._close(error)

    def tell(self, round: Round) -> None:
        """A round is done."""
        self._last = round.number
        self._scope.tell(events(round))
        self._safely(self._trace, round)

    async def atell(self, round: Round) -> None:
        """``tell`` for asyncio. As with LangChain's own calls, a tracer that may block does so on another thread."""
        self._last = round.number
        await self._scope.atell(events(round))
        if self._tracers.inline:
            self._safely(self._trace, round)
        else:
            await asyncio.to_thread(self._safely, self._trace, round)

    def _begin(self) -> None:
        self._tracers.describe(self._story.summary)

    def _trace(self, round: Round) -> None:
        span = self._story.after(round)
        self._tracers.describe(self._story.summary)
        if round.left:
            self._tracers.note(EXIT_EVENT, exits(round))
        if self._depth != "summary":
            self._tracers.add(span)

    def _cut(self, error: BaseException) -> None:
        span = self._story.cut(error)
        self._tracers.describe(self._story.summary)
        if gone := self._story.departures:
            self._tracers.note(EXIT_EVENT, gone)
        if self._depth != "summary":
            self._tracers.add(span)

    def _safely(self, act: Callable[..., None], *told: Any) -> None:
        if not self._tracers:
            return
        try:
            act(*told)
        except Exception:
            self._tracers = Tracers((), self._scope.run_id)
            log.warning("this answer could not be traced any further", exc_info=True)


_SILENCE = RunScope(UUID(int=0), [], [], {})
_SCOPE: ContextVar[RunScope] = ContextVar("specfuse_run_scope", default=_SILENCE)


def events(round: Round) -> Iterator[tuple[str, dict[str, Any]]]:
    """A round's custom events, name and plain JSON: the round itself, then one per member that left in it."""
    data = round.as_dict()
    yield ROUND_EVENT, data
    for departure in data["left"]:
        yield EXIT_EVENT, {**departure, "weights": data["weights"]}


def last_exits(error: BaseException | None, after: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of those with whom the answer broke off: one per member that failed behind this round."""
    for failed in departed(error, after):
        told = {"member": failed.member, "kind": failed.kind, "reason": str(failed), "round": failed.round}
        yield EXIT_EVENT, {**told, "weights": {}}


def current_scope(run_manager: Any = None) -> RunScope:
    """Where the events of the answer that begins now belong. A run manager in hand is the surest source."""
    return _SCOPE.get() if run_manager is None else RunScope.of(run_manager)


@contextmanager
def scoped(run_manager: Any) -> Iterator[None]:
    """Inside this, LangChain may call ``_stream`` without the run manager."""
    token = _SCOPE.set(current_scope(run_manager))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def announced(
    manager: type[CallbackManager] | type[AsyncCallbackManager],
    config: RunnableConfig | None,
    *,
    callbacks: Any,
    verbose: bool,
    tags: list[str] | None,
    metadata: dict[str, Any] | None,
    inheritable_metadata: Mapping[str, Any],
) -> tuple[RunnableConfig, RunScope]:
    """The config with its callbacks and run id fixed in advance, and the scope that the run will have.

    LangChain configures the callbacks once more from this config; handlers that are there already are not added again.
    """
    config = ensure_config(config)
    inherited = {**(config.get("metadata") or {}), **inheritable_metadata}
    configured = manager.configure(
        config.get("callbacks"), callbacks, verbose, config.get("tags"), tags, inherited, metadata
    )
    run_id = config.get("run_id") or uuid7()
    return {**config, "callbacks": configured, "run_id": run_id}, RunScope.of(configured, run_id)


def first_in(scope: RunScope, items: Generator[_T, None, None]) -> Generator[_T, None, None]:
    """The same items; the first is made inside the scope.

    Only the first: a generator's body runs in the context of whoever asks for the next item, and the variable must
    never be seen by the caller.
    """
    with closing(items):
        token = _SCOPE.set(scope)
        try:
            first = next(items)
        except StopIteration:
            return
        finally:
            _SCOPE.reset(token)
        yield first
        yield from items


async def afirst_in(scope: RunScope, items: AsyncGenerator[_T, None]) -> AsyncGenerator[_T, None]:
    """``first_in`` for asyncio."""
    async with aclosed(items):
        token = _SCOPE.set(scope)
        try:
            first = await anext(items)
        except StopAsyncIteration:
            return
        finally:
            _SCOPE.reset(token)
        yield first
        async for item in items:
            yield item
