"""Our errors as LangChain knows them: its retry, fallback and summarization middleware act on these classes.

    EnsembleError ── PromptTooLongError    also LangChain's ContextOverflowError
    MemberError ──── MemberNotFoundError   also LangChain's ModelNotFoundError
    SpecFuseError ── AnswerTimeoutError    also LangChain's ModelTimeoutError, and a TimeoutError
    BusyError ────── TooBusyError          also LangChain's ModelRateLimitError

Knows which of our errors is which of theirs, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError, ModelNotFoundError, ModelRateLimitError, ModelTimeoutError

from .errors import BusyError, EnsembleError, MemberError, SpecFuseError, UsageError, advised


class PromptTooLongError(EnsembleError, ContextOverflowError):
    """The conversation is longer than every member's context."""


class MemberNotFoundError(MemberError, ModelNotFoundError):
    """A member's model does not exist, here or on the hub."""


class AnswerTimeoutError(SpecFuseError, ModelTimeoutError, TimeoutError):
    """The whole answer took longer than ``timeout`` seconds. ``text`` is what had been agreed until then."""

    text: str = ""


class TooBusyError(BusyError, ModelRateLimitError):
    """Too many answers are under way, and too many wait already. ``retry_after_s``: when to ask again, in seconds."""


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Inside this, an error that LangChain has a class for is raised as one."""
    try:
        yield
    except SpecFuseError as error:
        known = _known(error)
        if known is None:
            raise
        raise known from error
    except TimeoutError as error:
        late = AnswerTimeoutError(str(error))
        late.text = getattr(error, "text", "")
        raise advised(late, "allow more with timeout=, or a shorter answer with max_tokens=") from error


def need_asyncio() -> None:
    """Refuse an event loop that is not asyncio's: LangChain's async methods would fail at it in words of their own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError as error:
        wrong = UsageError("the async methods need a running event loop of asyncio, and there is none here")
        raise advised(wrong, "under trio: await trio.to_thread.run_sync(llm.invoke, question)") from error


@contextmanager
def loading_errors() -> Iterator[None]:
    """Inside this, whatever a member raises while it loads becomes an error of ours."""
    try:
        yield
    except SpecFuseError:
        raise
    except Exception as error:
        failed = MemberError(f"a member could not be loaded: {type(error).__name__}: {error}")
        raise advised(failed, "the error above is the member's own; try it alone: members=[...]") from error


def _known(error: SpecFuseError) -> SpecFuseError | None:
    if isinstance(error, MemberNotFoundError | PromptTooLongError):
        return None
    if isinstance(error, BusyError) and not isinstance(error, TooBusyError):
        return _noted(TooBusyError(str(error), retry_after_s=error.retry_after_s), error)
    if isinstance(error, MemberError) and error.kind == "not_found":
        return _noted(MemberNotFoundError(str(error), member=error.member, round=error.round, kind=error.kind), error)
    if not isinstance(error, EnsembleError):
        return None
    kinds = {failure.kind for failure in error.failures}
    if kinds == {"overflow"}:
        long = PromptTooLongError(str(error), text=error.text, failures=error.failures)
        return _noted(long, error)
    if kinds == {"not_found"}:
        first = error.failures[0]
        return _noted(MemberNotFoundError(str(error), member=first.member, kind=first.kind), error)
    return None


def _noted(error: SpecFuseError, source: SpecFuseError) -> SpecFuseError:
    """The new error with the notes of the one that it stands for."""
    for note in getattr(source, "__notes__", ()):
        error.add_note(note)
    return error
