"""Adapters as peft writes them: what they add is what peft adds, and what cannot be added is refused in plain words."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from langchain_specfuse import _registry
from langchain_specfuse._spread import spread
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members._adapter_files import adapter_parts
from langchain_specfuse.members._adapters import Adapters, Part
from langchain_specfuse.members._trial import mixes
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny
from .adapters import EVERYWHERE, adapter, saved

IDS = torch.tensor([[5, 9, 30, 7], [8, 2, 40, 11], [5, 9, 30, 7], [6, 6, 31, 3]])


@pytest.fixture
def made(tmp_path):
    """An adapter's folder, with other words in its config or other files if need be."""

    def make(config=None, matrices=None, **told):
        folder, _ = adapter("llama", tmp_path / "adapter", 1, **told)
        if config is not None:
            was = json.loads((folder / "adapter_config.json").read_text())
            (folder / "adapter_config.json").write_text(json.dumps(was | config))
        if matrices is not None:
            save_file(matrices(load_file(folder / "adapter_model.safetensors")), folder / "adapter_model.safetensors")
        return folder

    return make


@pytest.fixture
def base(tmp_path):
    return saved("llama", tmp_path / "base")


def refused(kind, base, folder, match):
    """The error with which the member refuses; it says what to do, too."""
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
def test_rows_with_adapters_are_what_peft_makes_of_them(variant, tmp_path):
    folders = [adapter("llama", tmp_path / f"a{k}", k, **(VARIANTS[variant] if k else {}))[0] for k in range(2)]
    model, _ = tiny.made("llama", 1)
    adapters = Adapters(model)
    first, other = (adapters.add(str(folder), adapter_parts(str(folder), "m")) for folder in folders)
    with adapters.reading([first, other, None, other]):
        ours = model(input_ids=IDS).logits
    alone = []
    for row, mine in enumerate([first, other, None, other]):
        with adapters.reading([mine]):
            alone.append(model(input_ids=IDS[row : row + 1]).logits[0])
    plain = model(input_ids=IDS).logits
    peft = PeftModel.from_pretrained(tiny.made("llama", 1)[0], folders[0], adapter_name="first")
    peft.load_adapter(folders[1], adapter_name="other")
    peft.eval()
    theirs = peft(input_ids=IDS, adapter_names=["first", "other", "__base__", "other"]).logits
    assert (ours - theirs).abs().max() < 1e-4
    assert (ours - torch.stack(alone)).abs().max() < 1e-4
    assert torch.equal(ours[2], plain[2]) or (ours[2] - plain[2]).abs().max() < 1e-4
    assert all((ours[row] - plain[row]).abs().max() > 0.1 for row in (0, 1, 3))


@torch.inference_mode()
@pytest.mark.parametrize("arch", EVERYWHERE)
def test_other_layers_too(arch, tmp_path):
    folder, merged = adapter(arch, tmp_path / "a", 1)
    model, _ = tiny.made(arch, 1)
    adapters = Adapters(model)
    mine = adapters.add("a", adapter_parts(str(folder), "m"))
    with adapters.reading([mine, mine]):
        ours = model(input_ids=IDS[:2]).logits
    assert (ours - merged(input_ids=IDS[:2]).logits).abs().max() < 1e-4


@torch.inference_mode()
def test_in_half_precision_the_additions_are_half_too(tmp_path):
    folder, _ = adapter("llama", tmp_path / "a", 1)
    model = tiny.made("llama", 1)[0].to(torch.bfloat16)
    adapters = Adapters(model)
    mine = adapters.add("a", adapter_parts(str(folder), "m"))
    with adapters.reading([mine, None]):
        assert model(input_ids=IDS[:2]).logits.dtype == torch.bfloat16
    assert all(stack.down.dtype == torch.bfloat16 for stack in adapters._stacks.values())


def test_who_is_gone_makes_room_and_the_others_keep_theirs(tmp_path):
    model, _ = tiny.made("llama", 1)
    adapters = Adapters(model)
    part = lambda size: {"model.layers.0.self_attn.q_proj": Part(torch.ones(size, 32), torch.ones(32, size))}
    one, two = adapters.add("one", part(2)), adapters.add("two", part(3))
    held = adapters.bytes
    del one
    adapters.prune()
    assert adapters.bytes == held * 3 // 5
    with torch.inference_mode(), adapters.reading([two]):
        changed = model(input_ids=IDS[:1]).logits
    adapters.prune()
    with torch.inference_mode(), adapters.reading([two]):
        assert torch.equal(model(input_ids=IDS[:1]).logits, changed)
    del two
    adapters.prune()
    assert adapters.bytes == 0 and not model.model.layers[0].self_attn.q_proj._forward_hooks


def test_rows_that_cannot_be_told_apart_are_refused_and_the_trial_finds_it_out(tmp_path):
    """As where a router sends some tokens of a batch here and others there."""

    class Some(torch.nn.Linear):
        def __init__(self, was):
            super().__init__(was.in_features, was.out_features, bias=False)
            self.weight = was.weight

        def __call__(self, x):
            flat = x.reshape(-1, x.shape[-1])
            told = [torch.nn.Linear.__call__(self, part) for part in flat.split(max(1, len(flat) * 2 // 3))]
            return torch.cat(told).view(*x.shape[:-1], -1)

    model, _ = tiny.made("llama", 1)
    layer = model.model.layers[0].mlp
    layer.down_proj = Some(layer.down_proj)
    adapters = Adapters(model)
    mine = adapters.add("a", {"model.layers.0.mlp.down_proj": Part(torch.ones(1, 48), torch.ones(32, 1))})
    with torch.inference_mode():
        with adapters.reading([mine] * 4):
            model(input_ids=IDS)
        with pytest.raises(RuntimeError, match="whose is what"), adapters.reading([mine, None, None, mine]):
            model(input_ids=IDS)
    from langchain_specfuse.members._stores import Read

    with torch.inference_mode():
        assert not mixes(Read(model, adapters), list(range(10, 39)), mine)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"peft_type": "IA3"}, "kind IA3"),
    ],
)
def test_more_than_two_matrices_per_layer_is_refused(base, made, config, told):
    refused(UsageError, base, made(config), told)


def test_pickled_matrices_are_refused(base, made):
    folder = made()
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    refused(UsageError, base, folder, "could run any code")
    (folder / "adapter_model.bin").unlink()
    refused(UsageError, base, folder, "has no adapter_model.safetensors")


def test_what_is_no_adapter_is_refused(base, tmp_path, made):
    refused(UsageError, base, base, "holds no adapter")
    refused(MemberError, base, tmp_path / "nowhere", "does not exist")
    refused(MemberError, base, base / "config.json", "is a file")
    (made() / "adapter_config.json").write_text("{")
    refused(UsageError, base, tmp_path / "adapter", "broken adapter_config.json")
    (tmp_path / "adapter" / "adapter_config.json").write_text("[1]")
    refused(UsageError, base, tmp_path / "adapter", "kind None")


def test_broken_and_half_matrices_are_refused(base, made):
    folder = made()
    (folder / "adapter_model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
    refused(UsageError, base, folder, "broken adapter_model.safetensors")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda told: dict(list(told.items())[1:]), "half of"),
        (lambda told: {}, "is empty"),
        (lambda told: told | {"base_model.model.lm_head.weight": torch.ones(2, 2)}, "no matrix of a linear layer"),
        (lambda told: {k.replace("layers.1", "layers.9"): v for k, v in told.items()}, r"no module model\.layers\.9"),
        (lambda told: {k.replace("q_proj", "rotary"): v for k, v in told.items()}, "no module"),
        (
            lambda told: {k.replace("self_attn.q_proj", "input_layernorm"): v for k, v in told.items()},
            "no linear layer",
        ),
        (lambda told: {k: torch.ones(4, 99) if "lora_A" in k else v for k, v in told.items()}, "wanted"),
    ],
)
def test_what_does_not_fit_is_refused(base, made, change, match):
    refused(UsageError, base, made(matrices=lambda told: {k: v.contiguous() for k, v in change(told).items()}), match)


def test_a_hub_id_that_is_not_there_says_so(base, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    refused(MemberError, base, "nobody/no-such-adapter", "was not found")


@pytest.mark.parametrize("wrong", ["", "  ", 5, True])
def test_an_adapter_without_a_name_is_refused(wrong):
    with pytest.raises(UsageError, match="names no adapter"):
        TransformersMember("base", adapter=wrong)


def test_a_refused_adapter_leaves_the_others_alone(base, made, tmp_path):
    plain = TransformersMember(base, dtype="float32", device="cpu", name="plain")
    job = DraftJob(tiny.query(), (), 6, 64, Sampling())
    (before,) = plain.draft([job])
    refused(UsageError, base, made({"use_dora": True}), "use_dora")
    plain.forget(job.query.id)
    assert plain.draft([job])[0].text == before.text


# --- how it is named --------------------------------------------------------------------------------------------


def test_a_base_and_its_adapter_in_one_name(base, made, tmp_path):
    folder = made()
    told = f"{base}+{folder}"
    assert _registry.parted(told) == (str(base), str(folder))
    odd = tmp_path / "c++" / "base"
    odd.mkdir(parents=True)
    assert _registry.parted(str(odd)) == (str(odd), None)
    assert _registry.parted(f"{odd}+{folder}") == (str(odd), str(folder))
    assert _registry.parted("http://host:80/v1#a+b") == ("http://host:80/v1#a+b", None)
    assert _registry.names_of([told, {"model": str(base), "adapter": str(folder)}, str(base)]) == [
        "adapter",
        "adapter#2",
        "base",
    ]
    try:
        ensemble = _registry.ensemble_for([told, {"model": base, "adapter": folder, "name": "x"}])
        assert [member.adapter for member in ensemble.members.values()] == [str(folder)] * 2
        assert ensemble is _registry.ensemble_for([told, {"model": base, "adapter": folder, "name": "x"}])
    finally:
        _registry.unload()


def test_the_adapter_tells_one_members_answers_from_anothers(base, made):
    folder = made()
    one, other = TransformersMember(base, adapter=folder), TransformersMember(base)
    assert one.spec == other.spec | {"adapter": str(folder)}
    assert one.name == "adapter" and other.name == "base"


@pytest.mark.parametrize("told", ["base+./adapters/law", {"model": "base+./adapters/law"}])
def test_base_and_adapter_in_one_word_are_the_same_member_in_a_dict_and_on_a_cluster(told):
    parts = {"model": "base", "adapter": "./adapters/law"}
    for one, other in ((told, parts), (*spread([told], "auto"), *spread([parts], "auto"))):
        assert _registry.names_of([one]) == _registry.names_of([other]) == ["law"]
        assert _registry._written(one) == _registry._written(other)
