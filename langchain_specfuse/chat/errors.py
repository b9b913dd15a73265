"""Raise this package's errors as LangChain's classes too, because its retry, fallback and
summarization middleware act on those.

UsageError ───── InvalidRequestError   also LangChain's ModelInvalidRequestError: never retried
EnsembleError ── PromptTooLongError    also LangChain's ContextOverflowError
MemberError ──── MemberNotFoundError   also LangChain's ModelNotFoundError
SpecFuseError ── AnswerTimeoutError    also LangChain's ModelTimeoutError, and a TimeoutError
BusyError ────── TooBusyError          also LangChain's ModelRateLimitError
CheckError ───── RefusedTextError      also LangChain's ModelError: never retried
EnsembleError ── a class for each      also LangChain's class for the failures of all members
MemberError ──── a class for each      also LangChain's class for the member's failure
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core import exceptions as _langchain
from langchain_core.exceptions import (
    ContextOverflowError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelPermissionDeniedError,
    ModelRateLimitError,
    ModelTimeoutError,
)
from langchain_core.messages import BaseMessage

from ..core.rounds import OVERFLOW
from ..core.values import BUDGET
from ..errors import (
    BusyError,
    CheckError,
    EnsembleError,
    MemberError,
    SpecFuseError,
    UsageError,
    advised,
)
from ..members.network import status_of
from ..secret_values import cleaned

_Class = type[ModelError]


class InvalidRequestError(UsageError, ModelInvalidRequestError):
    """The call is invalid, so repeating it does not help."""


class PromptTooLongError(EnsembleError, ContextOverflowError):
    """The conversation exceeds the context of every member."""


class MemberNotFoundError(MemberError, ModelNotFoundError):
    """A member's model does not exist, here or on the hub."""


class AnswerTimeoutError(SpecFuseError, ModelTimeoutError, TimeoutError):
    """The whole answer took longer than ``timeout`` seconds."""

    text: str = ""
    """The text that had been agreed by then."""


class TooBusyError(BusyError, ModelRateLimitError):
    """Too many answers are under way, and too many are waiting. ``retry_after_s`` says in how many
    seconds to try again."""


class RefusedTextError(CheckError, ModelError):
    """No text passed one of the user's checks, or a check itself failed. The answer has already
    tried again as often as ``redrafts`` allows, so it is not retryable."""


class ModelRefusalError(ModelError):
    """Replaces LangChain's class if langchain-core is older than 1.7.5."""

    def __init__(self, message: str, *, raw_message: BaseMessage | None = None) -> None:
        super().__init__(message)
        self.raw_message = raw_message


RefusalError: type[Any] = getattr(_langchain, "ModelRefusalError", ModelRefusalError)
"""LangChain's ``ModelRefusalError``: the members refused to give the requested object."""

_KINDS: Mapping[str, _Class] = {
    "timeout": ModelTimeoutError,
    "overflow": ContextOverflowError,
    "not_found": ModelNotFoundError,
}
"""LangChain's class for the kind of a :class:`.MemberError`. The kind ``error`` is too general to
have one."""
_STATUSES: Mapping[int, _Class] = {
    401: ModelAuthenticationError,
    403: ModelPermissionDeniedError,
    404: ModelNotFoundError,
    408: ModelTimeoutError,
    413: ContextOverflowError,
    429: ModelRateLimitError,
}
"""LangChain's class for an HTTP status. Any other status below 500 means an invalid request, and a
status from 500 on means that the server failed."""
_NAMES: Mapping[str, _Class] = {
    **dict.fromkeys(("TimeoutError", "TimeoutException", "APITimeoutError"), ModelTimeoutError),
    **dict.fromkeys(
        ("ConnectionError", "ConnectError", "APIConnectionError", "TransportError"),
        ModelConnectionError,
    ),
}
"""LangChain's class for an error without a status, by the name of the error's class in Python,
httpx or a provider's client. Timeouts come first, because OpenAI's is a connection error too."""
_ADVICE: Mapping[_Class, str] = {
    ModelAuthenticationError: "check the key that the provider gave you",
    ModelPermissionDeniedError: "the provider knows the key, but does not let it use this model: "
    "check what your account may use, or choose another model",
    ModelInvalidRequestError: "the provider refuses this request: check the settings of the member "
    "that the message names",
    ModelNotFoundError: "check the model's name, and the address of its server",
    ModelRateLimitError: "wait before you ask again, or add a member of another provider",
    ModelAPIError: "the provider's server failed: ask again later, or add a member of another one",
    ModelConnectionError: "check the network connection, and the address of the member's server",
    ModelTimeoutError: "allow more time (timeout= of the member, member_timeout= of the chat "
    "model), or add a faster member",
    ContextOverflowError: OVERFLOW,
}
"""What to do after a failure of this class, if the member itself has no advice."""
_SEVERAL_FAILED = (
    "try the members one by one; in Python, .failures of this error has what each one raised"
)
_ONE_FAILED = (
    "this is the member's own error; in Python, .failures of this error has what it raised"
)
_BUDGET_SPENT = "raise max_calls= or max_cost=, or ask for a shorter answer with max_tokens="

# The class has been in langchain-core since 1.7.5.
_REFUSALS = [_langchain.ModelRefusalError] if hasattr(_langchain, "ModelRefusalError") else []
_CLASSES: tuple[_Class, ...] = (
    ModelAuthenticationError,
    ModelPermissionDeniedError,
    ModelInvalidRequestError,
    ModelNotFoundError,
    ModelRateLimitError,
    ModelAPIError,
    ModelConnectionError,
    ModelTimeoutError,
    ContextOverflowError,
    *_REFUSALS,
    ModelError,
)


def _subclass(ours: type[SpecFuseError], theirs: _Class) -> type[SpecFuseError]:
    """A subclass of our class and of LangChain's, such as ``EnsembleModelRateLimitError``."""
    name = ours.__name__.removesuffix("Error") + theirs.__name__
    doc = f"{ours.__name__} and LangChain's {theirs.__name__}."
    return type(name, (ours, theirs), {"__module__": __name__, "__doc__": doc})


_SUBCLASSES: dict[tuple[type[SpecFuseError], _Class], type[SpecFuseError]] = {
    (ours, theirs): _subclass(ours, theirs)
    for ours in (EnsembleError, MemberError)
    for theirs in _CLASSES
}
_SUBCLASSES[EnsembleError, ContextOverflowError] = PromptTooLongError
_SUBCLASSES[MemberError, ModelNotFoundError] = MemberNotFoundError
# pickle looks for the classes in this module, by their names.
globals().update({subclass.__name__: subclass for subclass in _SUBCLASSES.values()})


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Raise an error for which LangChain has a class as that class too."""
    try:
        yield
    except SpecFuseError as error:
        cleaned(error)
        converted = _converted(error)
        if converted is None:
            raise
        raise converted.with_traceback(error.__traceback__) from _cause_of(error)
    except TimeoutError as error:
        timeout = AnswerTimeoutError(str(error))
        timeout.text = getattr(error, "text", "")
        raise advised(
            timeout, "raise timeout=, or lower max_tokens= for a shorter answer"
        ) from error


@contextmanager
def loading_errors() -> Iterator[None]:
    """Raise any exception of a member that is being loaded as a MemberError."""
    try:
        yield
    except SpecFuseError:
        raise
    except Exception as error:
        failure = MemberError(f"a member could not be loaded: {type(error).__name__}: {error}")
        advice = "the error above is the member's own; try it alone: members=[...]"
        raise advised(failure, advice) from error


def _converted(error: SpecFuseError) -> SpecFuseError | None:
    """The error as an instance of LangChain's class too; None if it needs no conversion."""
    if isinstance(error, ModelError):
        return None
    if isinstance(error, BusyError):
        return _as(TooBusyError, error)
    if isinstance(error, CheckError):
        return _as(RefusedTextError, error)
    if isinstance(error, UsageError):
        return _as(InvalidRequestError, error)
    if isinstance(error, EnsembleError):
        # A member without budget for another request has not failed.
        failures = [failure for failure in error.failures if failure.kind != BUDGET]
        return _with_class_of(failures, error, EnsembleError)
    if isinstance(error, MemberError):
        return _with_class_of([error], error, MemberError)
    return None


def _with_class_of(
    failures: Sequence[MemberError], error: SpecFuseError, ours: type[SpecFuseError]
) -> SpecFuseError:
    """The error as an instance of the LangChain class that all these failures share. If they share
    none, it becomes a ModelError, which is retryable if one of the failures is."""
    classes = [_class_of(failure) for failure in failures]
    kinds = {theirs for theirs, _ in classes}
    converted: Any
    if len(kinds) == 1 and ModelError not in kinds:
        (theirs,) = kinds
        converted = _as(_SUBCLASSES[ours, theirs], error)
    else:
        converted = _as(_SUBCLASSES[ours, ModelError], error)
        converted.is_retryable = any(retryable for _, retryable in classes)
    for advice in _advice(failures, [theirs for theirs, _ in classes]):
        if f"-> {advice}" not in _notes_of(converted):
            advised(converted, advice)
    if isinstance(converted, EnsembleError) and not _notes_of(converted):
        advised(converted, _SEVERAL_FAILED if len(failures) > 1 else _ONE_FAILED)
    return converted  # type: ignore[no-any-return]


def _advice(failures: Sequence[MemberError], classes: Sequence[_Class]) -> Iterator[str]:
    """Advice for the failures whose members give none."""
    if not failures:
        yield _BUDGET_SPENT
        return
    same_class = len(set(classes)) == 1
    for failure, theirs in zip(failures, classes, strict=True):
        has_advice = _notes_of(failure) or _notes_of(failure.__cause__)
        if has_advice or theirs not in _ADVICE:
            continue
        advice = _ADVICE[theirs]
        yield advice if same_class else f"{failure.member}: {advice}"


def _notes_of(error: BaseException | None) -> Sequence[str]:
    return getattr(error, "__notes__", ())


def _as(kind: type[SpecFuseError], error: SpecFuseError) -> SpecFuseError:
    """A copy of the error as this class, with its message, attributes and notes."""
    copy = kind(*error.args)
    vars(copy).update(vars(error))
    return copy


def _class_of(failure: MemberError) -> tuple[_Class, bool]:
    """LangChain's class for this failure, and whether a retry may help. LangChain retries errors
    for which it has no class."""
    by_kind = _KINDS.get(failure.kind)
    if by_kind is not None:
        return by_kind, by_kind.is_retryable
    errors = list(_chain(failure))
    for error in errors:
        if isinstance(error, ModelError):
            theirs = next(theirs for theirs in _CLASSES if isinstance(error, theirs))
            return theirs, error.is_retryable
    for error in errors:
        by_content = _by_status(error) or _by_name(error)
        if by_content is not None:
            return by_content, by_content.is_retryable
    return ModelError, True


def _by_status(error: BaseException) -> _Class | None:
    status = status_of(error)
    if status is None:
        return None
    return _STATUSES.get(status, ModelInvalidRequestError if status < 500 else ModelAPIError)


def _by_name(error: BaseException) -> _Class | None:
    names = {base.__name__ for base in type(error).__mro__}
    return next((theirs for name, theirs in _NAMES.items() if name in names), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of its cause, and so on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _cause_of(error: SpecFuseError) -> BaseException | None:
    """The exception that a provider, a library or a check raised; otherwise the first member's
    failure."""
    if isinstance(error, CheckError):
        return error.__cause__
    failures = getattr(error, "failures", ())
    for failure in failures or [error]:
        for cause in _chain(failure):
            if not isinstance(cause, SpecFuseError):
                return cause
    return failures[0] if failures else error.__cause__
