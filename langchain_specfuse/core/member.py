"""What a member is: text in, text out, batches in, batches out. Anything that keeps this protocol can join.

The promises of an implementation (``tests/members/contract.py`` checks them on every backend):

1. *Stateless in effect.* A reply depends on its job alone. Caches only make it faster; after ``forget``, a crash or a
   restart the same job gets the same reply.
2. *One at a time.* ``draft`` and ``score`` are called from one thread at a time (the desk's); they need no locks.
3. *As many replies as jobs*, in their order. A job that cannot be answered gets a ``Failure`` in its place and does not
   disturb the others; raising fails the whole batch.
4. *Text is conserved.* The draft's text is exactly what its tokens add to the agreed text, white space and all, and is
   valid UTF-8; a character whose bytes are not complete is held back.
5. *A draft that ends the answer is never cut*; others stop at a safe boundary (:func:`.kept_tokens`).
6. *The end is an event.* For an ended candidate the last log-probability is that of the end of the turn.
7. *Scores are the model's own* log-probabilities: before temperature, penalties and masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

from .values import CallFormat, Draft, DraftJob, Failure, Scored, ScoreJob


@dataclass(frozen=True, slots=True)
class Probe:
    """What a member can do. A member that checks itself fills it from what it measured, not from what it hopes."""

    model: str
    scores: bool = True
    """False: its scores did not agree with its own drafts, or it has none; it becomes draft-only."""
    max_context: int | None = None
    """Tokens of prompt and answer together; None: no limit known."""
    detail: str = ""
    """How it works here (device, dtype, cache), for people."""
    calls: CallFormat | None = None
    """How it writes tool calls, if it was trained to; None: in whatever way it is told."""
    size: int = 0
    """How many parameters it has: what a token costs it, beside others. 0: not told."""


@runtime_checkable
class Member(Protocol):
    """One LLM of the ensemble."""

    @property
    def name(self) -> str:
        """Unique within an ensemble; shown to people."""

    @property
    def device(self) -> str:
        """Whose desk it works at: members with the same device take turns. Known after ``probe``."""

    def probe(self) -> Probe:
        """Load what must be loaded and say what this member can do. Called once, before the first job."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        """How the answer goes on, for each job."""

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        """The log-probabilities of each job's candidates."""

    def forget(self, query_id: str) -> None:
        """This query is over: free what is kept for it."""


@runtime_checkable
class Kin(Protocol):
    """What members have in common that share what does their work, one copy of weights: their jobs can be one batch.

    A member that shares says so in an attribute ``kin``, the same object for all of them; others need no such thing.
    A reply is what the member alone would have said, and a job that cannot be answered disturbs no other.
    """

    def draft(self, jobs: Sequence[tuple[Any, DraftJob]]) -> Sequence[Draft | Failure]:
        """How the answer goes on, for each job of the member beside it."""

    def score(self, jobs: Sequence[tuple[Any, ScoreJob]]) -> Sequence[Scored | Failure]:
        """The log-probabilities of each job's candidates, for the member beside it."""


def kin_of(member: Any) -> Kin | None:
    """With whom this member can share a batch; None: with nobody, or not yet."""
    return cast("Kin | None", getattr(member, "kin", None))
