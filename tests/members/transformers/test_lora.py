"""LoRA adapters give the results of peft, and unsupported adapters are refused with a reason."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from langchain_specfuse import unload
from langchain_specfuse.chat.members import ensemble_for
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.names import split_adapter
from langchain_specfuse.members.transformers.lora import Adapters
from langchain_specfuse.members.transformers.member import TransformersMember

from .. import tiny
from ..lora import EVERYWHERE, adapter, saved
from ..tiny import NEAR

IDS = torch.tensor([[5, 9, 30, 7], [8, 2, 40, 11]], device=tiny.DEVICE)


@pytest.fixture
def make_adapter(tmp_path):
    """Return a function that saves an adapter, possibly with another config or other matrices."""

    def make(config=None, matrices=None):
        folder, _ = adapter("llama", tmp_path / "adapter", 1)
        if config is not None:
            original = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps(original | config))
        if matrices is not None:
            file = folder / "adapter_model.safetensors"
            save_file(
                {key: tensor.contiguous() for key, tensor in matrices(load_file(file)).items()},
                file,
            )
        return folder

    return make


@pytest.fixture
def base(tmp_path):
    return saved("llama", tmp_path / "base")


def refused(kind, base, folder, match):
    with pytest.raises(kind, match=match) as caught:
        TransformersMember(base, adapter=folder, dtype="float32", device="cpu").probe()
    assert any(note.startswith("-> ") for note in caught.value.notes)


# --- what is added --------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"q_proj": 7},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 1, "down_proj": 9},
    },
    "head": {"target_modules": ["lm_head", "gate_proj"]},
    "one layer": {"layers_to_transform": [1]},
    "magnitudes": {"use_dora": True},
}


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_with_adapters_are_what_the_merged_models_make_of_them(variant, tmp_path):
    model, _ = tiny.build("llama", 1)
    plain, adapters = model(input_ids=IDS).logits, Adapters(model)
    saved_adapters = [
        adapter("llama", tmp_path / f"a{k}", k, **(VARIANTS[variant] if k else {}))
        for k in range(2)
    ]
    first, other = (adapters.get(str(folder), "m") for folder, _ in saved_adapters)
    for loaded, truth in [
        (first, saved_adapters[0][1]),
        (other, saved_adapters[1][1]),
        (None, None),
        (other, saved_adapters[1][1]),
    ]:
        with adapters.reading(loaded):
            ours = model(input_ids=IDS).logits
        if truth is None:
            assert torch.equal(ours, plain)
        else:
            assert (
                (ours - truth(input_ids=IDS).logits).abs().max()
                < NEAR
                < 0.1
                < (ours - plain).abs().max()
            )


@torch.inference_mode()
@pytest.mark.parametrize("arch", EVERYWHERE)
def test_adapters_of_transposed_fused_and_flattened_layers_are_merged(arch, tmp_path):
    folder, merged = adapter(arch, tmp_path / "a", 1)
    model, _ = tiny.build(arch, 1)
    adapters = Adapters(model)
    with adapters.reading(adapters.get(str(folder), "m")):
        assert (model(input_ids=IDS).logits - merged(input_ids=IDS).logits).abs().max() < NEAR


def test_an_unused_adapter_is_freed_and_the_others_stay(tmp_path):
    model, _ = tiny.build("llama", 1)
    adapters, size = (
        Adapters(model),
        lambda: sum(parameter.numel() for parameter in model.parameters()),
    )
    bare = size()
    first, second = (
        adapters.get(str(adapter("llama", tmp_path / f"a{k}", k)[0]), "m") for k in range(2)
    )
    with_both = size()
    with torch.inference_mode(), adapters.reading(second):
        changed = model(input_ids=IDS).logits
    del first
    adapters.prune()
    assert size() - bare == (with_both - bare) / 2
    with torch.inference_mode(), adapters.reading(second):
        assert torch.equal(model(input_ids=IDS).logits, changed)
    del second
    adapters.prune()
    assert size() == bare


# --- what is refused ------------------------------------------------------------------------------


def test_a_folder_without_a_whole_safe_adapter_is_refused(base, tmp_path, make_adapter):
    refused(UsageError, base, base, "contains no adapter")
    refused(MemberError, base, tmp_path / "nowhere", "does not exist")
    refused(MemberError, base, base / "config.json", "is a file")
    folder = make_adapter()
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(UsageError, base, folder, "has no adapter_model.safetensors")
    (folder / "adapter_model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    refused(UsageError, base, folder, "cannot be used with this base: SafetensorError")
    for config in ("{", "[1]"):
        (folder / "adapter_config.json").write_text(config)
        refused(UsageError, base, folder, "broken adapter_config.json")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"peft_type": "VERA"}, "kind VERA"),
        ({"bias": "all"}, "does more.*: bias"),
        ({"init_lora_weights": "pissa"}, "does more.*: init_lora_weights"),
        ({"megatron_config": {"x": 1}}, "does more.*: megatron_config"),
        (
            {"layer_replication": [[0, 2]], "modules_to_save": ["lm_head"]},
            "layer_replication, modules_to_save",
        ),
    ],
)
def test_what_would_change_the_base_or_import_anything_is_refused(
    base, make_adapter, change, match
):
    refused(UsageError, base, make_adapter(config=change), match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tensors: dict(list(tensors.items())[1:]), "missing or too many"),
        (lambda tensors: {}, "missing or too many"),
        (
            lambda tensors: {k.replace("layers.1", "layers.9"): v for k, v in tensors.items()},
            "missing or too many",
        ),
        (
            lambda tensors: {
                k: torch.ones(4, 99) if "lora_A" in k else v for k, v in tensors.items()
            },
            "RuntimeError",
        ),
    ],
)
def test_matrices_that_do_not_fit_are_refused(base, make_adapter, change, match):
    refused(UsageError, base, make_adapter(matrices=change), match)


def test_a_hub_id_that_does_not_exist_is_an_error(base, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(MemberError, base, "nobody/no-such-adapter", "was not found")


# --- how it is named ------------------------------------------------------------------------------


def test_a_base_and_its_adapter_can_share_one_name(base, make_adapter, tmp_path):
    folder = make_adapter()
    together = f"{base}+{folder}"
    assert split_adapter(together) == (str(base), str(folder))
    odd = tmp_path / "c++" / "base"
    odd.mkdir(parents=True)
    assert split_adapter(str(odd)) == (str(odd), None)
    assert split_adapter(f"{odd}+{folder}") == (str(odd), str(folder))
    assert split_adapter("http://host:80/v1#a+b") == ("http://host:80/v1#a+b", None)
    assert names_of([together, together, str(base)]) == ["adapter", "adapter#2", "base"]
    ensemble = ensemble_for([together, together])
    assert [member.adapter for member in ensemble.members.values()] == [str(folder)] * 2
    assert ensemble is ensemble_for([together, together])
    unload()


def test_members_with_different_adapters_have_different_cache_keys(base, make_adapter):
    folder = make_adapter()
    adapted, plain = TransformersMember(base, adapter=folder), TransformersMember(base)
    assert adapted.spec == plain.spec | {"adapter": str(folder)}
    assert adapted.name == "adapter" and plain.name == "base"
