"""The nouns of the method, all frozen: what goes into a round, what members are asked, what comes out.

Everything here is plain data (text, numbers, tuples, mappings), so a job can be answered by an object in this process,
by another process or by a server, and a round can be streamed, traced, drawn and logged from one and the same record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

ScoreKind = Literal["mean_prob", "mean_logprob", "logprob_per_byte"]
VoiceKind = Literal["equal", "assured"]
RewardKind = Literal["wins", "margins"]
FeedbackKind = Literal["off", "published", "anytime"]
ExitKind = Literal["studentized", "quiet", "literal", "fixed", "never"]
Speculation = bool | Literal["auto"]
Finish = Literal["stop", "stop_string", "length"]
Straggler = Literal["wait", "leave_out", "exit"]
"""What becomes of a member whose time for one reply is up: all wait for it, or its round goes on without it, or it
leaves."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as it was made."""

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
    """What stands between two calls."""
    name_key: str = "name"
    arguments_key: str = "arguments"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that may be called."""

    name: str
    description: str
    parameters: str
    """The JSON schema of its arguments, as text."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of the conversation as plain text."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool`` (what a tool answered)."""
    text: str
    calls: tuple[Call, ...] = ()
    """What the assistant called, beside what it said."""
    name: str = ""
    """Of a tool's turn: which tool."""
    call_id: str = ""
    """Of a tool's turn: which call it answers."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like, as plain data: every member builds its own mask from it, a referee checks it.

    ``json_schema`` (body: the schema), ``json`` (any JSON object), ``regex`` (a pattern), ``choice`` (a JSON list of
    texts), ``grammar`` (EBNF), ``calls`` (tool calls: see ``constraints.calls``), ``prose`` (anything), ``any_of`` (a
    JSON list of [kind, body]).
    """

    kind: str
    body: str = ""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a member picks its draft's tokens. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    """``None``: whatever the member's own generation config says."""
    seed: int = 0
    """A token's noise depends on this, the member's own seed and its position: never on the batch or the round."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about the method that a caller may choose. ``preset(name)`` gives the named combinations."""

    segment_tokens: int = 10
    drafters: int | None = None
    """So many draft, those who have won most often in this answer; in doubt all. None: all, in every round."""
    speculate: Speculation = False
    """Whether members guess how their own drafts go on and read what they guess at once: they write what they would
    have written, in fewer passes. ``auto``: much larger members also wait at their desk for the drafts of smaller ones,
    and check those as guesses while they score them; True: all larger ones do, at any desk."""
    max_tokens: int = 512
    """Budget of the answer, in tokens of whoever wrote each segment."""
    max_rounds: int | None = None
    stop: tuple[str, ...] = ()
    score: ScoreKind = "mean_logprob"
    voice: VoiceKind = "assured"
    """``assured``: whoever finds no draft probable says less in this round's vote; ``equal``: weights alone count."""
    reward: RewardKind = "margins"
    """What a draft earns its writer: ``wins``, as third parties compare; ``margins``, by how clearly everybody does."""
    feedback: FeedbackKind = "published"
    learning_rate: float = 3.0
    umpire: bool = True
    """Whether, at the beginning, one that is no party decides between drafts of which several members are sure."""
    exit: ExitKind = "studentized"
    min_members: int = 1
    loop_guard: bool = True
    sampling: Sampling = Sampling()


_PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        "score": "mean_prob",
        "voice": "equal",
        "reward": "wins",
        "learning_rate": 1.0,
        "umpire": False,
        "loop_guard": False,
    }
)
PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # Paper: "specfuse" and "specem" follow the two versions of the paper; "robust" is ours.
        "specfuse": {**_PUBLISHED, "feedback": "off", "exit": "studentized"},
        "specem": {**_PUBLISHED, "feedback": "published", "exit": "never"},
        # Two stay under "robust": a member alone has nobody to save it from its loops (docs/log.md).
        "robust": {"min_members": 2},
    }
)


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in the ensemble."""

    name: str
    drafts: bool = True
    """False: verify-only. It votes, but never writes."""
    scores: bool = True
    """False: draft-only. It writes, but its vote is left out, never guessed."""
    size: int = 0
    """How many parameters it has (0: not told)."""
    desk: str = ""
    """Where it works: members at one desk take turns anyway."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question on its way to one answer."""

    id: str
    turns: tuple[Turn, ...]
    tools: tuple[Tool, ...] = ()
    """What members may call; each is told in the way that it knows."""
    constraint: Constraint | None = None
    """What the answer must look like."""


@dataclass(frozen=True, slots=True)
class Segment:
    """An agreed piece of the answer."""

    text: str
    ended: bool = False
    """True: the answer ends here, because its writer ended its turn."""
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The own tokens of every member that wrote exactly this; others tokenize the text as part of the whole."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What one reply cost its member, in its own tokens."""

    read: int = 0
    """Tokens run through the model."""
    reused: int = 0
    """Context tokens that a cache already held."""
    prompt: int = 0
    """Length of the prompt (0: not told)."""
    seconds: float = 0.0
    began: float = 0.0
    """When it began, in seconds of ``time.time()`` (0: not told)."""

    def __add__(self, other: Effort) -> Effort:
        return Effort(
            self.read + other.read,
            self.reused + other.reused,
            max(self.prompt, other.prompt),
            self.seconds + other.seconds,
            min(self.began, other.began) or self.began or other.began,
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """A piece under vote: a member's reply to a :class:`DraftJob`."""

    text: str
    ended: bool = False
    tokens: tuple[int, ...] = ()
    """The text's tokens in the writer's tokenizer, without the end-of-turn event."""
    logprobs: tuple[float, ...] | None = None
    """One per token, and one more for the end-of-turn event if ``ended``. None: the writer does not know them."""
    effort: Effort = Effort()
    ends: tuple[int, ...] | None = None
    """How many characters of ``text`` are there after each token. Told where the query has a constraint: what that
    forces does not count in a score."""
    thought: str = ""
    """What the writer thought before its first word: never part of the answer."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One distinct draft: (text, ended), and who wrote it."""

    text: str
    ended: bool
    authors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DraftJob:
    """How does the answer go on? Carries all that is needed to redo it: caches are only ever an acceleration."""

    query: Query
    answer: tuple[Segment, ...]
    segment_tokens: int
    """Stop after about this many tokens, at the last safe boundary."""
    max_tokens: int
    """Never more than this: what is left of the budget."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    """Drafting past one of these is wasted; the cut itself is made by the answer."""
    call_tokens: int = 64
    """A tool call is drafted whole, if it is not longer than this: the vote is on calls."""
    hints: tuple[Candidate, ...] | None = None
    """Others' drafts for this place. They change no reply, only how soon it comes: a member may read them along and
    keep what it would have written itself. None: nothing is to be guessed; empty: from the text so far at most."""
    pieces: int | None = None
    """At most so many pieces of a long text are read for this job, and it is answered with :class:`Unread` if that is
    not all; 0: it only says so. None: all is read. A member that reads all at once need not care."""


@dataclass(frozen=True, slots=True)
class ScoreJob:
    """How probable are these drafts after the agreed answer?"""

    query: Query
    answer: tuple[Segment, ...]
    candidates: tuple[Candidate, ...]
    thinks: bool = True
    """Whether this member, if it can think, has thought about the query: who only votes does not."""
    pieces: int | None = None
    """As in :class:`DraftJob`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A member's reply to a :class:`ScoreJob`: per candidate the log-probabilities of its tokens, never only a mean."""

    logprobs: tuple[tuple[float, ...], ...]
    """One tuple per candidate; the last number of an ended candidate is its end-of-turn event."""
    effort: Effort = Effort()
    ends: tuple[tuple[int, ...], ...] | None = None
    """As in :class:`Draft`, per candidate."""


KINDS = ("error", "timeout", "nan", "overflow", "not_found")
"""The ways in which a member can fail."""
LATE = "late"
"""No failure of the member's: the round goes on without its reply, and it stays."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Instead of a reply: this member cannot go on with this answer, or (``late``) not with this round."""

    kind: str
    """One of ``KINDS``, or ``late``."""
    message: str
    cause: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Unread:
    """Instead of a reply, to a job with ``pieces``: there is more to read than that. To be asked again, it goes on."""

    left: int
    """So many tokens are to be read piece by piece; 0: the job can be asked as ever."""
    effort: Effort = Effort()
    """What was done now."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What the loop wants from its members next; it is sent ``{member: reply}`` for exactly these members."""

    jobs: Mapping[str, DraftJob | ScoreJob]
    round: int
    spare: bool = False
    """True: there are others to ask if these are all late. Else one reply at least is waited for."""


Reply = Draft | Scored | Failure
Replies = Mapping[str, Reply]


@dataclass(frozen=True, slots=True)
class Departure:
    """A member that left for the rest of this answer, and why."""

    member: str
    kind: str
    """``exit`` when it was voted out, else the failure's kind."""
    reason: str
    round: int
    cause: BaseException | None = field(default=None, compare=False, repr=False)
    """What the member raised, if it did."""


@dataclass(frozen=True, slots=True)
class Round:
    """One finished round: the record that is streamed, traced, drawn, tested and logged."""

    number: int
    text: str
    """What may be shown now (text that may begin a stop string is held back)."""
    segment: Segment
    winner: str
    drafts: Mapping[str, Draft]
    scores: Mapping[str, Mapping[str, float]]
    """verifier -> drafting member -> raw score. Empty when nobody had to score."""
    votes: Mapping[str, Mapping[str, float]]
    totals: Mapping[str, float]
    rewards: Mapping[str, float]
    weights_before: Mapping[str, float]
    weights: Mapping[str, float]
    authors: tuple[str, ...] = ()
    """Everybody who drafted what won, the winner first."""
    forced: str = ""
    """What a constraint left no choice about: agreed behind the segment (in round 1 before it too) without a vote."""
    closed: str = ""
    """What was put behind an answer that its budget cut off, so that it is whole under its constraint."""
    thoughts: Mapping[str, str] = field(default_factory=dict)
    """member -> what it thought before its first word, in the round in which it did."""
    looped: tuple[str, ...] = ()
    umpire: str = ""
    """Who decided between drafts of which several members were sure; empty: nobody had to."""
    late: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """phase -> whose reply was not there in time: the round went on without it."""
    left: tuple[Departure, ...] = ()
    finish: Finish | None = None
    efforts: Mapping[str, Mapping[str, Effort]] = field(default_factory=dict)
    """phase (``draft``, ``verify``) -> member -> effort."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """phase -> wall-clock seconds between asking and the last reply."""
    began: Mapping[str, float] = field(default_factory=dict)
    """phase -> when it began, in seconds of ``time.time()``."""

    @property
    def members(self) -> tuple[str, ...]:
        """Who drafted in this round."""
        return tuple(self.drafts)

    @property
    def stragglers(self) -> tuple[str, ...]:
        """Who was late in this round, in whatever phase."""
        return tuple(dict.fromkeys(name for names in self.late.values() for name in names))

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why members left in this round that were not voted out."""
        return tuple(Failure(gone.kind, gone.reason, gone.cause) for gone in self.left if gone.kind != "exit")

    @property
    def margin(self) -> float:
        """How far the winner's total lies above the best other draft (1.0 when nobody disagreed)."""
        others = [total for m, total in self.totals.items() if m in self._others()]
        return self.totals[self.winner] - max(others) if others else 1.0

    @property
    def dissent(self) -> float:
        """The entropy of the vote over the distinct drafts, from 0 (one mind) to 1 (every draft as good as another)."""
        drafts = {self._said(name): total for name, total in self.totals.items() if total > 0}
        if len(drafts) < 2:
            return 0.0
        whole = math.fsum(drafts.values())
        shares = [total / whole for total in drafts.values()]
        return -math.fsum(share * math.log(share) for share in shares) / math.log(len(drafts))

    @property
    def runner_up(self) -> str | None:
        """Who wrote the best draft that says something else; None when nobody did."""
        return max(self._others(), key=lambda name: self.totals.get(name, 0.0), default=None)

    def _others(self) -> list[str]:
        agreed = self._said(self.winner)
        return [name for name in self.drafts if self._said(name) != agreed]

    def _said(self, name: str) -> tuple[str, bool]:
        """What tells one draft from another: those who drafted what won in other words said the same."""
        draft = self.drafts[self.winner if name in self.authors else name]
        return draft.text, draft.ended

    def as_dict(self) -> dict[str, Any]:
        """The round as plain JSON."""
        return {
            "round": self.number,
            "text": self.text,
            "segment": self.segment.text,
            "ended": self.segment.ended,
            "winner": self.winner,
            "authors": list(self.authors),
            "drafts": {m: {"text": d.text, "ended": d.ended, "tokens": len(d.tokens)} for m, d in self.drafts.items()},
            "scores": {j: dict(row) for j, row in self.scores.items()},
            "votes": {j: dict(row) for j, row in self.votes.items()},
            "totals": dict(self.totals),
            "margin": self.margin,
            "dissent": self.dissent,
            "runner_up": self.runner_up,
            "rewards": dict(self.rewards),
            "weights_before": dict(self.weights_before),
            "weights": dict(self.weights),
            "forced": self.forced,
            "closed": self.closed,
            "thoughts": dict(self.thoughts),
            "looped": list(self.looped),
            "umpire": self.umpire,
            "late": {phase: list(names) for phase, names in self.late.items()},
            "left": [{"member": d.member, "kind": d.kind, "reason": d.reason, "round": d.round} for d in self.left],
            "finish": self.finish,
            "seconds": dict(self.seconds),
            "tokens": {
                phase: {m: {"read": e.read, "reused": e.reused, "seconds": e.seconds} for m, e in by.items()}
                for phase, by in self.efforts.items()
            },
        }
