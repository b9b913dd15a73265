"""A lead in this process shows its first word as soon as it is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from langchain_specfuse.core.values import DraftJob, Sampling, Segment

from .. import tiny
from ..contract import drafted

ARCHS = ["llama", "gemma3", "qwen3-next"]
"""States that can be cut, also behind a sliding window, and states that cannot."""


def lead_job(query):
    return DraftJob(query, (), 16, 60, Sampling(), leads=True)


def after(member, job, *drafts):
    segments = [Segment(draft.text, draft.ended, {member.name: draft.tokens}) for draft in drafts]
    return replace(job, answer=tuple(segments))


@pytest.mark.parametrize(
    ("text", "word"),
    [("Because it is so.", "Because"), ("天空是蓝色的。", "天"), ("Yes, or no.", "Yes,")],
)
def test_the_first_draft_of_a_lead_is_its_first_word(text, word):
    member = tiny.wishful(query := tiny.query(), text)
    job = lead_job(query)
    first = drafted(member, job)
    assert first.text == word and not first.ended
    rest = drafted(member, after(member, job, first))
    assert len(rest.text) > len(word) and text.startswith(word + rest.text)
    assert len(drafted(member, replace(job, leads=False)).text) > len(word)


def test_a_lead_that_takes_over_has_no_first_word():
    """The text of the lead before it has been shown."""
    member = tiny.wishful(query := tiny.query(), "Because it is.")
    begun = Segment("Because", tokens={"another": (1, 2)})
    job = replace(lead_job(query), answer=(begun,))
    assert len(drafted(member, job).text) > len(" it")


@pytest.mark.parametrize("arch", ARCHS)
def test_the_answer_of_a_lead_is_the_models_own(arch):
    member, job, drafts = tiny.member(arch, 1), lead_job(tiny.query()), []
    while left := 60 - sum(len(draft.tokens) for draft in drafts):
        drafts.append(drafted(member, replace(after(member, job, *drafts), max_tokens=left)))
        if drafts[-1].ended:
            break
    written = [token for draft in drafts for token in draft.tokens]
    assert written == tiny.greedy(member, job.query, 60)[: len(written)]
    assert len(written) == 60 or drafts[-1].ended
