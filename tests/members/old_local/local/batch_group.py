"""Members that share weights and a cache: their jobs are one batch, for whichever member they are.

They may differ in prompt, seed and penalty; those with another adapter are another group. Here jobs
become batches: contexts that do not fit fail, long ones are read in chunks, and a batch that fails
is tried again job by job. How a draft is written and how a model is loaded is in other files.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias
from weakref import WeakSet

from langchain_specfuse.constraints import Vocabulary, trigger, vocabulary
from langchain_specfuse.core.values import (
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    PrefillPending,
    Query,
    Reply,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Tool,
    Turn,
)
from langchain_specfuse.errors import UsageError, emptied
from langchain_specfuse.members.text.templates import Template, end_of_turn, stop_ids, with_system
from langchain_specfuse.members.text.tools import allows_prose, call_format
from langchain_specfuse.members.text.words import Words
from langchain_specfuse.secret_values import masked

from .drafting import Leftover, OpenDraft, most_tokens, write_drafts
from .masking import AnswerState, DraftConstraint
from .scoring import CandidateTokens
from .strands import Branches, SequenceKey, StrandStore
from .thinking import Thought, think

log = logging.getLogger("langchain_specfuse")

CACHE_SHARE = 0.3
"""A cache may take this part of the memory that is free after loading."""
_IDS = count()
Job: TypeAlias = DraftJob | ScoreJob
AnyReply: TypeAlias = Reply | PrefillPending | None
"""None: not answered yet."""

# --- one member -----------------------------------------------------------------------------------


@dataclass
class QueryState:
    """What a member keeps of one query besides its cache. All of it can be made again from a
    job."""

    prompt: list[int]
    """With the member's thought, if it thinks."""
    prompt_size: int
    """Without it."""
    thought: str = ""
    thought_reused: int | None = None
    """How much of the prompt was cached when the thought began. Reported once, with the first
    draft."""
    settled: tuple[Segment, ...] = ()
    """The answer up to the last own segment: what comes before that never changes again."""
    settled_ids: list[int] = field(default_factory=list)
    leftover: Leftover | None = None
    """What is known of the next draft."""
    answer_state: AnswerState | None = None

    def context(self, name: str, words: Words, answer: tuple[Segment, ...]) -> list[int]:
        """Prompt and answer in tokens, from the last own segment on, so that a long answer costs no
        more."""
        size = len(self.settled)
        if answer[:size] != self.settled or not size:
            size, self.settled, self.settled_ids = 0, (), self.prompt
        own = (
            max((at for at in range(size, len(answer)) if name in answer[at].tokens), default=-1)
            + 1
        )
        if own > size:
            self.settled_ids = words.answer_ids(name, self.settled_ids, answer[size:own])
            size, self.settled = own, answer[:own]
        return words.answer_ids(name, self.settled_ids, answer[size:])


@dataclass(frozen=True)
class MemberSettings:
    """What sets a member apart from others with the same weights and adapter."""

    chat_template: str | None = None
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    repetition_penalty: float | None = None
    seed: int = 0
    thinking_tokens: int = 1024

    def __repr__(self) -> str:
        return f"MemberSettings({masked(vars(self))})"


class GroupMember:
    """A loaded member: how it reads and writes its queries."""

    def __init__(self, group: SharedWeights, name: str, settings: MemberSettings) -> None:
        self.group = group
        self.weights = group.weights
        self.store: StrandStore = group.store
        self.name = name
        self.settings = settings
        tokenizer, config = self.weights.tokenizer, self.weights.generation_config
        self.template = Template(
            tokenizer, name, settings.chat_template, settings.chat_template_kwargs
        )
        self.words = Words(tokenizer, self.template.answer_parts)
        self.stops = stop_ids(tokenizer, config, end_of_turn(self.template))
        """Tokens that end a turn."""
        end = self.template.end_text
        self.end_ids = self.words.continuing(end, marks=True) if end else []
        """Words that end a turn, for a model without such tokens."""
        own = settings.repetition_penalty
        self.penalty = own if own is not None else getattr(config, "repetition_penalty", None)
        self.states: dict[str, QueryState] = {}
        """By query id."""
        self._id = str(next(_IDS))
        self._grammars: Vocabulary | None = None
        group.members.add(self)

    def key(self, query_id: str) -> SequenceKey:
        return SequenceKey(query_id, self._id)

    def prompt_ids(
        self,
        turns: Sequence[Turn],
        tools: Sequence[Tool] = (),
        constraint: Constraint | None = None,
        *,
        thinks: bool = True,
    ) -> list[int]:
        if self.settings.system_prompt is not None:
            turns = with_system(turns, self.settings.system_prompt)
        think = thinks and self.settings.thinking_tokens > 0
        parts = self.template.parts(turns, tools, constraint, think=think)
        return self.words.encode_parts(parts)

    def state(self, query: Query, *, thinks: bool = True) -> QueryState:
        if query.id not in self.states:
            ids = self.prompt_ids(query.turns, query.tools, query.constraint, thinks=thinks)
            prompt = ids or self.stops[:1] or [0]
            self.states[query.id] = QueryState(prompt, len(prompt))
        return self.states[query.id]

    def context(self, job: Job, more: str = "") -> list[int]:
        """Prompt, answer and ``more`` text, tokenized as it would be if it were agreed."""
        answer = (*job.answer, Segment(more)) if more else job.answer
        return self.state(job.query).context(self.name, self.words, answer)

    def new_thought(self, job: Job) -> Thought | None:
        """What it must think before this job, if its query is new. It depends on the query
        alone."""
        query, most, marks = job.query, self.settings.thinking_tokens, self.template.marks
        if marks is None or most <= 0 or query.id in self.states:
            return None
        with suppress(Exception):  # reported when the context is made
            prompt = self.state(query, thinks=isinstance(job, DraftJob) or job.thinks).prompt
            last = prompt[-8 - len(marks.open.encode()) :]  # a token has at least one byte
            if marks.opened(self.words.tokenizer.decode(last, skip_special_tokens=False)):
                limit = self.weights.context_limit
                budget = most if limit is None else min(most, (limit - len(prompt)) // 2)
                how = Sampling(repetition_penalty=self.penalty)
                return Thought(
                    self.key(query.id), prompt, budget, self.words, self.stops, how, marks
                )
        return None

    def begin_draft(self, job: DraftJob, context: list[int]) -> OpenDraft:
        state = self.state(job.query)
        sampling = replace(
            job.sampling,
            seed=job.sampling.seed + 1_000_003 * self.settings.seed,
            repetition_penalty=job.sampling.repetition_penalty or self.penalty,
        )
        limit = self.weights.context_limit
        room = job.max_tokens if limit is None else min(job.max_tokens, limit - len(context))
        draft = OpenDraft(
            job,
            self.key(job.query.id),
            context,
            sampling,
            room,
            self.words,
            self.stops,
            self.template.end_text,
        )
        if job.query.constraint is not None:
            with draft.guarded():
                draft.constraint = self._constraint(job, job.query.constraint, state)
        draft.begin(state.leftover)
        return draft

    def end_draft(self, draft: OpenDraft, effort: Effort) -> Draft | Failure:
        state = self.state(draft.job.query)
        reused = draft.reused
        # the thought came before: now all of the prompt is cached
        if state.thought_reused is not None:
            reused, state.thought_reused = state.thought_reused, None
        reply = draft.reply(self.store, replace(effort, reused=reused, prompt=state.prompt_size))
        if isinstance(reply, Failure):
            return reply
        state.leftover = draft.leftover()
        first = not any(segment.tokens for segment in draft.job.answer)
        return replace(reply, thought=state.thought) if first else reply

    def _constraint(
        self, job: DraftJob, constraint: Constraint, state: QueryState
    ) -> DraftConstraint:
        if state.answer_state is None:
            if self._grammars is None:
                self._grammars = vocabulary(
                    self.weights.tokenizer, self.weights.vocabulary_size, self.stops
                )
            state.answer_state = AnswerState(self._grammars.grammar(constraint))
        form = call_format(constraint)
        after = state.answer_state.after("".join(segment.text for segment in job.answer))
        return DraftConstraint(after, trigger(form) if form else "")

    def candidates(self, job: ScoreJob) -> list[CandidateTokens]:
        """The job's candidates as this member reads them."""
        end = self.end_ids if allows_prose(job.query.constraint) else []
        texts = [(candidate, self.context(job, candidate.text)) for candidate in job.candidates]
        return [CandidateTokens(c, ids + end if c.ended else ids, len(ids)) for c, ids in texts]

    def forget(self, query_id: str) -> None:
        self.states.pop(query_id, None)
        try:
            self.store.forget(self.key(query_id))
        # no room to keep it, or the device is gone: others are not affected
        except Exception as error:
            log.warning("%s: what was read for a query could not be kept: %s", self.name, error)
            self.group.lose([self.key(query_id)], emptied(error))

    def leave(self) -> None:
        for query_id in list(self.states):
            self.forget(query_id)
        self.group.leave(self)


# --- the group ------------------------------------------------------------------------------------


@dataclass
class _Item:
    """A job of a batch."""

    at: int
    """Its place among the jobs."""
    member: GroupMember
    job: Any
    thought: Thought | None = None
    """What the member must think first."""
    context: list[int] = field(default_factory=list)
    candidates: list[CandidateTokens] = field(default_factory=list)
    size: int = 0
    """About as many tokens must be cached for it, or fewer."""

    @property
    def key(self) -> SequenceKey:
        return self.member.key(self.job.query.id)

    def must_think(self) -> bool:
        self.thought = self.member.new_thought(self.job)
        self.size = len(self.thought.prompt) + max(self.thought.budget, 0) if self.thought else 0
        return self.thought is not None

    def read_context(self) -> Failure | None:
        """Make its context; the failure if that is not possible, or does not fit."""
        try:
            self.context = self.member.context(self.job)
            if isinstance(self.job, DraftJob):
                longest = len(self.context) + 1
                self.size = len(self.context) + most_tokens(self.job)
            else:
                self.candidates = self.member.candidates(self.job)
                longest = max(len(self.context), *(len(one.ids) for one in self.candidates))
                self.size = len(self.context) + sum(
                    abs(len(one.ids) - len(self.context)) + 8 for one in self.candidates
                )
        except Exception as error:  # a template that refuses the turns, a tokenizer that raises
            return Failure.of(emptied(error), str(error) if isinstance(error, UsageError) else "")
        limit = self.member.weights.context_limit
        if limit is None or longest <= limit:
            return None
        return Failure(
            "overflow",
            f"{longest} tokens of prompt and answer do not fit into its context of {limit}",
        )


Answer: TypeAlias = Callable[[list[Any]], Sequence[AnyReply]]
"""Replies to a batch of items."""


class SharedWeights:
    """The batch group of members with the same weights and one cache. A member alone is one too."""

    def __init__(
        self, weights: Any, store: StrandStore, *, free: int, prefix_cache: bool | int
    ) -> None:
        """``free``: bytes of memory that nothing uses now."""
        self.weights = weights
        self.store = store
        self.members: WeakSet[GroupMember] = WeakSet()
        store.set_budget(*cache_bytes(free, prefix_cache))

    def draft(self, jobs: Sequence[tuple[Any, DraftJob]]) -> list[Any]:
        return self._all("draft", jobs, self._draft)

    def score(self, jobs: Sequence[tuple[Any, ScoreJob]]) -> list[Any]:
        return self._all("score", jobs, self._score)

    def leave(self, member: GroupMember) -> None:
        """The member frees what it holds. Prefixes stay while the group has another member."""
        self.members.discard(member)
        if not self.members:
            self.store.prefixes.clear()
            self.store.sweep()

    def _all(self, work: str, jobs: Sequence[tuple[Any, Job]], answer: Answer) -> list[Any]:
        replies: dict[int, Any] = {}
        own: list[_Item] = []
        for at, (member, job) in enumerate(jobs):
            loaded = member.loaded
            if loaded is not None and loaded.group is self:
                own.append(_Item(at, loaded, job))
            else:  # it was unloaded since it was asked
                (replies[at],) = getattr(member, work)([job])
        with self.weights.at_work():
            replies |= self._replies(own, answer)
        return [replies[at] for at in range(len(jobs))]

    def _replies(self, items: list[_Item], answer: Answer) -> dict[int, AnyReply]:
        thinking = [item for item in items if item.must_think()]
        replies: dict[int, AnyReply] = {
            at: reply
            for at, reply in self._answered(thinking, self._think).items()
            if reply is not None
        }
        ready: list[_Item] = []
        for item in items:
            if item.at in replies:
                continue
            if failure := item.read_context():
                replies[item.at] = failure
            elif not (unread := self._unread(item)):
                ready.append(item)
            elif item.job.prefill_chunks:
                replies |= self._answered([item], self._read_chunks)
            else:
                replies[item.at] = PrefillPending(unread)
        return replies | self._answered(ready, answer)

    # --- batches ----------------------------------------------------------------------------------

    def _answered(self, items: list[_Item], answer: Answer) -> dict[int, AnyReply]:
        """The replies to these, in batches that fit into memory."""
        replies: dict[int, AnyReply] = {}
        for part in self.store.batches([item.size for item in items]):
            batch = items[part]
            replies |= {
                item.at: reply
                for item, reply in zip(batch, self._safely(batch, answer), strict=True)
            }
        return replies

    def _safely(self, batch: list[_Item], answer: Answer) -> list[AnyReply]:
        """Answer a batch. If it fails, each job is tried alone, so that it fails no other.

        What is cached of these queries may be wrong then, so it is read again. When the device is
        out of memory, all caches are freed first.
        """
        if not batch:
            return []
        try:
            replies = list(answer(batch))
        except Exception as error:
            broken = emptied(error)  # before the next try: its frames hold the tensors of the pass
        else:
            self.lose(
                [item.key for item, reply in zip(batch, replies, strict=True) if _has_nan(reply)]
            )
            return replies
        self.lose([item.key for item in batch], broken)
        if len(batch) == 1:
            short = (
                f"out of memory on {self.weights.device}"
                if self.store.is_out_of_memory(broken)
                else ""
            )
            return [Failure.of(broken, short)]
        return [reply for item in batch for reply in self._safely([item], answer)]

    def lose(self, keys: Sequence[SequenceKey], error: Exception | None = None) -> None:
        """What is cached for these sequences may be wrong: drop it; everything, if there is no
        memory left."""
        try:
            if error is not None and self.store.is_out_of_memory(error):
                self.store.free_memory()
            for key in keys:
                self.store.drop(key)
        except Exception as worse:  # the device is gone, and all that was on it
            log.debug("the cache on %s cannot be cleaned: %s", self.weights.device, worse)

    # --- what is done with a batch ----------------------------------------------------------------

    def _think(self, batch: list[_Item]) -> list[None]:
        """Thoughts come before anything else."""
        for item in batch:
            if item.job.query.id not in item.member.states:
                item.must_think()  # it is tried again
        thoughts = [item.thought for item in batch if item.thought]
        try:
            think(self.store, thoughts)
        except BaseException:
            for item in batch:  # discard incomplete reasoning
                item.member.states.pop(item.job.query.id, None)
            raise
        for item, thought in zip(batch, thoughts, strict=True):
            state = item.member.states[item.job.query.id]
            state.prompt, state.thought = thought.ids, thought.text
            state.thought_reused = self.store.found.get(thought.key, 0)
        return [None] * len(batch)

    def _unread(self, item: _Item) -> int:
        """How many tokens are to be read in chunks; 0 if one chunk is all, or if chunks are not
        wanted."""
        if item.job.prefill_chunks is None or len(item.context) <= self.store.chunk:
            return 0
        missing = self.store.missing(item.key, item.context)
        return missing if missing > self.store.chunk else 0

    def _read_chunks(self, batch: list[_Item]) -> list[PrefillPending]:
        (item,) = batch
        began, since, before = time.time(), time.perf_counter(), self.store.tokens_read
        for _ in range(item.job.prefill_chunks):
            if self._unread(item):
                self.store.prefill_chunk(item.key, item.context)
        return [PrefillPending(self._unread(item), self._share(batch, before, since, began))]

    def _draft(self, batch: list[_Item]) -> list[Draft | Failure]:
        began, since, before = time.time(), time.perf_counter(), self.store.tokens_read
        drafts = [item.member.begin_draft(item.job, item.context) for item in batch]
        write_drafts(self.store, drafts)
        effort = self._share(batch, before, since, began)
        return [
            item.member.end_draft(draft, effort) for item, draft in zip(batch, drafts, strict=True)
        ]

    def _score(self, batch: list[_Item]) -> list[Scored]:
        began, since, before = time.time(), time.perf_counter(), self.store.tokens_read
        wants = [
            Branches(item.key, item.context, [one.ids for one in item.candidates]) for item in batch
        ]
        scored = []
        for item, logits in zip(batch, self.store.read_branches(wants), strict=True):
            pairs = list(zip(item.candidates, logits, strict=True))
            logprobs = tuple(one.logprobs(rows, item.member.stops) for one, rows in pairs)
            ends = (
                tuple(one.ends(rows, item.member.words) for one, rows in pairs)
                if item.job.query.constraint
                else None
            )
            scored.append(Scored(logprobs, Effort(reused=self.store.found[item.key]), ends))
        effort = self._share(batch, before, since, began)
        return [replace(one, effort=replace(effort, reused=one.effort.reused)) for one in scored]

    def _share(self, batch: list[_Item], before: int, since: float, began: float) -> Effort:
        """Each job's share of what the batch has cost."""
        read = (self.store.tokens_read - before) // len(batch)
        return Effort(read, seconds=(time.perf_counter() - since) / len(batch), began=began)


def cache_bytes(free: int, prefix_cache: bool | int) -> tuple[int, int]:
    """The bytes of a cache, and those of them for kept prefixes."""
    size = int(CACHE_SHARE * free)
    return size, size // 3 if prefix_cache is True else min(size, int(prefix_cache))


def _has_nan(reply: AnyReply) -> bool:
    """Whether the reply contains NaN."""
    if isinstance(reply, Failure):
        return reply.kind == "nan"
    rows = (
        reply.logprobs
        if isinstance(reply, Scored)
        else (reply.logprobs or (),)
        if isinstance(reply, Draft)
        else ()
    )
    return any(math.isnan(sum(row)) for row in rows)
