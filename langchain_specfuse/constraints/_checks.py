"""Whether a constraint can work at all, before any model runs."""

from __future__ import annotations

from ..core.values import Constraint
from ..errors import UsageError, advised
from ._referee import Ruling


def check(constraint: Constraint, *, backend: str | None = None) -> None:
    """``UsageError`` if the constraint is impossible, unknown or more than a grammar can say: what, and what to do."""
    try:
        referee = Ruling(constraint, backend)
        if referee.way_out("") is None:
            error = UsageError(f"no answer was found that satisfies the constraint {_told(constraint)}")
            raise advised(error, "make it simpler; it may contradict itself, or have no end")
        referee.forced("")
    except UsageError:
        raise
    except (ValueError, RuntimeError) as error:
        told = str(error).split("\n <state>")[0].strip()[:600]
        raise advised(UsageError(f"the constraint {_told(constraint)} cannot be read: {told}"), "mend it") from error


def _told(constraint: Constraint) -> str:
    body = constraint.body if len(constraint.body) <= 120 else constraint.body[:117] + "..."
    return f"{constraint.kind} {body}".strip()
