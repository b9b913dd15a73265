"""The repository itself: what is in the wheel, that make explains its targets, that pins and requirements agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
if not (ROOT / "Makefile").exists():
    pytest.skip("not in a checkout", allow_module_level=True)


def test_the_wheel_is_typed_complete_and_holds_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        names = set(archive.namelist())
    kinds = {".py", ".html", ".css", ".js", ".typed"}
    package = [path for path in (ROOT / "langchain_specfuse").rglob("*") if path.suffix in kinds]
    assert names >= {path.relative_to(ROOT).as_posix() for path in package}
    assert "langchain_specfuse/py.typed" in names
    assert [name for name in names if not re.match(r"langchain_specfuse(-[\d.]+\.dist-info)?/", name)] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_make_help_explains_every_target():
    make = ["make", "--no-print-directory", "help"]  # this test may itself run under make
    shown = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*##", text, re.M)
    assert [line.split()[0] for line in shown.splitlines()[1:]] == targets
    assert set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split()) == set(targets)


def test_every_requirement_of_the_package_is_pinned_within_its_range():
    pins = dict(line.split("==") for line in (ROOT / "constraints/dev.txt").read_text().split() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    for need in map(Requirement, needs):
        if need.name != "langchain-specfuse":
            assert need.specifier.contains(pins[need.name.replace("_", "-").lower()]), need
