"""A trial's verdict is believed for exactly what was tried, and for nothing else."""

import pytest
import torch

from langchain_specfuse.members import _trial, _verdicts
from langchain_specfuse.members._stores import Read
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny

VOCABULARY = list(range(20, 49))


@pytest.fixture(autouse=True)
def tried(monkeypatch, tmp_path):
    """Verdicts in a folder of their own; how often stores were tried."""
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    tries, right = [], _trial.right

    def counted(store, vocabulary):
        tries.append(type(store).__name__)
        return right(store, vocabulary)

    monkeypatch.setattr(_trial, "right", counted)
    return tries


def chosen(model, remembered=True):
    with torch.inference_mode():
        return _trial.best_store(Read(model), VOCABULARY, 10**6, 0, "it", remembered=remembered)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "bloom", "qwen3-next"])
def test_the_second_start_finds_the_same_store_without_a_trial(arch, tried):
    model, _ = tiny.cached(arch, 1)
    first = chosen(model)
    assert tried
    tried.clear()
    again = chosen(model)
    assert not tried
    assert type(again) is type(first) and getattr(again, "whole", None) == getattr(first, "whole", None)
    assert again.alone(100) == pytest.approx(first.alone(100), rel=0.05)  # what it takes is known before it is asked
    assert again.alone(1000) == pytest.approx(first.alone(1000), rel=0.05)
    assert again.held == 0 and again.passed == 0


def test_another_configuration_precision_or_version_is_tried_anew(tried, monkeypatch):
    # Made here: whoever read the cached ones before may have set something in their configuration.
    chosen(tiny.made("llama", 1)[0])
    for other in (
        tiny.made("llama", 1, num_hidden_layers=3)[0],
        tiny.made("llama", 1, attn="eager")[0],
        tiny.made("llama", 1)[0].to(torch.bfloat16),
    ):
        tried.clear()
        chosen(other)
        assert tried
    tried.clear()
    chosen(tiny.made("llama", 2)[0])  # other numbers, and nothing else
    assert not tried
    monkeypatch.setattr(_verdicts, "_surroundings", lambda: ("another torch",))
    chosen(tiny.made("llama", 1)[0])
    assert tried


@pytest.mark.parametrize("text", ["", "{", "[]", '{"store": "attic"}', '{"store": 7}', "\xff"])
def test_a_verdict_that_makes_no_sense_is_no_verdict(text, tried):
    model, _ = tiny.cached("llama", 1)
    chosen(model)
    _verdicts._file(model).write_text(text, encoding="latin-1")
    tried.clear()
    assert type(chosen(model)).__name__ == "Slab"
    assert tried == ["Slab"]


def test_a_store_that_fails_at_its_first_pass_is_tried_whatever_was_found_before(tried, monkeypatch):
    model, _ = tiny.cached("llama", 1)
    chosen(model)
    tried.clear()
    monkeypatch.setattr(_trial.Slab, "lead", lambda *_: 1 / 0)
    assert type(chosen(model)).__name__ == "Snapshots"
    assert tried == ["Slab", "Snapshots"]


def test_a_folder_that_cannot_be_written_to_is_no_trouble(tried, monkeypatch, tmp_path):
    file = tmp_path / "a file"
    file.write_text("no folder")
    monkeypatch.setenv("SPECFUSE_CACHE", str(file))
    model, _ = tiny.cached("llama", 1)
    assert type(chosen(model)).__name__ == type(chosen(model)).__name__ == "Slab"
    assert tried == ["Slab", "Slab"]


def test_a_model_in_memory_may_be_anything_and_is_always_tried(tried):
    for _ in range(2):
        tiny.member("llama", 1)
    assert tried == ["Slab", "Slab"]


def test_members_loaded_from_a_folder_remember(tried, tmp_path):
    model, tokenizer = tiny.made("llama", 1)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    for _ in range(2):
        one = TransformersMember(str(tmp_path / "model"), dtype="float32")
        one.probe()
        one.unload()
    assert tried == ["Slab"]
