"""Where a member goes: a pure decision, and what accelerate makes of it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig

from langchain_specfuse.core.values import Settings
from langchain_specfuse.members._loading import Source, _dtype, _where
from langchain_specfuse.members._placement import HEADROOM, available_memory, free_memory, placed, weights_of
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny
from .test_transformers_cache import NEAR, Doubled

gpus = st.dictionaries(st.integers(0, 7), st.integers(0, 10**12))
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@given(st.integers(1, 10**12), gpus)
def test_a_member_goes_whole_where_there_is_most_room_or_is_split(weights, free):
    place = placed(weights, free)
    if not free:
        assert place == "cpu"
    elif place == "auto":
        assert all(weights * HEADROOM > room for room in free.values())
    else:
        assert free[place] == max(free.values()) and weights * HEADROOM <= free[place]


def test_members_spread_over_equal_gpus_by_what_is_left():
    free = {0: 100, 1: 100}
    places = []
    for weights in (30, 30, 20, 20):
        place = placed(weights, free)
        places.append(place)
        free[place] -= weights
    assert sorted(places) == [0, 0, 1, 1]


def test_weights_are_counted_without_loading_them():
    model, _ = tiny.cached("llama")
    assert weights_of(model.config, 4) == sum(p.numel() for p in model.parameters()) * 4
    huge = LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=4)
    assert weights_of(huge, 2) > 5e9


@pytest.mark.parametrize(
    ("source", "free", "wanted"),
    [
        (Source("m"), {}, {}),
        (Source("m", device="cpu"), {0: 10**12}, {}),
        (Source("m", device="cuda:1"), {0: 10**12}, {"device_map": {"": "cuda:1"}}),
        (Source("m", device_map="auto"), {}, {"device_map": "auto"}),
        (Source("m"), {0: 10**11, 1: 10**12}, {"device_map": {"": 1}}),
        (Source("m"), {0: 10}, {"device_map": "auto"}),
    ],
    ids=str,
)
def test_what_the_user_says_goes_first(source, free, wanted, monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._loading.free_memory", lambda: free)
    assert _where(source, tiny.cached("llama")[0].config, torch.float32) == wanted


def test_a_gguf_file_goes_to_the_roomiest_gpu(monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._loading.free_memory", lambda: {0: 5, 1: 9})
    assert _where(Source("m.gguf"), None, torch.float32) == {"device_map": {"": 1}}


@pytest.mark.parametrize(
    ("own", "gpus", "fast", "wanted"),
    [
        (torch.bfloat16, {0: 9}, False, torch.bfloat16),
        (torch.bfloat16, {}, True, torch.bfloat16),
        (torch.bfloat16, {}, False, torch.float32),
        (torch.float16, {}, False, torch.float32),
        (torch.float32, {}, True, torch.float32),
    ],
)
def test_half_precision_only_where_it_is_computed(own, gpus, fast, wanted, monkeypatch):
    monkeypatch.setattr("langchain_specfuse.members._loading.free_memory", lambda: gpus)
    monkeypatch.setattr("langchain_specfuse.members._loading.computes_bfloat16", lambda: fast)
    assert _dtype("auto", LlamaConfig(dtype=own), None) == wanted
    assert _dtype("float16", LlamaConfig(dtype=own), None) == torch.float16


def test_memory_is_told_in_bytes():
    assert available_memory("cpu") > 10**7
    assert all(0 <= room < 10**15 for room in free_memory().values())


def test_accelerate_places_a_member_on_the_cpu_too(tmp_path):
    model, tokenizer = tiny.cached("llama", 1)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    member = TransformersMember(str(tmp_path), name="llama-1", dtype="float32", device_map="auto")
    member.probe()
    settings = Settings(max_tokens=12)
    wanted = tiny.text_of(tiny.answered([tiny.member("llama", 1)], tiny.query(), settings))
    assert tiny.text_of(tiny.answered([member], tiny.query(), settings)) == wanted


# --- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    def saved(arch):
        model, tokenizer = tiny.cached(arch, 1)
        model.save_pretrained(tmp_path / arch)
        tokenizer.save_pretrained(tmp_path / arch)
        return str(tmp_path / arch)

    return saved


@needs_gpu
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "qwen3-next", "mamba"])
def test_on_a_gpu_every_reply_equals_one_without_memory(folder, arch):
    member = TransformersMember(folder(arch), name="one", dtype="float32", device="cuda:0")
    member.probe()
    other = TransformersMember(folder("phi3"), name="other", dtype="float32", device="cuda:0")
    other.probe()
    assert member.device == other.device == "cuda:0"  # one desk
    doubled = Doubled(member)
    tiny.relayed([doubled, other], tiny.query(), 4, turns=6)
    assert doubled.worst < 10 * NEAR


@needs_gpu
@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_on_a_gpu_in_bfloat16_scores_stay_near_those_without_memory(folder, arch):
    member = TransformersMember(folder(arch), name="one", dtype="bfloat16", device="cuda:0")
    assert "slab" in member.probe().detail
    doubled = Doubled(member)
    other = TransformersMember(folder("phi3"), name="other", dtype="bfloat16", device="cuda:0")
    other.probe()
    slow, near = doubled.slow, []
    answer = tiny.relayed([doubled, other], tiny.query(), 4, turns=4)
    job = tiny.ScoreJob(tiny.query(), answer, (tiny.Candidate(" is blue", False, ("x",)),))
    for quick, wanted in zip(member.score([job])[0].logprobs[0], slow.score([job])[0].logprobs[0], strict=True):
        near.append(abs(quick - wanted))
    assert sum(near) / len(near) < 0.3
    assert all(math.isfinite(value) for value in near)


@needs_gpu
def test_unnamed_devices_find_the_gpu(folder):
    member = TransformersMember(folder("llama"), name="one", dtype="float32")
    member.probe()
    assert member.device.startswith("cuda")
