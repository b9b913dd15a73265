"""The errors of this package, grouped by who can fix them.

    Exception
    └── SpecFuseError        every error that this package raises on purpose
        ├── UsageError       the caller: an argument, a file or a message that cannot work
        │                    (also a ValueError)
        ├── MemberError      one member: it raised, hung or returned nonsense; the others continue
        ├── BusyError        time: too many answers at once; a later call will work
        ├── CheckError       a check of the user: no text passed it, or it failed itself
        └── EnsembleError    all members: none is left to finish the answer

A message says what happened, what was given and what was expected; a note below it says what to do
next. The chat model raises them in classes that are LangChain's as well (see ``chat.errors``), so
that its retry, fallback and summarization middleware recognise them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from importlib import import_module
from typing import Any, TypeVar

_E = TypeVar("_E", bound=BaseException)
_Ours = TypeVar("_Ours", bound="SpecFuseError")


class SpecFuseError(Exception):
    """Base of every error that langchain-specfuse raises on purpose. Its text is its ``message``,
    and below that its ``notes``, which say what to do next.

    >>> print(advised(UsageError("there is no member"), "name one"))
    there is no member
    -> name one
    """

    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([self.message, *self.notes])

    @property
    def message(self) -> str:
        return super().__str__()

    def add_note(self, note: str) -> None:
        """Add a line to the text. Python's own notes are missing from ``str(error)``, and so from
        most logs."""
        self.notes = (*self.notes, note)


class UsageError(SpecFuseError, ValueError):
    """An argument, a file or a message cannot work."""


class MemberError(SpecFuseError):
    """One member failed. It leaves the answer; the others finish it.

    ``member`` is its name, ``round`` the round's number (0 while loading), ``kind`` one of
    ``error``, ``timeout``, ``nan``, ``overflow``, ``bad_request``, ``denied``, ``not_found``;
    ``__cause__`` is what it raised.
    """

    def __init__(
        self, message: str, *, member: str = "", round: int = 0, kind: str = "error"
    ) -> None:
        super().__init__(message)
        self.member = member
        self.round = round
        self.kind = kind


class BusyError(SpecFuseError):
    """Too many answers are under way, and too many are waiting. ``retry_after_s``: when to try
    again, in seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CheckError(SpecFuseError):
    """No text passed one of the checks, or a check itself failed.

    ``text`` is the text that was streamed, ``check`` the name of the check, and ``reason`` what it
    said about the last draft, or how it failed. ``rejected`` contains the drafts that were refused
    in the round that was never finished, as in the event ``specfuse_round``. ``__cause__`` is the
    exception that the check raised, if any.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        check: str = "",
        reason: str = "",
        rejected: tuple[dict[str, Any], ...] = (),
    ) -> None:
        super().__init__(message)
        self.text = text
        self.check = check
        self.reason = reason
        self.rejected = rejected


class EnsembleError(SpecFuseError):
    """No member is left to finish the answer. ``text`` is the text agreed until then."""

    def __init__(
        self, message: str, *, text: str = "", failures: tuple[MemberError, ...] = ()
    ) -> None:
        super().__init__(message)
        self.text = text
        self.failures = failures


def emptied(error: _E) -> _E:
    """The same error without the local variables of its frames.

    A failed forward pass has tensors in its frames, and an error that is kept in a trace would keep
    them in memory.
    """
    current: BaseException | None = error
    seen: set[int] = set()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        traceback.clear_frames(current.__traceback__)
        current = current.__cause__ or current.__context__
    return error


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of its cause, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def amount(count: int, noun: str) -> str:
    """A number with its noun, for a message.

    >>> amount(1, "answer"), amount(2, "reply")
    ('1 answer', '2 replies')
    """
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}s"


LONGEST_NAME = 200
"""No name that is meant is similar to a longer one, and looking for it would take long."""


def meant(name: object, known: Iterable[object], otherwise: str, cutoff: float = 0.75) -> str:
    """Advice about an unknown name: the known name that was probably meant, if one is similar.

    >>> meant("serch", ["search", "say"], "there are search, say")
    "did you mean 'search'?"
    """
    names = [candidate for candidate in known if isinstance(candidate, str)]
    if len(str(name)) > LONGEST_NAME:
        return otherwise
    similar = get_close_matches(str(name), names, n=1, cutoff=cutoff)
    return f"did you mean {similar[0]!r}?" if similar else otherwise


def imported(module: str, what: str, extra: str) -> Any:
    """Import a module of an extra. The error for a missing one has the command that installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = UsageError(f"{what} needs {error.name}, which is not installed")
        raise advised(missing, f'pip install "langchain-specfuse[{extra}]"') from error


def advised(error: _Ours, advice: str) -> _Ours:
    """The same error with a note that says what to do next."""
    error.add_note(f"-> {advice}")
    return error


def message_of(error: BaseException) -> str:
    """What an error says, without its notes."""
    return error.message if isinstance(error, SpecFuseError) else str(error)


def notes_in(*errors: BaseException | None) -> list[str]:
    """The notes of these errors, each once."""
    notes: list[str] = []
    for error in errors:
        own = error.notes if isinstance(error, SpecFuseError) else ()
        notes += own or getattr(error, "__notes__", ())
    return list(dict.fromkeys(notes))
