"""Reading a long context in chunks, between other work, does not change replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Effort,
    PrefillPending,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Turn,
)

from .. import tiny

SENTENCE = "The air scatters blue light more than red light. "
TOKENS = 1900
"""Almost the context of these models, and more than one chunk."""
CANDIDATES = (Candidate(" blue", False, ("x",)), Candidate(" red", True, ("y",)))


def fresh(arch: str = "llama") -> Any:
    return tiny.member(arch, 1)


def long_for(member: Any) -> str:
    """Return a text of about ``TOKENS`` tokens."""
    once, twice = (member.token_count([Turn("user", SENTENCE * count)]) for count in (1, 2))
    return SENTENCE * ((TOKENS - once) // (twice - once))


def draft_job(query: Query) -> DraftJob:
    return DraftJob(query, (), 6, 64, Sampling())


def in_chunks(member: Any, job: Any, between: Callable[[], Any] = lambda: None) -> tuple[Any, int]:
    """Return the reply with the cost of its chunks, and their number; ``between`` runs after each
    chunk."""
    work, cost, chunks, before = (
        "draft" if isinstance(job, DraftJob) else "score",
        Effort(),
        0,
        None,
    )
    (reply,) = getattr(member, work)([replace(job, prefill_chunks=0)])
    while isinstance(reply, PrefillPending):
        cost += reply.effort
        assert before is None or reply.left < before
        before, allowed = reply.left, min(reply.left, 1)
        chunks += allowed
        (reply,) = getattr(member, work)([replace(job, prefill_chunks=allowed)])
        between()
    return replace(reply, effort=reply.effort + cost), chunks


@pytest.mark.parametrize(
    "arch",
    ["gemma3", *(pytest.param(arch, marks=pytest.mark.long) for arch in ("llama", "mistral"))],
)
def test_reading_in_chunks_gives_the_same_replies_as_reading_at_once(arch: str) -> None:
    whole, other = fresh(arch), tiny.query("Is it grey?")
    text = long_for(whole)
    for job in (
        draft_job(tiny.query(text, id="d")),
        ScoreJob(tiny.query(text, id="s"), (), CANDIDATES),
    ):
        chunked = fresh(arch)
        reply, chunks = in_chunks(
            chunked, job, lambda member=chunked: member.draft([draft_job(other)])
        )
        assert chunks > 0
        assert tiny.difference(reply, tiny.reply_of(whole, job)) < 1e-4


def test_a_short_context_is_read_at_once() -> None:
    for job in (draft_job(tiny.query("Why?")), ScoreJob(tiny.query("Why?"), (), CANDIDATES)):
        assert isinstance(tiny.reply_of(fresh(), replace(job, prefill_chunks=0)), Draft | Scored)


def test_a_context_that_another_query_has_read_needs_no_chunks() -> None:
    member = fresh()
    text = long_for(member)
    in_chunks(member, draft_job(tiny.query(text)))
    reply, chunks = in_chunks(member, draft_job(tiny.query(text)))
    assert chunks == 0 and reply.effort.reused > reply.effort.prompt - 16
