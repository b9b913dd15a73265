"""Answers the jobs of members that share a cache (:class:`LocalGroup`). The worker has collected
them; here each becomes tokens and then a reply (:class:`OpenJob`).

Members that reason do so first. Jobs whose context does not fit fail, long contexts are read in
chunks, and all other jobs are computed in parts that fit into memory (:meth:`.Cache.batches`). If a
part fails, its halves are tried, down to single jobs. ``drafting`` writes the drafts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias
from weakref import WeakSet

from ...constraints import Vocabulary, trigger, vocabulary
from ...core.values import (
    Constraint,
    Draft,
    DraftJob,
    Effort,
    Failure,
    PrefillPending,
    Reply,
    Sampling,
    Scored,
    ScoreJob,
)
from ...errors import UsageError, emptied
from ..text.prompts import CandidateTokens, Context, Prompts
from ..text.tools import call_format
from .cache import Cache
from .drafting import Leftover, OpenDraft, most_tokens, write_drafts
from .logits import candidate_ends, candidate_logprobs
from .masking import AnswerState, DraftConstraint
from .strands import Branches, Logits, SequenceKey
from .thinking import Thought, think
from .weights import Weights

Job: TypeAlias = DraftJob | ScoreJob
AnyReply: TypeAlias = Reply | PrefillPending | None
"""None: not answered yet."""
Work: TypeAlias = "Callable[[Cache, list[OpenJob]], Sequence[AnyReply]]"
"""Answers a batch."""
SPARE = 8
"""This many more tokens than a candidate seems to need, because its first token may change."""


class LocalGroup:
    """Members that share a cache, so that their jobs share batches: see :class:`.BatchGroup`."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self._members: WeakSet[Loaded] = WeakSet()

    @classmethod
    def of(
        cls,
        weights: Weights,
        adapter: str | None,
        prefix_cache: bool | int,
        member: str,
        new_cache: Callable[[Weights, Any], Cache],
    ) -> LocalGroup:
        """The one group for these weights, this adapter and this setting. Its cache gets a share of
        the memory that is free now. ``member``: for errors."""
        with weights.lock:
            loaded = weights.adapter(adapter, member) if adapter else None
            # The type counts: prefix_cache=1 is one byte, and True is the usual share.
            key = (loaded, repr(prefix_cache))
            group: LocalGroup | None = weights.groups.get(key)
            if group is None:
                group = weights.groups[key] = cls(new_cache(weights, loaded))
                group.cache.take_share(prefix_cache)
            return group

    def draft(self, jobs: Sequence[tuple[Any, DraftJob]]) -> list[Any]:
        """The reply to each (member, job), in their order."""
        return self._replies(jobs, _draft)

    def score(self, jobs: Sequence[tuple[Any, ScoreJob]]) -> list[Any]:
        """The reply to each (member, job), in their order."""
        return self._replies(jobs, _score)

    def _replies(self, jobs: Sequence[tuple[Any, Job]], work: Work) -> list[Any]:
        replies: dict[int, Any] = {}
        own: list[OpenJob] = []
        for position, (member, job) in enumerate(jobs):
            loaded = member.loaded
            if loaded is not None and loaded.group is self:
                own.append(OpenJob(position, loaded, job))
            else:  # it has been unloaded since the job was queued, or has another adapter
                again = member.draft if isinstance(job, DraftJob) else member.score
                (replies[position],) = again([job])
        with self.cache.weights.at_work():
            replies |= _own_replies(self.cache, own, work)
            for open_job in own:
                member, _ = jobs[open_job.position]
                if member.batch_group is not self:  # it was unloaded meanwhile
                    open_job.forget_query()
                    self.cache.lose([open_job.key])
        return [replies[position] for position in range(len(jobs))]

    def join(self, member: Loaded) -> None:
        """Note that a member was loaded."""
        self._members.add(member)

    def leave(self, member: Loaded) -> None:
        """Note that a member was unloaded. Prefixes stay while another member can use them."""
        self._members.discard(member)
        if not self._members:
            self.cache.drop_prefixes()


@dataclass(eq=False)
class Loaded:
    """A member while it is loaded: what its batches need of it."""

    id: str
    group: LocalGroup
    prompts: Prompts
    thinking_tokens: int
    repetition_penalty: float | None
    states: dict[str, QueryState]
    """What it keeps of each query, by the query's id."""

    @property
    def cache(self) -> Cache:
        return self.group.cache

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its tokens, for grammars."""
        weights = self.cache.weights
        stops = list(self.prompts.stops)
        return vocabulary(weights.tokenizer, weights.vocabulary_size, stops)

    def key(self, query_id: str) -> SequenceKey:
        """The name of this query in the cache."""
        return SequenceKey(query_id, self.id)

    def state(self, job: Job) -> QueryState:
        """What it keeps of the job's query."""
        query = job.query
        if query.id not in self.states:
            think = isinstance(job, DraftJob) or job.thinks
            prompt = self.prompts.prompt(query.turns, query.tools, query.constraint, think=think)
            self.states[query.id] = QueryState(Context(self.prompts, prompt), len(prompt))
        return self.states[query.id]


# --- from jobs to batches -------------------------------------------------------------------------


def _own_replies(cache: Cache, jobs: list[OpenJob], work: Work) -> dict[int, AnyReply]:
    thinking = [job for job in jobs if job.must_think()]
    thoughts = _in_batches(cache, thinking, _think)
    replies: dict[int, AnyReply] = {
        position: failure for position, failure in thoughts.items() if failure is not None
    }
    ready: list[OpenJob] = []
    for job in jobs:
        if job.position in replies:
            continue  # its reasoning failed
        overflow = job.prepare()
        if overflow is not None:
            replies[job.position] = overflow
            continue
        unread = _unread(cache, job)
        if not unread:
            ready.append(job)
        elif job.job.prefill_chunks:
            replies |= _in_batches(cache, [job], _read_chunks)
        else:
            replies[job.position] = PrefillPending(unread)
    return replies | _in_batches(cache, ready, work)


def _in_batches(cache: Cache, jobs: list[OpenJob], work: Work) -> dict[int, AnyReply]:
    """The replies to these jobs, in batches that fit into memory."""
    replies: dict[int, AnyReply] = {}
    for part in cache.batches([job.size for job in jobs]):
        for job, reply in zip(jobs[part], _safely(cache, jobs[part], work), strict=True):
            replies[job.position] = reply
    return replies


def _safely(cache: Cache, batch: list[OpenJob], work: Work) -> list[AnyReply]:
    """Answer a batch. If it fails, try each half of it, down to single jobs, so that one job
    does not fail the others.

    What is cached of its queries may be wrong then, so it is dropped. If the device is out of
    memory, all caches are freed first.
    """
    if not batch:
        return []
    try:
        replies = list(work(cache, batch))
    except Exception as error:
        broken = emptied(error)  # before the next try: its frames hold the tensors of the pass
    else:
        pairs = zip(batch, replies, strict=True)
        cache.lose([job.key for job, reply in pairs if _has_nan(reply)])
        return replies
    cache.lose([job.key for job in batch], broken)
    if len(batch) == 1:
        message = ""
        if cache.is_out_of_memory(broken):
            message = f"out of memory on {cache.weights.device}"
        return [Failure.of(broken, message)]
    half = len(batch) // 2
    return _safely(cache, batch[:half], work) + _safely(cache, batch[half:], work)


def _has_nan(reply: AnyReply) -> bool:
    """Whether the reply contains NaN."""
    if isinstance(reply, Failure):
        return reply.kind == "nan"
    if isinstance(reply, Scored):
        return any(math.isnan(sum(row)) for row in reply.logprobs)
    if isinstance(reply, Draft) and reply.logprobs is not None:
        return math.isnan(sum(reply.logprobs))
    return False


# --- what is done with a batch --------------------------------------------------------------------


def _think(cache: Cache, batch: list[OpenJob]) -> list[None]:
    """Write the reasoning of these jobs' members."""
    for job in batch:
        if job.job.query.id not in job.loaded.states:
            job.must_think()  # another try
    thoughts = [job.thought for job in batch if job.thought]
    try:
        think(cache, thoughts)
    except Exception:
        for job in batch:
            job.forget_query()
        raise
    for job, thought in zip(batch, thoughts, strict=True):
        job.keep_thought(thought)
    return [None] * len(batch)


def _unread(cache: Cache, job: OpenJob) -> int:
    """How many tokens must be read in chunks; 0 if the rest is at most one chunk, or if the job
    does not ask for chunks."""
    if job.job.prefill_chunks is None or len(job.context) <= cache.chunk:
        return 0
    missing = cache.missing(job.key, job.context)
    return missing if missing > cache.chunk else 0


def _read_chunks(cache: Cache, batch: list[OpenJob]) -> list[PrefillPending]:
    (job,) = batch
    cost = _Cost(cache)
    for _ in range(job.job.prefill_chunks or 0):
        if _unread(cache, job):
            cache.prefill_chunk(job.key, job.context)
    return [PrefillPending(_unread(cache, job), cost.share(batch))]


def _draft(cache: Cache, batch: list[OpenJob]) -> list[Draft | Failure]:
    cost = _Cost(cache)
    drafts = [job.begin_draft() for job in batch]
    write_drafts(cache, drafts)
    effort = cost.share(batch)
    return [job.end_draft(draft, effort) for job, draft in zip(batch, drafts, strict=True)]


def _score(cache: Cache, batch: list[OpenJob]) -> list[Scored]:
    cost = _Cost(cache)
    logits = cache.read_branches([job.branches() for job in batch])
    replies = [job.scored(rows) for job, rows in zip(batch, logits, strict=True)]
    effort = cost.share(batch)
    return [replace(reply, effort=replace(effort, reused=reply.effort.reused)) for reply in replies]


class _Cost:
    """Measures what a batch costs, from now on."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._before = cache.tokens_read
        self._since = time.perf_counter()

    def share(self, batch: Sequence[OpenJob]) -> Effort:
        """Each job's share of the cost."""
        read = (self._cache.tokens_read - self._before) // len(batch)
        seconds = (time.perf_counter() - self._since) / len(batch)
        return Effort(read, seconds=seconds)


# --- one job --------------------------------------------------------------------------------------


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
    loaded: Loaded
    """Its member."""
    job: Job
    thought: Thought | None = None
    """The reasoning that the member must write first."""
    context: list[int] = field(default_factory=list)
    """Prompt and agreed answer."""
    candidates: list[CandidateTokens] = field(default_factory=list)
    size: int = 0
    """At most about this many tokens must be cached for it."""

    @property
    def cache(self) -> Cache:
        return self.loaded.cache

    @property
    def key(self) -> SequenceKey:
        """The query's name in the cache."""
        return self.loaded.key(self.job.query.id)

    @property
    def state(self) -> QueryState:
        return self.loaded.state(self.job)

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
        prompts = self.loaded.prompts
        marks = prompts.template.marks
        if marks is None or not prompts.thinks or self.job.query.id in self.loaded.states:
            return None
        prompt = self.state.context.prompt
        # A token has at least one byte, so these hold the mark.
        last = prompt[-8 - len(marks.open.encode()) :]
        words = prompts.words
        if not marks.opened(words.tokenizer.decode(last, skip_special_tokens=False)):
            return None
        budget, limit = self.loaded.thinking_tokens, self._limit
        if limit is not None:
            budget = min(budget, (limit - len(prompt)) // 2)
        sampling = Sampling(repetition_penalty=self.loaded.repetition_penalty)
        return Thought(self.key, prompt, budget, words, prompts.stops, sampling, marks)

    def forget_query(self) -> None:
        """Discard what the member keeps of the query: the next job makes it again."""
        self.loaded.states.pop(self.job.query.id, None)

    def keep_thought(self, thought: Thought) -> None:
        """Note that the reasoning is complete. It is part of the prompt from now on."""
        state = self.state
        state.context.prompt, state.thought = thought.ids, thought.text
        state.thought_reused = self.cache.reused.get(thought.key, 0)

    def prepare(self) -> Failure | None:
        """Make the tokens of its context and candidates. Returns a failure if that is not possible,
        or if they do not fit into the model's context."""
        try:
            longest = self._make_tokens()
        except Exception as error:  # a template that refuses the turns, a tokenizer that raises
            message = error.message if isinstance(error, UsageError) else ""
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
        self.candidates = self.loaded.prompts.candidates(job, context)
        sizes = [len(candidate.ids) for candidate in self.candidates]
        new = sum(abs(size - len(self.context)) + SPARE for size in sizes)
        self.size = len(self.context) + new
        return max(len(self.context), *sizes)

    @property
    def _limit(self) -> int | None:
        return self.cache.weights.context_limit

    @property
    def _is_first(self) -> bool:
        """Whether no member has written anything of the answer yet."""
        return not any(segment.tokens for segment in self.job.answer)

    # --- drafts -----------------------------------------------------------------------------------

    def begin_draft(self) -> OpenDraft:
        assert isinstance(self.job, DraftJob)
        job, prompts = self.job, self.loaded.prompts
        if job.leads and self._is_first:
            job = replace(job, segment_tokens=1)  # so that its first word is shown at once
        penalty = job.sampling.repetition_penalty or self.loaded.repetition_penalty
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
            state.answer_state = AnswerState(self.loaded.vocabulary.grammar(constraint))
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
        return replace(reply, thought=state.thought) if self._is_first else reply

    # --- scores -----------------------------------------------------------------------------------

    def branches(self) -> Branches:
        """The branches that must be read to score its candidates."""
        return Branches(self.key, self.context, [tokens.ids for tokens in self.candidates])

    def scored(self, logits: list[Logits]) -> Scored:
        """The reply, without its cost. ``logits`` are those of each branch."""
        prompts = self.loaded.prompts
        pairs = list(zip(self.candidates, logits, strict=True))
        logprobs = tuple(candidate_logprobs(tokens, rows, prompts.stops) for tokens, rows in pairs)
        ends = None
        if self.job.query.constraint:
            ends = tuple(candidate_ends(tokens, rows, prompts.words) for tokens, rows in pairs)
        return Scored(logprobs, Effort(reused=self.cache.reused[self.key]), ends)
