"""Long texts read piece by piece, as a desk has it done while there is other work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from langchain_specfuse.core.values import Candidate, Draft, DraftJob, Effort, Sampling, Scored, ScoreJob, Unread
from langchain_specfuse.members import _slab

from . import tiny
from .test_transformers_cache import NEAR, Doubled, companions

LONG = "The air scatters blue light more than red light. " * 4


class InPieces:
    """A member that is asked as a desk asks it while others wait; ``between`` happens after every piece."""

    def __init__(self, member, between=lambda: None):
        self.member, self.between, self.pieces = member, between, 0
        self.name = member.name

    def draft(self, jobs):
        return self._asked("draft", jobs)

    def score(self, jobs):
        return self._asked("score", jobs)

    def forget(self, query_id):
        self.member.forget(query_id)

    def _asked(self, work, jobs):
        (job,) = jobs
        ask = lambda pieces: getattr(self.member, work)([replace(job, pieces=pieces)])[0]
        reply, effort, before = ask(0), Effort(), None
        while isinstance(reply, Unread):
            effort += reply.effort
            assert before is None or reply.left < before
            before = reply.left
            if reply.left:
                self.pieces += 1
                self.between()
            reply = ask(1 if reply.left else 0)
        return [replace(reply, effort=reply.effort + effort)]


def small(arch, number=1, piece=16, **made_with):
    member = tiny.member(arch, number, **made_with)
    member.probe()
    member.store.piece = piece
    return member


def job(query, tokens=6):
    return DraftJob(query, (), tokens, 64, Sampling())


@pytest.mark.parametrize("arch", tiny.SLAB)
def test_every_reply_is_the_same_however_its_text_was_read(arch):
    """Drafts and scores, while others draft between the pieces."""
    member, other = small(arch), tiny.query("Somebody else asks something.")
    inside = InPieces(member, lambda: member.draft([job(other)]))
    doubled = Doubled(member)
    doubled.member = inside
    tiny.relayed([doubled, *companions(arch)], tiny.query(LONG), 5, turns=2)
    assert inside.pieces > 3
    assert doubled.worst < NEAR


@pytest.mark.parametrize("deep", [2048, 30])
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_alone_it_is_the_same_to_the_bit_and_costs_the_same(arch, deep, monkeypatch):
    monkeypatch.setattr(_slab, "DEEP", deep)
    query = tiny.query(LONG)
    (whole,) = small(arch).draft([job(query)])
    inside = InPieces(small(arch))
    (parts,) = inside.draft([job(query)])
    assert inside.pieces > 3
    assert parts.logprobs == whole.logprobs
    assert (parts.text, parts.tokens) == (whole.text, whole.tokens)
    told = lambda effort: (effort.read, effort.reused, effort.prompt)
    assert told(parts.effort) == told(whole.effort)


def test_who_only_votes_reads_in_pieces_too():
    query, candidates = tiny.query(LONG), (Candidate(" blue", False, ("x",)), Candidate(" red", True, ("y",)))
    (whole,) = small("llama").score([ScoreJob(query, (), candidates)])
    inside = InPieces(small("llama"))
    (parts,) = inside.score([ScoreJob(query, (), candidates)])
    assert inside.pieces > 3
    assert isinstance(parts, Scored) and parts.logprobs == whole.logprobs


def test_a_short_text_is_read_at_once_and_nobody_is_told_anything():
    member = small("llama", piece=64)
    (reply,) = member.draft([replace(job(tiny.query("Why?")), pieces=0)])
    assert isinstance(reply, Draft)


def test_to_be_told_costs_nothing():
    member, query = small("llama"), tiny.query(LONG)
    (reply,) = member.draft([replace(job(query), pieces=0)])
    assert isinstance(reply, Unread) and reply.left > 3 * 16
    assert (reply.effort.read, member.store.rows) == (0, {})


def test_a_long_text_in_a_batch_delays_nobody_in_it():
    """Those beside it get their drafts; it is told how much there is to read."""
    member, short = small("llama", piece=32), tiny.query("Why?")
    long, brief = member.draft([replace(job(one), pieces=0) for one in (tiny.query(LONG), short)])
    (alone,) = small("llama", piece=32).draft([job(short)])
    assert isinstance(long, Unread)
    assert (brief.text, brief.logprobs) == (alone.text, alone.logprobs)


def test_what_another_has_read_need_not_be_read_in_pieces():
    member = small("llama")
    InPieces(member).draft([job(tiny.query(LONG))])
    again = InPieces(member)
    (reply,) = again.draft([job(tiny.query(LONG))])
    assert again.pieces == 0
    assert reply.effort.reused > reply.effort.prompt - 16


def test_a_text_read_in_pieces_is_found_again_by_who_asks_the_same():
    """Where its prompt ended is kept, as of one that was read at once."""
    member, query = small("llama"), tiny.query(LONG)
    InPieces(member).draft([job(query)])
    member.forget(query.id)
    (reply,) = member.draft([job(tiny.query(LONG))])
    assert reply.effort.reused == reply.effort.prompt


def test_a_text_that_loses_its_room_says_that_nothing_was_won():
    """There is room for one query only: others take it between the pieces, so the desk must have it read in one go."""
    member = small("llama", cache_bytes=1)
    query, other = tiny.query(LONG), tiny.query("Somebody else asks something.")
    (first,) = member.draft([replace(job(query), pieces=1)])
    member.draft([job(other)])
    (second,) = member.draft([replace(job(query), pieces=1)])
    assert first.left == second.left > 0
    (whole,) = member.draft([job(query)])
    assert isinstance(whole, Draft)
