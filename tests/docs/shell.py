"""Where the pages' commands run: an empty folder, and in place of some programs stand-ins that tell the truth cheaply.

``specfuse`` is the real command; its members play a scripted part. ``make`` and ``pip`` do nothing but refuse what is
not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .blocks import ROOT, Block

BASH = shutil.which("bash")
SPECFUSE = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from langchain_specfuse import ScriptedMember, _registry, cli
_registry._made = lambda arguments: ScriptedMember("The sky is blue.", name=arguments["name"])
names = ("SmolLM2-135M", "Gemma-3-270M")
sys.exit(cli.main(members=[ScriptedMember("The sky is blue.", name=name) for name in names]))
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
STAND_INS = {"specfuse": SPECFUSE, "make": MAKE, "pip": PIP}
NOT_DONE = {
    "make": "only that the targets are there: CI calls them (.ci/run), and some take minutes",
    "pip": "only that the extras are there: it would change the environment that the tests run in",
}
"""What the pages' commands would do and here do not, and why."""


def installed(folder: Path) -> Path:
    """A folder of stand-ins, to be looked at before all others."""
    folder.mkdir(exist_ok=True)
    for name, text in STAND_INS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def done(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """The block, run in this folder; it stops at the first line that fails."""
    path = f"{installed(folder / '.bin')}{os.pathsep}{os.environ['PATH']}"
    command = [str(BASH), "-euo", "pipefail", "-c", block.code]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120
    )
