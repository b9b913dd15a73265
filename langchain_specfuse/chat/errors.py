"""Our errors as LangChain's classes: its retry, fallback and summarization middleware act on these.

EnsembleError ── PromptTooLongError    also LangChain's ContextOverflowError
MemberError ──── MemberNotFoundError   also LangChain's ModelNotFoundError
SpecFuseError ── AnswerTimeoutError    also LangChain's ModelTimeoutError, and a TimeoutError
BusyError ────── TooBusyError          also LangChain's ModelRateLimitError
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.exceptions import (
    ContextOverflowError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelTimeoutError,
)

from ..errors import BusyError, EnsembleError, MemberError, SpecFuseError, advised


class PromptTooLongError(EnsembleError, ContextOverflowError):
    """The conversation exceeds the context of every member."""


class MemberNotFoundError(MemberError, ModelNotFoundError):
    """A member's model does not exist, here or on the hub."""


class AnswerTimeoutError(SpecFuseError, ModelTimeoutError, TimeoutError):
    """The whole answer took longer than ``timeout`` seconds. ``text`` is the text agreed until
    then."""

    text: str = ""


class TooBusyError(BusyError, ModelRateLimitError):
    """Too many answers are under way, and too many are waiting. ``retry_after_s``: when to try
    again, in seconds."""


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Inside this, errors that LangChain has a class for are raised as that class."""
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
        raise advised(
            late, "allow more with timeout=, or a shorter answer with max_tokens="
        ) from error


@contextmanager
def loading_errors() -> Iterator[None]:
    """Inside this, any exception that a member raises while loading becomes a MemberError."""
    try:
        yield
    except SpecFuseError:
        raise
    except Exception as error:
        failed = MemberError(f"a member could not be loaded: {type(error).__name__}: {error}")
        raise advised(
            failed, "the error above is the member's own; try it alone: members=[...]"
        ) from error


def _known(error: SpecFuseError) -> SpecFuseError | None:
    """The same error as one that LangChain knows too; None if there is none, or if it is one
    already."""
    if isinstance(error, MemberNotFoundError | PromptTooLongError | TooBusyError):
        return None
    failures = error.failures if isinstance(error, EnsembleError) else ()
    kinds = {failed.kind for failed in failures}
    known: SpecFuseError
    if isinstance(error, BusyError):
        known = TooBusyError(str(error), retry_after_s=error.retry_after_s)
    elif isinstance(error, MemberError) and error.kind == "not_found":
        known = MemberNotFoundError(
            str(error), member=error.member, round=error.round, kind=error.kind
        )
    elif isinstance(error, EnsembleError) and kinds == {"overflow"}:
        known = PromptTooLongError(str(error), text=error.text, failures=failures)
    elif kinds == {"not_found"}:
        known = MemberNotFoundError(str(error), member=failures[0].member, kind="not_found")
    else:
        return None
    for note in getattr(error, "__notes__", ()):
        known.add_note(note)
    return known
