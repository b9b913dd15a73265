"""What a model needs by its files equals what it takes once it is loaded."""

from __future__ import annotations

import json
from dataclasses import replace

import gguf
import numpy
import pytest
import torch
import transformers
from huggingface_hub import constants

from langchain_specfuse.demo import ENSEMBLES, file_of
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.hub import fetched
from langchain_specfuse.members.llamacpp.member import LlamaCppMember
from langchain_specfuse.members.sizes import DEFAULTS, Size, size_of

from . import fake_hub, tiny

TOKENS = 48
"""Longer than the tiny models' sliding windows."""


def changed(folder, **values):
    """Change values of config.json; None removes one."""
    file = folder / "config.json"
    config = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def cached_bytes(model, tokens):
    """Return the bytes of all keys, values and states after so many tokens."""
    ids = torch.arange(tokens)[None] % 200
    with torch.no_grad():
        output = model(ids, use_cache=True)
    cache = output.get("past_key_values") or output["cache_params"]
    tensors = [
        value
        for layer in cache.layers
        for state in vars(layer).values()
        for value in (state.values() if isinstance(state, dict) else [state])
        if isinstance(value, torch.Tensor) and value.is_floating_point()
    ]
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("arch", tiny.three_first(list(tiny.ARCHITECTURES)))
def test_weights_and_caches_are_those_of_the_loaded_model(arch, folder_of):
    model, _ = tiny.cached(arch, 1)
    size = size_of(str(folder_of(arch)))
    weights = {id(tensor): tensor.nbytes for tensor in model.state_dict().values()}
    assert size.weight_bytes == sum(weights.values())
    assert not size.is_estimate
    computed, taken = size.cache_bytes(TOKENS), cached_bytes(model, TOKENS)
    # Of a sliding window, transformers keeps all but the token that comes next.
    assert taken <= computed <= taken * 1.25


@pytest.mark.parametrize("tokens", [16, 160])
def test_the_cache_grows_with_the_text(tokens, folder_of):
    model, _ = tiny.cached("qwen3", 1)
    size = size_of(str(folder_of("qwen3")))
    assert size.cache_bytes(tokens) == cached_bytes(model, tokens)


def test_a_latent_cache_is_one_vector_per_layer_on_every_gpu(folder_of):
    folder = folder_of("llama")
    changed(folder, kv_lora_rank=12, qk_rope_head_dim=4)
    size = size_of(str(folder))
    assert size.cache_bytes_per_token == 2 * (12 + 4) * 4
    assert size.cache_bytes(100, gpus=2) == size.cache_bytes(100)


def test_gpus_divide_the_heads_of_the_cache():
    size = Size("m", 1, 1000, cache_bytes_per_answer=10, heads=8, cache_heads=2)
    assert [size.cache_bytes(1, gpus) for gpus in (1, 2, 4)] == [1010, 505, 505]


@pytest.mark.parametrize(
    ("dtype", "quantization", "factor"),
    [(None, None, 1), ("auto", None, 1 / 2), ("float32", None, 1), ("bfloat16", None, 1 / 2)],
)
def test_the_precision_counts_for_weights_and_caches(dtype, quantization, factor, folder_of):
    folder = str(folder_of("llama"))
    stored = size_of(folder)
    loaded = size_of(folder, dtype=dtype, quantization=quantization)
    assert loaded.weight_bytes == stored.weight_bytes * factor
    assert loaded.cache_bytes_per_token == stored.cache_bytes_per_token * factor


@pytest.mark.parametrize(
    ("named", "dtype", "factor"),
    [("bfloat16", "auto", 1 / 2), ("bfloat16", "float32", 1), ("bfloat16", None, 1 / 2)],
)
def test_files_in_another_precision_than_the_config_names_are_converted(
    named, dtype, factor, folder_of
):
    folder = folder_of("llama")
    stored = size_of(str(folder)).weight_bytes
    changed(folder, dtype=named, torch_dtype=None)
    assert size_of(str(folder), dtype=dtype).weight_bytes == stored * factor


def test_scales_of_a_quantized_checkpoint_stay_as_they_are(folder_of):
    folder = folder_of("llama")
    stored = size_of(str(folder)).weight_bytes
    changed(folder, dtype="bfloat16", quantization_config={"quant_method": "fp8"})
    assert size_of(str(folder), dtype="auto").weight_bytes == stored


def test_quantizing_while_loading_leaves_embeddings_as_they_are(folder_of):
    model, _ = tiny.cached("llama", 1)
    size = size_of(str(folder_of("llama")), dtype="auto", quantization="fp8")
    tables = sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if "embed" in name or "lm" in name
    )
    vectors = sum(weight.numel() for weight in model.parameters() if weight.ndim == 1)
    matrices = sum(weight.numel() for weight in model.parameters()) - tables - vectors
    assert size.weight_bytes == 2 * (tables + vectors) + matrices and size.is_estimate


def test_an_unknown_precision_is_refused(folder_of):
    with pytest.raises(UsageError, match="dtype='int3'") as caught:
        size_of(str(folder_of("llama")), dtype="int3")
    assert "bfloat16" in caught.value.__notes__[0]


def test_shards_count_together_with_or_without_their_files(folder_of, tmp_path):
    model, _ = tiny.cached("llama", 1)
    whole = size_of(str(folder_of("llama")))
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 1
    (tmp_path / "consolidated.safetensors").write_bytes(b"a second copy")
    assert size_of(str(tmp_path)).weight_bytes == whole.weight_bytes
    shards[0].unlink()  # not fetched yet
    assert size_of(str(tmp_path)).weight_bytes == whole.weight_bytes


def test_a_whole_file_counts_and_not_an_index_beside_it(folder_of):
    folder = folder_of("llama")
    size = size_of(str(folder))
    stale = {"metadata": {"total_size": 9}, "weight_map": {"a": "model-1-of-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(stale))
    assert size_of(str(folder)) == size  # as transformers loads it


def test_pickled_weights_count_as_large_as_their_files(folder_of):
    folder = folder_of("llama")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(bytes(70_000))
    assert size_of(str(folder)).weight_bytes == 70_000


def test_a_folder_without_a_config_is_an_error_that_says_what_to_name(tmp_path):
    with pytest.raises(MemberError, match="contains no model"):
        size_of(str(tmp_path))
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(UsageError, match="GGUF files") as caught:
        size_of(str(tmp_path))
    assert str(tmp_path / "a.gguf") in caught.value.__notes__[0]


@pytest.mark.parametrize("arch", ["llama", "qwen3", "gemma3", "phi3"])
def test_a_config_alone_gives_an_estimate(arch, folder_of, tmp_path, monkeypatch):
    full = folder_of(arch)
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes((full / "config.json").read_bytes())
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    estimate, exact = size_of("org/name"), size_of(str(full))
    assert estimate.is_estimate and not exact.is_estimate
    assert estimate.weight_bytes == pytest.approx(exact.weight_bytes, rel=0.1)
    assert estimate.cache_bytes(TOKENS) == exact.cache_bytes(TOKENS)


def test_a_config_without_attention_gives_an_estimated_cache(folder_of):
    folder = folder_of("llama")
    changed(folder, num_attention_heads=None)
    size = size_of(str(folder))
    assert size.is_estimate and size.cache_bytes_per_token > 0


# --- the hub --------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch, tmp_path):
    """Return a fake hub that huggingface_hub asks, with an empty cache."""
    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        yield hub


def files_in(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("is_sharded", [False, True])
def test_the_hub_says_the_same_as_the_files_and_sends_no_weights(
    is_sharded, served, folder_of, tmp_path
):
    model, _ = tiny.cached("llama", 1, hidden_size=512)
    model.save_pretrained(tmp_path / "m", max_shard_size="4MB" if is_sharded else "1GB")
    served.add("org/model", files_in(tmp_path / "m"))
    here, there = size_of(str(tmp_path / "m")), size_of("org/model")
    assert replace(there, model="") == replace(here, model="") and not there.is_estimate
    sent = sum(
        int(asked.rpartition("-")[2]) - int(asked.partition("=")[2].partition("-")[0])
        for name, asked in served.downloads()
        if name.endswith(".safetensors")
    )
    assert 0 < sent < here.weight_bytes / 10


def test_a_gguf_file_on_the_hub_is_not_fetched(served, tmp_path):
    path = parts(tmp_path, 1, layers=4)[0]
    content = path.read_bytes() + bytes(10**6)
    served.add("org/model-GGUF", {"model-Q4_K_M.gguf": content})
    size = size_of("hf:org/model-GGUF")
    assert size.weight_bytes == len(content)
    assert size.cache_bytes_per_token == size_of(str(path)).cache_bytes_per_token
    (asked,) = [asked for _, asked in served.downloads() if asked]
    assert asked == "bytes=0-262143"
    fetched("hf:org/model-GGUF")
    served.broken = True
    assert size_of("hf:org/model-GGUF") == size


@pytest.fixture
def two_quantisations(served, tmp_path):
    """A repository with a large and a small file, of which the large one was fetched."""
    content = parts(tmp_path, 1, layers=4)[0].read_bytes()
    files = {"m-Q4_K_M.gguf": content + bytes(1000), "m-Q8_0.gguf": content + bytes(9000)}
    served.add("org/m-GGUF", files)
    fetched("hf:org/m-GGUF:Q8_0")
    return files


def test_the_size_is_that_of_the_file_that_loading_would_fetch(two_quantisations, served):
    size = size_of("hf:org/m-GGUF")
    assert size.file == "m-Q4_K_M.gguf"
    assert size.weight_bytes == len(two_quantisations["m-Q4_K_M.gguf"])
    assert fetched("hf:org/m-GGUF").name == size.file
    assert size_of("hf:org/m-GGUF") == size


@pytest.mark.parametrize("fault", ["offline", "broken"])
def test_without_the_hub_the_size_is_that_of_the_cached_file_that_loading_would_take(
    two_quantisations, served, fault, monkeypatch, caplog
):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", fault == "offline")
    served.broken = fault == "broken"
    size = size_of("hf:org/m-GGUF")
    assert size.file == fetched("hf:org/m-GGUF").name == "m-Q8_0.gguf"
    assert size.weight_bytes == len(two_quantisations["m-Q8_0.gguf"])
    warnings = [line.getMessage() for line in caplog.records if line.levelname == "WARNING"]
    assert any("m-Q8_0.gguf" in line for line in warnings) == (fault == "broken")
    with pytest.raises(MemberError):
        size_of("hf:org/m-GGUF:Q4_K_M")


def test_a_file_that_is_older_than_that_on_the_hub_is_not_measured(two_quantisations, served):
    newer = two_quantisations["m-Q8_0.gguf"] + bytes(5000)
    served.repositories["org/m-GGUF"].files["m-Q8_0.gguf"] = newer
    assert size_of("hf:org/m-GGUF:Q8_0").weight_bytes == len(newer)


def test_a_gated_model_without_a_token_is_an_error_that_names_its_page(served, folder_of):
    served.add("org/gated", files_in(folder_of("llama")), token="secret")
    with pytest.raises(MemberError, match="org/gated is gated") as caught:
        size_of("org/gated")
    assert f"{served.url}/org/gated" in caught.value.__notes__[0]
    assert size_of("org/gated", token="secret").weight_bytes > 0


def test_a_repository_of_gguf_files_is_named_with_hf(served):
    served.add("org/model-GGUF", {"model-Q4_K_M.gguf": b"GGUF"})
    with pytest.raises(MemberError, match=r"org/model-GGUF has no config\.json") as caught:
        size_of("org/model-GGUF")
    assert "'hf:org/model-GGUF'" in caught.value.__notes__[0]


@pytest.mark.parametrize("fault", ["unknown", "offline", "broken"])
def test_a_model_that_is_nowhere_is_an_error(fault, served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", fault == "offline")
    served.broken = fault == "broken"
    words = {"unknown": "no repository", "offline": "HF_HUB_OFFLINE", "broken": "503"}
    with pytest.raises(MemberError, match=f"org/name.*{words[fault]}|{words[fault]} org/name"):
        size_of("org/name")


@pytest.mark.parametrize("name", list(DEFAULTS))
def test_what_configs_leave_out_is_what_transformers_assumes(name):
    config = transformers.AutoConfig.for_model(name)
    for key, value in DEFAULTS[name].items():
        if key == "sliding_window_pattern":
            kinds = config.layer_types[: 2 * value]
            assert kinds == (["sliding_attention"] * (value - 1) + ["full_attention"]) * 2
        else:
            assert getattr(config, key) == value


# --- GGUF -----------------------------------------------------------------------------------------


@pytest.mark.real
@pytest.mark.parametrize("file", ENSEMBLES["small"], ids=lambda file: file.name)
def test_a_gguf_file_needs_what_llama_cpp_takes(file):
    path = file_of(file)
    size = size_of(str(path))
    member = LlamaCppMember(path)
    member.probe()
    assert size.weight_bytes == path.stat().st_size
    assert member.cache.token_bytes == pytest.approx(size.cache_bytes_per_token, rel=0.02)
    member.unload()


def parts(folder, count, layers):
    """Write a split file whose first part has the metadata, and the others a tensor each."""
    paths = [folder / f"model-{at:05d}-of-{count:05d}.gguf" for at in range(1, count + 1)]
    for path in paths:
        writer = gguf.GGUFWriter(path, "llama")
        if path == paths[0]:
            writer.add_block_count(layers)
            writer.add_embedding_length(64)
            writer.add_head_count(4)
            writer.add_head_count_kv([2] * (layers - 1) + [0])
        else:
            writer.add_tensor("weight", numpy.zeros((10, 10), numpy.float32))
        written(writer)
    return paths


def written(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_all_parts_of_a_split_file_count(tmp_path):
    paths = parts(tmp_path, 3, layers=4)
    size = size_of(str(paths[0]))
    assert size.weight_bytes == sum(path.stat().st_size for path in paths)
    # One of the four layers has no attention.
    assert size.cache_bytes_per_token == 3 * 2 * (16 + 16) * 2
    paths[1].unlink()
    with pytest.raises(MemberError, match=paths[1].name):
        size_of(str(paths[0]))


def test_a_part_that_is_cut_off_is_named(tmp_path):
    paths = parts(tmp_path, 3, layers=4)
    paths[2].write_bytes(paths[2].read_bytes()[:-100])
    with pytest.raises(MemberError, match=rf"{paths[2].name} has .* its header describes"):
        size_of(str(paths[0]))


@pytest.mark.parametrize("kind", gguf.GGML_QUANT_SIZES, ids=lambda kind: kind.name)
def test_a_file_that_lacks_a_byte_of_its_last_tensor_is_cut_off(kind, tmp_path):
    file = tmp_path / "a.gguf"
    _, size = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("first", numpy.zeros(3, numpy.float32))
    writer.add_tensor("last", numpy.full((4, 5 * size), 255, numpy.uint8), raw_dtype=kind)
    written(writer)
    whole = file.read_bytes().rstrip(b"\0")  # without the padding
    file.write_bytes(whole)
    assert size_of(str(file)).weight_bytes == len(whole)
    file.write_bytes(whole[:-1])
    with pytest.raises(MemberError, match=f"has {len(whole) - 1:,} bytes.* {len(whole):,}"):
        size_of(str(file))


def test_a_type_of_tensors_that_is_not_known_is_no_fault(tmp_path):
    file = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("t", numpy.zeros(64, numpy.float32))
    written(writer)
    content = file.read_bytes()
    known = content.index(b"t" + (1).to_bytes(4, "little")) + 13
    file.write_bytes(content[:known] + (999).to_bytes(4, "little") + content[known + 4 :])
    assert size_of(str(file)).weight_bytes == len(content)


def test_a_file_that_is_not_gguf_is_refused(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGML" + bytes(40))
    with pytest.raises(MemberError, match=r"a\.gguf"):
        size_of(str(tmp_path / "a.gguf"))


HEADER = json.dumps({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
CUT = len(HEADER).to_bytes(8, "little") + HEADER + bytes(15)
"""A file of safetensors that lacks its last byte."""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        ("model.safetensors", b"\xff" * 16),
        ("model.safetensors", (3).to_bytes(8, "little") + b"[1]"),
        pytest.param("model.safetensors", CUT, id="cut off"),
        ("config.json", b"[]"),
        ("config.json", b'{"num_hidden_layers": 2, "sliding_window": "x"}'),
        ("config.json", b"[" * 100_000),
        ("tokenizer_config.json", b'{"model_max_length": 1e999}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "../../elsewhere.safetensors"}}'),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "/dev/zero"}}'),
        ("model.safetensors.index.json", b"[1]"),
    ],
)
def test_files_that_are_damaged_or_hostile_are_an_error_that_names_the_folder(
    name, content, folder_of
):
    folder = folder_of("llama")
    if name == "config.json" and content.startswith(b"{"):
        changed(folder, **json.loads(content), layer_types=None)
    else:
        (folder / name).write_bytes(content)
    if "index" in name:
        (folder / "model.safetensors").unlink()
    with pytest.raises(MemberError, match=folder.name) as caught:
        size_of(str(folder))
    assert caught.value.__notes__


def test_a_number_of_layers_that_no_model_has_is_refused_at_once(folder_of):
    folder = folder_of("llama")
    changed(folder, num_hidden_layers=10**9, layer_types=None)
    with pytest.raises(MemberError, match="1000000000 layers"):
        size_of(str(folder))
