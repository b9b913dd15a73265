"""What can go wrong, and who can mend it.

    Exception
    └── SpecFuseError             everything this package raises on purpose
        ├── UsageError            you: an argument, a file or a message that cannot work (also a ValueError)
        ├── MemberError           one member: it raised, hung, or returned nonsense; the others go on
        └── EnsembleError         all of them: nobody is left to finish the answer

A message says what happened, what it got and what it wanted; a note (``error.add_note``) says what to do next.
The LangChain face adds LangChain's own classes beside these where LangChain has one (context overflow, timeout,
model not found), so that its retry and summarization middleware recognise them.
"""

from __future__ import annotations

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


class EnsembleError(SpecFuseError):
    """Nobody is left to finish the answer. ``text`` is what had been agreed until then."""

    def __init__(self, message: str, *, text: str = "", failures: tuple[MemberError, ...] = ()) -> None:
        super().__init__(message)
        self.text = text
        self.failures = failures


def advised(error: _E, advice: str) -> _E:
    """The same error with a note that says what to do next."""
    error.add_note(f"-> {advice}")
    return error
