"""A piece of work for a member that waits for others (a server, a provider), in its own thread.

Whoever waits for the work enforces the time limits and may close it: what it waits for is
interrupted, and what arrives later is dropped. The work itself has no limits. It notes when
something has arrived, and ends when it has been closed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..errors import MemberError, UsageError, message_of
from .values import Failure

SHOWN = 300
"""At most this many characters of another program's error message are passed on."""
REST_S, LONGEST_REST_S = 0.008, 0.05
"""How long a stream collects what arrives before it hands that on: the first time for each other
stream that is being read, the second at most. A chunk takes far more processor time than one more
token in a chunk."""
_THREAD = threading.local()


class Call:
    """One piece of work under way."""

    def __init__(self) -> None:
        self.is_closed = False
        """Whether nobody needs what it returns any more."""
        self.last: float | None = None
        """When something last arrived for it or, before that, when it began. None: it waits for its
        turn."""
        self.has_arrived = False
        """Whether a part of its reply has arrived. Headers do not count, nor does the reply to a
        trial before it."""
        self._interrupt: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Interrupt the work, because nobody needs it any more."""
        self.is_closed = True
        with self._lock:  # so that nothing is interrupted after it has ended
            if self._interrupt is not None:
                self._interrupt()

    def note_arrival(self) -> None:
        self.last = time.monotonic()

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        """This thread does the work, from now on."""
        self.last = time.monotonic()
        _THREAD.call = self
        try:
            yield
        finally:
            _THREAD.call = None

    @contextmanager
    def interrupted_by(self, interrupt: Callable[[], None]) -> Iterator[None]:
        with self._lock:
            self._interrupt = interrupt
        try:
            refuse_closed()  # it may have been closed before the interrupt was set
            yield
        finally:
            with self._lock:
                self._interrupt = None


def current() -> Call | None:
    """The work of this thread, if it has any."""
    call: Call | None = getattr(_THREAD, "call", None)
    return call


def note_arrival() -> None:
    """Note that something has arrived for the work of this thread: a token, a part of a tool call,
    a server's keep-alive comment. Raises if nobody needs the work any more."""
    call = current()
    if call is not None:
        call.note_arrival()
    refuse_closed()


def rest_s(streams: int) -> float:
    """How long one of so many streams collects what arrives."""
    return min(REST_S * max(streams - 1, 0), LONGEST_REST_S)


def refuse_closed() -> None:
    """Raise if nobody needs the work of this thread any more."""
    call = current()
    if call is not None and call.is_closed:
        raise MemberError(
            "the request was given up before this part of its reply arrived", kind="timeout"
        )


def interrupted_by(interrupt: Callable[[], None]) -> AbstractContextManager[None]:
    """If this thread's work is closed meanwhile, another thread calls ``interrupt``."""
    call = current()
    return nullcontext() if call is None else call.interrupted_by(interrupt)


# --- its replies ----------------------------------------------------------------------------------


def replies(answer: Callable[[Any], Any], jobs: Sequence[Any]) -> list[Any]:
    """The reply to each job, one after another. A job that fails does not disturb the others."""
    found = []
    for job in jobs:
        try:
            found.append(answer(job))
        except Exception as error:
            found.append(failure_of(error))
    return found


def failure_of(error: BaseException) -> Failure:
    """The failure of a job that raised this error."""
    if isinstance(error, MemberError | UsageError):
        return Failure.of(error, error.message)
    if isinstance(error, Exception):
        return Failure("error", f"unexpected reply: {shown(error)}", error)
    return Failure.of(error)


def shown(error: Exception) -> str:
    """An error as text for a message. It may quote what another program sent, which may be long or
    hold characters that cannot be encoded."""
    text = f"{type(error).__name__}: {message_of(error)}"
    return text.encode(errors="backslashreplace").decode()[:SHOWN]
