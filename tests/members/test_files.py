"""Properties that are known before a member is loaded equal those it reports afterwards."""

from __future__ import annotations

import struct
import time

import gguf
import pytest
from huggingface_hub import constants

from langchain_specfuse.core.member import Probe
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members.files import preview
from langchain_specfuse.members.llamacpp.member import LlamaCppMember
from langchain_specfuse.members.ray import RayMember
from langchain_specfuse.members.transformers.member import TransformersMember

from . import tiny
from .local.test_thinking import KNOWS, OPENS


def properties(probe):
    return probe.scores, probe.max_context, probe.reasons


@pytest.mark.parametrize(
    ("arch", "template", "options", "length", "reasoning"),
    [
        ("llama", tiny.CHATML, {}, 2048, False),
        ("llama", tiny.CHATML, {"model_kwargs": {"max_position_embeddings": 64}}, 64, False),
        ("llama", tiny.CHATML, {"chat_template": KNOWS}, 2048, True),
        ("llama", KNOWS, {"chat_template_kwargs": {"enable_thinking": False}}, 2048, False),
        ("llama", OPENS, {}, 2048, True),
        ("llama", OPENS, {"thinking_tokens": 0}, 2048, False),
        ("gpt2", None, {}, 1024, False),  # config.json uses another name for it
        ("phi3-long", tiny.CHATML, {}, 48, False),
    ],
)
def test_a_folder_shows_what_the_loaded_model_reports(
    arch, template, options, length, reasoning, folder_of
):
    member = TransformersMember(folder_of(arch, chat_template=template), dtype="float32", **options)
    before = RayMember(member).preview()
    assert member.cache is None and properties(before) == (True, length, reasoning)
    assert properties(member.probe()) == properties(before)
    if "model_kwargs" not in options:
        in_memory = TransformersMember(*tiny.cached(arch, 1, chat_template=template), **options)
        assert properties(in_memory.preview()) == properties(before)


@pytest.mark.real
def test_a_gguf_file_shows_what_the_loaded_model_reports():
    member = LlamaCppMember(file_of(SMOLLM2))
    before = member.preview()
    assert member.cache is None and properties(before) == (True, 8192, False)
    assert properties(member.probe()) == properties(before)


def head(path, **values):
    """Return a GGUF file without tensors: its header can be read, but it cannot be loaded."""
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_token_list(["a", "b\0", "ü"] * 9)
    writer.add_array("some.scores", [1.5, 2.5])
    writer.add_bool("some.switch", True)
    for key, value in values.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(
            key.replace("__", "."), value
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


LONGROPE = {
    "phi3__rope__scaling__type": "longrope",
    "phi3__rope__scaling__original_context_length": 4096,
}


def test_the_head_of_a_gguf_file_is_enough(tmp_path):
    file = head(
        tmp_path / "a.gguf", phi3__context_length=131072, tokenizer__chat_template=OPENS, **LONGROPE
    )
    assert preview({"model": str(file)}) == Probe(str(file), max_context=4096, reasons=True)
    whole = file.read_bytes()
    for size in range(0, len(whole), 7):  # an interrupted download
        (tmp_path / "cut.gguf").write_bytes(whole[:size])
        assert preview({"model": str(tmp_path / "cut.gguf")}) is None
    huge = whole[:16] + b"\xff" * 8 + whole[24:]
    (tmp_path / "huge.gguf").write_bytes(huge)
    assert preview({"model": str(tmp_path / "huge.gguf")}) is None
    assert preview({"model": str(head(tmp_path / "none.gguf"))}) is None


def gguf_head(facts, tail):
    return b"GGUF" + (3).to_bytes(4, "little") + struct.pack("<QQ", 0, facts) + tail


@pytest.mark.parametrize(
    "head",
    [
        gguf_head(1, struct.pack("<Q", 3 << 30)),  # a name of 3 GB
        gguf_head(1, struct.pack("<QcIQ", 1, b"a", 8, 3 << 30)),  # a text
        gguf_head(1, struct.pack("<QcIIQ", 1, b"a", 9, 8, 2**60)),  # a list of texts
        gguf_head(1, struct.pack("<QcIIQ", 1, b"a", 9, 9, 2**60)),  # a list of lists
        gguf_head(2**60, b""),
    ],
    ids=["name", "text", "texts", "lists", "facts"],
)
def test_a_large_gguf_file_with_false_sizes_is_left_alone_soon(head, tmp_path):
    file = tmp_path / "a.gguf"
    file.write_bytes(head)
    with file.open("r+b") as opened:
        opened.truncate(4 << 30)  # zeros, which take no room on the disk
    begun = time.monotonic()
    assert LlamaCppMember(str(file)).preview() is None
    assert time.monotonic() - begun < 60


def test_a_hub_id_is_read_from_the_cache_and_never_fetched(folder_of, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("a server was asked"))
    assert preview({"model": "org/tiny"}) is None
    kept = tmp_path / "models--org--tiny"
    for part, content in (("refs/main", "123"), ("refs/old", "456")):
        (kept / part).parent.mkdir(parents=True, exist_ok=True)
        (kept / part).write_text(content)
    (kept / "snapshots").mkdir()
    folder_of("llama").rename(kept / "snapshots" / "123")
    assert properties(preview({"model": "org/tiny"})) == (True, 2048, False)
    assert preview({"model": "org/tiny", "model_kwargs": {"revision": "old"}}) is None


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"max_position_embeddings": "many"}',
        '{"text_config": {"model_type": "gemma3_text"}}',
    ],
)
def test_properties_that_files_do_not_show_stay_unknown(config, tmp_path):
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 512}')
    assert preview({"model": str(tmp_path)}) is None
    (tmp_path / "config.json").write_text('{"text_config": {"max_position_embeddings": 1024}}')
    assert preview({"model": str(tmp_path)}).max_context == 512
