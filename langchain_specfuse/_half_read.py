"""Streams that nobody has read to their end when the event loop or the interpreter ends: they end without a word.

What is closed later than that finds no names, no threads and no loop any more. Knows generators, nothing of answers.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import Any, Generic, TypeVar
from weakref import WeakSet

_G = TypeVar("_G", bound=Generator[Any, Any, Any] | AsyncGenerator[Any, Any])
_A = TypeVar("_A", bound=AsyncGenerator[Any, Any])

_OPEN: WeakSet[Any] = WeakSet()
if hasattr(os, "register_at_fork"):  # in a child they would wait for threads that are not there
    os.register_at_fork(after_in_child=_OPEN.clear)


def kept(stream: _G) -> _G:
    """The same stream, which is closed when the interpreter ends, if it is still there."""
    _close_at_exit()
    _OPEN.add(stream)
    return stream


class aclosed(Generic[_A]):
    """``aclosing`` for a stream that may be closed by its event loop as well.

    A loop that ends closes all its generators at once, also those inside of others: who then closes another meets one
    that is being closed already. So here that is left to the loop. Without a loop nothing can be closed.
    """

    def __init__(self, stream: _A) -> None:
        self._stream = stream

    async def __aenter__(self) -> _A:
        return self._stream

    async def __aexit__(self, *raised: object) -> None:
        if _loop_goes_on():
            await self._stream.aclose()


def _loop_goes_on() -> bool:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    # There is no public word for it; a loop that does not have this one may only be less quiet.
    return not getattr(loop, "_asyncgens_shutdown_called", False)


@cache
def _close_at_exit() -> None:
    # As late as can be: what was registered before is there for as long as streams are closed.
    atexit.register(_close_all)


def _close_all() -> None:
    streams = list(_OPEN)
    for stream in streams:
        if isinstance(stream, Generator):
            with suppress(Exception):  # another thread may be in it
                stream.close()
    later = [stream for stream in streams if isinstance(stream, AsyncGenerator)]
    if later:
        with suppress(Exception):
            asyncio.run(_aclose_all(later))


class _Here(ThreadPoolExecutor):
    """Does on this thread what callbacks want done on others: no thread can be begun any more."""

    def submit(self, act: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(act(*given, **named))
        except Exception as error:
            done.set_exception(error)
        return done


async def _aclose_all(streams: Iterable[AsyncGenerator[Any, Any]]) -> None:
    asyncio.get_running_loop().set_default_executor(_Here())
    for stream in streams:
        with suppress(Exception):
            await stream.aclose()
