"""How the pages' commands run: in an empty folder, with cheap stand-ins for some programs.

``langchain-specfuse`` is the real command with scripted members. ``make`` only checks that its
targets exist (CI calls them, and some take minutes), ``pip`` that the extras do (it would change
the environment in which the tests run).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import langchain_specfuse
from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Query

from .blocks import ROOT, Block

BASH = shutil.which("bash")
COMMAND = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from langchain_specfuse.cli.main import main
from tests.demo_members import replace_demo
from tests.docs.shell import Actor, replace_members
replace_members(dict.__setitem__)
replace_demo([Actor(name=name) for name in ("SmolLM2-135M", "Gemma-3-270M")])
sys.exit(main())
"""
MAKE = f"""#!{BASH}
exec {shutil.which("make")} --no-print-directory -n -C '{ROOT}' "$@" > /dev/null
"""
PIP = f"""#!{sys.executable}
import re, sys, tomllib
project = tomllib.load(open({str(ROOT / "pyproject.toml")!r}, "rb"))["project"]
assert sys.argv[1] == "install", sys.argv
for extra in ",".join(re.findall(r"\\[(.*?)\\]", " ".join(sys.argv))).split(","):
    assert not extra or extra in project["optional-dependencies"], f"there is no extra {{extra!r}}"
"""
STAND_INS = {"langchain-specfuse": COMMAND, "make": MAKE, "pip": PIP}


def example_of(schema: dict[str, Any]) -> Any:
    """Return a simple value that satisfies this schema."""
    if values := schema.get("enum"):
        return values[0]
    if properties := schema.get("properties"):
        return {key: example_of(inner) for key, inner in properties.items()}
    return {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": []}.get(
        schema.get("type", "")
    )


def script(query: Query) -> Any:
    """Return what an actor writes: a text that satisfies the query's constraint."""
    if query.constraint and query.constraint.kind == "calls":
        return ScriptedMember.call(
            query.tools[0].name, **example_of(json.loads(query.tools[0].parameters))
        )
    if query.constraint and query.constraint.kind == "json_schema":
        return example_of(json.loads(query.constraint.body))
    return "The sky is blue."


class Actor(ScriptedMember):
    """Stands in for a member that a page names by a model or server that is not available."""

    def __init__(self, *_: Any, name: str | None = None, **__: Any) -> None:
        super().__init__(script, name=name)


def replace_members(set_item: Callable[[dict[str, Any], str, Any], None]) -> None:
    """Replace the modules that define members by modules with actors, so that commands need not
    import torch. The package keeps the classes that were asked for, so they are replaced too."""
    homes = {
        "llamacpp.member": "LlamaCppMember",
        "transformers.member": "TransformersMember",
        "server.member": "ServerMember",
        "server.vllm_member": "VllmMember",
    }
    for home, name in homes.items():
        module = ModuleType(f"langchain_specfuse.members.{home}")
        setattr(module, name, Actor)
        set_item(sys.modules, module.__name__, module)
        set_item(vars(langchain_specfuse), name, Actor)


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the block in this folder; stop at the first line that fails."""
    programs = folder / ".bin"
    programs.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    command = [str(BASH), "-euo", "pipefail", "-c", block.code]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
