"""One job while it is answered: what its member must read, and how the reply is made.

A job becomes tokens here. How a draft is written is in ``drafting``, how many jobs share a batch in
``batch``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from ...constraints import trigger
from ...core.values import (
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
)
from ...errors import UsageError, emptied
from ..text.prompts import CandidateTokens, Context, Prompts
from ..text.tools import call_format
from .drafting import Leftover, OpenDraft, most_tokens
from .logits import candidate_ends, candidate_logprobs
from .masking import AnswerState, DraftConstraint
from .strands import Branches, Logits, SequenceKey
from .thinking import Thought

if TYPE_CHECKING:
    from .cache import Cache
    from .member import LocalMember

Job: TypeAlias = DraftJob | ScoreJob
SPARE = 8
"""A few tokens more than a candidate seems to need, because its first token may change."""


@dataclass
class QueryState:
    """What a member keeps of one query besides its cache. All of it can be made again from a
    job."""

    context: Context
    prompt_size: int
    """The length of the prompt without the member's reasoning."""
    thought: str = ""
    """The member's reasoning."""
    thought_reused: int | None = None
    """How much of the prompt was cached when the reasoning began. Reported once, with the first
    draft."""
    leftover: Leftover | None = None
    """The known beginning of the next draft."""
    answer_state: AnswerState | None = None
    """How far the answer is in its grammar."""


@dataclass
class OpenJob:
    """A job of a batch."""

    position: int
    """Its place among the jobs."""
    member: LocalMember
    cache: Cache
    job: Job
    thought: Thought | None = None
    """The reasoning that the member must write first."""
    context: list[int] = field(default_factory=list)
    """Prompt and agreed answer."""
    candidates: list[CandidateTokens] = field(default_factory=list)
    size: int = 0
    """At most about this many tokens must be cached for it."""
    prompts: Prompts = field(init=False)
    """The member's, also if it is unloaded meanwhile."""

    def __post_init__(self) -> None:
        self.prompts = self.member.prompts

    @property
    def key(self) -> SequenceKey:
        return self.member.key(self.job.query.id)

    @property
    def state(self) -> QueryState:
        return self.member.state(self.job, self.prompts)

    # --- before it is read ------------------------------------------------------------------------

    def must_think(self) -> bool:
        """Whether the member must reason first: its query is new, and the prompt opens a thought.
        The reasoning depends on the query alone."""
        self.thought = None
        with suppress(Exception):  # `prepare` reports it
            self.thought = self._new_thought()
        self.size = 0
        if self.thought is not None:
            self.size = len(self.thought.prompt) + max(self.thought.budget, 0)
        return self.thought is not None

    def _new_thought(self) -> Thought | None:
        member, prompts = self.member, self.prompts
        marks = prompts.template.marks
        if marks is None or not prompts.thinks or self.job.query.id in member.states:
            return None
        prompt = self.state.context.prompt
        # A token has at least one byte, so these hold the mark.
        last = prompt[-8 - len(marks.open.encode()) :]
        words = prompts.words
        if not marks.opened(words.tokenizer.decode(last, skip_special_tokens=False)):
            return None
        budget, limit = member.settings.thinking_tokens, self._limit
        if limit is not None:
            budget = min(budget, (limit - len(prompt)) // 2)
        sampling = Sampling(repetition_penalty=self._own_penalty)
        return Thought(self.key, prompt, budget, words, prompts.stops, sampling, marks)

    def forget_query(self) -> None:
        """Discard what the member keeps of the query: the next job makes it again."""
        self.member.states.pop(self.job.query.id, None)

    def keep_thought(self, thought: Thought) -> None:
        """The reasoning is complete: it is part of the prompt from now on."""
        state = self.state
        state.context.prompt, state.thought = thought.ids, thought.text
        state.thought_reused = self.cache.reused.get(thought.key, 0)

    def prepare(self) -> Failure | None:
        """Make the tokens of its context and candidates. Returns the failure if that is not
        possible, or if they do not fit into the model's context."""
        try:
            longest = self._make_tokens()
        except Exception as error:  # a template that refuses the turns, a tokenizer that raises
            message = str(error) if isinstance(error, UsageError) else ""
            return Failure.of(emptied(error), message)
        if self._limit is None or longest <= self._limit:
            return None
        message = (
            f"{longest} tokens of prompt and answer do not fit into its context of {self._limit}"
        )
        return Failure("overflow", message)

    def _make_tokens(self) -> int:
        """Returns the length of the longest text that must be read."""
        job, context = self.job, self.state.context
        self.context = context.ids(job.answer)
        if isinstance(job, DraftJob):
            self.size = len(self.context) + most_tokens(job)
            return len(self.context) + 1
        self.candidates = self.prompts.candidates(job, context)
        sizes = [len(candidate.ids) for candidate in self.candidates]
        new = sum(abs(size - len(self.context)) + SPARE for size in sizes)
        self.size = len(self.context) + new
        return max(len(self.context), *sizes)

    @property
    def _limit(self) -> int | None:
        return self.cache.weights.context_limit

    @property
    def _own_penalty(self) -> float | None:
        """The member's repetition penalty; if it has none, that of the model's generation
        config."""
        own = self.member.settings.repetition_penalty
        if own is not None:
            return own
        return getattr(self.cache.weights.generation_config, "repetition_penalty", None)

    # --- drafts -----------------------------------------------------------------------------------

    def begin_draft(self) -> OpenDraft:
        assert isinstance(self.job, DraftJob)
        job, prompts = self.job, self.prompts
        penalty = job.sampling.repetition_penalty or self._own_penalty
        room = job.max_tokens
        if self._limit is not None:
            room = min(room, self._limit - len(self.context))
        draft = OpenDraft(
            job,
            self.key,
            self.context,
            replace(job.sampling, repetition_penalty=penalty),
            room,
            prompts.words,
            prompts.stops,
            prompts.template.end_text,
        )
        if job.query.constraint is not None:
            with draft.guarded():
                draft.constraint = self._constraint(job.query.constraint)
        draft.begin(self.state.leftover)
        return draft

    def _constraint(self, constraint: Constraint) -> DraftConstraint:
        state = self.state
        if state.answer_state is None:
            state.answer_state = AnswerState(self.member.vocabulary.grammar(constraint))
        answer = "".join(segment.text for segment in self.job.answer)
        form = call_format(constraint)
        begin = trigger(form) if form else ""
        return DraftConstraint(state.answer_state.after(answer), begin)

    def end_draft(self, draft: OpenDraft, effort: Effort) -> Draft | Failure:
        """The reply. ``effort``: the job's share of what the batch has cost."""
        state = self.state
        reused = draft.reused
        if state.thought_reused is not None:
            # After the reasoning, all of the prompt is cached.
            reused, state.thought_reused = state.thought_reused, None
        effort = replace(effort, reused=reused, prompt=state.prompt_size)
        reply = draft.reply(self.cache, effort)
        if isinstance(reply, Failure):
            return reply
        state.leftover = draft.leftover()
        is_first = not any(segment.tokens for segment in self.job.answer)
        return replace(reply, thought=state.thought) if is_first else reply

    # --- scores -----------------------------------------------------------------------------------

    def branches(self) -> Branches:
        """What must be read to score its candidates."""
        return Branches(self.key, self.context, [tokens.ids for tokens in self.candidates])

    def scored(self, logits: list[Logits]) -> Scored:
        """The reply, without what it has cost. ``logits``: of each branch."""
        prompts = self.prompts
        pairs = list(zip(self.candidates, logits, strict=True))
        logprobs = tuple(candidate_logprobs(tokens, rows, prompts.stops) for tokens, rows in pairs)
        ends = None
        if self.job.query.constraint:
            ends = tuple(candidate_ends(tokens, rows, prompts.words) for tokens, rows in pairs)
        return Scored(logprobs, Effort(reused=self.cache.reused[self.key]), ends)
