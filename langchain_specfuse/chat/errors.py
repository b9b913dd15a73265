"""Raise this package's errors as LangChain's classes too, because its retry, fallback and
summarization middleware act on those.

UsageError ───── UsageError            also LangChain's ModelInvalidRequestError: never retried
EnsembleError ── PromptTooLongError    also LangChain's ContextOverflowError
MemberError ──── MemberNotFoundError   also LangChain's ModelNotFoundError
SpecFuseError ── AnswerTimeoutError    also LangChain's ModelTimeoutError, and a TimeoutError
BusyError ────── TooBusyError          also LangChain's ModelRateLimitError
CheckError ───── CheckError            also LangChain's ModelError: never retried
EnsembleError ── EnsembleModel...      also LangChain's class for the failures of all members
MemberError ──── MemberModel...        also LangChain's class for the member's failure
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

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
    ModelRefusalError,
    ModelTimeoutError,
)

from .. import errors
from ..core.rounds import OVERFLOW
from ..core.values import BUDGET, REFUSAL
from ..errors import BusyError, EnsembleError, MemberError, SpecFuseError, advised, chain, notes_in
from ..members.network import status_of

_Class = type[ModelError]
_OurClass = type[EnsembleError] | type[MemberError]


class UsageError(errors.UsageError, ModelInvalidRequestError):
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


class CheckError(errors.CheckError, ModelError):
    """No text passed one of the user's checks, or a check itself failed. The answer has already
    tried again as often as ``redrafts`` allows, so it is not retryable."""


class EnsembleModelAuthenticationError(EnsembleError, ModelAuthenticationError):
    """Every provider refused the key."""


class EnsembleModelPermissionDeniedError(EnsembleError, ModelPermissionDeniedError):
    """Every provider knows the key, but does not let it use the model."""


class EnsembleModelInvalidRequestError(EnsembleError, ModelInvalidRequestError):
    """Every provider refused the request."""


class EnsembleModelNotFoundError(EnsembleError, ModelNotFoundError):
    """No provider has the model."""


class EnsembleModelRefusalError(EnsembleError, ModelRefusalError):
    """The provider refused the content of the question."""


class EnsembleModelRateLimitError(EnsembleError, ModelRateLimitError):
    """Every member has reached its rate limit."""


class EnsembleModelAPIError(EnsembleError, ModelAPIError):
    """The server of every member failed."""


class EnsembleModelConnectionError(EnsembleError, ModelConnectionError):
    """No member can be reached."""


class EnsembleModelTimeoutError(EnsembleError, ModelTimeoutError):
    """Every member took too long."""


class EnsembleModelError(EnsembleError, ModelError):
    """The members failed in different ways, or in one that LangChain has no class for."""


class MemberModelAuthenticationError(MemberError, ModelAuthenticationError):
    """The provider refused the key."""


class MemberModelPermissionDeniedError(MemberError, ModelPermissionDeniedError):
    """The provider knows the key, but does not let it use the model."""


class MemberModelInvalidRequestError(MemberError, ModelInvalidRequestError):
    """The provider refused the request."""


class MemberModelRateLimitError(MemberError, ModelRateLimitError):
    """The member has reached its rate limit."""


class MemberModelAPIError(MemberError, ModelAPIError):
    """The server of the member failed."""


class MemberModelConnectionError(MemberError, ModelConnectionError):
    """The member cannot be reached."""


class MemberModelTimeoutError(MemberError, ModelTimeoutError):
    """The member took too long."""


class MemberModelError(MemberError, ModelError):
    """The member failed in a way that LangChain has no class for."""


_ENSEMBLE_ERRORS: Mapping[_Class, _OurClass] = {
    ModelAuthenticationError: EnsembleModelAuthenticationError,
    ModelPermissionDeniedError: EnsembleModelPermissionDeniedError,
    ModelInvalidRequestError: EnsembleModelInvalidRequestError,
    ModelNotFoundError: EnsembleModelNotFoundError,
    ModelRefusalError: EnsembleModelRefusalError,
    ModelRateLimitError: EnsembleModelRateLimitError,
    ModelAPIError: EnsembleModelAPIError,
    ModelConnectionError: EnsembleModelConnectionError,
    ModelTimeoutError: EnsembleModelTimeoutError,
    ContextOverflowError: PromptTooLongError,
    ModelError: EnsembleModelError,
}
"""LangChain's class for the failures of all members -> the class of our error."""
_MEMBER_ERRORS: Mapping[_Class, _OurClass] = {
    ModelAuthenticationError: MemberModelAuthenticationError,
    ModelPermissionDeniedError: MemberModelPermissionDeniedError,
    ModelInvalidRequestError: MemberModelInvalidRequestError,
    ModelNotFoundError: MemberNotFoundError,
    ModelRateLimitError: MemberModelRateLimitError,
    ModelAPIError: MemberModelAPIError,
    ModelConnectionError: MemberModelConnectionError,
    ModelTimeoutError: MemberModelTimeoutError,
    ModelError: MemberModelError,
}
"""LangChain's class for the failure of a member that cannot be loaded -> the class of our error."""
_KINDS: Mapping[str, _Class] = {
    "timeout": ModelTimeoutError,
    "overflow": ContextOverflowError,
    "not_found": ModelNotFoundError,
    REFUSAL: ModelRefusalError,
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
    ModelRefusalError: "rephrase the question, or set method=Method(refusals='ignore'), so that "
    "the next member answers",
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


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Raise an error for which LangChain has a class as that class too."""
    try:
        yield
    except SpecFuseError as error:
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
    if isinstance(error, errors.CheckError):
        return _as(CheckError, error)
    if isinstance(error, errors.UsageError):
        return _as(UsageError, error)
    if isinstance(error, EnsembleError):
        # A member without budget for another request has not failed.
        failures = [failure for failure in error.failures if failure.kind != BUDGET]
        left_out = [failure.member for failure in error.failures if failure.kind == BUDGET]
        if failures and left_out:
            names = " and ".join(left_out)
            advised(error, f"raise max_calls= or max_cost=, so that {names} can be asked")
        return _with_class_of(failures, error, _ENSEMBLE_ERRORS)
    if isinstance(error, MemberError):
        return _with_class_of([error], error, _MEMBER_ERRORS)
    return None


def _with_class_of(
    failures: Sequence[MemberError], error: SpecFuseError, ours: Mapping[_Class, _OurClass]
) -> SpecFuseError:
    """The error as an instance of the LangChain class that all these failures share. If they share
    none, it becomes a ModelError, which is retryable if one of the failures is."""
    classes = [_class_of(failure) for failure in failures]
    kinds = {theirs for theirs, _ in classes}
    shared = kinds.pop() if len(kinds) == 1 else ModelError
    converted: Any = _as(ours.get(shared, ours[ModelError]), error)
    converted.is_retryable = any(retryable for _, retryable in classes)
    for advice in _advice(failures, [theirs for theirs, _ in classes]):
        if f"-> {advice}" not in converted.notes:
            advised(converted, advice)
    if isinstance(converted, EnsembleError) and not converted.notes:
        advised(converted, _SEVERAL_FAILED if len(failures) > 1 else _ONE_FAILED)
    return converted  # type: ignore[no-any-return]


def _advice(failures: Sequence[MemberError], classes: Sequence[_Class]) -> Iterator[str]:
    """Advice for the failures whose members give none."""
    if not failures:
        yield _BUDGET_SPENT
        return
    same_class = len(set(classes)) == 1
    for failure, theirs in zip(failures, classes, strict=True):
        if notes_in(failure, failure.__cause__) or theirs not in _ADVICE:
            continue
        advice = _ADVICE[theirs]
        yield advice if same_class else f"{failure.member}: {advice}"


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
    for error in chain(failure):
        if isinstance(error, ModelError):
            theirs = next(theirs for theirs in _ENSEMBLE_ERRORS if isinstance(error, theirs))
            return theirs, error.is_retryable
    for error in chain(failure):
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


def _cause_of(error: SpecFuseError) -> BaseException | None:
    """The exception that a provider, a library or a check raised; otherwise the first member's
    failure."""
    if isinstance(error, errors.CheckError):
        return error.__cause__
    failures = getattr(error, "failures", ())
    for failure in failures or [error]:
        for cause in chain(failure):
            if not isinstance(cause, SpecFuseError):
                return cause
    return failures[0] if failures else error.__cause__
