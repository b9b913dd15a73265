"""The cache of a model is chosen by a trial, and the result is believed for exactly what was tried."""

import pytest
import torch

from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.members.transformers.kv import cache as kv_cache
from langchain_specfuse.members.transformers.kv import trial
from langchain_specfuse.members.transformers.kv.cache import BatchedCache
from langchain_specfuse.members.transformers.kv.snapshots import Snapshots
from langchain_specfuse.members.transformers.kv.store import Forward

from . import tiny

TOKENS = list(range(20, 49))


@pytest.fixture(autouse=True)
def tried(monkeypatch, tmp_path):
    """Results in a folder of their own; the stores that were tried."""
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    tries, agrees = [], trial.agrees

    def counted(store, *arguments):
        tries.append(store.kind)
        return agrees(store, *arguments)

    monkeypatch.setattr(trial, "agrees", counted)
    return tries


def chosen(model, remember=True):
    with torch.inference_mode():
        return trial.best_store(Forward(model), TOKENS, 0, "it", remember=remember)


# --- the choice -------------------------------------------------------------------------------------------------


def test_attention_of_any_kind_gets_the_batched_cache_and_recurrent_states_get_snapshots():
    found = {arch: tiny.member(arch).probe().detail.split(", ")[-1] for arch in tiny.ALL}
    slow = ["qwen3-next", "mamba", "lfm2", "bloom"]
    assert found == {arch: "snapshots" if arch in slow else "batched cache" for arch in tiny.ALL}


def test_a_cache_that_ignores_the_sliding_window_is_found_out(monkeypatch):
    monkeypatch.setattr(BatchedCache, "_within", lambda self, visible, held, positions, sliding: visible)
    monkeypatch.setattr("langchain_specfuse.members.transformers.kv.rows.Window.first_column", lambda *_: 0)
    assert isinstance(chosen(tiny.cached("gemma3")[0]), Snapshots)
    assert isinstance(chosen(tiny.cached("llama")[0]), BatchedCache)


@pytest.mark.parametrize("window", [40, 512])
def test_a_cache_whose_window_is_off_by_one_is_found_out_also_when_it_is_long(window, monkeypatch):
    model, _ = tiny.made("gemma3", sliding_window=window)
    assert isinstance(chosen(model, remember=False), BatchedCache)
    honest = BatchedCache.windows_of

    def wide(config):
        return [one and one + 1 for one in honest(config)]

    monkeypatch.setattr(BatchedCache, "windows_of", wide)
    assert isinstance(chosen(model, remember=False), Snapshots)


def test_a_cache_whose_positions_are_off_by_one_is_found_out(monkeypatch):
    honest = Forward.__call__

    def shifted(self, ids, *, position_ids=None, **more):
        if position_ids is not None:
            position_ids = position_ids + (position_ids > 4).long()
        return honest(self, ids, position_ids=position_ids, **more)

    monkeypatch.setattr(Forward, "__call__", shifted)
    for arch in ("llama", "gpt2", "gemma3"):
        assert isinstance(chosen(tiny.cached(arch)[0]), Snapshots)


def test_a_cache_whose_branches_see_each_other_is_found_out(monkeypatch):
    honest = kv_cache.visible_columns

    def leaky(columns, trunk, begin, width, scratch):
        apart = begin[begin > trunk]
        return honest(columns, trunk, begin.clamp_max(int(apart.min())) if len(apart) else begin, width, scratch)

    monkeypatch.setattr(kv_cache, "visible_columns", leaky)
    assert isinstance(chosen(tiny.cached("llama")[0]), Snapshots)


def test_one_wrong_text_among_many_is_enough(monkeypatch):
    """The largest error counts, not the average."""
    honest, calls = BatchedCache.decode, []

    def wrong_once(self, keys, tokens):
        calls.append(keys)
        logits = honest(self, keys, tokens)
        return [logits[0][::-1].copy(), *logits[1:]] if len(calls) == 2 else logits

    monkeypatch.setattr(BatchedCache, "decode", wrong_once)
    assert isinstance(chosen(tiny.cached("llama")[0]), Snapshots)


def test_a_model_with_which_no_cache_agrees_is_read_anew(monkeypatch):
    monkeypatch.setattr(trial, "agrees", lambda *_: False)
    member, query = tiny.member("llama", 1), tiny.query()
    assert member.probe().detail.endswith("no cache")
    (draft,) = member.draft([DraftJob(query, (), 5, 12, Sampling())])
    assert list(draft.tokens) == tiny.greedy(member, query, 12)[: len(draft.tokens)]


@torch.inference_mode()
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_snapshots_are_right_where_the_batched_cache_is_too(arch):
    forward = Forward(tiny.cached(arch)[0])
    assert trial.agrees(Snapshots(forward), TOKENS)


# --- results on disk --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "qwen3-next"])
def test_the_second_start_finds_the_same_store_without_a_trial(arch, tried):
    model, _ = tiny.cached(arch, 1)
    first = chosen(model)
    assert tried
    tried.clear()
    again = chosen(model)
    assert not tried and type(again) is type(first)
    assert getattr(again, "whole", None) == getattr(first, "whole", None)
    # What a sequence takes is known before the first question.
    assert again.bytes_for(1000) == pytest.approx(first.bytes_for(1000), rel=0.05)
    assert again.bytes_held == 0 and again.tokens_read == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"store": "attic"}', '{"store": 7}', "\xff"])
def test_a_result_that_makes_no_sense_is_ignored_and_replaced(text, tried, tmp_path):
    model, _ = tiny.cached("llama", 1)
    chosen(model)
    (file,) = (tmp_path / "cache" / "trials").iterdir()
    file.write_text(text, encoding="latin-1")
    tried.clear()
    assert isinstance(chosen(model), BatchedCache) and tried == ["batched cache"]
    tried.clear()
    chosen(model)
    assert not tried
