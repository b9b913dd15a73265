"""Rounds become custom events of the chat model's own run, wherever that run was started.

LangChain hands ``_stream`` no run manager on most paths, so the scope of a run travels in a context variable: set
around the call that makes LangChain start the model, read by ``_stream`` as its first act. Knows callbacks and
rounds, nothing of messages or members.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Iterator, Mapping
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler, CallbackManager
from langchain_core.callbacks.manager import ahandle_event, handle_event
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.uuid import uuid7

from .core.values import Round

ROUND_EVENT = "specfuse_round"
EXIT_EVENT = "specfuse_exit"

_T = TypeVar("_T")


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

    def tell(self, round: Round) -> None:
        """Hand a round to the handlers."""
        for name, data in events(round) if self.handlers else ():
            handle_event(self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._run())

    async def atell(self, round: Round) -> None:
        """``tell`` for asyncio."""
        for name, data in events(round) if self.handlers else ():
            await ahandle_event(self.handlers, "on_custom_event", "ignore_custom_event", name, data, **self._run())

    def _run(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "tags": self.tags, "metadata": self.metadata}


_SILENCE = RunScope(UUID(int=0), [], [], {})
_SCOPE: ContextVar[RunScope] = ContextVar("specfuse_run_scope", default=_SILENCE)


def events(round: Round) -> Iterator[tuple[str, dict[str, Any]]]:
    """A round's custom events, name and plain JSON: the round itself, then one per member that left in it."""
    data = {**round.as_dict(), "margin": round.margin}
    yield ROUND_EVENT, data
    for departure in data["left"]:
        yield EXIT_EVENT, {**departure, "weights": data["weights"]}


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
    async with aclosing(items):
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
