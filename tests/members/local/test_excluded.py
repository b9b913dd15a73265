"""Drafts that may not begin with certain tokens: after a check has refused what these begin."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from langchain_specfuse.core.values import Constraint, Draft, DraftJob, Sampling, Segment
from langchain_specfuse.members.local.logits import end_logprobs, logprobs_of, sample

from .. import tiny
from ..contract import QUESTIONS, draft_job, drafted, redrafts
from ..tiny import NEAR

CUTTING = ["llama", "gemma3", "gpt2", "mistral"]
"""Models whose states can be cut. Of the others, the last tokens are read again."""


def job_of(size=8, budget=64, sampling=Sampling(), constraint=None):  # noqa: B008
    return DraftJob(tiny.query(constraint=constraint), (), size, budget, sampling)


def cut_drafts(member, sampling=Sampling()):  # noqa: B008
    """Drafts of several questions that were cut after each of their tokens."""
    jobs = [draft_job(question, id=question, sampling=sampling) for question in QUESTIONS]
    return [redraft for job in jobs for redraft in redrafts(member, job)]


def by_hand(member, job, excluded=()):
    """The first token, as a slow loop picks it, its log-probability and the legal tokens, the most
    probable first."""
    context = member.prompts.prompt(job.query.turns)
    for segment in job.answer:
        context = context + list(segment.tokens[member.name])
    weights = member.cache.weights
    with weights.at_work():
        (row,) = weights.forward(context)
    legal = row.copy()
    legal[list(excluded)] = -np.inf
    (token,) = sample([legal], [job.sampling], [context])
    (logprob,) = logprobs_of(row[None], [token])
    if token in member.stops:
        (logprob,) = end_logprobs(row[None], member.stops)
    return token, logprob, [int(other) for other in np.argsort(-legal, kind="stable")]


# --- which tokens ---------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("arch", tiny.three_first([*CUTTING, "qwen3-next"]))
def test_the_first_token_is_the_best_one_that_is_not_excluded(arch, temperature):
    member = tiny.member(arch, 1)
    job = job_of(sampling=Sampling(temperature, seed=3))
    excluded = ()
    for _ in range(5):
        token, logprob, _ = by_hand(member, job, excluded)
        draft = drafted(member, replace(job, excluded=excluded))
        if token in member.stops:
            assert draft.ended and not draft.tokens
        else:
            assert draft.tokens[0] == token
        assert draft.logprobs[0] == pytest.approx(logprob, abs=NEAR)
        excluded += (token,)


@pytest.mark.parametrize("arch", tiny.THREE)
def test_an_excluded_token_may_come_second(arch):
    member, job = tiny.member(arch, 1), job_of()
    first = drafted(member, job).tokens[0]
    wished = tiny.greedy(member, job.query, 2)
    assert wished[0] == first
    everything = [token for token in range(member.cache.weights.vocabulary_size) if token != first]
    # all but one token are excluded, and the draft is as long as any other
    draft = drafted(member, replace(job, excluded=tuple(everything)))
    assert draft.tokens == drafted(member, job).tokens
    assert len(draft.tokens) > 1


@pytest.mark.parametrize("arch", tiny.THREE)
def test_if_every_token_is_excluded_none_is(arch):
    member, job = tiny.member(arch, 1), job_of()
    everything = tuple(range(-1, member.cache.weights.vocabulary_size + 5))
    draft, free = drafted(member, replace(job, excluded=everything)), drafted(member, job)
    assert (draft.tokens, draft.others) == (free.tokens, ())


def test_where_a_constraint_leaves_one_token_it_is_not_excluded():
    member = tiny.member("llama", 1)
    job = job_of(constraint=Constraint("regex", "aa|ab"), size=1)
    free = drafted(member, job)
    vocabulary = range(member.cache.weights.vocabulary_size)
    begins = [token for token in vocabulary if member.words.decode([token]) in ("a", "aa", "ab")]
    assert free.tokens[0] in begins
    draft = drafted(member, replace(job, excluded=tuple(begins)))
    assert isinstance(draft, Draft)
    assert draft.text == free.text


def test_excluded_tokens_and_a_constraint_hold_together():
    member = tiny.member("llama", 1)
    choices = ["New York", "Paris", "Rome", "天空 is é"]
    job = job_of(constraint=Constraint("choice", json.dumps(choices)))
    excluded = ()
    seen = set()
    for _ in range(6):
        draft = drafted(member, replace(job, excluded=excluded))
        assert any(choice.startswith(draft.text) for choice in choices)
        assert all(any(c.startswith(text) for c in choices) for _, text in draft.others)
        seen.add(draft.text[:1])
        excluded += draft.tokens[:1]
    assert len(seen) > 1


# --- the other tokens -----------------------------------------------------------------------------


@pytest.mark.parametrize("arch", tiny.three_first([*CUTTING, "bloom", "lfm2"]))
def test_the_others_are_the_most_probable_first_tokens_and_their_texts(arch):
    member, job = tiny.member(arch, 0), job_of()
    token, _, _ = by_hand(member, job)
    draft = drafted(member, replace(job, excluded=(token,)))
    picked, _, ranked = by_hand(member, job, (token,))
    context = member.prompts.prompt(job.query.turns)
    expected = []
    for other in ranked:
        text, _ = member.words.text_after(context, [other])
        if text and other not in (token, picked, *member.stops):
            expected.append((other, text))
    assert list(draft.others) == expected[: len(draft.others)]
    assert 0 < len(draft.others) <= 48
    assert drafted(member, job).others == ()


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "temperature", "step"),
    [
        ("llama", 1.0, 4),
        *(
            pytest.param(arch, temperature, 1, marks=pytest.mark.long)
            for arch, temperature in zip(CUTTING, (0.0, 1.0, 0.0, 1.0), strict=True)
        ),
    ],
)
def test_a_draft_that_was_cut_anywhere_continues_and_reads_one_token_again_at_most(
    arch, temperature, step
):
    sampling = Sampling(temperature, seed=2)
    jobs = cut_drafts(tiny.member(arch, 2), sampling)[::step]
    assert jobs
    for job in jobs:
        member = tiny.member(arch, 2)
        drafted(member, replace(job, answer=(), excluded=()))
        before = member.cache.tokens_read
        draft = drafted(member, job)
        prompt = len(member.prompts.prompt(job.query.turns))
        context = prompt + len(job.answer[0].tokens[member.name])
        assert context - 1 <= draft.effort.reused <= context
        assert draft.effort.read == member.cache.tokens_read - before
        new = drafted(tiny.member(arch, 2), job)
        # fresh, the same draft reads the whole context, too
        assert draft.effort.read == new.effort.read - draft.effort.reused
        assert draft.tokens == new.tokens


@pytest.mark.parametrize("arch", tiny.three_first(CUTTING))
def test_further_exclusions_at_one_place_read_the_new_tokens_alone(arch):
    member = tiny.member(arch, 2)
    job = cut_drafts(member)[0]
    excluded = job.excluded
    for _ in range(4):
        draft = drafted(member, replace(job, excluded=excluded))
        new = drafted(tiny.member(arch, 2), replace(job, excluded=excluded))
        assert draft.effort.read == new.effort.read - draft.effort.reused
        excluded += draft.tokens[:1]


@pytest.mark.parametrize("arch", tiny.three_first(CUTTING))
def test_text_that_was_withdrawn_costs_one_token_at_most(arch):
    member = tiny.member(arch, 1)
    job = draft_job(segment_tokens=3)
    answers = [()]
    for _ in range(5):
        draft = drafted(member, replace(job, answer=answers[-1]))
        own = {member.name: draft.tokens}
        answers.append((*answers[-1], Segment(draft.text, draft.ended, own)))
    prompt = len(member.prompts.prompt(job.query.turns))
    for answer in reversed(answers[:-1]):
        shorter = replace(job, answer=answer)
        draft = drafted(member, shorter)
        size = prompt + sum(len(segment.tokens[member.name]) for segment in answer)
        assert size - 1 <= draft.effort.reused <= size
        assert draft.tokens == drafted(tiny.member(arch, 1), shorter).tokens
