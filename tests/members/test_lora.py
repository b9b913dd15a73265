"""LoRA adapters as peft writes them: they add what peft adds, and what cannot be added is refused in plain words."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from langchain_specfuse.chat import members as registry
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.transformers.lora import Adapters, Matrices, read_adapter
from langchain_specfuse.members.transformers.member import TransformersMember

from . import tiny
from .lora import EVERYWHERE, adapter, saved
from .tiny import NEAR

IDS = torch.tensor([[5, 9, 30, 7], [8, 2, 40, 11], [5, 9, 30, 7], [6, 6, 31, 3]])


@pytest.fixture
def made(tmp_path):
    """An adapter's folder, with another config or other matrices if need be."""

    def make(config=None, matrices=None):
        folder, _ = adapter("llama", tmp_path / "adapter", 1)
        if config is not None:
            was = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps(was | config))
        if matrices is not None:
            file = folder / "adapter_model.safetensors"
            save_file({key: one.contiguous() for key, one in matrices(load_file(file)).items()}, file)
        return folder

    return make


@pytest.fixture
def base(tmp_path):
    return saved("llama", tmp_path / "base")


def refused(kind, base, folder, match):
    with pytest.raises(kind, match=match) as caught:
        TransformersMember(base, adapter=folder, dtype="float32", device="cpu").probe()
    assert any(note.startswith("-> ") for note in caught.value.__notes__)


# --- what is added ----------------------------------------------------------------------------------------------

VARIANTS = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "patterns": {"rank_pattern": {"q_proj": 7}, "alpha_pattern": {"layers.1.self_attn.q_proj": 1, "down_proj": 9}},
    "head": {"target_modules": ["lm_head", "gate_proj"]},
    "one layer": {"layers_to_transform": [1]},
}


@torch.inference_mode()
@pytest.mark.parametrize("variant", VARIANTS)
def test_texts_with_adapters_are_what_peft_makes_of_them(variant, tmp_path):
    folders = [adapter("llama", tmp_path / f"a{k}", k, **(VARIANTS[variant] if k else {}))[0] for k in range(2)]
    model, _ = tiny.made("llama", 1)
    adapters = Adapters(model)
    first, other = (adapters.add(str(folder), read_adapter(str(folder), "m")) for folder in folders)
    plain, ours = model(input_ids=IDS).logits, []
    for row, own in enumerate([first, other, None, other]):
        with adapters.reading(own):
            ours.append(model(input_ids=IDS[row : row + 1]).logits[0])
    peft = PeftModel.from_pretrained(tiny.made("llama", 1)[0], folders[0], adapter_name="first")
    peft.load_adapter(folders[1], adapter_name="other")
    theirs = peft.eval()(input_ids=IDS, adapter_names=["first", "other", "__base__", "other"]).logits
    assert (torch.stack(ours) - theirs).abs().max() < NEAR
    assert (ours[2] - plain[2]).abs().max() < NEAR
    assert all((ours[row] - plain[row]).abs().max() > 0.1 for row in (0, 1, 3))


@torch.inference_mode()
@pytest.mark.parametrize("arch", EVERYWHERE)
def test_transposed_fused_and_flattened_layers_too(arch, tmp_path):
    folder, merged = adapter(arch, tmp_path / "a", 1)
    model, _ = tiny.made(arch, 1)
    adapters = Adapters(model)
    own = adapters.add("a", read_adapter(str(folder), "m"))
    with adapters.reading(own):
        ours = model(input_ids=IDS[:2]).logits
    assert (ours - merged(input_ids=IDS[:2]).logits).abs().max() < NEAR


def test_an_adapter_that_nobody_holds_is_freed_and_the_others_stay():
    model, _ = tiny.made("llama", 1)
    adapters, path = Adapters(model), "model.layers.0.self_attn.q_proj"
    part = lambda size: {path: Matrices(torch.ones(size, 32), torch.ones(32, size))}
    one, two = adapters.add("one", part(2)), adapters.add("two", part(3))
    held = adapters.bytes
    with torch.inference_mode(), adapters.reading(two):
        changed = model(input_ids=IDS[:1]).logits
    del one
    adapters.prune()
    assert adapters.bytes == held * 3 // 5
    with torch.inference_mode(), adapters.reading(two):
        assert torch.equal(model(input_ids=IDS[:1]).logits, changed)
    del two
    adapters.prune()
    assert adapters.bytes == 0


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_folder_without_a_whole_safe_adapter_is_refused(base, tmp_path, made):
    refused(UsageError, base, base, "holds no adapter")
    refused(MemberError, base, tmp_path / "nowhere", "does not exist")
    refused(MemberError, base, base / "config.json", "is a file")
    folder = made()
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(UsageError, base, folder, "could run any code")
    (folder / "adapter_model.bin").unlink()
    refused(UsageError, base, folder, "has no adapter_model.safetensors")
    (folder / "adapter_model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    refused(UsageError, base, folder, "broken adapter_model.safetensors")
    (folder / "adapter_config.json").write_text("{")
    refused(UsageError, base, folder, "broken adapter_config.json")
    (folder / "adapter_config.json").write_text("[1]")
    refused(UsageError, base, folder, "kind None")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda found: dict(list(found.items())[1:]), "half of"),
        (lambda found: {}, "is empty"),
        (lambda found: found | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, "no matrix of a linear layer"),
        (lambda found: {k.replace("layers.1", "layers.9"): v for k, v in found.items()}, r"no module model\.layers\.9"),
        (
            lambda found: {k.replace("self_attn.q_proj", "input_layernorm"): v for k, v in found.items()},
            "no linear layer",
        ),
        (lambda found: {k: torch.ones(4, 99) if "lora_A" in k else v for k, v in found.items()}, "wanted"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(base, made, change, match):
    refused(UsageError, base, made(matrices=change), match)


def test_a_hub_id_that_is_not_there_says_so(base, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(MemberError, base, "nobody/no-such-adapter", "was not found")


# --- how it is named --------------------------------------------------------------------------------------------


def test_a_base_and_its_adapter_in_one_name(base, made, tmp_path):
    folder = made()
    together, apart = f"{base}+{folder}", {"model": str(base), "adapter": str(folder)}
    assert registry.parted(together) == (str(base), str(folder))
    odd = tmp_path / "c++" / "base"
    odd.mkdir(parents=True)
    assert registry.parted(str(odd)) == (str(odd), None)
    assert registry.parted(f"{odd}+{folder}") == (str(odd), str(folder))
    assert registry.parted("http://host:80/v1#a+b") == ("http://host:80/v1#a+b", None)
    assert registry.names_of([together, apart, str(base)]) == ["adapter", "adapter#2", "base"]
    ensemble = registry.ensemble_for([together, apart | {"name": "x"}])
    assert [member.adapter for member in ensemble.members.values()] == [str(folder)] * 2
    assert ensemble is registry.ensemble_for([together, apart | {"name": "x"}])
    registry.unload()


def test_the_adapter_tells_one_members_answers_from_anothers(base, made):
    folder = made()
    one, other = TransformersMember(base, adapter=folder), TransformersMember(base)
    assert one.spec == other.spec | {"adapter": str(folder)}
    assert one.name == "adapter" and other.name == "base"
