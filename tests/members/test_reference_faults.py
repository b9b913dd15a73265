"""What the method's published reference code gets wrong about tokens, masks and caches, fault by fault.

The faults that the pure core can show are in ``tests/core``.
"""

import contextlib
import inspect
from types import SimpleNamespace

import pytest
import torch

from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment, Settings
from langchain_specfuse.members import _template
from langchain_specfuse.members._slab import Slab

from . import tiny
from .test_transformers import follows


def said(arch, text, size):
    """The rounds of an answer in which the model says this text byte by byte, and ends."""
    member, query = tiny.member(arch, 1), tiny.query()
    prompt = member._prompt_ids(query.turns)
    member.store.base = len(prompt)
    tokens = [token for char in text for token in member.words.continuing(char)]
    follows(member, [*tokens, member.stops[0]])
    return tiny.answered([member], query, Settings(segment_tokens=size, max_tokens=120))


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_fault_3_an_incomplete_character_becomes_a_space(arch, size):
    text = "天空 😀👩‍👩‍👧 ภาษา é"
    told = said(arch, text, size)
    assert tiny.text_of(told) == text
    assert not any("\ufffd" in round.text for round in told)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "qwen3"])
def test_fault_5_each_segment_is_tokenized_alone(arch):
    member, query = tiny.member(arch, 1), tiny.query()
    prompt = member._prompt_ids(query.turns)
    pieces = ["The sky", " is blue because", " the air", " scatters light.\n"]
    job = DraftJob(query, tuple(map(Segment, pieces)), 2, 9, Sampling())
    assert (
        member._context(job)[len(prompt) :]
        == member.words.answer_ids("", prompt, [Segment("".join(pieces))])[len(prompt) :]
    )
    own = tuple(member.words.continuing("T") + member.words.continuing("he"))
    assert own != tuple(member.words.continuing("The"))
    kept = member._context(DraftJob(query, (Segment("The", tokens={member.name: own}),), 2, 9, Sampling()))
    assert tuple(kept[len(prompt) :]) == own  # what it wrote itself keeps the tokens that it wrote


@pytest.mark.parametrize("kind", ["pieces", "pieces-bare", "unigram", "bytes-prefix"])
def test_fault_6_leading_spaces_are_lost_but_for_one_tokenizer(kind):
    words = tiny.member("llama", 1, made_with={"tokenizer": kind}).words
    context = words.encode("The sky")
    for text in (" is", " is blue", " the air"):
        assert words.told(context, words.continuing(text))[0] == text
        assert words.added(words.encode("x"), words.answer_ids("", context, [Segment(text)])[len(context) :]) == text


def test_fault_7_the_tree_mask_ignores_sliding_windows():
    member, query = tiny.member("gemma3", 1), tiny.query("The air scatters blue light. " * 5)
    assert isinstance(member.store, Slab) and 8 in member.store.windows
    candidates = tuple(Candidate(text, False, ("x",)) for text in (" blue because of the air", " red", " and on"))
    job = ScoreJob(query, (Segment("The sky is"),), candidates)
    (scored,) = member.score([job])
    for candidate, row in zip(candidates, scored.logprobs, strict=True):
        ids = member.words.answer_ids("", member._prompt_ids(query.turns), [*job.answer, Segment(candidate.text)])
        with torch.no_grad():
            logprobs = member._weights.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        wanted = [float(logprobs[k - 1, ids[k]]) for k in range(len(ids) - len(row), len(ids))]
        assert list(row) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_fault_10_the_prompt_is_read_twice_by_every_member_in_every_round(arch):
    members = [tiny.member(arch, 1), tiny.member("phi3", 1)]
    query = tiny.query("The air scatters blue light. " * 20)
    prompts = {one.name: len(one._prompt_ids(query.turns)) for one in members}
    before = {one.name: one.store.passed for one in members}
    tiny.relayed(members, query, 3, turns=5)
    for one in members:
        assert prompts[one.name] > 100
        assert one.store.passed - before[one.name] < 2 * prompts[one.name]


def test_fault_10_stop_tokens_hang_on_the_models_name():
    source = inspect.getsource(_template.stop_ids) + inspect.getsource(_template.end_of_turn)
    assert "name_or_path" not in source
    stops = [tiny.member("llama", 1, name=name).stops for name in ("llama", "qwen", "mistral", "x")]
    assert stops == [stops[0]] * 4
    # The same weights with another template end with another token.
    plain = tiny.member("llama", 1, chat_template="{{ messages[-1].content }}")
    assert plain.stops != stops[0]


def test_fault_10_sampling_is_fixed_and_has_no_seed():
    member = tiny.member("llama", 1)
    drafts = {}
    for how in (
        Sampling(),
        Sampling(1.0, seed=1),
        Sampling(1.0, seed=1),
        Sampling(1.0, seed=2),
        Sampling(1.0, top_k=1),
    ):
        (draft,) = member.draft([DraftJob(tiny.query(), (), 8, 20, how)])
        drafts.setdefault(how, set()).add(draft.text)
    assert all(len(texts) == 1 for texts in drafts.values())
    assert len({text for texts in drafts.values() for text in texts}) == 3
    assert drafts[Sampling()] == drafts[Sampling(1.0, top_k=1)]


def test_fault_10_one_query_at_a_time():
    member = tiny.member("llama", 1)
    passes = []
    handle = member.store.read.model.register_forward_hook(lambda *_: passes.append(1))
    with contextlib.closing(SimpleNamespace(close=handle.remove)):
        member.draft([DraftJob(tiny.query(), (), 6, 6, Sampling()) for _ in range(8)])
    assert 0 < len(passes) < 8 * 2
