"""A member that compares drafts side by side: it is asked which one is better, instead of how
probable each is.

Two ballots show the drafts under letters, in opposite orders, after the conversation and the answer
so far. A draft's number is the log of the mean probability of its letter over both ballots. Its own
drafts get numbers in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from langchain_specfuse.core.letters import LETTERS
from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    Scored,
    ScoreJob,
    Turn,
)

ASKED = (
    "Which continuation of the answer is the most correct and helpful one? Reply with its "
    "letter alone."
)


class SideBySide:
    """The same member, with ballots instead of scores. Needs the log-probabilities of a member that
    scores."""

    def __init__(self, member: Any) -> None:
        self._member = member

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        """Without log-probabilities, so that its own drafts stand on the ballot too; whether it was
        sure stays."""
        drafts = self._member.draft(jobs)
        return [
            replace(one, logprobs=None, least=min(one.logprobs))
            if isinstance(one, Draft) and one.logprobs
            else one
            for one in drafts
        ]

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return [self._ballots(job) for job in jobs]

    def _ballots(self, job: ScoreJob) -> Scored | Failure:
        count, effort = len(job.candidates), Effort()
        shares = [0.0] * count
        for order in (list(range(count)), list(reversed(range(count)))):
            letters = tuple(Candidate(LETTERS[place], False, ()) for place in range(count))
            query = Query(f"{job.query.id} ballot", (Turn("user", _text(job, order)),))
            (reply,) = self._member.score([ScoreJob(query, (), letters, thinks=False)])
            self._member.forget(query.id)
            if isinstance(reply, Failure):
                return reply
            known = [math.exp(math.fsum(row)) for row in reply.logprobs]
            for place, at in enumerate(order):
                shares[at] += known[place] / math.fsum(known) / 2
            effort += reply.effort
        return Scored(tuple((math.log(max(share, 1e-9)),) for share in shares), effort)


def _text(job: ScoreJob, order: Sequence[int]) -> str:
    """The ballot. What does not change between rounds comes first, so that it is read once."""
    turns = "\n\n".join(f"{turn.role}: {turn.text}" for turn in job.query.turns)
    answer = "".join(segment.text for segment in job.answer)
    shown = [(job.candidates[at], LETTERS[place]) for place, at in enumerate(order)]
    drafts = "\n".join(
        f"{letter}: {one.text!r}{' (the answer ends)' * one.ended}" for one, letter in shown
    )
    return f"{turns}\n\nThe answer so far: {answer}\n\nContinuations:\n{drafts}\n\n{ASKED}"
