"""GGUF files in this process: constraints, adapters, recurrent states, long texts and refusals."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest

from langchain_specfuse import MemberError, Method, SpecFuseChatModel, UsageError
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.constraints import referee_for
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.demo import GEMMA, SMOLLM2, file_of
from langchain_specfuse.members.llamacpp import binding, model
from langchain_specfuse.members.llamacpp.cache import LlamaCppCache
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .. import fake_hub, tiny, tiny_gguf
from ..local.test_caches import KEYS, anew, live
from ..local.test_masking import BOUND, WEATHER

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def smol():
    return LlamaCppMember(file_of(SMOLLM2), name="smol")


@pytest.fixture(scope="module")
def small(tiny_llama):
    return LlamaCppMember(tiny_llama, name="small")


# --- constraints ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["schema", "regex", "choice", "calls"])
def test_every_constrained_answer_is_legal(kind, small):
    query = tiny.query("Describe Paris.", constraint=BOUND[kind])
    text = tiny.text_of(
        tiny.answered([small], query, Settings(max_tokens=60, method=Method(segment_tokens=6)))
    )
    assert text and referee_for(query.constraint).legal("", text) == len(text)


def test_structured_output_and_tool_calls(smol):
    llm = SpecFuseChatModel(members=[smol], max_tokens=120)
    schema = {
        "title": "City",
        "type": "object",
        "properties": {"name": {"enum": ["Paris", "Lyon"]}},
        "required": ["name"],
    }
    assert llm.with_structured_output(schema).invoke("The capital of France?")["name"] in (
        "Paris",
        "Lyon",
    )
    (call,) = (
        llm.bind_tools(
            [{"type": "function", "function": WEATHER | {"description": "The weather."}}],
            tool_choice="any",
        )
        .invoke("What is the weather in Paris?")
        .tool_calls
    )
    assert call["name"] == "get_weather" and set(call["args"]) == {"city", "unit"}


def test_a_question_asked_again_gets_the_same_numbers_on_two_threads_too(tiny_llama, monkeypatch):
    # Threads share the cells of the cache: what earlier answers left in them would change the
    # rounding.
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    member = LlamaCppMember(tiny_llama, name="two", prefix_cache=False, n_gpu_layers=0)
    replies = set()
    for _ in range(3):
        query = tiny.query("Tell a story. " * 25)
        replies |= {
            draft.logprobs for draft in member.draft([DraftJob(query, (), 12, 30, Sampling())])
        }
        member.forget(query.id)
    assert len(replies) == 1


# --- long drafts ----------------------------------------------------------------------------------


def test_a_whole_answer_keeps_the_logits_of_a_few_tokens_and_they_are_counted(tiny_llama):
    member = LlamaCppMember(tiny_llama)
    row = 4 * len(member.probe() and member.words.tokenizer)
    for count in (20, 300):  # the first run does the imports
        job = DraftJob(tiny.query(), (), count, count, Sampling())
        tracemalloc.start()
        (draft,) = member.draft([job])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len(draft.tokens) > 0.9 * count
    assert peak < 30 * row


def test_the_text_of_a_whole_answer_with_stop_strings_costs_as_much_for_every_token(
    tiny_llama, monkeypatch
):
    member, decoded = LlamaCppMember(tiny_llama), []
    member.probe()
    tokenizer = member.words.tokenizer
    decode = tokenizer.decode
    monkeypatch.setattr(
        tokenizer, "decode", lambda ids, **how: decoded.append(len(ids)) or decode(ids, **how)
    )
    cost = {}
    for count in (100, 400):
        decoded.clear()
        member.draft([DraftJob(tiny.query(), (), count, count, Sampling(), ("never written",))])
        cost[count] = sum(decoded)
    assert cost[400] < 6 * cost[100] and cost[400] < 100 * 400


# --- threads ----------------------------------------------------------------------------------


def test_the_environment_chooses_the_number_of_threads(tiny_llama, monkeypatch):
    for number, words in (("1", ", 1 thread,"), ("2", ", 2 threads,")):
        monkeypatch.setenv("OMP_NUM_THREADS", number)
        member = LlamaCppMember(tiny_llama, n_gpu_layers=0)
        assert words in member.probe().detail
        member.unload()


# --- adapters -------------------------------------------------------------------------------------


def adapter(path, scale, rows=tiny_gguf.WIDTH):
    """Return a LoRA of one layer of the tiny model (or of another base), in the format of
    llama.cpp's converter."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    chance = np.random.default_rng(3)
    writer.add_tensor(
        "blk.1.attn_q.weight.lora_a", chance.normal(0, 0.2, (4, rows)).astype(np.float32)
    )
    writer.add_tensor(
        "blk.1.attn_q.weight.lora_b", (scale * chance.normal(0, 1, (rows, 4))).astype(np.float32)
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_adapters_share_the_weights_of_their_base_and_change_only_their_own_member(
    tiny_llama, tmp_path, monkeypatch
):
    base, text = str(tiny_llama), "Why is the sky blue?"
    strong, none = adapter(tmp_path / "strong.gguf", 2.0), adapter(tmp_path / "none.gguf", 0.0)
    assert names_of([base, f"{base}+{strong}"]) == ["tiny", "strong"]
    plain, changed, same = (LlamaCppMember(base, adapter=file) for file in (None, strong, none))
    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        hub.add("me/law", {"law-Q4_K_M.gguf": Path(strong).read_bytes()})
        fetched = LlamaCppMember(base, adapter="hf:me/law")
        first = [
            member.draft([DraftJob(tiny.query(text), (), 12, 24, Sampling())])[0]
            for member in (plain, changed, same, fetched)
        ]
    assert first[0].text == first[2].text != first[1].text == first[3].text
    assert plain.cache.weights is changed.cache.weights is same.cache.weights
    with pytest.raises(MemberError, match="is not an adapter for"):
        LlamaCppMember(base, adapter=adapter(tmp_path / "other.gguf", 1.0, rows=32)).probe()


# --- recurrent states and windows -----------------------------------------------------------------


def mamba(path):
    """Return a tiny model with recurrent states and SmolLM2's tokenizer."""
    writer = gguf.GGUFWriter(path, "mamba")
    words = tiny_gguf.copy_tokenizer(writer)
    width, inner, state, rank = 32, 64, 8, 4
    for key, value in {
        "context_length": 512,
        "embedding_length": width,
        "feed_forward_length": 0,
        "block_count": 2,
    }.items():
        writer.add_uint32(f"mamba.{key}", value)
    writer.add_uint32("mamba.attention.head_count", 0)
    writer.add_float32("mamba.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in {
        "conv_kernel": 4,
        "inner_size": inner,
        "state_size": state,
        "time_step_rank": rank,
    }.items():
        writer.add_uint32(f"mamba.ssm.{key}", value)
    chance = np.random.default_rng(1)

    def put(name, *shape, scale=0.3, shift=0.0):
        writer.add_tensor(name, (chance.normal(0, scale, shape) + shift).astype(np.float32))

    put("token_embd.weight", words, width, scale=1.0)
    put("output_norm.weight", width, shift=1.0)
    for at in range(2):
        put(f"blk.{at}.attn_norm.weight", width, shift=1.0)
        put(f"blk.{at}.ssm_in.weight", 2 * inner, width)
        put(f"blk.{at}.ssm_conv1d.weight", inner, 4)
        put(f"blk.{at}.ssm_conv1d.bias", inner)
        put(f"blk.{at}.ssm_x.weight", rank + 2 * state, inner)
        put(f"blk.{at}.ssm_dt.weight", inner, rank)
        put(f"blk.{at}.ssm_dt.bias", inner)
        put(f"blk.{at}.ssm_a", inner, state, shift=-2.0)
        put(f"blk.{at}.ssm_d", inner)
        put(f"blk.{at}.ssm_out.weight", width, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_recurrent_states_are_copied_not_cut(tmp_path):
    weights = model.load(model.GgufSource(str(mamba(tmp_path / "mamba.gguf"))))
    store = LlamaCppCache(weights)
    assert not store.cuts and store.kind == "llama.cpp, a state that cannot be cut"
    live(store, LlamaCppCache(weights), 2e-4, rounds=8)


@pytest.mark.long
def test_texts_longer_than_gemmas_sliding_window_are_read_correctly():
    """Cutting a text back beyond the window and reading on in parts gives the logits of reading it
    at once."""
    store = LlamaCppCache(model.load(model.GgufSource(str(file_of(GEMMA)))))
    ids = [1000 + 37 * at % 5000 for at in range(620)]
    store.prefill([(KEYS[0], ids[:540] + ids[:30])], drafting=True)
    store.prefill([(KEYS[0], ids[:600])], drafting=True)
    (row,) = store.prefill([(KEYS[0], ids)])
    expected = anew(store, ids)[0]
    assert (row - expected).std() < 0.05 * expected.std()


# --- loading, pickling and errors -----------------------------------------------------------------


def test_it_is_named_by_its_file_and_pickled_without_its_weights(smol):
    smol.probe()
    copy = pickle.loads(pickle.dumps(smol))
    assert copy.cache is None and copy.spec == smol.spec == {"model": str(file_of(SMOLLM2))}
    smol.unload()
    assert smol.cache is None and smol.probe().scores


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ("missing.gguf", MemberError, "does not exist"),
        (".", MemberError, "is a folder"),
        ("foreign.gguf", MemberError, "is not a GGUF file"),
        ("short.gguf", MemberError, "llama.cpp cannot load"),
        ("head.gguf", MemberError, "llama.cpp cannot load"),
        ("empty.gguf", MemberError, "is empty"),
    ],
)
def test_an_unreadable_file_is_reported_before_anything_is_streamed(wrong, kind, words, tmp_path):
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "foreign.gguf").write_bytes(b"PK\x03\x04 something else")
    whole = file_of(SMOLLM2).read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[:3_000_000])
    (tmp_path / "head.gguf").write_bytes(whole[:3_000])
    with pytest.raises(kind, match=words) as refused:
        LlamaCppMember(tmp_path / wrong).probe()
    (note,) = refused.value.notes
    size = {"short.gguf": "3,000,000", "head.gguf": "3,000"}.get(wrong, "none")
    assert (f"the file of {size} bytes seems incomplete" in note) == (size != "none")


def test_unsupported_arguments_of_a_gguf_member_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"cache_type must be .*'q8_0'.*, got 'f64'"):
        LlamaCppMember("a.gguf", cache_type="f64")
    for wrong in (-3, True, 1.5, "some"):
        with pytest.raises(UsageError, match=f"n_gpu_layers must be .*'auto', got {wrong!r}"):
            LlamaCppMember("a.gguf", n_gpu_layers=wrong)
    with pytest.raises(UsageError, match="computes on the CPU alone"):
        LlamaCppMember(file_of(SMOLLM2), n_gpu_layers=4).probe()
    binding.llamacpp.cache_clear()
    monkeypatch.setattr(binding, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="xllamacpp is not installed"):
        binding.llamacpp()
    binding.llamacpp.cache_clear()


@pytest.mark.parametrize("params", [binding.ModelParams, binding.ContextParams])
def test_a_build_with_other_structures_is_refused_with_a_release_that_works(params, monkeypatch):
    name = next(iter(binding.DEFAULTS[params]))
    monkeypatch.setitem(binding.DEFAULTS[params], name, 77)
    binding.llamacpp.cache_clear()
    with pytest.raises(UsageError, match="other structures") as refused:
        binding.llamacpp()
    assert f"pip install xllamacpp=={binding.TESTED}" in refused.value.notes[0]
    binding.llamacpp.cache_clear()


def test_a_quantised_cache_takes_half_and_writes(tiny_llama):
    sizes = {
        kind: LlamaCppCache(model.load(model.GgufSource(str(tiny_llama), "auto", kind))).token_bytes
        for kind in ("f16", "q8_0")
    }
    assert sizes["q8_0"] < 0.6 * sizes["f16"]
    small, job = (
        LlamaCppMember(tiny_llama, cache_type="q8_0"),
        DraftJob(tiny.query(), (), 8, 16, Sampling()),
    )
    assert small.draft([job])[0].text
