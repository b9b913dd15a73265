"""Hostile model folders: code, pickles, and names of other folders."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from langchain_specfuse import MemberError, UsageError
from langchain_specfuse.members.server.tokenizers import local_tokenizer
from langchain_specfuse.members.transformers.member import TransformersMember
from tests.members import tiny

# --- folders --------------------------------------------------------------------------------------

CODE = """
from pathlib import Path
Path("BROKEN").touch()
class HostileConfig: pass
class HostileModel: pass
class HostileTokenizer: pass
"""


class Bomb:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("BROKEN"),)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a valid model in a folder to which strangers may have added files."""
    model, tokenizer = tiny.build("llama", 1)
    path = tmp_path / "model"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    (path / "hostile.py").write_text(CODE)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return path


def changed(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


MAPS = {
    "config.json": {
        "auto_map": {
            "AutoConfig": "hostile.HostileConfig",
            "AutoModelForCausalLM": "hostile.HostileModel",
        },
        "model_type": "hostile",
    },
    "tokenizer_config.json": {
        "auto_map": {"AutoTokenizer": ["hostile.HostileTokenizer", None]},
        "tokenizer_class": "HostileTokenizer",
    },
}


@pytest.mark.parametrize("file", MAPS)
@pytest.mark.parametrize(
    "read", [lambda folder: TransformersMember(folder).probe(), local_tokenizer]
)
def test_code_in_a_folder_is_not_run(folder, file, read, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    changed(folder / file, **MAPS[file])
    with suppress(UsageError, MemberError):  # the rest of the folder may or may not load
        read(str(folder))
    assert not Path("BROKEN").exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.pth"])
@pytest.mark.parametrize("alone", [True, False])
def test_no_pickle_is_opened(folder, name, alone):
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    if alone:
        (folder / "model.safetensors").unlink()
        with pytest.raises(UsageError, match="pickled weights"):
            TransformersMember(str(folder)).probe()
    else:
        TransformersMember(str(folder)).probe()
    assert not Path("BROKEN").exists()


@pytest.mark.parametrize(
    "name", ["a/../../etc", "../../etc/passwd", "/etc/passwd", "\0", "a\0b", "../" * 40 + "etc"]
)
def test_a_name_that_leaves_its_folder_is_an_error_and_writes_nothing(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for options in ({}, {"adapter": name}):
        with pytest.raises((UsageError, MemberError)):
            TransformersMember(name, **options).probe()
    assert not list(tmp_path.rglob("*"))


def test_a_members_name_is_never_part_of_a_path(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "cache"))
    TransformersMember(str(folder), name="../../../escaped").probe()
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and folder not in path.parents
    ]


# --- sizes that lie -------------------------------------------------------------------------------


def lying(tensors: int = 0, facts: int = 0, tail: bytes = b"") -> bytes:
    return (
        b"GGUF"
        + (3).to_bytes(4, "little")
        + tensors.to_bytes(8, "little")
        + facts.to_bytes(8, "little")
        + tail
    )


LONG_KEY = (2**62).to_bytes(8, "little") + b"general.architecture"
LONG_LIST = (1).to_bytes(8, "little") + b"a" + (9).to_bytes(4, "little") + (0).to_bytes(4, "little")
LIES = {
    "so many tensors": lying(tensors=2**60),
    "so many facts": lying(facts=2**60),
    "so long a name": lying(facts=1, tail=LONG_KEY),
    "so long a list": lying(facts=1, tail=LONG_LIST + (2**60).to_bytes(8, "little")),
    "nothing": b"",
    "half a head": lying()[:10],
}
READ = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
from langchain_specfuse import MemberError, UsageError
from langchain_specfuse.members.llamacpp.member import LlamaCppMember
for file in sys.argv[1:]:
    try:
        LlamaCppMember(file).probe()
    except (MemberError, UsageError) as error:
        print("refused", str(error)[:100].replace(chr(10), " "), flush=True)
"""


def test_a_gguf_file_with_false_sizes_is_refused_in_bounded_time_and_memory(tmp_path):
    files = []
    for number, content in enumerate(LIES.values()):
        files.append(str(tmp_path / f"{number}.gguf"))
        Path(files[-1]).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", READ, *files], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.count("refused") == len(LIES), done.stdout + done.stderr


def test_a_folder_that_names_another_as_its_base_is_refused(folder):
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {"peft_type": "LORA", "base_model_name_or_path": "/etc", "task_type": "CAUSAL_LM"}
        )
    )
    with pytest.raises(UsageError, match="adapter_config") as caught:
        TransformersMember(str(folder)).probe()
    assert "base+adapter" in caught.value.notes[0]
