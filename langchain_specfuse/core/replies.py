"""What a member may reply to a job. Anything else is a failure of that member alone.

Members are code that the user chose, so only mistakes are looked for: a reply of another type, too
few or too many scores, and log-probabilities that would break the vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .values import Draft, DraftJob, Failure, PrefillPending, Reply, Scored, ScoreJob

ROUNDING = 1e-3
"""How far a log-probability may be above 0 because of low precision."""


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
    if isinstance(reply, Failure):
        return reply
    if isinstance(reply, PrefillPending) and job.prefill_chunks is not None:
        return reply
    expected = Draft if isinstance(job, DraftJob) else Scored
    if not isinstance(reply, expected):
        kind = type(reply).__name__
        return Failure("error", f"replied with {kind} (expected {expected.__name__})")
    if isinstance(reply, Draft):
        return _not_a_logprob([reply.logprobs or ()]) or reply
    if isinstance(job, ScoreJob) and len(reply.logprobs) != len(job.candidates):
        count = len(job.candidates)
        return Failure("error", f"scored {len(reply.logprobs)} candidates (expected {count})")
    return _not_a_logprob(reply.logprobs) or reply


def _not_a_logprob(rows: Sequence[Sequence[float]]) -> Failure | None:
    """A model that overflows in half precision returns NaN, which would make every vote NaN."""
    for row in rows:
        for value in row:
            if not value <= ROUNDING:
                expected = "a number of at most 0"
                return Failure(
                    "nan", f"returned {value} as a log-probability (expected {expected})"
                )
    return None
