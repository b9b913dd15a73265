"""What a member may reply to a job. Anything else is a failure of that member alone.

The fields of a reply are checked against their annotations in ``values`` before they are used: a
member may be anyone's code and may return anything, even objects that raise when they are touched.
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
    LATE,
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


def failure_of(job: DraftJob | ScoreJob, reply: Reply) -> Failure | None:
    """The reason why this is not a valid reply to this job; None if it is valid. Nonsense from one
    member must not harm the others."""
    try:
        return _nonsense(job, reply)
    except BaseException as error:  # the values in a reply may raise anything
        return Failure("error", f"replied with nonsense: {type(error).__name__}")


def checked(
    jobs: Mapping[str, DraftJob | ScoreJob], replies: Mapping[str, Reply]
) -> dict[str, Reply]:
    """The replies to these jobs, each either valid or a failure."""
    return {name: failure_of(job, replies[name]) or replies[name] for name, job in jobs.items()}


def is_late(reply: Reply) -> bool:
    """Whether the member did not fail, but is late."""
    return isinstance(reply, Failure) and reply.kind == LATE


def pending_failure(pending: PrefillPending) -> Failure | None:
    """The reason why this is not a valid report of what is left to read; None if it is valid."""
    try:
        return _wrong_field(pending, PrefillPending)
    except BaseException as error:
        return Failure("error", f"replied with nonsense: {type(error).__name__}")


def _nonsense(job: DraftJob | ScoreJob, reply: Reply) -> Failure | None:
    wanted = Draft if isinstance(job, DraftJob) else Scored
    if not isinstance(reply, wanted | Failure):
        return Failure("error", f"replied with {type(reply).__name__} (wanted {wanted.__name__})")
    if isinstance(reply, Failure):
        return _wrong_field(reply, Failure) or _wrong_kind(reply) or reply
    if (wrong := _wrong_field(reply, wanted)) is not None:
        return wrong
    if isinstance(reply, Scored):
        assert isinstance(job, ScoreJob)
        return _wrong_rows(job, reply) or _nan(reply.logprobs)
    return _nan([reply.logprobs or ()])


def _wrong_kind(failure: Failure) -> Failure | None:
    if failure.kind in KINDS or failure.kind == LATE:
        return None
    known = ", ".join(KINDS)
    return Failure(
        "error",
        f"failed with the unknown kind {failure.kind!r:.80} (wanted one of {known}): "
        f"{failure.message}",
        failure.cause,
        failure.effort,
    )


def _wrong_rows(job: ScoreJob, reply: Scored) -> Failure | None:
    rows = reply.logprobs
    if len(rows) != len(job.candidates):
        return Failure("error", f"scored {len(rows)} candidates (wanted {len(job.candidates)})")
    if reply.ends is not None and len(reply.ends) != len(rows):
        return Failure(
            "error", f"returned {len(reply.ends)} rows of ends for {len(rows)} candidates"
        )
    return None


def _nan(rows: Sequence[Sequence[float]]) -> Failure | None:
    # max may miss a NaN; the sum does not.
    suspect = [row for row in rows if row and not (max(row) <= ROUNDING and sum(row) <= ROUNDING)]
    bad = [value for row in suspect for value in row if not value <= ROUNDING]
    if not bad:
        return None
    return Failure("nan", f"returned {bad[0]} as a log-probability (wanted a number of at most 0)")


# --- fields ---------------------------------------------------------------------------------------


def _wrong_field(reply: Any, of: type) -> Failure | None:
    """A failure for the first field, including those of its effort, whose value its annotation does
    not allow."""
    for name, kind, check in FIELDS[of]:
        value = getattr(reply, name)
        if not check(value):
            what = f"{of.__name__}.{name}"
            return Failure(
                "error", f"replied with nonsense: {what} is {reprlib.repr(value)} (wanted {kind})"
            )
        if kind == "Effort" and (wrong := _wrong_field(value, Effort)) is not None:
            return wrong
    return None


def _is_text(value: Any) -> bool:
    """Whether it is a string that can be encoded; one with half a surrogate pair cannot."""
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
    # Each type is checked once, because a row may have thousands of numbers.
    return lambda value: (
        isinstance(value, (tuple, list))
        and all(issubclass(one, kind) for one in set(map(type, value)))
    )


def _rows_of(kind: type) -> Callable[[Any], bool]:
    is_row = _row_of(kind)
    return lambda value: isinstance(value, (tuple, list)) and all(map(is_row, value))


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


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
    "Effort": lambda value: isinstance(value, Effort),
    "BaseException | None": _or_none(lambda value: isinstance(value, BaseException)),
}
"""An annotation of a reply's field -> whether a value is what it says."""
FIELDS: Mapping[type, list[tuple[str, str, Callable[[Any], bool]]]] = {
    kind: [(one.name, str(one.type), CHECKS[str(one.type)]) for one in fields(kind)]
    for kind in (Draft, Scored, Failure, PrefillPending, Effort)
}
"""For each kind of reply and for efforts: a field's name, its annotation and its check."""
