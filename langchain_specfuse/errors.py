"""What can go wrong, and who can mend it.

    Exception
    └── SpecFuseError             everything this package raises on purpose
        ├── UsageError            you: an argument, a file or a message that cannot work (also a ValueError)
        ├── MemberError           one member: it raised, hung, or returned nonsense; the others go on
        ├── BusyError             nobody: too many ask at once, and a later call will do
        └── EnsembleError         all of them: nobody is left to finish the answer

A message says what happened, what it got and what it wanted; a note (``error.add_note``) says what to do next.
The LangChain face adds LangChain's own classes beside these where LangChain has one (context overflow, timeout,
rate limit, model not found), so that its retry and summarization middleware recognise them.
"""

from __future__ import annotations

import traceback
from typing import TypeVar

_E = TypeVar("_E", bound=BaseException)


class SpecFuseError(Exception):
    """Base of every error that langchain-specfuse raises on purpose."""


class UsageError(SpecFuseError, ValueError):
    """Something you passed cannot work; the message says what, the note what to do."""


class MemberError(SpecFuseError):
    """One member failed. It leaves the answer; the others finish it.

    ``member`` is its name, ``round`` the round's number (0 while loading), ``kind`` one of
    ``error``, ``timeout``, ``nan``, ``overflow``, ``not_found``; ``__cause__`` is what it raised.
    """

    def __init__(self, message: str, *, member: str = "", round: int = 0, kind: str = "error") -> None:
        super().__init__(message)
        self.member = member
        self.round = round
        self.kind = kind


class BusyError(SpecFuseError):
    """Too many answers are under way, and too many wait already. ``retry_after_s``: when to ask again, in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EnsembleError(SpecFuseError):
    """Nobody is left to finish the answer. ``text`` is what had been agreed until then."""

    def __init__(self, message: str, *, text: str = "", failures: tuple[MemberError, ...] = ()) -> None:
        super().__init__(message)
        self.text = text
        self.failures = failures


def emptied(error: _E) -> _E:
    """The same error, to be kept: the frames that it passed let go of what they held.

    A pass that breaks off holds tensors in its frames, and an error holds its frames for as long as a trace does.
    """
    one: BaseException | None = error
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__
    return error


def amount(count: int, noun: str) -> str:
    """So many of these, for a message.

    >>> amount(1, "answer"), amount(2, "reply")
    ('1 answer', '2 replies')
    """
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def advised(error: _E, advice: str) -> _E:
    """The same error with a note that says what to do next."""
    error.add_note(f"-> {advice}")
    return error
