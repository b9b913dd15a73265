"""The folders of the package import only what lies beneath them; read from the source."""

from __future__ import annotations

import ast
import inspect
import pydoc
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import langchain_specfuse

ROOT = Path(__file__).parent.parent / "langchain_specfuse"
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}

MAY_IMPORT = {
    "errors": set(),
    "user_code": {"errors"},
    "removed": {"errors"},
    "core": {"errors"},
    "engine": {"core", "errors"},
    "constraints": {"core", "errors"},
    "checks": {"constraints", "core", "errors"},
    "members": {"constraints", "core", "errors"},
    "show": {"core", "errors"},
    "demo": {"members", "core", "errors"},
    "chat": {
        "engine",
        "members",
        "constraints",
        "show",
        "core",
        "errors",
        "removed",
    },
    "serve": {"chat", "engine", "constraints", "show", "core", "errors"},
    "evaluation": {"chat", "engine", "show", "core", "errors", "user_code"},
    "cli": {
        "checks",
        "user_code",
        "serve",
        "evaluation",
        "chat",
        "demo",
        "engine",
        "members",
        "constraints",
        "show",
        "core",
        "errors",
        "removed",
    },
}
"""Folder (or file at the root) -> what it may import besides itself, ``_version`` and ``removed``."""

THIRD_PARTY = {
    **{key: {"members/transformers/"} for key in ("torch", "accelerate", "peft", "safetensors")},
    "psutil": {"members/transformers/", "members/llamacpp/"},
    **{
        key: {"members/transformers/", "members/server/tokenizers.py"}
        for key in ("transformers", "tokenizers")
    },
    "huggingface_hub": {
        "members/transformers/",
        "members/hub.py",
        "demo.py",
    },
    "jinja2": {"members/text/", "members/server/", "members/llamacpp/tokenizer.py"},
    "numpy": {
        "members/local/",
        "members/transformers/",
        "members/llamacpp/",
        "constraints/",
    },
    "llguidance": {"constraints/"},
    "vllm": {"members/server/in_vllm/"},
    "jsonschema": {"constraints/"},
    "pydantic": {
        "core/options.py",
        "chat/",
        "members/",
        "serve/",
        "evaluation/results.py",
        "cli/choices.py",
    },
    "langchain_core": {
        "chat/",
        "serve/",
        "cli/main.py",
        "members/chat_model/",
        "checks/asking.py",
    },
    **{
        key: {"members/server/chat.py"}
        for key in ("langchain_ollama", "langchain_openai", "openai")
    },
    "langchain": {"members/chat_model/", "chat/middleware.py"},
    "langsmith": {"members/chat_model/"},
    "fastapi": {"serve/"},
    "starlette": {"serve/", "members/server/in_vllm/"},
    "prometheus_client": {"serve/"},
    "uvicorn": {"serve/"},
    "ray": {"members/ray.py"},
    "httpx2": {"members/server/"},
    "orjson": {"members/server/"},
}
"""Third-party package -> the folders and files that may import it. Others must not be imported."""


def module_of(name: str) -> str:
    """``core/panel.py`` -> ``core.panel``; ``core/__init__.py`` -> ``core``."""
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(name) for name in FILES}


@cache
def imports(name: str) -> set[str]:
    """Return the modules that a file imports, also inside functions and for type checkers; modules
    of the package begin with a dot instead of its name."""
    imported: set[str] = set()
    folder = name.split("/")[:-1]
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) + 1 - node.level]
            path = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                inner = f"{path}.{alias.name}" if path else alias.name
                imported.add("." + (inner if inner in MODULES else path))
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    return {module.removeprefix("langchain_specfuse") for module in imported}


def test_folders_import_only_what_lies_beneath_them():
    wrong = []
    for name in FILES:
        folder = name.split("/")[0].removesuffix(".py")
        allowed = MAY_IMPORT.get(folder)
        for module in imports(name):
            to = module[1:].split(".")[0] if module.startswith(".") else ""
            if allowed is not None and to and to not in {folder, "_version", "removed", *allowed}:
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_packages_from_outside_are_imported_only_where_they_belong():
    wrong = []
    for name in FILES:
        for module in imports(name):
            package = module.split(".")[0]
            if module.startswith(".") or not package or package in sys.stdlib_module_names:
                continue
            if not name.startswith(tuple(THIRD_PARTY.get(package, ())) or ("nowhere",)):
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_no_module_imports_itself_through_others():
    """Not even in a function, or for type checkers: who reads one of two such files must read the
    other, too."""
    graph = {module_of(name): {m[1:] for m in imports(name) if m.startswith(".")} for name in FILES}
    circles, done, path = [], set(), []

    def visit(module: str) -> None:
        if module in path:
            circles.append(" -> ".join([*path[path.index(module) :], module]))
            return
        if module in done:
            return
        path.append(module)
        for other in sorted(graph.get(module, ())):
            visit(other)
        done.add(path.pop())

    for module in sorted(graph):
        visit(module)
    assert circles == []


def test_the_tables_see_wrong_imports(monkeypatch, tmp_path, request):
    """Shows that the tests above can fail."""
    request.addfinalizer(imports.cache_clear)
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from ..engine import drive\nimport torch\nfrom langchain_specfuse.cli import main\n"
    )
    monkeypatch.setitem(FILES, "core/bad.py", bad)
    with pytest.raises(AssertionError, match=r"engine"):
        test_folders_import_only_what_lies_beneath_them()
    with pytest.raises(AssertionError, match="torch"):
        test_packages_from_outside_are_imported_only_where_they_belong()
    imports.cache_clear()
    bad.write_text("if TYPE_CHECKING:\n    from .values import Query\n")
    monkeypatch.setitem(FILES, "core/values.py", bad)
    with pytest.raises(AssertionError, match=r"core\.values"):
        test_no_module_imports_itself_through_others()


LIGHT = (
    (
        "import langchain_specfuse",
        {"torch", "transformers", "langchain_core", "pydantic"},
    ),
    (
        "from langchain_specfuse import checks; checks.forbids('a')",
        {"torch", "transformers", "langchain_core", "pydantic", "jsonschema", "llguidance"},
    ),
    (
        "import langchain_specfuse.constraints",
        {"torch", "transformers", "langchain_core", "pydantic"},
    ),
    (
        "import langchain_specfuse.members.server",
        {"torch", "transformers", "langchain_core", "pydantic"},
    ),
    (
        "from langchain_specfuse import ScriptedMember",
        {"torch", "transformers", "langchain_core"},
    ),
    (
        "import langchain_specfuse.core.rounds, langchain_specfuse.engine",
        {"torch", "transformers", "langchain_core"},
    ),
    (
        "from langchain_specfuse import SpecFuseChatModel as A; A(members=['org/a', './a.gguf', "
        "'http://a:1'])",
        {"torch", "transformers", "numpy"},
    ),
    (
        "import langchain_specfuse as s; "
        "s.SpecFuseChatModel(members=[s.ScriptedMember('x')]).invoke('?')",
        {"torch", "transformers", "ray", "langchain", "langgraph"},
    ),
    (
        "import langchain_specfuse as s; s.SpecFuseChatModel(members=[s.TransformersMember("
        "'org/b', dtype='float16'), s.LlamaCppMember('a.gguf', cache_type='q8_0')])",
        {"torch", "transformers", "xllamacpp"},
    ),
)
"""Statements, each of which may load more than those before it, and what it must not load."""


def test_importing_loads_no_more_than_it_needs():
    code = "import sys; before = set(sys.modules)"
    for statement, _ in LIGHT:
        code += f"; {statement}; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for (statement, unwanted), loaded in zip(LIGHT, done.stdout.splitlines(), strict=True):
        assert not unwanted & set(loaded.split()), statement


WITHOUT_EXTRAS = """
import sys

BLOCKED = sys.argv[1].split(",")


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Block())
import inspect
import pydoc

import langchain_specfuse as package

names = {}
exec("from langchain_specfuse import *", names)
assert set(package.__all__) <= names.keys()
assert dict(inspect.getmembers(package)).keys() >= set(package.__all__)
assert "SpecFuseChatModel" in pydoc.render_doc(package)
llm = package.SpecFuseChatModel(members=[package.ScriptedMember("It works.")])
assert llm.invoke("Does it?").text == "It works."
for name, extra in (
    ("TransformersMember", "transformers"), ("LlamaCppMember", "llamacpp"), ("ServerMember", "server"),
    ("SpecFuseChecks", "agents"),
):
    try:
        names[name]("http://localhost:8000/v1")
    except ImportError as error:
        assert f"langchain-specfuse[{extra}]" in str(error), error
        assert not isinstance(llm, names[name])
    else:
        raise AssertionError(name)
"""
OF_EXTRAS = (
    "torch transformers tokenizers accelerate peft numpy psutil jinja2 xllamacpp httpx2 llguidance "
    "jsonschema ray fastapi uvicorn prometheus_client huggingface_hub langchain langchain_openai"
)


def test_all_names_can_be_imported_and_shown_without_any_extra():
    blocked = OF_EXTRAS.replace(" ", ",")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTRAS, blocked], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_all_names_can_be_imported_and_shown_with_the_extras():
    names: dict[str, object] = {}
    exec("from langchain_specfuse import *", names)
    assert set(langchain_specfuse.__all__) <= names.keys()
    assert dict(inspect.getmembers(langchain_specfuse)).keys() >= set(langchain_specfuse.__all__)
    assert "SpecFuseChatModel" in pydoc.render_doc(langchain_specfuse)
