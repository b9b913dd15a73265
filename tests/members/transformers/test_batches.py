"""Questions at once are read in one pass, and each is answered as if it were asked alone."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from langchain_specfuse import Method, SpecFuseChatModel
from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment
from langchain_specfuse.members.transformers.member import TransformersMember

from .. import tiny
from ..tiny import NEAR

STORY = "The sky is blue because the air scatters blue light more than red light. "
QUESTIONS = [
    "Why?",
    "Why is the sky blue?",
    STORY,
    "def add(a, b):",
    STORY * 3 + "Why is that so?",
    "天空是蓝色的",
    "What is 6 times 7?",
    STORY + "Is it?",
]
CANDIDATES = (
    Candidate(" Because of the air.", True, ("x",)),
    Candidate(" It is not", False, ("y",)),
)
BATCHED = ["llama", "gemma3", "gpt2", "bloom", "opt", "mistral"]


def drafts(how: Callable[[int], Sampling] = lambda _: Sampling()) -> list[DraftJob]:
    return [
        DraftJob(tiny.query(text), (), 4 + at, 40, how(at)) for at, text in enumerate(QUESTIONS)
    ]


def worst(member: TransformersMember, work: str, jobs: list[Any], replies: list[Any]) -> float:
    """Return the largest difference from the replies of a member that reads each text anew."""
    slow = tiny.uncached(member)
    pairs = zip(jobs, replies, strict=True)
    return max(tiny.difference(reply, getattr(slow, work)([job])[0]) for job, reply in pairs)


def passes_of(member: TransformersMember) -> list[tuple[int, int]]:
    """Return a list that gets the shape of each pass: its texts, and its tokens of each."""
    member.probe()
    passes: list[tuple[int, int]] = []
    member.cache.weights.model.register_forward_pre_hook(
        lambda _, __, given: passes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    return passes


def own(arch: str) -> TransformersMember:
    """Return a member with a model of its own, so that hooks affect no other test."""
    return TransformersMember(*tiny.build(arch, 1), name=arch)


# --- replies --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["gpt2", pytest.param("qwen3-next", marks=pytest.mark.long)])
def test_questions_at_once_get_the_answers_that_they_get_alone(arch):
    members = [tiny.member(arch, 1), *tiny.companions(arch)]
    llm = SpecFuseChatModel(members=members, method=Method(segment_tokens=4), max_tokens=12)
    alone = [llm.invoke(question) for question in QUESTIONS[:5]]
    together = llm.batch(QUESTIONS[:5])
    assert [reply.content for reply in together] == [reply.content for reply in alone]
    assert len({reply.content for reply in alone}) > 3


@pytest.mark.parametrize("arch", tiny.three_first([*BATCHED, "qwen3-next"]))
def test_replies_in_a_batch_equal_those_without_any_cache(arch):
    """Over several turns, in which members agree on their own text or on another's."""
    member = tiny.member(arch, 1)
    jobs = drafts(lambda at: Sampling(0.9 * (at % 2), seed=at))
    for turn in range(2):
        replies = member.draft(jobs)
        assert worst(member, "draft", jobs, replies) < NEAR
        votes = [ScoreJob(job.query, job.answer, CANDIDATES) for job in jobs]
        assert worst(member, "score", votes, member.score(votes)) < NEAR
        following = []
        for job, reply in zip(jobs, replies, strict=True):
            agreed = Segment(reply.text, tokens={member.name: reply.tokens})
            if (len(job.answer) + len(following)) % 3 == 1:
                agreed = Segment(" and so on")
            following.append(replace(job, answer=(*job.answer, agreed)))
        jobs = following[turn:]


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_texts_in_a_batch_exclude_first_tokens_each_for_itself(arch):
    member = tiny.member(arch, 1)
    jobs = drafts()
    replies = member.draft(jobs)
    jobs = [
        replace(job, excluded=reply.tokens[:1] if at % 2 else ())
        for at, (job, reply) in enumerate(zip(jobs, replies, strict=True))
    ]
    again = member.draft(jobs)
    assert worst(member, "draft", jobs, again) < NEAR
    changed = [
        reply.tokens[:1] != other.tokens[:1] for reply, other in zip(replies, again, strict=True)
    ]
    assert changed == [bool(job.excluded) for job in jobs]


# --- passes ---------------------------------------------------------------------------------------


def test_drafts_of_several_texts_take_the_passes_of_the_longest():
    member = own("llama")
    passes = passes_of(member)
    member.draft([DraftJob(tiny.query(text), (), 12, 12, Sampling()) for text in QUESTIONS])
    steps = [texts for texts, tokens in passes if tokens == 1]
    assert max(steps) >= len(QUESTIONS) - 1  # a draft may end with its first token
    assert len(steps) < 24


def test_a_model_that_ignores_the_mask_reads_one_text_after_the_other():
    member = own("gpt2")
    model = member._in_memory.model
    model.register_forward_pre_hook(
        lambda _, args, given: (
            (args, given | {"attention_mask": None}) if "attention_mask" in given else None
        ),
        with_kwargs=True,
    )
    passes = passes_of(member)
    jobs = drafts()
    assert worst(member, "draft", jobs, member.draft(jobs)) < NEAR
    assert {texts for texts, _ in passes} == {1}


@pytest.mark.parametrize("most", [1, 3])
def test_a_batch_without_room_is_halved(most):
    member = own("llama")
    passes = passes_of(member)
    refuse = lambda _, __, given: fail(len(given["input_ids"]) > most)

    def fail(too_many: bool) -> None:
        if too_many:
            raise torch.OutOfMemoryError("CUDA out of memory")

    member.cache.weights.model.register_forward_pre_hook(refuse, with_kwargs=True)
    jobs = drafts()
    assert worst(member, "draft", jobs, member.draft(jobs)) < NEAR
    done = {texts for texts, _ in passes if texts <= most}
    assert max(done) > 1 if most > 1 else done == {1}


def test_texts_side_by_side_count_as_memory_with_their_padding():
    member = own("llama")
    held = []

    def note(_: Any, __: Any, given: Any) -> None:
        layers = given["past_key_values"].layers
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        if len(given["input_ids"]) == 2:
            held.append((member.cache.bytes_held, size))

    member.probe()
    member.cache.weights.model.register_forward_pre_hook(note, with_kwargs=True)
    member.draft([DraftJob(tiny.query(text), (), 6, 6, Sampling()) for text in ("?", STORY * 3)])
    assert len(held) > 3
    assert all(counted >= size > 0 for counted, size in held)
    for query in list(member.states):
        member.forget(query)
    member.drop_prefixes()
    assert member.cache.bytes_held == 0


def test_a_prefix_keeps_no_memory_of_texts_that_were_beside_it():
    member = own("llama")
    texts = [STORY * 3, *["?"] * 7]
    jobs = [DraftJob(tiny.query(text), (), 6, 6, Sampling(1.0, seed=1)) for text in texts]
    member.draft(jobs)
    for job in jobs:
        member.forget(job.query.id)
    assert member.prefixes["prefixes"] == 1
    assert member.cache.bytes_held == member.prefixes["bytes"] > 0
