"""Our errors as LangChain's classes: its retry, fallback and summarization middleware act on these.

UsageError ───── InvalidRequestError   also LangChain's ModelInvalidRequestError: never retried
EnsembleError ── PromptTooLongError    also LangChain's ContextOverflowError
MemberError ──── MemberNotFoundError   also LangChain's ModelNotFoundError
SpecFuseError ── AnswerTimeoutError    also LangChain's ModelTimeoutError, and a TimeoutError
BusyError ────── TooBusyError          also LangChain's ModelRateLimitError
EnsembleError ── (one for each class)  also LangChain's class of what all members failed with
MemberError ──── (one for each class)  also LangChain's class of what the member failed with
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
from ..errors import BusyError, EnsembleError, MemberError, SpecFuseError, UsageError, advised
from ..members.network import status_of
from ..secret_values import cleaned

_Class = type[ModelError]


class InvalidRequestError(UsageError, ModelInvalidRequestError):
    """The call cannot work, and repeating it does not help."""


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


class ModelRefusalError(ModelError):
    """Replaces LangChain's class if langchain-core is older than 1.7.5."""

    def __init__(self, message: str, *, raw_message: BaseMessage | None = None) -> None:
        super().__init__(message)
        self.raw_message = raw_message


RefusalError: type[Any] = getattr(_langchain, "ModelRefusalError", ModelRefusalError)
"""LangChain's ``ModelRefusalError``: the members refused to give the object that was asked for."""

_KINDS: Mapping[str, _Class] = {
    "timeout": ModelTimeoutError,
    "overflow": ContextOverflowError,
    "not_found": ModelNotFoundError,
}
"""LangChain's class for the kind of a :class:`.MemberError`; the kind ``error`` is too general."""
_STATUSES: Mapping[int, _Class] = {
    401: ModelAuthenticationError,
    403: ModelPermissionDeniedError,
    404: ModelNotFoundError,
    408: ModelTimeoutError,
    413: ContextOverflowError,
    429: ModelRateLimitError,
}
"""LangChain's class for an HTTP status. Other statuses below 500 mean an invalid request, and from
500 on a failure of the server."""
_NAMES: Mapping[str, _Class] = {
    **dict.fromkeys(("TimeoutError", "TimeoutException", "APITimeoutError"), ModelTimeoutError),
    **dict.fromkeys(
        ("ConnectionError", "ConnectError", "APIConnectionError", "TransportError"),
        ModelConnectionError,
    ),
}
"""LangChain's class for an error without a status, by the name of its class in Python, httpx or a
provider's client. Timeouts come first, because OpenAI's is a connection error too."""
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
_SEVERAL = "try the members one by one; in Python, .failures of this error has what each one raised"
_SINGLE = "this is the member's own error; in Python, .failures of this error has what it raised"
_SPENT = "raise max_calls= or max_cost=, or ask for a shorter answer with max_tokens="

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
    # since langchain-core 1.7.5
    *([_langchain.ModelRefusalError] if hasattr(_langchain, "ModelRefusalError") else ()),
    ModelError,
)


def _both(base: type[SpecFuseError], known: _Class) -> type[SpecFuseError]:
    """A subclass of our class and of LangChain's, such as ``EnsembleModelRateLimitError``. Its
    instances can be pickled, because this module has the class under its name."""
    name = base.__name__.removesuffix("Error") + known.__name__
    about = {
        "__module__": __name__,
        "__doc__": f"{base.__name__} and LangChain's {known.__name__}.",
    }
    return type(name, (base, known), about)


_BOTH: dict[tuple[type[SpecFuseError], _Class], type[SpecFuseError]] = {
    (base, known): _both(base, known) for base in (EnsembleError, MemberError) for known in _CLASSES
}
_BOTH[EnsembleError, ContextOverflowError] = PromptTooLongError
_BOTH[MemberError, ModelNotFoundError] = MemberNotFoundError
globals().update({made.__name__: made for made in _BOTH.values()})


@contextmanager
def langchain_errors() -> Iterator[None]:
    """Inside this, errors that LangChain has a class for are raised as that class."""
    try:
        yield
    except SpecFuseError as error:
        cleaned(error)
        known = _known(error)
        if known is None:
            raise
        raise known.with_traceback(error.__traceback__) from _cause_of(error)
    except TimeoutError as error:
        late = AnswerTimeoutError(str(error))
        late.text = getattr(error, "text", "")
        raise advised(late, "raise timeout=, or lower max_tokens= for a shorter answer") from error


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
    """The error as an instance of LangChain's class too; None if it is one already."""
    if isinstance(error, ModelError):
        return None
    if isinstance(error, BusyError):
        return _as(TooBusyError, error)
    if isinstance(error, UsageError):
        return _as(InvalidRequestError, error)
    if isinstance(error, EnsembleError):
        # a member without budget for another request has not failed
        failures = [failed for failed in error.failures if failed.kind != BUDGET]
        return _as_failures(EnsembleError, error, failures)
    if isinstance(error, MemberError):
        return _as_failures(MemberError, error, [error])
    return None


def _as_failures(
    base: type[SpecFuseError], error: SpecFuseError, failures: Sequence[MemberError]
) -> SpecFuseError:
    """The error as an instance of the LangChain class that all these failures share. If they do not
    share one: as a ModelError, retryable if one of them is."""
    found = [_class_of(failed) for failed in failures]
    classes = {known for known, _ in found}
    made: Any
    if len(classes) == 1 and ModelError not in classes:
        made = _as(_BOTH[base, next(iter(classes))], error)
    else:
        made = _as(_BOTH[base, ModelError], error)
        made.is_retryable = any(retryable for _, retryable in found)
    for advice in _advice(failures, [known for known, _ in found]):
        if f"-> {advice}" not in _notes_of(made):
            advised(made, advice)
    if isinstance(made, EnsembleError) and not _notes_of(made):
        advised(made, _SEVERAL if len(failures) > 1 else _SINGLE)
    return made  # type: ignore[no-any-return]


def _advice(failures: Sequence[MemberError], classes: Sequence[_Class]) -> Iterator[str]:
    """What to do about these failures, besides what the failed members themselves advise."""
    if not failures:
        yield _SPENT
        return
    silent = [
        (failed, known)
        for failed, known in zip(failures, classes, strict=True)
        if not (_notes_of(failed) or _notes_of(failed.__cause__))
    ]
    alike = len(set(classes)) == 1
    for failed, known in silent:
        if known in _ADVICE:
            yield _ADVICE[known] if alike else f"{failed.member}: {_ADVICE[known]}"


def _notes_of(error: BaseException | None) -> Sequence[str]:
    return getattr(error, "__notes__", ())


def _as(kind: type[SpecFuseError], error: SpecFuseError) -> SpecFuseError:
    """A copy of the error as this class, with its message, attributes and notes."""
    made = kind(*error.args)
    vars(made).update(vars(error))
    return made


def _class_of(failed: MemberError) -> tuple[_Class, bool]:
    """LangChain's class for this failure, and whether a retry may help. LangChain retries errors
    for which it has no class."""
    if known := _KINDS.get(failed.kind):
        return known, known.is_retryable
    chain = list(_chain(failed))
    for one in chain:
        if isinstance(one, ModelError):
            known = next(known for known in _CLASSES if isinstance(one, known))
            return known, one.is_retryable
    for one in chain:
        if found := _by_status(one) or _by_name(one):
            return found, found.is_retryable
    return ModelError, True


def _by_status(error: BaseException) -> _Class | None:
    code = status_of(error)
    if code is None:
        return None
    return _STATUSES.get(code, ModelInvalidRequestError if code < 500 else ModelAPIError)


def _by_name(error: BaseException) -> _Class | None:
    names = {one.__name__ for one in type(error).__mro__}
    return next((known for name, known in _NAMES.items() if name in names), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _cause_of(error: SpecFuseError) -> BaseException | None:
    """The exception that a provider or a library raised; otherwise the first member's failure."""
    failures = getattr(error, "failures", ())
    for failed in failures or [error]:
        for one in _chain(failed):
            if not isinstance(one, SpecFuseError):
                return one
    return failures[0] if failures else error.__cause__
