"""llama.cpp has few sequences: the texts of the current batch get them, idle texts are evicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
)
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .. import tiny, tiny_gguf

pytestmark = pytest.mark.real
STORY = "The sky is blue because the air scatters blue light more than red light. " * 6
FOREIGN = (" the air scatters it", " it is a reflection", " nobody knows why")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of its own, because the members of a file share what their prompts begin with."""
    return tiny_gguf.llama(tmp_path_factory.mktemp("gguf") / "sequences.gguf")


@pytest.fixture
def member(file: Path) -> LlamaCppMember:
    member = LlamaCppMember(file)
    member.probe()
    return member


def jobs_of(queries: Any, answers: Any, candidates: Any) -> list[ScoreJob]:
    return [ScoreJob(query, answers[query.id], tuple(candidates)) for query in queries]


def play(member: LlamaCppMember, count: int, drafts: int, rounds: int) -> list[int]:
    """Return the tokens read in each round of this many questions at once, each with this many
    foreign drafts, of which the first is agreed."""
    queries = [tiny.query(f"{STORY} Question {at}: why?") for at in range(count)]
    answers: dict[str, Any] = {query.id: () for query in queries}
    store, read = member.cache, []
    for number in range(rounds):
        before = store.tokens_read
        jobs = [DraftJob(query, answers[query.id], 6, 400, Sampling()) for query in queries]
        assert all(isinstance(reply, Draft) for reply in member.draft(jobs))
        texts = [f"{FOREIGN[at % 3]} {number} {at}," for at in range(drafts)]
        candidates = [Candidate(text, False, ("x",)) for text in texts]
        replies = member.score(jobs_of(queries, answers, candidates))
        assert all(isinstance(reply, Scored) for reply in replies)
        for query in queries:
            answers[query.id] = (*answers[query.id], Segment(texts[0]))
        read.append(store.tokens_read - before)
    for query in queries:
        member.forget(query.id)
    return read


def test_eight_questions_with_three_foreign_drafts_keep_what_was_read(
    member: LlamaCppMember,
) -> None:
    for text in ("Once there was a lighthouse. " * 20, "Notes on lamps and oil. " * 20):
        query = tiny.query(text)
        member.draft([DraftJob(query, (), 4, 8, Sampling())])
        member.forget(query.id)
    kept = member.prefixes["prefixes"]
    alone = play(member, 1, 3, 4)
    _, *later = play(member, 8, 3, 4)
    assert max(later) < 8 * max(alone[1:]) + 8 * 12
    assert kept == 2 and member.prefixes["prefixes"] > kept


@pytest.mark.parametrize(("count", "drafts"), [(1, 40), (3, 12), (12, 3)])
def test_any_number_of_drafts_is_scored_as_it_is_alone(
    member: LlamaCppMember, count: int, drafts: int
) -> None:
    play(member, 2, 2, 1)
    candidates = [Candidate(f"{FOREIGN[at % 3]} {at}", False, ("x",)) for at in range(drafts)]
    queries = [tiny.query(f"{STORY} {at}?") for at in range(count)]
    answers: dict[str, Any] = {query.id: () for query in queries}
    kept = member.prefixes["prefixes"]
    together = member.score(jobs_of(queries, answers, candidates))
    assert member.prefixes["prefixes"] == kept > 0
    for query, reply in zip(queries, together, strict=True):
        member.forget(query.id)
        for candidate, row in list(zip(candidates, reply.logprobs, strict=True))[:: drafts // 3]:
            (alone,) = member.score(jobs_of([query], answers, [candidate]))
            assert alone.logprobs[0] == pytest.approx(row, abs=1e-3)
        member.forget(query.id)
