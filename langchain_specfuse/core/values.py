"""The data that the loop and the members exchange: queries, jobs and replies.

Everything here is frozen and plain (text, numbers, tuples, mappings), so a job can be answered in
this process, in another process or by a server. ``core.round`` has the record of a finished round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import message_of

Finish = Literal["stop", "stop_string", "length", "refusal", "check"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in the conversation."""

    name: str
    arguments: str
    """A JSON object, as text."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a tool call is written: ``begin{"name": ..., "arguments": {...}}end``."""

    begin: str = "<tool_call>\n"
    end: str = "\n</tool_call>"
    between: str = "\n"
    """The text between two calls."""
    name_key: str = "name"
    arguments_key: str = "arguments"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that members may call."""

    name: str
    description: str
    parameters: str
    """The JSON schema of its arguments, as text."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image, a file, audio or a video in a message of the user."""

    kind: str
    """``image``, ``file``, ``audio`` or ``video``."""
    body: str
    """LangChain's content block, as JSON text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the conversation as plain text."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool`` (a tool's result)."""
    text: str
    calls: tuple[ToolCall, ...] = ()
    """The assistant's tool calls, besides its text."""
    name: str = ""
    """For a tool's result: the tool's name."""
    call_id: str = ""
    """For a tool's result: the id of the call that it answers."""
    attachments: tuple[Attachment, ...] = field(default=(), repr=False)
    """What the user's message holds besides text. Members that take it read it before the text."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like, as plain data. Members build their token masks from it, the
    referee checks texts.

    Kinds: ``json_schema`` (body: the schema), ``json`` (any JSON object), ``regex`` (a pattern),
    ``choice`` (a JSON list of texts), ``grammar`` (EBNF), ``calls`` (tool calls: see
    ``constraints.calls``), ``prose`` (anything), ``any_of`` (a JSON list of [kind, body]).
    """

    kind: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How members pick the tokens of their drafts. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    """``None``: as the member's own generation config says."""
    seed: int = 0
    """A token's noise depends on this seed and the token's position, never on batch or round."""


@dataclass(frozen=True, slots=True)
class Panelist:
    """A member's role in one answer."""

    name: str
    drafts: bool = True
    """False: verify-only. It votes but never writes."""
    scores: bool = True
    """False: draft-only. It writes but has no vote."""
    excludes: bool = False
    """Whether it can write a draft that does not begin with certain tokens."""
    size: int = 0
    """Its number of parameters (0: unknown)."""
    native: bool = False
    """Whether it answers ``Query.request``, so that its provider decides how calls and objects are
    written."""


@dataclass(frozen=True, slots=True)
class Query:
    """A conversation to be answered."""

    id: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    """Tools that members may call; every member's prompt describes them in its own format."""
    constraint: Constraint | None = None
    """What the answer must look like."""
    request: Any = field(default=None, compare=False, repr=False)
    """The question as the caller gave it, for members that pass it to their provider as it is.
    Nobody else reads it."""
    hold: Literal["", "calls", "all"] = ""
    """Which agreed text is not shown before the answer ends, so that another member can begin it
    anew."""

    rewrite: Any = field(default=None, compare=False, repr=False)
    """Rewrites the parts of a provider's reply (``Draft.parts``) for ``core.redacting``."""

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of its attachments."""
        return frozenset(attachment.kind for turn in self.turns for attachment in turn.attachments)


@dataclass(frozen=True, slots=True)
class Segment:
    """An agreed piece of the answer."""

    text: str
    ended: bool = False
    """True: the answer ends here because the writer ended its turn."""
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The tokens of every member that wrote exactly this text. Others tokenize it as part of the
    whole answer."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls that a provider returned beside the text."""
    is_cut: bool = False
    """As in :class:`Draft`."""
    is_silent: bool = False
    """Whether it is only reasoning, or other content that is not text. The answer goes on."""
    written: int = 0
    """As in :class:`Draft`."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What a reply cost its member, in the member's own tokens."""

    read: int = 0
    """Tokens run through the model."""
    reused: int = 0
    """Context tokens already in a cache."""
    prompt: int = 0
    """Length of the prompt (0: unknown)."""
    seconds: float = 0.0
    """How long it took, without its wait for a turn; in a batch, its share of the time."""
    requests: int = 0
    """Requests to a model that is billed per use. ``input_tokens`` and ``output_tokens`` are the
    provider's counts, or estimates if it reports none (for example, after a cancelled request)."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """In dollars, for a member whose price is known."""
    estimated_requests: int = 0
    """How many of the requests have estimated counts. It is negative in a reply with the provider's
    counts for requests that an earlier reply estimated, so that the sum is right."""

    def __add__(self, other: Effort) -> Effort:
        return Effort(
            self.read + other.read,
            self.reused + other.reused,
            max(self.prompt, other.prompt),
            self.seconds + other.seconds,
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
            self.estimated_requests + other.estimated_requests,
        )

    @property
    def estimated(self) -> bool:
        """Whether ``input_tokens`` and ``output_tokens`` include an estimate.

        >>> guess = Effort(requests=1, input_tokens=9, estimated_requests=1)
        >>> correction = Effort(input_tokens=2, output_tokens=5, estimated_requests=-1)
        >>> guess.estimated, (guess + correction).estimated
        (True, False)
        """
        return self.estimated_requests > 0


@dataclass(frozen=True, slots=True)
class Budget:
    """What an answer may still cost in requests to billed members (``max_calls`` and ``max_cost``).

    Once it is spent, a member that would need a new request refuses the job: it leaves if the job
    was a draft, and only misses the vote if it was a ballot. A member whose open stream matches the
    agreed text continues that stream, unless the dollars are spent; then the stream is closed.
    Members that cost no requests go on as before. Requests that start together are not stopped
    half-way, so an answer may exceed a bound by those of one phase of a round.

    >>> budget = Budget.of(max_calls=2).after(Effort(requests=1))
    >>> budget.is_spent, budget.after(Effort(requests=1)).is_spent
    (False, True)
    """

    requests: float = math.inf
    dollars: float = math.inf

    @classmethod
    def of(cls, max_calls: int | None = None, max_cost: float | None = None) -> Budget:
        return cls(max_calls or math.inf, max_cost or math.inf)

    def after(self, effort: Effort) -> Budget:
        """What is left after this effort."""
        if not (effort.requests or effort.cost):
            return self
        return Budget(self.requests - effort.requests, self.dollars - effort.cost)

    @property
    def is_spent(self) -> bool:
        """Whether no new request may be started."""
        return self.requests <= 0 or self.dollars <= 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A proposed segment: a member's reply to a :class:`DraftJob`."""

    text: str
    ended: bool = False
    tokens: tuple[int, ...] = ()
    """The text's tokens in the writer's tokenizer, without the end-of-turn event."""
    logprobs: tuple[float, ...] | None = None
    """One per token, plus one for the end of the turn if ``ended``. None: unknown to the writer."""
    effort: Effort = Effort()
    ends: tuple[int, ...] | None = None
    """For each token, the length of ``text`` after it. It shows which tokens a constraint forces;
    these do not count in a score. None: the writer does not report it."""
    thought: str = ""
    """The writer's reasoning before its first word. Never part of the answer."""
    least: float | None = None
    """The lowest log-probability among its tokens, for a writer whose scores are not
    log-probabilities. It decides whether a lead is sure of this draft."""
    others: tuple[tuple[int, str], ...] = ()
    """For a job with ``excluded``: the most probable first tokens besides these and the draft's
    own, each with its text."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls beside the text, all complete, from a provider that reports them. They come with
    the draft that ends the answer."""
    is_cut: bool = False
    """Whether it ``ended`` because the writer reached a limit of its own, in the middle of the
    answer."""
    parts: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """The parts of the provider's reply that arrived with this draft, as they came. Only the chat
    model reads them. The text of the last one may go on in the writer's next draft."""
    is_silent: bool = False
    """Whether something other than text has come after the text, such as reasoning. The answer goes
    on."""
    written: int = 0
    """How many tokens were written for it, if it was redacted: they do not spell its text."""

    @property
    def size(self) -> int:
        """Its length in tokens. Text without tokens counts as one, unless it belongs to a token
        that an earlier chunk has counted (``ends`` is empty).

        >>> Draft("sky", tokens=(7, 8)).size, Draft("sky").size, Draft("y", ends=()).size
        (2, 1, 0)
        """
        return len(self.tokens) or self.written or int(bool(self.text) and self.ends != ())

    def segment(self, tokens: Mapping[str, tuple[int, ...]]) -> Segment:
        """The segment that this draft becomes, with these tokens."""
        is_silent = self.is_silent and not (self.text or self.ended)
        return Segment(
            self.text, self.ended, tokens, self.calls, self.is_cut, is_silent, self.written
        )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A distinct draft (text, ended) and its authors."""

    text: str
    ended: bool
    authors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """Why a check has refused a text, for the member that is asked for another one."""

    reason: str
    text: str = ""
    """The refused text; empty if no model may see it."""
    is_call: bool = False
    """Whether the text is a tool call."""


@dataclass(frozen=True, slots=True)
class DraftJob:
    """How does the answer continue? The job contains everything that is needed to repeat it; caches
    only make it faster."""

    query: Query
    answer: tuple[Segment, ...]
    segment_tokens: int
    """Stop after about this many tokens, at the last safe boundary."""
    max_tokens: int
    """Upper limit: what is left of the answer's budget."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """The draft may end early after one of these; the answer itself makes the cut. Empty where an
    early end could change a vote."""
    call_tokens: int = 64
    """A tool call of up to this many tokens is drafted whole, so that the vote is on calls."""
    prefill_chunks: int | None = None
    """Read at most this many chunks of a long context for this job, then reply with
    :class:`PrefillPending` if there is more (0: only report it). None: read everything. A member
    without chunked prefill may ignore it."""
    budget: Budget = Budget()
    """What the answer may still cost. If it is spent, a member that would have to start a request
    that is billed fails with ``BUDGET`` instead; others ignore it."""
    excluded: tuple[int, ...] = ()
    """The draft may not begin with one of these tokens of the member's own, because a check refused
    the text that they begin. They are allowed again after the first token. A member whose probe
    says ``excludes=False`` ignores them, and so does every member if the grammar allows no other
    token."""
    remarks: tuple[Remark, ...] = ()
    """What checks have refused in this answer, the latest last. Chat models are told; other members
    ignore it."""
    leads: bool = False
    """Whether the writer goes on to the end of the answer, because no vote and no redraft is under
    way. If the member has a method ``stream``, the job goes to that one."""
    replaceable: bool = False
    """Whether another member can take over, so that a provider that fails need not be asked again
    and again."""
    logprobs: bool = False
    """Whether a ``stream`` must report log-probabilities, because the answer shows them. A
    ``draft`` reports them in any case, if the member knows them."""


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """How probable is each of these drafts after the agreed answer?"""

    query: Query
    answer: tuple[Segment, ...]
    candidates: tuple[Candidate, ...]
    thinks: bool = True
    """Whether a reasoning member has its reasoning in the context. False for verify-only
    members."""
    prefill_chunks: int | None = None
    """As in :class:`DraftJob`."""
    budget: Budget = Budget()
    """As in :class:`DraftJob`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A member's reply to a :class:`ScoreJob`: the log-probability of every token of every
    candidate."""

    logprobs: tuple[tuple[float, ...], ...]
    """One tuple per candidate; the last number of an ended candidate is that of the end of the
    turn: minus infinity if the member cannot end turns."""
    effort: Effort = Effort()
    ends: tuple[tuple[int, ...], ...] | None = None
    """As in :class:`Draft`, per candidate."""


BUDGET = "budget"
"""Not a failure of the member: the answer's budget is spent."""
REFUSAL = "refusal"
"""Not a failure: the member refuses to write (the message is its refusal). It has no draft in this
round, but stays in the answer."""
KINDS = (
    "error",
    "timeout",
    "nan",
    "overflow",
    "bad_request",
    "denied",
    "not_found",
    BUDGET,
    REFUSAL,
)
"""How a member can fail."""
WRONG_SETTINGS = {
    "denied": "check its key, and what the key's account may use",
    "not_found": "check the name of its model, and the address of its server",
}
"""Kinds of failures that do not pass by themselves, because the member's settings look wrong ->
what to do, if the member itself has no advice."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Returned instead of a reply. The member leaves the answer; after a ``refusal`` it only misses
    this round."""

    kind: str
    """One of ``KINDS``."""
    message: str
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception. A refusal has one if the provider has sent an error instead of a reply."""
    effort: Effort = field(default=Effort(), compare=False, repr=False)
    """What it cost before it failed, as far as known."""
    parts: tuple[Any, ...] = field(default=(), compare=False, repr=False)
    """For a refusal: as in :class:`Draft`."""

    @classmethod
    def of(cls, error: BaseException, message: str = "") -> Failure:
        """The failure that this exception means: of the exception's own kind, if it has one."""
        name = type(error).__name__
        kind = getattr(error, "kind", "error")
        message = message or ": ".join(filter(None, (name, message_of(error))))
        return cls(kind if kind in KINDS else "error", message, error)


@dataclass(frozen=True, slots=True)
class PrefillPending:
    """Instead of a reply to a job with ``prefill_chunks``: there is more to read. Asked again, the
    member continues."""

    left: int
    """Tokens left to read in chunks; 0: the job can run normally."""
    effort: Effort = Effort()
    """The cost of the chunk that was read now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the loop wants from members next. It expects ``{member: reply}`` for exactly these
    members, with valid replies (see ``checked_reply`` in ``core.replies``)."""

    jobs: Mapping[str, DraftJob | ScoreJob]
    round: int
    replaceable: bool = False
    """Whether another member could take over from any one of these. If so, the answer need not wait
    for a member from which nothing arrives."""


@dataclass(frozen=True, slots=True)
class Wake:
    """The loop wants to ask a member that has been in reserve until now. It expects its
    :class:`Panelist` once it is loaded, or a :class:`Failure`."""

    member: str
    round: int


Reply = Draft | Scored | Failure
Replies = Mapping[str, Reply]
