"""Caches are only an acceleration: with them, without them, or with far too little room for them, the numbers agree."""

import random

import numpy as np
import pytest
import torch

from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.members.local.store import Branches, SequenceKey
from langchain_specfuse.members.transformers.kv.cache import BatchedCache
from langchain_specfuse.members.transformers.kv.snapshots import Snapshots
from langchain_specfuse.members.transformers.kv.store import Forward, NoCache

from . import tiny
from .tiny import NEAR

KEYS = [SequenceKey(name) for name in "abcdef"]


@pytest.mark.parametrize("arch", tiny.ALL)
@pytest.mark.parametrize("size", [1, 4])
def test_every_reply_of_an_answer_equals_one_without_a_cache(arch, size):
    compared = tiny.Compared(tiny.member(arch, 1))
    answer = tiny.relayed([compared, *tiny.companions(arch)], tiny.query(), size, turns=7)
    assert compared.count == 14 and compared.worst < NEAR
    foreign = [segment for segment in answer if compared.name not in segment.tokens]
    assert foreign and len(foreign) < len(answer)


@pytest.mark.parametrize("arch", tiny.THREE)
def test_a_cache_with_room_for_one_query_is_slower_and_never_wrong(arch):
    member, intruder = tiny.member(arch, 1), tiny.query("Somebody else asks something.")
    store, held = member.loaded.store, []
    store.set_budget(1, 0)

    def another_query():
        member.draft([DraftJob(intruder, (), 2, 2, Sampling())])
        held.append({key.query_id for key in store.open_sequences})

    compared = tiny.Compared(member, before=another_query)
    tiny.relayed([compared, *tiny.companions(arch)], tiny.query(), 4, turns=5)
    assert compared.worst < NEAR
    assert held == [{intruder.id}] * 10


@pytest.mark.parametrize("arch", ["gemma3", "mistral"])
def test_a_text_may_be_many_times_as_long_as_the_sliding_window(arch):
    compared = tiny.Compared(tiny.member(arch, 1))
    query = tiny.query("The sky is blue because of the air. " * 4)
    tiny.relayed([compared, *tiny.companions(arch)], query, 6, turns=6)
    assert compared.worst < NEAR
    assert compared.member.token_count(query.turns) > 4 * 10


@pytest.mark.parametrize("arch", ["llama4", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("text", ["Why?", "The sky is blue. " * 12])
def test_chunked_attention_soft_caps_and_sinks_are_right_at_every_length(arch, text):
    compared = tiny.Compared(tiny.member(arch, 1))
    tiny.relayed([compared, *tiny.companions(arch)], tiny.query(text), 4, turns=5)
    assert compared.worst < NEAR


def test_rotations_that_change_with_the_length_are_not_used_beyond_it():
    """Else the numbers of a short query would depend on a long one in its batch."""
    member = tiny.member("phi3-long", 1)
    assert member.probe().max_context == 48
    short, long = (DraftJob(tiny.query(text), (), 4, 9, Sampling()) for text in ("Why?", "The sky is blue. " * 9))
    replies = member.draft([short, long])
    assert isinstance(replies[1], Failure) and replies[1].kind == "overflow"
    assert tiny.difference(replies[0], tiny.uncached(member).draft([short])[0]) < NEAR


# --- the stores themselves --------------------------------------------------------------------------------------


def store_of(arch):
    """The store for this model, and the measure."""
    model, _ = tiny.cached(arch, 1)
    forward = Forward(model)
    windows = BatchedCache.windows_of(model.config)
    return BatchedCache(forward, windows) if windows else Snapshots(forward), NoCache(forward)


def check(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert np.allclose(one, other, atol=2e-4), float(abs(one - other).max())


@torch.inference_mode()
@pytest.mark.parametrize("weightless", [False, True])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "gpt2", "qwen3-next"])
def test_sequences_come_go_grow_and_go_back_in_any_order(arch, weightless, monkeypatch):
    """A long random life against fresh readings. Weightless: padding costs most, so passes are split all the time."""
    if weightless:
        monkeypatch.setattr(torch.nn.Parameter, "nbytes", 0)
    chance = random.Random(7)
    store, truth = store_of(arch)
    texts = {}

    def tokens(count):
        return [chance.randrange(10, 300) for _ in range(count)]

    for _ in range(40):
        keys = chance.sample(KEYS, chance.randrange(1, 5))
        for key in keys:
            kept = texts.get(key, tokens(chance.randrange(1, 30)))
            kept = kept[: chance.randrange(1, len(kept) + 1)] if chance.random() < 0.3 else kept
            texts[key] = kept + tokens(chance.randrange(0, 6))
        kind = chance.choice(["decode", "branches", "forget", "prefill"])
        wants = [(key, texts[key]) for key in keys]
        if kind in ("prefill", "decode"):
            check(store.prefill(wants, drafting=True), truth.prefill(wants))
        if kind == "decode":
            for _ in range(3):
                new = tokens(len(keys))
                check(store.decode(keys, new), truth.decode(keys, new))
                texts |= {key: [*texts[key], token] for key, token in zip(keys, new, strict=True)}
        if kind == "branches":
            asked = [
                Branches(key, ids, [ids + tokens(k) for k in chance.sample(range(6), 3)] + [ids[:-1] + tokens(2)])
                for key, ids in wants
            ]
            for one, other in zip(store.read_branches(asked), truth.read_branches(asked), strict=True):
                check(one, other)
            texts |= {one.key: chance.choice([*one.branches, one.ids]) for one in asked}
        if kind == "forget":
            store.forget(keys[0])
            texts.pop(keys[0])
    store.clear()
    assert store.open_sequences == [] and store.bytes_held == 0


@torch.inference_mode()
@pytest.mark.parametrize("arch", tiny.THREE)
def test_the_least_recently_used_sequence_goes_first(arch):
    store, _ = store_of(arch)
    a, b, c, *_ = KEYS
    for key in (a, b, a):
        store.prefill([(key, [5, 6, 7])])
    store.set_budget(store.bytes_held, 0)
    store.prefill([(c, [5, 8, 9])])
    store.prefill([(c, [5, 8, 9, 10])])
    assert c in store.open_sequences and b not in store.open_sequences


@torch.inference_mode()
def test_memory_stays_within_the_budget_whatever_comes_and_goes():
    store, truth = store_of("llama")
    store.prefill([(KEYS[0], [5, 6, 7])])
    store.set_budget(5 * store.bytes_for(256), 0)
    chance = random.Random(7)
    for turn in range(40):
        wants = {key: list(range(5, 5 + chance.randrange(4, 180))) for key in chance.sample(KEYS, 2)}
        check(store.prefill(list(wants.items()), drafting=True), truth.prefill(list(wants.items())))
        for _ in range(9):
            store.decode(list(wants), [7] * len(wants))
        assert store.rows.bytes <= store.budget
        if turn % 5 == 0:
            store.forget(next(iter(wants)))


@torch.inference_mode()
def test_a_batch_too_large_for_the_budget_is_split():
    store, _ = store_of("llama")
    store.prefill([(KEYS[0], [5, 6])])
    store.set_budget(3 * store.bytes_for(256), 0)
    parts = store.batches([20] * 8)
    assert [index for part in parts for index in range(8)[part]] == list(range(8))
    assert len(parts) > 1


@pytest.mark.parametrize("arch", tiny.THREE)
def test_a_forgotten_query_leaves_nothing_behind(arch):
    member = tiny.member(arch, prefix_cache=False)
    member.draft([DraftJob(query := tiny.query(), (), 3, 9, Sampling())])
    assert member.loaded.store.bytes_held > 0
    member.forget(query.id)
    assert member.loaded.store.bytes_held == 0 and not member.loaded.states
