"""Caches change speed only: replies are equal with a cache, without one, and with far too little
room."""

import random

import numpy as np
import pytest
import torch
from transformers.cache_utils import DynamicLayer

from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.errors import MemberError
from langchain_specfuse.members.llamacpp import cache as llamacpp_cache
from langchain_specfuse.members.llamacpp.cache import LlamaCppCache
from langchain_specfuse.members.llamacpp.model import GgufSource, load
from langchain_specfuse.members.local.strands import Branches, Extension, SequenceKey
from langchain_specfuse.members.transformers.cache import ModelCache, best_cache
from langchain_specfuse.members.transformers.model import in_memory

from .. import tiny
from ..tiny import NEAR

KEYS = [SequenceKey(name) for name in "abcdef"]


@pytest.mark.parametrize(
    ("arch", "size"),
    [
        ("llama", 4),
        ("gemma3", 1),
        ("qwen3-next", 4),
        *(
            pytest.param(arch, size, marks=pytest.mark.long)
            for arch, size in (("llama", 1), ("gemma3", 4), ("qwen3-next", 1))
        ),
        # one size for each of the others
        *(
            pytest.param(arch, 1 + 3 * (at % 2), marks=pytest.mark.long)
            for at, arch in enumerate(tiny.ALL)
            if arch not in tiny.THREE
        ),
    ],
)
def test_every_reply_of_an_answer_equals_one_without_a_cache(arch, size):
    compared = tiny.Compared(tiny.member(arch, 1))
    answer = tiny.relayed([compared, *tiny.companions(arch)], tiny.query(), size, turns=5)
    assert compared.count == 10 and compared.worst < NEAR
    foreign = [segment for segment in answer if compared.name not in segment.tokens]
    assert foreign and len(foreign) < len(answer)


@pytest.mark.parametrize("arch", tiny.THREE)
def test_a_cache_with_room_for_one_query_gives_the_same_replies(arch):
    member, intruder = tiny.member(arch, 1), tiny.query("Somebody else asks something.")
    cache, kept = member.cache, []
    cache.set_budget(1, 0)

    def another_query():
        member.draft([DraftJob(intruder, (), 2, 2, Sampling())])
        kept.append({key.query_id for key in cache.trunks})

    compared = tiny.Compared(member, before=another_query)
    tiny.relayed([compared, *tiny.companions(arch)], tiny.query(), 4, turns=3)
    assert compared.worst < NEAR
    assert kept == [{intruder.id}] * 6


@pytest.mark.parametrize("arch", ["llama4", "gemma2", "gpt-oss"])
@pytest.mark.parametrize(
    "text",
    [pytest.param("Why?", marks=pytest.mark.long), "The sky is blue. " * 12],
    ids=("short", "long"),
)
def test_chunked_attention_soft_caps_and_sinks_are_right_at_every_length(arch, text):
    compared = tiny.Compared(tiny.member(arch, 1))
    tiny.relayed([compared, *tiny.companions(arch)], tiny.query(text), 4, turns=3)
    assert compared.worst < NEAR


def test_rotations_that_change_with_the_length_are_not_used_beyond_it():
    """Otherwise a short query's numbers would depend on a long query in its batch."""
    member = tiny.member("phi3-long", 1)
    assert member.probe().max_context == 48
    short, long = (
        DraftJob(tiny.query(text), (), 4, 9, Sampling())
        for text in ("Why?", "The sky is blue. " * 9)
    )
    replies = member.draft([short, long])
    assert isinstance(replies[1], Failure) and replies[1].kind == "overflow"
    assert tiny.difference(replies[0], tiny.uncached(member).draft([short])[0]) < NEAR


# --- the caches themselves ------------------------------------------------------------------------


def chosen(arch, **options):
    with torch.inference_mode():
        parts = tiny.build(arch, 1, **options) if options else tiny.cached(arch, 1)
        return best_cache(in_memory(*parts))


def llamacpp(file, monkeypatch, cells):
    """Return a cache of llama.cpp with this initial size, and one that reads every text anew."""
    monkeypatch.setattr(llamacpp_cache, "CELLS", cells)
    weights = load(GgufSource(str(file)))
    fresh = LlamaCppCache(weights)
    fresh.cuts = False
    return LlamaCppCache(weights), fresh


def anew(cache, ids, count=1):
    """Return the logits after each of the last tokens, read with an empty cache."""
    cache.clear()
    return cache.with_room(lambda: cache.read([Extension(cache.blank(), ids, count)])[0], [])


def live(cache, truth, near, rounds=25):
    """Compare a long random life of a cache with fresh readings."""
    chance, texts = random.Random(7), {}

    def tokens(count):
        return [chance.randrange(10, 300) for _ in range(count)]

    def check(rows, ids, count=1):
        expected = anew(truth, ids, count)
        assert np.allclose(rows, expected, atol=near), float(abs(rows - expected).max())

    for _ in range(rounds):
        keys = chance.sample(KEYS, chance.randrange(1, 5))
        for key in keys:
            kept = texts.get(key, tokens(chance.randrange(1, 30)))
            if chance.random() < 0.3:
                kept = kept[: chance.randrange(1, len(kept) + 1)]
            texts[key] = kept + tokens(chance.randrange(0, 6))
        kind = chance.choice(["decode", "branches", "forget", "prefill"])
        wants = [(key, texts[key]) for key in keys]
        if kind in ("prefill", "decode"):
            for row, (_, ids) in zip(cache.prefill(wants, drafting=True), wants, strict=True):
                check(row, ids)
        for _ in range(3 if kind == "decode" else 0):
            new = tokens(len(keys))
            texts |= {key: [*texts[key], token] for key, token in zip(keys, new, strict=True)}
            for row, key in zip(cache.decode(keys, new), keys, strict=True):
                check(row, texts[key])
        if kind == "branches":
            asked = [
                Branches(
                    key,
                    ids,
                    [ids + tokens(k) for k in chance.sample(range(6), 3)] + [ids[:-1] + tokens(2)],
                )
                for key, ids in wants
            ]
            for branches, results in zip(asked, cache.read_branches(asked), strict=True):
                for ids, rows in zip(branches.branches, results, strict=True):
                    check(rows, ids, len(rows))
                texts[branches.key] = chance.choice([*branches.branches, branches.ids])
        if kind == "forget":
            cache.forget(keys[0])
            texts.pop(keys[0])
    cache.clear()
    assert cache.trunks == {} and cache.bytes_held == 0


@torch.inference_mode()
@pytest.mark.parametrize(
    "arch", tiny.three_first(["llama", "gemma3", "mistral", "gpt2", "qwen3-next", "bloom"])
)
def test_sequences_may_grow_shrink_and_disappear_in_any_order(arch):
    cache = chosen(arch)
    live(cache, tiny.Rereading(cache.weights), 2e-4)


@pytest.mark.real
@pytest.mark.parametrize("cells", [256, 2048])
def test_no_reply_of_llama_cpp_depends_on_what_else_its_cache_holds(cells, tiny_llama, monkeypatch):
    """With the small pool, live texts move to a larger pool again and again."""
    live(*llamacpp(tiny_llama, monkeypatch, cells), 1e-4, rounds=12)


@pytest.mark.real
@pytest.mark.long
def test_no_reply_of_real_weights_depends_on_what_else_the_cache_holds(monkeypatch):
    live(*llamacpp(file_of(SMOLLM2), monkeypatch, 256), 1e-4, rounds=12)


@pytest.mark.real
def test_states_that_llama_cpp_cannot_cut_are_copied_or_read_again(tiny_llama, monkeypatch):
    cache, truth = llamacpp(tiny_llama, monkeypatch, 2048)
    cache.cuts, cache.prefixes.whole = False, True
    # without a graveyard, the order of cells and therefore the last bits change
    live(cache, truth, 1.0, rounds=8)


@pytest.mark.real
def test_a_full_llama_cpp_cache_evicts_idle_sequences_before_it_raises(tiny_llama, monkeypatch):
    cache, _ = llamacpp(tiny_llama, monkeypatch, 256)
    cache.set_budget(256 * cache.token_bytes, 0)
    for k, key in enumerate(KEYS):
        cache.prefill([(key, list(range(10 + k, 110 + k)))])
    assert len(cache.trunks) < len(KEYS) and KEYS[-1] in cache.trunks
    with pytest.raises(MemoryError, match="a cache of 256 tokens is full"):
        cache.prefill([(KEYS[0], list(range(10, 400)))])


@torch.inference_mode()
@pytest.mark.parametrize("arch", tiny.THREE)
def test_the_least_recently_used_sequence_goes_first(arch):
    cache = chosen(arch)
    cache.set_budget(10**9, 0)
    a, b, c, *_ = KEYS
    for key in (a, b, a):
        cache.prefill([(key, [5, 6, 7])])
    cache.set_budget(cache.bytes_held, 0)
    cache.prefill([(c, [5, 8, 9])])
    cache.prefill([(c, [5, 8, 9, 10])])
    assert c in cache.trunks and b not in cache.trunks


@torch.inference_mode()
def test_a_batch_too_large_for_the_budget_is_split():
    cache = chosen("llama")
    cache.set_budget(3 * cache.bytes_for(20), 0)
    parts = cache.batches([20] * 8)
    assert [index for part in parts for index in range(8)[part]] == list(range(8))
    assert len(parts) > 1


@pytest.mark.parametrize("arch", tiny.THREE)
def test_a_forgotten_query_leaves_nothing_behind(arch):
    member = tiny.member(arch, prefix_cache=False)
    member.draft([DraftJob(query := tiny.query(), (), 3, 9, Sampling())])
    assert member.cache.bytes_held > 0
    member.forget(query.id)
    assert member.cache.bytes_held == 0 and not member.states
    member = tiny.member(arch, 1)
    for free in (member.drop_prefixes, lambda: member.cache.free_memory()):
        member.draft([DraftJob(query := tiny.query("The sky. " * 40), (), 3, 9, Sampling())])
        member.forget(query.id)
        bytes_before, _ = member.cache.bytes_held, free()
        assert bytes_before > 0 == member.cache.bytes_held


@pytest.mark.parametrize("arch", tiny.THREE)
def test_the_logits_of_a_draft_count_as_memory_while_it_is_written(arch):
    member, sizes = tiny.member(arch, 1), []
    cache = member.cache
    hook = member.cache.weights.model.register_forward_pre_hook(
        lambda *_: sizes.append(cache.logits_bytes)
    )
    (draft,) = member.draft([DraftJob(tiny.query(), (), 60, 60, Sampling())])
    hook.remove()
    row = 4 * member.cache.weights.vocabulary_size
    assert len(draft.tokens) > 5
    assert row < max(sizes) < 12 * row


# --- the trial ------------------------------------------------------------------------------------


def test_attention_of_any_kind_can_be_cut_and_recurrent_states_are_copied():
    details = {arch: tiny.member(arch).probe().detail.split(", ")[-1] for arch in tiny.ALL}
    copied = {
        "qwen3-next": "states",
        "lfm2": "states",
        "bloom": "keys and values in batches",
    }
    assert details == {arch: copied.get(arch, "keys and values in batches") for arch in tiny.ALL}


@pytest.mark.parametrize("window", [40, 512])
def test_a_window_off_by_one_is_detected_even_if_it_is_long(window, monkeypatch):
    assert chosen("gemma3", sliding_window=window).kind == "keys and values"
    honest = DynamicLayer.get_mask_sizes
    shifted = lambda length, offset: (length, offset + (length > 2))
    monkeypatch.setattr(
        DynamicLayer, "get_mask_sizes", lambda self, *more: shifted(*honest(self, *more))
    )
    assert chosen("gemma3", sliding_window=window).kind != "keys and values"


def test_a_model_that_cannot_go_back_in_a_text_is_refused_with_another_engine(monkeypatch):
    """Mamba's states take one token at a time."""
    with pytest.raises(MemberError, match="neither be cut nor copied") as raised:
        tiny.member("mamba").probe()
    assert "MambaForCausalLM" in str(raised.value) and "vLLM" in raised.value.notes[0]
    monkeypatch.setattr(ModelCache, "agrees", lambda *_: False)
    with pytest.raises(MemberError, match="gives other logits"):
        tiny.member("llama").probe()
