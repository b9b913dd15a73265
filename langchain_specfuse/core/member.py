"""The protocol of members. A member takes batches of jobs and returns batches of replies, both as
text. Any object that implements the protocol can be a member.

What an implementation promises (``tests/members/contract.py`` checks it for every engine):

1. *Stateless in effect.* A reply depends on its job alone. Caches only make it faster: after
   ``forget``, a crash or a restart the same job gets the same reply.
2. *One thread.* ``draft`` and ``score`` are called from one thread at a time (its worker's); they
   need no locks.
3. *One reply per job*, in order. A job that cannot be answered gets a ``Failure`` in its place and
   does not disturb the others; raising fails the whole batch. A member that refuses to write
   replies with a ``Failure`` of the kind ``refusal``, whose message is its refusal.
4. *Text is conserved.* A draft's text is exactly what its tokens add to the agreed text, including
   white space, and is valid UTF-8; a character whose bytes are incomplete is held back.
5. *A draft that ends the answer is never cut*; others stop at a safe boundary
   (:func:`.kept_tokens`).
6. *The end is an event.* For an ended candidate the last log-probability is that of the end of the
   turn, or minus infinity if the model has no end of turn; then the end is not scored.
7. *Scores are the model's own* log-probabilities, before temperature, penalties and masks.
8. *No request that is billed* is started for a job whose ``budget`` is spent.
9. *An excluded token does not come first.* With ``Probe.excludes``, no draft begins with a token of
   ``DraftJob.excluded``, except where no other token is legal; the reply's ``others`` are further
   tokens that it could have begun with. The rest of the draft, its log-probabilities and other jobs
   are as without the exclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .values import CallFormat, Draft, DraftJob, Failure, Scored, ScoreJob


@dataclass(frozen=True, slots=True)
class Probe:
    """What a member can do, as measured where the member can test itself."""

    model: str
    scores: bool = True
    """False: it has no scores, or they do not agree with its own drafts. It becomes draft-only."""
    max_context: int | None = None
    """Tokens of prompt and answer together; None: unknown."""
    detail: str = ""
    """Device, dtype, cache and so on, in words for users."""
    calls: CallFormat | None = None
    """How it writes tool calls, if it was trained to; None: in any format that its prompt
    describes."""
    size: int = 0
    """Its number of parameters (0: unknown)."""
    reasons: bool | None = None
    """Whether it reasons before it answers; None: unknown."""
    takes: tuple[str, ...] = ()
    """The kinds of attachments that it reads besides text: ``image``, ``file``, ``audio``,
    ``video``."""
    unsure: tuple[str, ...] = ()
    """Those of them that it may refuse, because its profile does not say that it reads them."""
    ballots: bool = False
    """Whether the member votes by extra requests, as chat models do."""
    excludes: bool = False
    """Whether it honours ``DraftJob.excluded``."""
    native: bool = False
    """Whether it answers ``Query.request`` and reports calls beside its text (``Draft.calls``)."""


@runtime_checkable
class Member(Protocol):
    """One LLM of the ensemble.

    It may also have a method ``preview() -> Probe | None``: what ``probe`` will report, as far as
    it is known without loading anything or asking a server; None if the context is not known. The
    chat model's ``profile`` is made from it.

    It may also have a method ``stream(job) -> Iterator[Draft | Failure]``: write from here until
    the iterator is closed. A lead is asked once for the whole answer (``job.leads``), in a thread
    of its own. A draft is what has arrived since the last one, as soon as it arrives, with its
    cost, its tokens and where they end (``ends``). A draft may be empty, or have only a
    ``thought``. The last one is ``ended`` if the member ended its turn; otherwise it has reached
    ``max_tokens``. The drafts joined are what ``draft`` would have written without a bound. Closing
    the iterator ends the request; ``core.call`` interrupts one that waits. A member without
    ``stream`` is asked for one ``draft`` after another.

    A member whose work is waiting for others, for example for a server, has an attribute ``waits``
    that is true. Each of its jobs then has a thread of its own, and ``draft`` and ``score`` are
    called with one job at a time; an attribute ``max_concurrency`` limits how many are under way.
    ``forget`` is called when no job of the query is under way. If nothing arrives from such a
    member for a while (``core.call``), and another can take its place, it leaves the answer. The
    attribute ``silence_s`` gives two limits in seconds: before the first part of a reply, and after
    it. With a true ``is_owned`` there is no limit: this program owns the member's process, and
    notices its end.

    A member whose ``stream`` writes the text that a constraint forces itself, because guided
    decoding begins with the answer, has a true ``guides``. Its stream begins before that text.

    It may also have an attribute ``is_away: bool``, which is true while it cannot work, for example
    because its server is starting again. Answers that begin meanwhile go on without it,
    if others can write.
    """

    @property
    def name(self) -> str:
        """Unique within an ensemble; shown to users."""

    @property
    def device(self) -> str:
        """Members with the same device share a worker and take turns. Known after ``probe``."""

    def probe(self) -> Probe:
        """Load the model and report what the member can do. Called once, before the first job."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        """Propose how the answer continues, for each job."""

    def score(self, jobs: Sequence[ScoreJob]) -> Sequence[Scored | Failure]:
        """The log-probabilities of each job's candidates."""

    def forget(self, query_id: str) -> None:
        """Free everything that is kept for this query, which is over."""


@runtime_checkable
class BatchGroup(Protocol):
    """Members that share one copy of the weights, with the same adapter or none, and so can share a
    batch.

    Such a member has an attribute ``batch_group``, the same object for all of them. Replies are
    those that each member would have given alone.
    """

    def draft(self, jobs: Sequence[tuple[Any, DraftJob]]) -> Sequence[Draft | Failure]:
        """Propose how the answer continues, for each (member, job)."""

    def score(self, jobs: Sequence[tuple[Any, ScoreJob]]) -> Sequence[Scored | Failure]:
        """The log-probabilities of each (member, job)'s candidates."""
