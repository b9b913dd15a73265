"""What a member may reply to a job. Anything else is a failure of that member alone.

The worker checks every reply once, with :func:`checked_reply`, before it reads any field of it.
Anyone can write a member, so a reply may be anything, even an object that raises when it is
touched. The loop and the driver rely on this check. Fields are checked against their annotations in
``values``.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from .values import (
    KINDS,
    Draft,
    DraftJob,
    Effort,
    Failure,
    PrefillPending,
    Reply,
    Scored,
    ScoreJob,
)

ROUNDING = 1e-3
"""How far a log-probability may be above 0 because of low precision."""
MOST = 1e11
"""Larger counts, times and costs are refused. As a time, this is a date that Python supports."""


def checked_reply(job: DraftJob | ScoreJob, reply: Any) -> Reply | PrefillPending:
    """The reply to this job if it is valid, otherwise a failure that says what is wrong with it.

    >>> from langchain_specfuse.core.values import DraftJob, Query, Sampling
    >>> job = DraftJob(Query("q", ()), (), 10, 100, Sampling())
    >>> checked_reply(job, Draft(" blue", tokens=(7,), logprobs=(-0.2,))).text
    ' blue'
    >>> checked_reply(job, Draft(" blue", logprobs=(0.2,))).message
    'returned 0.2 as a log-probability (expected a number of at most 0)'
    >>> checked_reply(job, None).message
    'replied with NoneType (expected Draft)'
    """
    try:
        failure = _wrong(job, reply)
    except BaseException as error:  # the values in a reply may raise anything
        return Failure("error", f"replied with nonsense: {type(error).__name__}")
    return failure or reply


def _wrong(job: DraftJob | ScoreJob, reply: Any) -> Failure | None:
    """The reason why this is not a valid reply to this job; None if it is valid."""
    # `type`, because `isinstance` would ask the object itself.
    if issubclass(type(reply), PrefillPending):
        return _wrong_pending(job, reply)
    if issubclass(type(reply), Failure):
        return _wrong_field(reply, Failure) or _wrong_kind(reply)
    if isinstance(job, DraftJob):
        return _wrong_draft(reply)
    return _wrong_scores(job, reply)


def _wrong_pending(job: DraftJob | ScoreJob, pending: PrefillPending) -> Failure | None:
    if job.prefill_chunks is None:
        return Failure("error", "did not reply although it was asked to read everything")
    wrong = _wrong_field(pending, PrefillPending)
    if wrong is None and pending.left < 0:
        return Failure("error", f"has {pending.left} tokens left to read")
    return wrong


def _wrong_kind(failure: Failure) -> Failure | None:
    if failure.kind in KINDS:
        return None
    known = ", ".join(KINDS)
    return Failure(
        "error",
        f"failed with the unknown kind {failure.kind!r:.80} (expected one of {known}): "
        f"{failure.message}",
        failure.cause,
        failure.effort,
    )


def _wrong_draft(reply: Any) -> Failure | None:
    wrong = _wrong_type(reply, Draft) or _wrong_field(reply, Draft)
    return wrong or _not_a_logprob([reply.logprobs or ()])


def _wrong_scores(job: ScoreJob, reply: Any) -> Failure | None:
    wrong = _wrong_type(reply, Scored) or _wrong_field(reply, Scored)
    return wrong or _wrong_rows(job, reply) or _not_a_logprob(reply.logprobs)


def _wrong_type(reply: Any, expected: type) -> Failure | None:
    if issubclass(type(reply), expected):
        return None
    name = type(reply).__name__
    return Failure("error", f"replied with {name} (expected {expected.__name__})")


def _wrong_rows(job: ScoreJob, reply: Scored) -> Failure | None:
    rows = reply.logprobs
    if len(rows) != len(job.candidates):
        return Failure("error", f"scored {len(rows)} candidates (expected {len(job.candidates)})")
    if reply.ends is not None and len(reply.ends) != len(rows):
        return Failure(
            "error", f"returned {len(reply.ends)} rows of ends for {len(rows)} candidates"
        )
    return None


def _not_a_logprob(rows: Sequence[Sequence[float]]) -> Failure | None:
    for row in rows:
        # max may miss a NaN; the sum does not.
        if not row or (max(row) <= ROUNDING and sum(row) <= ROUNDING):
            continue
        for value in row:
            if not value <= ROUNDING:
                expected = "a number of at most 0"
                return Failure(
                    "nan", f"returned {value} as a log-probability (expected {expected})"
                )
    return None


# --- fields ---------------------------------------------------------------------------------------


def _wrong_field(reply: Any, kind: type) -> Failure | None:
    """A failure for the first field, including those of its effort, whose value its annotation does
    not allow."""
    for name, annotation, is_valid in FIELDS[kind]:
        value = getattr(reply, name)
        if not is_valid(value):
            return Failure(
                "error",
                f"replied with nonsense: {kind.__name__}.{name} is {reprlib.repr(value)} "
                f"(expected {annotation})",
            )
        if annotation == "Effort":
            wrong = _wrong_field(value, Effort)
            if wrong is not None:
                return wrong
    return None


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be encoded. A string with half a surrogate pair cannot be."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(kind: type) -> Callable[[Any], bool]:
    """Negative numbers are allowed: a reply may correct what an earlier one estimated."""
    return lambda value: issubclass(type(value), kind) and bool(-MOST <= value <= MOST)


def _row_of(kind: type) -> Callable[[Any], bool]:
    def is_row(value: Any) -> bool:
        if not isinstance(value, (tuple, list)):
            return False
        # Each type is checked once, because a row may have thousands of numbers.
        return all(issubclass(type_, kind) for type_ in set(map(type, value)))

    return is_row


def _rows_of(kind: type) -> Callable[[Any], bool]:
    is_row = _row_of(kind)
    return lambda value: isinstance(value, (tuple, list)) and all(map(is_row, value))


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _is_tokens_with_texts(value: Any) -> bool:
    if not isinstance(value, tuple | list):
        return False
    return all(
        isinstance(item, tuple | list)
        and len(item) == 2
        and issubclass(type(item[0]), Integral)
        and _is_text(item[1])
        for item in value
    )


CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "str": _is_text,
    "bool": lambda value: value is True or value is False,
    "int": _number(Integral),
    "float": _number(Real),
    "float | None": _or_none(lambda value: isinstance(value, Real) and not math.isnan(value)),
    "tuple[int, ...]": _row_of(Integral),
    "tuple[int, ...] | None": _or_none(_row_of(Integral)),
    "tuple[tuple[int, ...], ...] | None": _or_none(_rows_of(Integral)),
    "tuple[float, ...] | None": _or_none(_row_of(Real)),
    "tuple[tuple[float, ...], ...]": _rows_of(Real),
    "tuple[tuple[int, str], ...]": _is_tokens_with_texts,
    "Effort": lambda value: isinstance(value, Effort),
    "BaseException | None": _or_none(lambda value: isinstance(value, BaseException)),
}
"""The annotation of a reply's field -> whether a value fits it."""
FIELDS: Mapping[type, list[tuple[str, str, Callable[[Any], bool]]]] = {
    kind: [(field.name, str(field.type), CHECKS[str(field.type)]) for field in fields(kind)]
    for kind in (Draft, Scored, Failure, PrefillPending, Effort)
}
"""For each kind of reply and for efforts: a field's name, its annotation and its check."""
