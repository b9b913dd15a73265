"""Models in a store that Ollama has written are read in place."""

from __future__ import annotations

import json
import sys

import pytest
from langchain.chat_models import base
from langchain_ollama import ChatOllama

from langchain_specfuse import (
    EnsembleError,
    LlamaCppMember,
    MemberError,
    SpecFuseChatModel,
    UsageError,
)
from langchain_specfuse.members import ollama

ADAPTER = {"mediaType": ollama.ADAPTER, "digest": "sha256:ad"}


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Return a function that keeps a model in a store of Ollama's."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    monkeypatch.setenv("OLLAMA_HOST", "http://127.0.0.1:9")

    def keep(
        place: str,
        *more: dict[str, str],
        file=None,
        kind: str = ollama.MODEL,
        digest: str = "sha256:0123abcd",
    ):
        manifest = tmp_path / "manifests" / place
        manifest.parent.mkdir(parents=True, exist_ok=True)
        layers = [
            {"mediaType": kind, "digest": digest, "size": 4},
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:ef"},
        ]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [*layers, *more]}))
        blob = tmp_path / "blobs" / "sha256-0123abcd"
        if file is not None:
            blob.parent.mkdir(exist_ok=True)
            blob.symlink_to(file)
        return blob

    return keep


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("llama3.2", "registry.ollama.ai/library/llama3.2/latest"),
        ("llama3.2:1b", "registry.ollama.ai/library/llama3.2/1b"),
        ("me/mine", "registry.ollama.ai/me/mine/latest"),
        ("hf.co/me/mine-GGUF:Q8_0", "hf.co/me/mine-GGUF/Q8_0"),
    ],
)
def test_a_model_of_ollamas_is_a_member_in_this_process(store, tiny_llama, name, place):
    store(place, file=tiny_llama)
    member = LlamaCppMember(f"ollama:{name}")
    assert member.name == name.rpartition("/")[2]
    assert member.preview().max_context == member.probe().max_context == 8192


def test_its_answers_are_those_of_its_file(store, tiny_llama):
    store("registry.ollama.ai/library/tiny/latest", file=tiny_llama)
    texts = [
        SpecFuseChatModel(members=[LlamaCppMember(model, name="a")], max_tokens=5)
        .invoke("Hello")
        .text
        for model in ("ollama:tiny", tiny_llama)
    ]
    assert texts[0] == texts[1]


def test_without_ollamas_package_the_error_names_the_file_too(store, tiny_llama, monkeypatch):
    store("registry.ollama.ai/library/tiny/1b", file=tiny_llama)
    monkeypatch.setitem(sys.modules, "langchain_ollama", None)
    for value in vars(base).values():  # LangChain keeps the classes that it has imported
        getattr(value, "cache_clear", int)()
    with pytest.raises(UsageError, match="langchain-ollama, which is not installed") as raised:
        SpecFuseChatModel(members=["ollama:tiny:1b"]).invoke("Hello")
    install, other = raised.value.__notes__
    assert install == "-> pip install langchain-ollama"
    assert "LlamaCppMember('ollama:tiny:1b')" in other and other.endswith(" tiny-1b.gguf")


def test_a_name_in_a_list_is_still_the_chat_model_of_a_server(store, tiny_llama):
    store("registry.ollama.ai/library/tiny/latest", file=tiny_llama)
    llm = SpecFuseChatModel(members=["ollama:tiny"], max_tokens=5)
    with pytest.raises(EnsembleError, match="cannot be reached") as raised:
        llm.invoke("Hello")
    advice = "\n".join(raised.value.__notes__)
    assert "LlamaCppMember('ollama:tiny')" in advice
    assert "sha256-0123abcd tiny.gguf" in advice
    absent = SpecFuseChatModel(members=[ChatOllama(model="other")], max_tokens=5)
    with pytest.raises(EnsembleError, match="cannot be reached") as raised:
        absent.invoke("Hello")
    assert "LlamaCppMember" not in "\n".join(raised.value.__notes__)


def test_a_model_that_is_not_in_the_store_is_not_found(store, tmp_path):
    store("registry.ollama.ai/library/llama3.2/latest")
    with pytest.raises(MemberError, match=r"no model 'lama3\.2'") as raised:
        LlamaCppMember("ollama:lama3.2").probe()
    assert raised.value.kind == "not_found" and str(tmp_path) in str(raised.value)
    assert "did you mean 'ollama:llama3.2'?" in raised.value.__notes__[0]
    with pytest.raises(MemberError) as raised:
        LlamaCppMember("ollama:phi4:14b").probe()
    assert "ollama pull phi4:14b" in raised.value.__notes__[0]


def test_a_manifest_names_no_file_outside_the_store(store, tiny_llama, tmp_path):
    (tmp_path / "other.gguf").symlink_to(tiny_llama)
    for digest in ("../other.gguf", str(tmp_path / "other.gguf"), "sha256:../../other.gguf"):
        store("registry.ollama.ai/library/tiny/latest", digest=digest, file=tiny_llama)
        (tmp_path / "blobs" / "sha256-0123abcd").unlink()
        with pytest.raises(MemberError, match="lists no GGUF file"):
            LlamaCppMember("ollama:tiny").probe()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"layers": 1}', "[" * 100_000])
def test_a_manifest_that_is_none_lists_no_file(store, tmp_path, content):
    store("registry.ollama.ai/library/tiny/latest")
    (tmp_path / "manifests/registry.ollama.ai/library/tiny/latest").write_text(content)
    with pytest.raises(MemberError, match="lists no GGUF file"):
        LlamaCppMember("ollama:tiny").probe()


def test_a_model_that_cannot_be_read_in_place_is_left_to_ollama(store, tiny_llama):
    place = "registry.ollama.ai/library/tiny/latest"
    blob = store(place)
    with pytest.raises(MemberError, match="does not exist") as raised:
        LlamaCppMember("ollama:tiny").probe()
    assert str(blob) in str(raised.value) and "ollama pull tiny" in raised.value.__notes__[0]
    store(place, kind="application/vnd.ollama.image.tensor")
    with pytest.raises(MemberError, match="no GGUF file") as raised:
        LlamaCppMember("ollama:tiny").probe()
    assert "ChatModelMember('ollama:tiny')" in raised.value.__notes__[0]
    store(place, ADAPTER, file=tiny_llama)
    with pytest.raises(UsageError, match="adapter") as raised:
        LlamaCppMember("ollama:tiny").probe()
    assert "ChatModelMember('ollama:tiny')" in raised.value.__notes__[0]
    for name in ("ollama:", "ollama:a/b/c/d", "ollama:../../x", "ollama:a:../../x"):
        with pytest.raises((UsageError, MemberError)):
            LlamaCppMember(name).probe()
