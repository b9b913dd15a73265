"""GGUF files by their names on the hub, fetched by huggingface_hub from a fake hub over HTTP."""

from __future__ import annotations

import errno
import logging
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, scan_cache_dir

from langchain_specfuse import (
    LlamaCppMember,
    MemberError,
    SpecFuseChatModel,
    TransformersMember,
    UsageError,
)
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members import hub

from . import fake_hub

REPOSITORY = "me/Model-GGUF"
NAME = f"hf:{REPOSITORY}"
Q4 = b"GGUF" + bytes(range(256)) * 40
Q8 = b"GGUF" + bytes(reversed(range(256))) * 50
FILES = {
    "README.md": b"text",
    "Model-BF16.gguf": b"GGUF bf16",
    "Model-F16.gguf": b"GGUF f16",
    "Model-Q4_K_M.gguf": Q4,
    "Model-Q8_0.gguf": Q8,
    "imatrix-Q4_K_M.gguf": b"GGUF matrix",
    "mmproj-Model-Q4_K_M.gguf": b"GGUF projector",
}
SPLIT = {f"big/B-Q2_K-0000{at}-of-00003.gguf": b"GGUF" + bytes(at) for at in (3, 1, 2)}


@pytest.fixture
def served(monkeypatch, tmp_path):
    with fake_hub.running(monkeypatch, tmp_path / "hub") as served:
        served.add(REPOSITORY, dict(FILES))
        yield served


def refused(name: str) -> tuple[MemberError, str]:
    """Return the error of a model that cannot be fetched, and its advice."""
    with pytest.raises(MemberError) as raised:
        hub.fetched(name)
    return raised.value, "\n".join(raised.value.notes)


# --- which file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("", "Model-Q4_K_M.gguf"),
        (":q8_0", "Model-Q8_0.gguf"),
        (":F16", "Model-F16.gguf"),  # not BF16
        (":bf16", "Model-BF16.gguf"),
        (":model-q8_0.GGUF", "Model-Q8_0.gguf"),
        (":mmproj-Model-Q4_K_M.gguf", "mmproj-Model-Q4_K_M.gguf"),  # by its whole name only
    ],
)
def test_a_name_means_what_it_means_to_llama_server(served, wanted, file):
    path = hub.fetched(NAME + wanted)
    assert path.name == file and path.read_bytes() == FILES[file]


@pytest.mark.parametrize(
    ("names", "usual"),
    [
        (["a-Q8_0.gguf", "a-Q4_K_S.gguf"], "a-Q8_0.gguf"),
        (["a-Q6_K.gguf", "a-Q5_0.gguf"], "a-Q5_0.gguf"),
        (["a-UD-Q4_K_M.gguf", "a-IQ4_XS.gguf"], "a-UD-Q4_K_M.gguf"),
        (["a.gguf", "mtp-a-Q4_K_M.gguf"], "a.gguf"),
        (["a.Q4_K_M.gguf", "sub/a.Q4_K_M.gguf"], "a.Q4_K_M.gguf"),
    ],
)
def test_without_q4_k_m_the_next_one_of_llama_cpp_is_taken(names, usual):
    assert hub.files_for(names) == hub.files_for(reversed(names)) == [usual]


def test_all_parts_of_a_split_model_are_fetched_and_the_first_one_is_loaded(served):
    served.add("me/Big-GGUF", {**SPLIT, "big/B-Q3_K-00001-of-00002.gguf": b"another"})
    for wanted in ("", ":Q2_K", ":big/B-Q2_K-00003-of-00003.gguf"):
        path = hub.fetched(f"hf:me/Big-GGUF{wanted}")
        if wanted:
            parts = [path.with_name(name.rpartition("/")[2]) for name in SPLIT]
            assert [part.read_bytes() for part in parts] == list(SPLIT.values())
            assert path.name == "B-Q2_K-00001-of-00003.gguf"


def test_parts_are_recognised_in_capital_letters(served):
    names = [f"A-0000{at}-OF-00002.GGUF" for at in (1, 2)]
    served.add("me/Loud-GGUF", {name: Q4 + name.encode() for name in names})
    assert hub.fetched("hf:me/Loud-GGUF").name == names[0]
    assert len(served.downloads()) == 2


@pytest.mark.parametrize(
    "name", ["hf:", "hf:model", "hf:a/b/c.gguf", "hf:a/b:", "hf://a/b", "hf:a/b@main", "hf:a b/c"]
)
def test_a_name_that_names_no_repository_is_refused_at_once(name):
    for make in (LlamaCppMember, lambda name: SpecFuseChatModel(members=[name])):
        with pytest.raises(UsageError, match="hf:user/model") as raised:
            make(name)
        assert repr(name) in str(raised.value) and raised.value.notes


def test_members_are_called_like_the_file_and_make_no_request(served):
    names = {
        NAME: "Model",
        f"{NAME}:Q8_0": "Model-Q8_0",
        f"{NAME}:sub/Other-Q8_0-00001-of-00002.gguf": "Other-Q8_0",
    }
    assert [LlamaCppMember(name).name for name in names] == list(names.values())
    llm = SpecFuseChatModel(members=[*names, f"{NAME}+./law.gguf"])
    assert names_of(llm.members) == [*names.values(), "law"]
    assert served.asked == []


# --- the cache ------------------------------------------------------------------------------------


def test_a_file_is_fetched_once_and_lies_in_the_hubs_cache(served):
    path = hub.fetched(NAME)
    (found,) = scan_cache_dir(constants.HF_HUB_CACHE).repos
    assert (found.repo_id, found.size_on_disk) == (REPOSITORY, len(Q4))
    assert hub.fetched(NAME) == hub.cached(NAME) == path and len(served.downloads()) == 1


def test_other_programs_and_this_one_find_each_others_files(served):
    path = hub.fetched(NAME)
    assert hf_hub_download(REPOSITORY, path.name, local_files_only=True) == str(path)
    other = hf_hub_download(REPOSITORY, "Model-Q8_0.gguf", endpoint=served.url)
    served.asked.clear()
    assert hub.fetched(f"{NAME}:Q8_0") == Path(other) and served.downloads() == []


def test_a_newer_file_on_the_hub_replaces_the_one_in_the_cache(served):
    hub.fetched(NAME)
    served.repositories[REPOSITORY].files["Model-Q4_K_M.gguf"] = Q8
    assert hub.fetched(NAME).read_bytes() == hub.cached(NAME).read_bytes() == Q8
    served.repositories[REPOSITORY].files["README.md"] = b"a new commit with the same model"
    assert hub.fetched(NAME).read_bytes() == Q8 and len(served.downloads()) == 2


@pytest.mark.parametrize("reason", ["offline", "broken", "gone", "unknown"])
def test_what_is_cached_is_used_where_the_hub_gives_nothing(served, monkeypatch, reason, caplog):
    path = hub.fetched(NAME)
    if reason == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if reason == "unknown":
        served.repositories.clear()
    served.broken = reason == "broken"
    if reason == "gone":
        served.stop()
    assert hub.fetched(NAME) == path
    about = [record for record in caplog.records if NAME in record.getMessage()]
    warned = [record.levelname for record in about if record.levelno >= logging.WARNING]
    assert warned == ([] if reason == "offline" else ["WARNING"])
    error, _ = refused(f"{NAME}:Q8_0")
    assert REPOSITORY in str(error)


def test_an_incomplete_cache_is_not_taken_for_a_model(served):
    served.add("me/Big-GGUF", dict(SPLIT))
    path = hub.fetched("hf:me/Big-GGUF")
    path.with_name("B-Q2_K-00002-of-00003.gguf").unlink()
    assert hub.cached("hf:me/Big-GGUF") is None and hub.cached("hf:me/none-GGUF") is None
    assert hub.fetched("hf:me/Big-GGUF") == path and hub.cached("hf:me/Big-GGUF") == path


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what", "advice"),
    [
        ("hf:me/Nothing-GGUF", "no repository me/Nothing-GGUF", "/me/Nothing-GGUF"),
        (f"{NAME}:Q5_K_M", "no quantisation 'Q5_K_M'", "Model-BF16.gguf, Model-F16.gguf"),
        (f"{NAME}:Other.gguf", "no file 'Other.gguf'", "Model-Q8_0.gguf"),
        ("hf:me/Plain", "no GGUF model", "'vllm:me/Plain'"),
    ],
)
def test_a_name_without_a_file_is_an_error_that_lists_what_there_is(served, name, what, advice):
    served.add("me/Plain", {"config.json": b"{}", "model.safetensors": b""})
    error, notes = refused(name)
    assert error.kind == "not_found" and what in str(error) and advice in notes
    assert "mmproj" not in notes


def test_a_gated_model_needs_the_licence_and_a_token(served, monkeypatch):
    served.repositories[REPOSITORY].token = "hf_right"
    for token in (None, "hf_wrong"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        error, advice = refused(NAME)
        assert error.kind == "not_found" and "gated" in str(error)
        assert f"{served.url}/{REPOSITORY}" in advice and "HF_TOKEN" in advice
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert hub.fetched(NAME).read_bytes() == Q4


def test_offline_the_error_says_so(served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error, advice = refused(NAME)
    assert "HF_HUB_OFFLINE" in str(error) and NAME in str(error) and served.asked == []
    assert "unset HF_HUB_OFFLINE" in advice


@pytest.mark.parametrize("fault", ["silent", "broken", "stopped"])
def test_a_hub_that_does_not_answer_is_an_error_with_advice(served, monkeypatch, fault):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    served.silent, served.broken = fault == "silent", fault == "broken"
    if fault == "stopped":
        served.stop()
    error, advice = refused(NAME)
    assert error.kind == "error" and served.url in str(error) and "HF_ENDPOINT" in advice


def test_a_full_disk_is_an_error_with_advice(served, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    error, advice = refused(NAME)
    assert "No space left" in str(error) and "HF_HOME" in advice


def test_without_huggingface_hub_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert hub.cached(NAME) is None
    with pytest.raises(UsageError, match="huggingface_hub") as raised:
        hub.fetched(NAME)
    assert "langchain-specfuse[hub]" in raised.value.notes[0]


# --- members --------------------------------------------------------------------------------------


def test_a_member_by_name_is_the_member_of_its_file(served, tiny_llama):
    content = tiny_llama.read_bytes()
    served.add("me/Tiny-GGUF", {"Tiny-Q4_K_M.gguf": content})
    member = LlamaCppMember("hf:me/Tiny-GGUF")
    assert member.preview() is None
    probe = member.probe()
    assert member.preview().max_context == probe.max_context == 8192
    same = LlamaCppMember("hf:me/Tiny-GGUF:q4_k_m", prefix_cache=False)
    same.probe()
    assert same.cache.weights is member.cache.weights, "the same file is loaded once"


def test_a_chat_model_names_its_members_on_the_hub(served, tiny_llama):
    served.add("me/Tiny-GGUF", {"Tiny-Q4_K_M.gguf": tiny_llama.read_bytes()})
    llm = SpecFuseChatModel(members=["hf:me/Tiny-GGUF"], max_tokens=5)
    local = SpecFuseChatModel(members=[str(tiny_llama)], max_tokens=5)
    assert llm.invoke("Hello").text == local.invoke("Hello").text
    llm.unload()
    wrong = SpecFuseChatModel(members=["hf:me/Tiny-GGUF:Q5_K_M"])
    with pytest.raises(MemberError, match="Q5_K_M") as raised:
        wrong.invoke("Hello")
    assert "Tiny-Q4_K_M.gguf" in "".join(raised.value.notes)


@pytest.mark.parametrize("with_config", [False, True])
def test_transformers_says_how_a_repository_of_gguf_files_is_named(
    served, with_config, monkeypatch
):
    # transformers keeps the address of the hub that it asked first
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    files = {"A-Q4_K_M.gguf": Q4}
    if with_config:
        files["config.json"] = b'{"model_type": "llama"}'
    served.add("me/Only-GGUF", files)
    with pytest.raises(UsageError, match="GGUF") as raised:
        TransformersMember("me/Only-GGUF").probe()
    assert "'hf:me/Only-GGUF'" in raised.value.notes[0]


def test_transformers_says_that_it_reads_no_gguf_file_by_name(served):
    with pytest.raises(UsageError, match="GGUF") as raised:
        TransformersMember(NAME).probe()
    assert f"LlamaCppMember('{NAME}')" in raised.value.notes[0]


@pytest.mark.parametrize("model", ["ollama/llama3.2", "llama3.2"])
def test_a_name_that_is_not_on_the_hub_may_mean_a_chat_model(served, model):
    with pytest.raises(MemberError) as raised:
        TransformersMember(model).probe()
    assert any(
        "model 'ollama:llama3.2'" in note or "named 'ollama:llama3.2'" in note
        for note in raised.value.notes
    )


def test_a_repository_without_the_prefix_is_no_file():
    with pytest.raises(MemberError) as raised:
        LlamaCppMember("me/Only-GGUF").probe()
    assert "'hf:me/Only-GGUF'" in raised.value.notes[0]


@pytest.mark.real
def test_a_real_model_from_the_hub_answers_like_its_file(served):
    file = file_of(SMOLLM2)
    served.add("me/SmolLM2-GGUF", {"SmolLM2.Q4_1.gguf": file.read_bytes()})
    texts = [
        SpecFuseChatModel(members=[name], max_tokens=12).invoke("Why is the sky blue?").text
        for name in ("hf:me/SmolLM2-GGUF:Q4_1", str(file))
    ]
    assert texts[0] == texts[1] != ""
