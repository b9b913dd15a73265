"""Reads the next item of a stream, and gives up after a time limit."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any


def next_within(stream: Iterator[Any], limit_s: float) -> Any:
    """The next item, or None if the stream ends or no item comes within ``limit_s``.

    The item is read in a thread of its own, because chat models do not return while their server
    is silent. A thread that was given up closes the stream when the server goes on or hangs up.

    >>> next_within(iter("ab"), 1.0), next_within(iter(""), 1.0)
    ('a', None)
    """
    item: Future[Any] = Future()
    context = contextvars.copy_context()
    thread = threading.Thread(
        target=context.run, args=(_read, stream, item), name="specfuse-rest", daemon=True
    )
    thread.start()
    try:
        return item.result(limit_s)
    except TimeoutError:
        if item.cancel():
            return None
        return item.result()  # it came at the last moment, or the stream raised this error


def close(stream: Iterator[Any]) -> None:
    """Close a stream unless another thread is reading it, which then closes it."""
    with suppress(ValueError):
        stream.close()  # type: ignore[attr-defined]


def _read(stream: Iterator[Any], item: Future[Any]) -> None:
    try:
        try:
            item.set_result(next(stream, None))
        except InvalidStateError:
            raise
        except BaseException as error:  # handed to the thread that waits for the item
            item.set_exception(error)
    except InvalidStateError:  # it was given up
        close(stream)
