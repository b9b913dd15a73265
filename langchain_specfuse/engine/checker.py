"""Run the user's checks, off the threads that compute.

A plain function runs on a thread, because it may block. A coroutine function runs on the caller's
event loop; a synchronous call has none, so a loop in the background takes its place. A LangChain
``Runnable`` is invoked with the call's config. All checks of one :class:`.CheckAsk` run side by
side, each in a copy of the caller's context variables and with a time limit of its own. A check
that fails itself gets a verdict that says how; what it raised is raised in no other thread.

The threads are shared by all answers and end when they are idle. They are daemons, so a check that
hangs does not keep the interpreter from ending; ``concurrent.futures`` would wait for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..core.checks import CheckContext, CheckJob, Verdict
from ..errors import emptied
from .worker import forked, refuse_fork

log = logging.getLogger("langchain_specfuse")

IDLE_S = 2.0
"""A thread ends after this long without work; the next check starts a new one."""
MAX_THREADS = 256
"""The most plain functions that run at once. Those that exceeded their time limit do not count."""
STUCK_S = 1.0
"""An event loop that does not answer for this long is blocked by a check."""
LONGEST_REASON = 2_000
"""A longer reason is cut off after this many characters."""

Deliver = Callable[[tuple[Verdict, ...]], None]
_PASSED = Verdict()


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
        self._targets: dict[int, tuple[Any, _Target]] = {}
        """By the id of a check's function. The function is kept alive so that no other object gets
        its id."""
        self._open: dict[_Call, None] = {}
        self._closed = False

    def ask(self, jobs: Sequence[CheckJob], deliver: Deliver) -> None:
        """Start all checks and return. ``deliver`` gets one verdict per job, in order, as soon as
        all are known. It is called once, from another thread."""
        refuse_fork()
        verdicts = _Verdicts(len(jobs))
        calls = [_Call(self, job, at, verdicts, deliver) for at, job in enumerate(jobs)]
        for call in calls:
            self._open[call] = None
        if self._closed:  # checked after the calls are noted, in case of a concurrent close()
            self.close()
            return
        if not calls:
            _THREADS.put(partial(deliver, ()))
        for call in calls:
            call.begin()

    def close(self) -> None:
        """Cancel what can be cancelled. Verdicts that come later are dropped."""
        self._closed = True
        if forked():
            return  # the checks run in the parent process
        calls = self._open.copy()
        self._open.clear()
        for call in calls:
            call.cancel()
        _background.release(self)

    def target(self, function: Any) -> _Target:
        """How to call this function."""
        known = self._targets.get(id(function))
        if known is None:
            known = function, _Target.of(function, has_loop=self._loop is not None)
            self._targets[id(function)] = known
        return known[1]

    def arguments(self, target: _Target, job: CheckJob) -> tuple[Any, ...]:
        """The arguments to call a check with."""
        if target.takes_config:
            return job.text, self._config
        if target.takes_context:
            return job.text, self._context_of(job)
        return (job.text,)

    def variables(self) -> contextvars.Context:
        """A copy of the caller's context variables. What a check sets stays in its copy."""
        return self._variables.copy()

    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop on which coroutines run."""
        return self._loop or _background.loop_for(self)

    def awaits(self, call: _Call) -> bool:
        """Whether this call is still open."""
        return call in self._open

    def forget(self, call: _Call) -> None:
        """Note that a call is over."""
        self._open.pop(call, None)

    @property
    def is_closed(self) -> bool:
        return self._closed


# --- how a check is called ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Target:
    """What to call for a check, where to run it, and what to pass besides the text."""

    call: Callable[..., Any]
    is_coroutine: bool = False
    takes_config: bool = False
    takes_context: bool = False

    @classmethod
    def of(cls, function: Any, *, has_loop: bool) -> _Target:
        """The target for a check's function. A ``Runnable`` is invoked asynchronously if the caller
        has an event loop."""
        if hasattr(function, "invoke"):
            if has_loop and hasattr(function, "ainvoke"):
                return cls(function.ainvoke, is_coroutine=True, takes_config=True)
            return cls(function.invoke, takes_config=True)
        method = type(function).__call__
        is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(method)
        return cls(function, is_coroutine, takes_context=_takes_context(function))


def _takes_context(function: Any) -> bool:
    """Whether the second positional parameter is required.

    A decorated function is judged by its wrapper, unless that passes on all its arguments.
    """
    for follows in (False, True):
        try:
            signature = inspect.signature(function, follow_wrapped=follows)
        except Exception:  # a builtin may have none, and an object may raise anything
            return False
        parameters = list(signature.parameters.values())
        positional = [it for it in parameters if it.kind <= it.POSITIONAL_OR_KEYWORD]
        if len(positional) > 1:
            return positional[1].default is inspect.Parameter.empty
        if all(it.kind is not it.VAR_POSITIONAL for it in parameters):
            return False
    return False


# --- one call -------------------------------------------------------------------------------------


class _Verdicts:
    """The verdicts of one ask, which arrive on several threads."""

    def __init__(self, count: int) -> None:
        self._verdicts: list[Verdict | None] = [None] * count
        # Re-entrant, because a finalizer that closes a checker may be called anywhere.
        self._lock = threading.RLock()

    def add(self, at: int, verdict: Verdict) -> tuple[Verdict, ...] | None:
        """Add a verdict, unless this job has one. Returns all verdicts with the last one."""
        with self._lock:
            if self._verdicts[at] is not None:
                return None
            self._verdicts[at] = verdict
            found = tuple(verdict for verdict in self._verdicts if verdict is not None)
            return found if len(found) == len(self._verdicts) else None


class _Call:
    """One check that runs on one text."""

    def __init__(
        self, checker: Checker, job: CheckJob, at: int, verdicts: _Verdicts, deliver: Deliver
    ) -> None:
        self._checker = checker
        self._job = job
        self._at = at
        self._verdicts = verdicts
        self._deliver = deliver
        self._over = False
        self._thread: threading.Thread | None = None
        """The thread that is inside the check."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def timeout_s(self) -> float:
        return self._job.check.timeout_s

    def begin(self) -> None:
        """Start the check, on a thread or on the event loop."""
        if self._over:
            return
        target = self._checker.target(self._job.check.function)
        if not target.is_coroutine:
            _THREADS.put(partial(self._run, target))
            return
        # The time limit starts now, because the loop may never run again.
        _LIMITS.add(self)
        self._post(partial(self._call, target))

    def cancel(self) -> None:
        """End this call without a verdict."""
        self._over = True
        self._stop()

    def expire(self) -> None:
        """End this call, because its time limit has passed."""
        if self._over:
            return
        self._end(Verdict(f"took longer than {self.timeout_s:g} s", is_broken=True))
        self._stop()
        if self._loop is not None:
            _background.doubt(self._loop)

    def _stop(self) -> None:
        _LIMITS.remove(self)
        thread, task = self._thread, self._task
        if thread is not None:
            _THREADS.abandon(thread)
        if task is not None:
            _cancel(task)

    def _call(self, target: _Target) -> Any:
        return target.call(*self._checker.arguments(target, self._job))

    # - on a thread

    def _run(self, target: _Target) -> None:
        if self._over:
            return
        self._thread = threading.current_thread()
        _LIMITS.add(self)
        try:
            result = self._checker.variables().run(self._call, target)
            is_awaitable = result is not None and inspect.isawaitable(result)
            verdict = _PASSED if is_awaitable else _verdict_of(result)
        except BaseException as error:  # a check may raise anything, even SystemExit
            is_awaitable, verdict = False, _raised(error)
        self._thread = None
        if is_awaitable:
            self._post(partial(_same, result))
        else:
            self._end(verdict, is_on_thread=True)

    # - on an event loop

    def _post(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Await what ``call`` returns, on the event loop."""
        try:
            self._loop = self._checker.loop()
            self._loop.call_soon_threadsafe(
                self._start, self._loop, call, context=self._checker.variables()
            )
        except RuntimeError as error:  # the loop was closed: the caller no longer waits
            _drop(call)
            self._end(Verdict(f"could not be asked: {error}", is_broken=True))

    def _start(self, loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[Any]]) -> None:
        if self._over:
            _drop(call)
            return
        task = self._task = loop.create_task(self._await(call))
        if not self._checker.awaits(self):  # cancelled meanwhile, or done at once
            task.cancel()
            self._task = None

    async def _await(self, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            verdict = _verdict_of(await call())
        except BaseException as error:
            verdict = _raised(error)
            # An error that left this task could end the caller's loop. A cancellation must leave
            # it, so that the loop sees it.
            task = asyncio.current_task()
            if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
                raise
        finally:
            self._task = None
            self._end(verdict)

    # - the verdict

    def _end(self, verdict: Verdict, *, is_on_thread: bool = False) -> None:
        """Add the verdict. With the last one, deliver all: on this thread if it is one of ours."""
        self._over = True
        _LIMITS.remove(self)
        self._checker.forget(self)
        complete = self._verdicts.add(self._at, verdict)
        if complete is None or self._checker.is_closed:
            return
        if is_on_thread:
            self._deliver(complete)
        else:
            _THREADS.put(partial(self._deliver, complete))


def _same(value: Any) -> Any:
    return value


def _drop(call: Callable[[], Any]) -> None:
    """Close the coroutine that a function has returned and nobody will await."""
    if isinstance(call, partial) and call.func is _same:
        with suppress(BaseException):
            getattr(call.args[0], "close", lambda: None)()


def _cancel(task: asyncio.Task[None]) -> None:
    with suppress(RuntimeError):  # the loop was closed
        task.get_loop().call_soon_threadsafe(task.cancel)


def _verdict_of(result: Any) -> Verdict:
    """The verdict that a check's result means."""
    if result is None:
        return _PASSED
    if isinstance(result, str) and result:
        return _bounded(Verdict(_encodable(result)))
    is_short = type(result) in (str, bool, int, float)
    given = repr(result) if is_short else f"a value of type {type(result).__name__}"
    return _bounded(Verdict(f"returned {given}, expected None or a reason", is_broken=True))


def _raised(error: BaseException) -> Verdict:
    """The verdict of a check that raised. The traceback keeps only the part inside the check."""
    name = type(error).__name__
    while (here := error.__traceback__) and here.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = here.tb_next
    try:
        reason = f"raised {name}: {error}" if str(error) else f"raised {name}"
    except BaseException:  # the exception's own `__str__` raises
        reason = f"raised {name}, which cannot be described"
    return _bounded(Verdict(_encodable(reason), is_broken=True, cause=emptied(error)))


def _bounded(verdict: Verdict) -> Verdict:
    """The verdict with a reason of bounded length. Keys in it were masked before, because half a
    key would not be found."""
    reason = verdict.reason or ""
    if len(reason) <= LONGEST_REASON:
        return verdict
    return replace(verdict, reason=f"{reason[: LONGEST_REASON - 1]}…")


def _encodable(text: str) -> str:
    return str.encode(text, errors="backslashreplace").decode()


# --- the threads, which all answers share ---------------------------------------------------------


class _Threads:
    """Threads that call functions. If none is idle, the next function starts a new one, up to
    ``MAX_THREADS``."""

    def __init__(self) -> None:
        # A condition instead of a SimpleQueue, whose get(timeout=...) may wait forever if several
        # threads call it (seen with Python 3.11). Re-entrant, because a finalizer that closes a
        # checker may be called anywhere.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0

    def put(self, function: Callable[[], object]) -> None:
        """Call this on one of the threads."""
        with self._lock:
            self._waiting.append(function)
            self._news.notify()
        self._start_if_needed()

    def abandon(self, thread: threading.Thread) -> None:
        """Give up a thread that does not return. If it returns after all, it ends."""
        with self._lock:
            self._threads.discard(thread)
        self._start_if_needed()

    def _start_if_needed(self) -> None:
        with self._lock:
            # An idle thread takes a function and then looks whether another thread is needed, so
            # that one thread runs many short functions.
            if self._idle or not self._waiting or len(self._threads) >= MAX_THREADS:
                return
            thread = threading.Thread(target=self._work, name="specfuse-check", daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.discard(thread)
            if not self._threads:  # otherwise another thread takes the function later
                raise

    def _work(self) -> None:
        while (function := self._next()) is not None:
            self._start_if_needed()
            try:
                function()
            except BaseException:  # an error must not end a thread that others wait for
                log.exception("the verdicts of checks could not be delivered")
            del function  # or it would be kept until the next one comes

    def _next(self) -> Callable[[], object] | None:
        """Wait for a function; None when this thread should end."""
        thread = threading.current_thread()
        with self._lock:
            while thread in self._threads:
                if self._waiting:
                    return self._waiting.popleft()
                self._idle += 1
                is_notified = self._news.wait(IDLE_S)
                self._idle -= 1
                if not is_notified and not self._waiting:
                    self._threads.discard(thread)
        return None


class _TimeLimits:
    """Ends calls that take too long, from one thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._ends: dict[_Call, float] = {}
        self._wakes = 0.0
        """When the thread looks next."""
        self._thread: threading.Thread | None = None

    def add(self, call: _Call) -> None:
        ends = time.monotonic() + call.timeout_s
        with self._lock:
            self._ends[call] = ends
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._watch, name="specfuse-limits", daemon=True)
                thread.start()
                self._thread = thread
            elif ends < self._wakes:
                self._news.notify()

    def remove(self, call: _Call) -> None:
        with self._lock:
            self._ends.pop(call, None)

    def _watch(self) -> None:
        while (late := self._next()) is not None:
            for call in late:
                try:
                    call.expire()
                except BaseException:
                    log.exception("a check could not be ended")
            del late
            call = None  # type: ignore[assignment]

    def _next(self) -> list[_Call] | None:
        """Wait for calls that take too long; None when the thread should end."""
        with self._lock:
            now = time.monotonic()
            is_used = bool(self._ends)
            first = min(self._ends.copy().values(), default=now + IDLE_S)
            self._wakes = min(first, now + IDLE_S)
            self._news.wait(max(self._wakes - now, 0.0))
            if not is_used and not self._ends:
                self._thread = None
                return None
            now = time.monotonic()
            late = [call for call, ends in self._ends.copy().items() if ends <= now]
            for call in late:
                self._ends.pop(call, None)
            return late


# --- the event loop of synchronous calls ----------------------------------------------------------


class _Background:
    """An event loop on a thread of its own. It runs while a checker that has used it is open,
    because a check may keep connections that belong to the loop."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: _Loop | None = None

    def loop_for(self, checker: Checker) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._current is not None and self._current.is_stuck:
                self._current.users.clear()  # it ends if it ever runs again
                self._current = None
            if self._current is None:
                self._current = _Loop(self)
            self._current.users.add(checker)
            return self._current.loop

    def release(self, checker: Checker) -> None:
        """Note that this checker no longer uses the loop."""
        with self._lock:
            if self._current is not None:
                self._current.users.discard(checker)

    def doubt(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note that a check on this loop took too long, so it may be blocking the loop."""
        with self._lock:
            if self._current is not None and self._current.loop is loop:
                self._current.ping()

    def ends(self, ending: _Loop) -> bool:
        """Whether this loop should end. If so, it is not used again."""
        with self._lock:
            if self._current is not ending:
                return True
            if ending.users:
                return False
            self._current = None
            return True


class _Loop:
    """One event loop and its thread."""

    def __init__(self, background: _Background) -> None:
        self.loop = asyncio.new_event_loop()
        self.users: weakref.WeakSet[Checker] = weakref.WeakSet()
        self._background = background
        self._pinged = 0.0
        """When the loop was asked whether it still runs; 0 if it has answered."""
        threading.Thread(target=self._work, name="specfuse-check-loop", daemon=True).start()

    def ping(self) -> None:
        """Test whether the loop still runs."""
        if not self._pinged:
            self._pinged = time.monotonic()
            self.loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._pinged = 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether a check blocks the loop."""
        return self._pinged > 0 and time.monotonic() - self._pinged > STUCK_S

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        """Run the loop until nothing has used it for a while."""
        idle_times = 0
        while idle_times < 2 or not self._background.ends(self):
            await asyncio.sleep(IDLE_S / 2)
            # besides this task
            is_idle = len(asyncio.all_tasks()) == 1 and not self.users
            idle_times = idle_times + 1 if is_idle else 0


_THREADS = _Threads()
_LIMITS = _TimeLimits()
_background = _Background()
