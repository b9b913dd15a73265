"""Jobs in, replies out: how the jobs of one cache become batches.

Reasoning comes first, contexts that do not fit fail, long ones are read in chunks, and the rest is
answered in batches that fit into memory (:meth:`.Cache.batches` says how many jobs at once). If a
batch fails, each of its jobs is tried alone.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ...core.values import (
    Draft,
    DraftJob,
    Effort,
    Failure,
    PrefillPending,
    Reply,
    Scored,
    ScoreJob,
)
from ...errors import emptied
from .drafting import write_drafts
from .jobs import OpenJob
from .strands import SequenceKey
from .thinking import think

if TYPE_CHECKING:
    from .cache import Cache

log = logging.getLogger("langchain_specfuse")

AnyReply: TypeAlias = Reply | PrefillPending | None
"""None: not answered yet."""
Work: TypeAlias = "Callable[[Cache, list[OpenJob]], Sequence[AnyReply]]"
"""Answers a batch."""


def draft(cache: Cache, jobs: Sequence[tuple[Any, DraftJob]]) -> list[Any]:
    """The reply to each (member, job), in their order."""
    return _replies(cache, "draft", jobs, _draft)


def score(cache: Cache, jobs: Sequence[tuple[Any, ScoreJob]]) -> list[Any]:
    """The reply to each (member, job), in their order."""
    return _replies(cache, "score", jobs, _score)


def lose(cache: Cache, keys: Sequence[SequenceKey], error: Exception | None = None) -> None:
    """Drop what is cached for these sequences, because it may be wrong. If the error says that no
    memory is left, drop everything."""
    try:
        if error is not None and cache.is_out_of_memory(error):
            cache.free_memory()
        for key in keys:
            cache.drop(key)
    except Exception as worse:  # the device is gone, and everything on it
        log.debug("the cache on %s cannot be cleaned: %s", cache.weights.device, worse)


# --- from jobs to batches -------------------------------------------------------------------------


def _replies(cache: Cache, name: str, jobs: Sequence[tuple[Any, Any]], work: Work) -> list[Any]:
    replies: dict[int, Any] = {}
    own: list[OpenJob] = []
    for position, (member, job) in enumerate(jobs):
        if member.batch_group is cache:
            own.append(OpenJob(position, member, cache, job))
        else:  # it was unloaded since it was asked, or has another adapter
            (replies[position],) = getattr(member, name)([job])
    with cache.weights.at_work():
        replies |= _own_replies(cache, own, work)
        for job in own:
            if job.member.batch_group is not cache:  # it was unloaded meanwhile
                job.forget_query()
                lose(cache, [job.key])
    return [replies[position] for position in range(len(jobs))]


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
    """Answer a batch. If it fails, try each job alone, so that it fails no other.

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
        lose(cache, [job.key for job, reply in pairs if _has_nan(reply)])
        return replies
    lose(cache, [job.key for job in batch], broken)
    if len(batch) == 1:
        message = ""
        if cache.is_out_of_memory(broken):
            message = f"out of memory on {cache.weights.device}"
        return [Failure.of(broken, message)]
    return [reply for job in batch for reply in _safely(cache, [job], work)]


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
        if job.job.query.id not in job.member.states:
            job.must_think()  # another try
    thoughts = [job.thought for job in batch if job.thought]
    try:
        think(cache, thoughts)
    except BaseException:
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
    """What a batch costs, from now on."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._before = cache.tokens_read
        self._began, self._since = time.time(), time.perf_counter()

    def share(self, batch: Sequence[OpenJob]) -> Effort:
        """Each job's share."""
        read = (self._cache.tokens_read - self._before) // len(batch)
        seconds = (time.perf_counter() - self._since) / len(batch)
        return Effort(read, seconds=seconds, began=self._began)
