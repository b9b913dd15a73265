"""Caches are only an acceleration: with them, without them, or with far too little room for them, the numbers agree."""

import pytest
import torch

from langchain_specfuse.core.values import (
    Candidate,
    DraftJob,
    Failure,
    Query,
    Sampling,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.members import _layers, _slab, _stores
from langchain_specfuse.members._slab import Slab
from langchain_specfuse.members._snapshots import Snapshots
from langchain_specfuse.members._stores import Fan, Read, Rereading
from langchain_specfuse.members._trial import right

from . import tiny

NEAR = 1e-4


class Doubled:
    """A member beside its slow self: every reply is compared with one that no cache had a part in."""

    def __init__(self, member, before=lambda: None):
        self.member, self.slow, self.before = member, tiny.rereading(member), before
        self.name, self.worst, self.compared = member.name, 0.0, 0

    def draft(self, jobs):
        return self._asked("draft", jobs)

    def score(self, jobs):
        return self._asked("score", jobs)

    def forget(self, query_id):
        self.member.forget(query_id)

    def _asked(self, work, jobs):
        self.before()
        (quick,) = getattr(self.member, work)(jobs)
        self.slow.forget(jobs[0].query.id)
        (slow,) = getattr(self.slow, work)(jobs)
        self.worst = max(self.worst, tiny.difference(quick, slow))
        self.compared += 1
        return [quick]


def companions(arch):
    """Another tokenizer, and the same with other weights."""
    return [tiny.member("phi3" if arch != "phi3" else "qwen3", 1), tiny.member(arch, 3)]


@pytest.mark.parametrize("arch", tiny.ALL)
@pytest.mark.parametrize("size", [1, 4])
def test_every_reply_of_an_answer_equals_one_without_memory(arch, size):
    doubled = Doubled(tiny.member(arch, 1))
    answer = tiny.relayed([doubled, *companions(arch)], tiny.query(), size, turns=7)
    assert doubled.compared == 14
    assert doubled.worst < NEAR
    foreign = [segment for segment in answer if doubled.name not in segment.tokens]
    assert foreign and len(foreign) < len(answer)


@pytest.mark.parametrize("arch", tiny.SLAB[:4])
def test_a_cache_that_is_far_too_small_is_slower_and_never_wrong(arch):
    member = tiny.member(arch, 1, cache_bytes=1)
    intruder = tiny.query("Somebody else asks something.")
    evicted = []

    def another_query():
        member.draft([DraftJob(intruder, (), 2, 2, Sampling())])
        evicted.append({key.query_id for key in member.store.rows} == {intruder.id})

    doubled = Doubled(member, before=another_query)
    tiny.relayed([doubled, *companions(arch)], tiny.query(), 4, turns=5)
    assert doubled.worst < NEAR
    assert len(evicted) == 10 and all(evicted)


@pytest.mark.parametrize("arch", ["gemma3", "mistral"])
def test_sliding_windows_slide_far_past_their_size(arch):
    member = tiny.member(arch, 1)
    window = max(window for window in member.store.windows if window)
    doubled = Doubled(member)
    query = tiny.query("The sky is blue because of the air. " * 4)
    tiny.relayed([doubled, *companions(arch)], query, 6, turns=6)
    assert len(member._prompt_ids(query.turns)) > 4 * window
    assert doubled.worst < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_long_prompts_are_read_in_parts(arch, monkeypatch):
    monkeypatch.setattr(_stores, "PIECE", 16)
    member = tiny.member(arch, 1)
    member.probe()
    assert member.store.piece == 16
    doubled = Doubled(member)
    query = tiny.query("The air scatters blue light more than red light. " * 3)
    tiny.relayed([doubled, *companions(arch)], query, 5, turns=2)
    assert doubled.worst < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3", "bloom"])
def test_eager_attention_gives_the_same_answer(arch):
    query = tiny.query()
    settings = Settings(segment_tokens=4, max_tokens=16)
    told = [
        tiny.answered([tiny.member(arch, 1, made_with={"attn": attn})], query, settings) for attn in ("eager", None)
    ]
    assert tiny.text_of(told[0]) == tiny.text_of(told[1])


@pytest.mark.parametrize("arch", tiny.ALL)
def test_an_end_alone_is_scored_without_reading_anything(arch):
    member = tiny.member(arch)
    answer = (Segment("The sky is blue."),)
    query = tiny.query()
    # A plain template's end is words, which must be read; a stop token's is not.
    (draft,) = member.draft([DraftJob(query, answer, 3, 9, Sampling())])
    read = member.store.passed
    (scored,) = member.score([ScoreJob(query, answer, (Candidate("", True, ("x",)),))])
    assert len(scored.logprobs) == len(scored.logprobs[0]) == 1
    if member.store.__class__ is Slab and not member.end_ids:
        assert member.store.passed == read
    assert draft.tokens


@pytest.mark.parametrize("arch", ["llama4", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("text", ["Why?", "The sky is blue. " * 6, "The sky is blue. " * 12])
def test_other_families_are_right_too_at_every_length(arch, text):
    """Chunked attention, soft caps and sinks: each is right, or gets a slower store."""
    doubled = Doubled(tiny.member(arch, 1))
    tiny.relayed([doubled, *companions(arch)], tiny.query(text), 4, turns=5)
    assert doubled.worst < NEAR


def test_rotations_that_change_with_the_length_are_not_used_beyond_it():
    """Else the numbers of a short query would hang on a long one in its batch."""
    member = tiny.member("phi3-long", 1)
    assert member.probe().max_context == 48
    short, long = (DraftJob(tiny.query(text), (), 4, 9, Sampling()) for text in ("Why?", "The sky is blue. " * 9))
    told = member.draft([short, long])
    assert isinstance(told[1], Failure) and told[1].kind == "overflow"
    assert tiny.difference(told[0], tiny.rereading(member).draft([short])[0]) < NEAR


# --- the choice of a store --------------------------------------------------------------------------------------


def test_attention_of_any_kind_gets_the_slab_and_recurrent_states_get_snapshots():
    found = {arch: type(tiny.member(arch).store).__name__ for arch in tiny.ALL}
    slow = [*tiny.RECURRENT, "bloom"]
    assert found == {arch: "Snapshots" if arch in slow else "Slab" for arch in tiny.ALL}


def test_a_slab_that_ignores_the_window_is_found_out(monkeypatch):
    def all_of_it(seen, held, positions, where, window):
        return seen

    monkeypatch.setattr(_slab, "within", all_of_it)
    monkeypatch.setattr(_layers, "lowest_column", lambda where, window: 0)
    assert isinstance(tiny.member("gemma3").store, Snapshots)
    assert isinstance(tiny.member("llama").store, Slab)


def test_a_slab_whose_positions_are_off_by_one_is_found_out(monkeypatch):
    honest = Slab._pass

    def shifted(self, ids, positions, view, keep):
        return honest(self, ids, positions + (positions > 4).long(), view, keep)

    monkeypatch.setattr(Slab, "_pass", shifted)
    for arch in ("llama", "gpt2", "gemma3"):
        assert isinstance(tiny.member(arch).store, Snapshots)


def test_a_slab_whose_branches_see_each_other_is_found_out(monkeypatch):
    honest = _slab.tree

    def leaky(columns, trunk, begin, where):
        return honest(columns, trunk, begin.clamp_max(int(begin[begin > 0].min())), where)

    monkeypatch.setattr(_slab, "tree", leaky)
    assert isinstance(tiny.member("llama").store, Snapshots)


def test_a_model_with_which_no_cache_agrees_is_read_anew(monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._trial.right", lambda store, vocabulary: False)
    member = tiny.member("llama", 1)
    query = tiny.query()
    assert isinstance(member.store, Rereading)
    told = tiny.answered([member], query, Settings(segment_tokens=5, max_tokens=12))
    assert tiny.tokens_of(told, member.name) == tiny.greedy(member, query, 12)


@torch.inference_mode()
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_snapshots_are_right_where_the_slab_is_too(arch):
    model, _ = tiny.made(arch)
    assert right(Snapshots(Read(model)), list(range(10, 39)))
    assert right(Slab(Read(model), Slab.windows_of(model.config)), list(range(10, 39)))


# --- the slab itself --------------------------------------------------------------------------------------------


def slab_of(arch, budget=None):
    model, _ = tiny.made(arch)
    read = Read(model)
    return Slab(read, Slab.windows_of(model.config), budget), Rereading(read)


@torch.inference_mode()
@pytest.mark.parametrize("weightless", [False, True])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "gpt2"])
def test_rows_come_go_grow_and_go_back_in_any_order(arch, weightless):
    """A long random life of a slab against fresh readings. Weightless: passes are parted, rows moved all the time."""
    import random

    rng = random.Random(7)
    slab, truth = slab_of(arch)
    slab._weight = 0 if weightless else slab._weight
    moved, swap = [], slab._swap
    slab._swap = lambda *rows: (moved.append(rows), swap(*rows))
    texts = {}

    def tokens(count):
        return [rng.randrange(10, 300) for _ in range(count)]

    for turn in range(60):
        keys = rng.sample("abcdef", rng.randrange(1, 5))
        for key in keys:
            kept = texts.get(key, tokens(rng.randrange(1, 30)))
            kept = kept[: rng.randrange(1, len(kept) + 1)] if rng.random() < 0.3 else kept
            texts[key] = kept + tokens(rng.randrange(0, 6))
        kind = rng.choice(["step", "fan", "forget", "lead"])
        wants = [(key, texts[key]) for key in keys]
        if kind in ("lead", "step"):
            check(slab.lead(wants, exact=True), truth.lead(wants), turn)
        if kind == "step":
            for _ in range(3):
                new = tokens(len(keys))
                check(slab.step(keys, new), truth.step(keys, new), turn)
                for key, token in zip(keys, new, strict=True):
                    texts[key] = [*texts[key], token]
        if kind == "fan":
            fans = [
                Fan(key, ids, [ids + tokens(k) for k in rng.sample(range(6), 3)] + [ids[:-1] + tokens(2)])
                for key, ids in wants
            ]
            for one, other in zip(slab.fan(fans), truth.fan(fans), strict=True):
                check(one, other, turn)
            for fan in fans:
                texts[fan.key] = rng.choice([*fan.branches, fan.ids])
        if kind == "forget":
            slab.forget(keys[0])
            texts.pop(keys[0])
        assert sorted(row.index for row in slab.rows.values()) == list(range(len(slab.rows)))
    assert bool(moved) == weightless
    slab.clear()
    assert not slab.rows and all(layer.keys.numel() == 0 for layer in slab.cache.layers)


@torch.inference_mode()
def test_a_long_row_widens_nobodys_pass():
    """Who is asked beside it is read in a pass of its own, as narrow as ever, and the long one comes to lie first."""
    slab, truth = slab_of("llama")
    slab._weight = 100 * 4 * 64  # a hundred columns or so
    seen, real = [], slab._pass
    slab._pass = lambda *told, **more: seen.append((slab.where.count, slab.where.width)) or real(*told, **more)
    wants = [(key, [20 + at] * size) for at, (key, size) in enumerate({"a": 5, "b": 9, "long": 400, "c": 7}.items())]
    check(slab.lead(wants, exact=True), truth.lead(wants), 0)
    keys = [key for key, _ in wants]
    slab.lead(wants[:1])  # whoever is seated next, rows have found their places
    seen.clear()
    check(slab.step(keys, [30, 31, 32, 33]), truth.step(keys, [30, 31, 32, 33]), 1)
    assert seen == [(1, 401), (3, 10)]
    fans = [Fan(key, [*ids, 30 + at], [[*ids, 30 + at, 40, 41]]) for at, (key, ids) in enumerate(wants)]
    seen.clear()
    for found, wanted in zip(slab.fan(fans), truth.fan(fans), strict=True):
        check(found, wanted, 2)
    assert seen[-2:] == [(1, 403), (3, 12)]  # before these, the tokens that the steps read, for what comes after them
    for want in fans:
        slab.turn_back(want.key, want.ids)
    seen.clear()
    told = [(want.key, [50, 51]) for want in fans]
    wanted = [truth.fan([Fan(w.key, w.ids, [[*w.ids, 50, 51]])])[0][0][1:] for w in fans]
    check(slab.stride(told), wanted, 3)
    assert seen == [(1, 403), (3, 12)]
    slab.drop("long")
    assert sorted(row.index for row in slab.rows.values()) == [0, 1, 2]


def check(found, wanted, turn):
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=2e-4), (turn, float((one - other).abs().max()))


@torch.inference_mode()
def test_the_least_recently_used_row_goes_first():
    slab, _ = slab_of("llama")
    slab.lead([("a", [5, 6])])
    slab.budget = 2 * slab._bytes_per_token() * slab.capacity[1]
    slab.lead([("b", [5, 7])])
    slab.lead([("a", [5, 6, 7])])
    slab.lead([("c", [5, 8])])
    assert set(slab.rows) == {"a", "c"}


@torch.inference_mode()
def test_a_batch_too_big_for_the_budget_is_parted():
    slab, _ = slab_of("llama")
    slab.lead([("a", [5, 6])])
    slab.budget = 3 * slab._bytes_per_token() * 256
    parts = slab.batches([20] * 8)
    assert [index for part in parts for index in range(8)[part]] == list(range(8))
    assert len(parts) == 3


def test_the_slabs_memory_goes_back_when_the_last_query_is_forgotten():
    member = tiny.member("llama")
    query = Query("only", (Turn("user", "Why?"),))
    member.draft([DraftJob(query, (), 3, 9, Sampling())])
    assert member.store.cache.layers[0].keys.numel() > 0
    member.forget("only")
    assert member.store.cache.layers[0].keys.numel() == 0
    assert not member._memos


@pytest.mark.parametrize("arch", ["llama", "gpt2", "phi3"])
def test_a_short_draft_does_not_depend_on_a_long_one_before_it(arch):
    """Tokens drawn ahead come in one by one, as if drawn now: the draft ends where it would have ended without them."""
    member, slow = tiny.member(arch, 1), tiny.rereading(tiny.member(arch, 1))
    for size in (1, 2, 3):
        query = tiny.query("def add(a, b):\n")
        (long,) = member.draft([DraftJob(query, (), 24, 64, Sampling())])
        for count in range(1, len(long.tokens) - 1, 3):
            text, _ = member.words.told(member._memo(query).prompt, long.tokens[:count])
            answer = (Segment(text, tokens={member.name: long.tokens[:count]}),)
            member.draft([DraftJob(query, (), 24, 64, Sampling())])
            job = DraftJob(query, answer, size, 64, Sampling())
            slow.forget(query.id)
            assert tiny.difference(member.draft([job])[0], slow.draft([job])[0]) < NEAR
