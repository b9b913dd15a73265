"""Run the user's checks, off the threads that compute.

A plain function runs on a thread of its own, because it may block. A coroutine function runs on the
caller's event loop; a synchronous call has none, so a loop in the background takes its place. A
LangChain ``Runnable`` is invoked with the call's config. All checks of one :class:`.CheckAsk` run
side by side, each in a copy of the caller's context variables. A check that fails itself gets a
verdict that says how. A coroutine that blocks its loop is not interrupted.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..core.checks import Check, CheckContext, CheckJob, Finding, Verdict, is_coroutine_function
from ..errors import emptied
from .calls import start

LONGEST_REASON = 2_000
"""A longer reason is cut off after this many characters."""

Deliver = Callable[[int, Verdict], None]


class Checker:
    """Runs the checks of one answer.

    Create it on the caller's thread: it copies the caller's context variables.
    """

    def __init__(
        self,
        context_of: Callable[[CheckJob], CheckContext],
        loop: asyncio.AbstractEventLoop | None,
        config: Any = None,
    ) -> None:
        """``loop`` is the caller's event loop, None for a synchronous call. ``config`` is what a
        ``Runnable`` is invoked with."""
        self._context_of = context_of
        self._loop = loop
        self._config = config
        self._variables = contextvars.copy_context()
        self._open: set[Future[Verdict]] = set()
        self._closed = False

    def ask(self, jobs: Sequence[CheckJob], deliver: Deliver) -> None:
        """Start all checks and return. ``deliver`` gets the number of each job and its verdict,
        from another thread. Whoever waits for them enforces the limits."""
        for number, job in enumerate(jobs):
            target = _Target.of(job.check, has_loop=self._loop is not None)
            future = self._posted(target, job) if target.is_coroutine else Future()
            self._open.add(future)
            future.add_done_callback(partial(self._end, deliver, number, target.is_coroutine))
            if not target.is_coroutine:
                self._start(target, job, future)
        if self._closed:  # checked after the calls are noted, in case of a concurrent close()
            self.close()

    def _end(
        self, deliver: Deliver, number: int, is_on_loop: bool, future: Future[Verdict]
    ) -> None:
        self._open.discard(future)
        if self._closed:
            return
        last = partial(deliver, number, _settled(future))
        if is_on_loop:
            start(last, "check")  # an event loop must not compute
        else:
            last()

    def close(self) -> None:
        """Cancel what can be cancelled. Verdicts that come later are dropped."""
        self._closed = True
        for future in self._open.copy():
            future.cancel()

    # - a function, on a thread of its own

    def _start(self, target: _Target, job: CheckJob, future: Future[Verdict]) -> None:
        variables = self._variables.copy()  # what a check sets stays in its copy
        start(partial(variables.run, self._run, target, job, future), "check")

    def _run(self, target: _Target, job: CheckJob, future: Future[Verdict]) -> None:
        try:
            result = target.call(*self._arguments(target, job))
            if inspect.isawaitable(result):  # of ``lambda text: my_coroutine(text)``
                loop = self._event_loop()
                awaited = asyncio.run_coroutine_threadsafe(_same(result), loop)
                future.add_done_callback(lambda _: awaited.cancel())
                result = awaited.result()
            verdict = _verdict_of(result)
        except BaseException as error:  # also SystemExit: the answer waits for a verdict
            verdict = _raised(error)
        _settle(future, verdict)

    # - a coroutine, on an event loop

    def _posted(self, target: _Target, job: CheckJob) -> Future[Verdict]:
        call = self._verdict(target, job)
        post = asyncio.run_coroutine_threadsafe
        return self._variables.copy().run(post, call, self._event_loop())

    async def _verdict(self, target: _Target, job: CheckJob) -> Verdict:
        try:
            return _verdict_of(await target.call(*self._arguments(target, job)))
        except Exception as error:
            return _raised(error)

    # - both

    def _arguments(self, target: _Target, job: CheckJob) -> tuple[Any, ...]:
        if target.takes_config:
            return job.text, self._config
        if target.takes_context:
            return job.text, self._context_of(job)
        return (job.text,)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which coroutines run."""
        return self._loop or _BACKGROUND.loop()


# --- how a check is called ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """What to call for a check, where to run it, and what to pass besides the text."""

    call: Callable[..., Any]
    is_coroutine: bool = False
    takes_config: bool = False
    takes_context: bool = False

    @classmethod
    def of(cls, check: Check, *, has_loop: bool) -> _Target:
        """The target for a check's function. A ``Runnable`` is invoked asynchronously if the caller
        has an event loop."""
        function = check.function
        if hasattr(function, "invoke"):
            takes_config = not check.takes_context
            if has_loop and hasattr(function, "ainvoke"):
                return cls(function.ainvoke, True, takes_config, check.takes_context)
            return cls(function.invoke, False, takes_config, check.takes_context)
        is_coroutine = is_coroutine_function(function)
        takes_context = check.takes_context or _takes_context(function)
        return cls(function, is_coroutine, takes_context=takes_context)


def _takes_context(function: Any) -> bool:
    """Whether the second positional parameter is required.

    A decorated function is judged by its wrapper, unless that passes on all its arguments.
    """
    for follows in (False, True):
        try:
            signature = inspect.signature(function, follow_wrapped=follows)
        except ValueError:  # a builtin may have none
            return False
        parameters = list(signature.parameters.values())
        positional = [it for it in parameters if it.kind <= it.POSITIONAL_OR_KEYWORD]
        if len(positional) > 1:
            return positional[1].default is inspect.Parameter.empty
        if all(it.kind is not it.VAR_POSITIONAL for it in parameters):
            return False
    return False


# --- the verdict ----------------------------------------------------------------------------------


def _settled(future: Future[Verdict]) -> Verdict:
    """The verdict of a check that is over."""
    error = CancelledError() if future.cancelled() else future.exception()
    return future.result() if error is None else _raised(error)


def _settle(future: Future[Verdict], verdict: Verdict) -> None:
    """Give a check its verdict, unless it has one or was cancelled."""
    with suppress(InvalidStateError):
        future.set_result(verdict)


def _verdict_of(result: Any) -> Verdict:
    """The verdict that a check's result means."""
    if result is None:
        return Verdict()
    if isinstance(result, str) and result:
        return Verdict(_bounded(result))
    if isinstance(result, Finding):
        return Verdict(_bounded(result.reason), span=(result.start, result.end))
    is_short = type(result) in (str, bool, int, float)
    given = repr(result) if is_short else f"a value of type {type(result).__name__}"
    return Verdict(f"returned {given}, expected None or a reason", is_broken=True)


def _raised(error: BaseException) -> Verdict:
    """The verdict of a check that raised."""
    name = type(error).__name__
    reason = f"raised {name}: {error}" if str(error) else f"raised {name}"
    return Verdict(_bounded(reason), is_broken=True, cause=emptied(error))


def _bounded(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[: LONGEST_REASON - 1]}…"


# --- threads --------------------------------------------------------------------------------------


async def _same(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


class _Background:
    """An event loop on a thread of its own, for the coroutines of synchronous calls. It starts when
    it is first used, and stays, because a check may keep connections that belong to the loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="specfuse-check-loop", daemon=True
                ).start()
            return self._loop


_BACKGROUND = _Background()
