"""The repository: the contents of the wheel, the targets of make, pinned requirements and CI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
if not (ROOT / "Makefile").exists():
    pytest.skip("not in a checkout", allow_module_level=True)
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_is_typed_and_contains_the_package_and_nothing_else(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        names = set(archive.namelist())
        metadata = message_from_bytes(
            archive.read(next(name for name in names if name.endswith("/METADATA")))
        )
    kinds = {".py", ".html", ".css", ".js", ".typed"}
    package = [path for path in (ROOT / "langchain_specfuse").rglob("*") if path.suffix in kinds]
    assert names >= {path.relative_to(ROOT).as_posix() for path in package}
    assert "langchain_specfuse/py.typed" in names
    assert [
        name for name in names if not re.match(r"langchain_specfuse(-[^/]+\.dist-info)?/", name)
    ] == []
    assert any(name.endswith("licenses/LICENSE") for name in names)
    page = (
        MarkdownIt("commonmark").enable("table").render(metadata.get_payload(decode=True).decode())
    )
    links = re.findall(r'(?:href|src(?:set)?)="([^"]*)"', page)
    assert f"blob/v{metadata['Version']}/docs/index.md" in "".join(links)
    assert [link for link in links if not link.startswith("https://")] == [], (
        "they lead nowhere on a package index"
    )


def test_make_help_explains_every_target():
    make = ["make", "--no-print-directory", "help"]  # this test may itself run under make
    shown = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z-]+):.*##", text, re.M)
    assert [line.split()[0] for line in shown.splitlines()[1:]] == targets
    assert set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split()) == set(targets)


def test_every_requirement_of_the_package_is_pinned_within_its_range():
    lines = (ROOT / "requirements/dev.txt").read_text().split()
    pins = dict(line.split("==") for line in lines if "==" in line)
    project = PYPROJECT["project"]
    requirements = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        requirements += extra
    for requirement in map(Requirement, requirements):
        if requirement.name != "langchain-specfuse":
            pin = pins[requirement.name.replace("_", "-").lower()]
            assert requirement.specifier.contains(pin), requirement


WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github/workflows").glob("*.yml")
}


def steps(workflow: str) -> list[dict[str, str]]:
    jobs = WORKFLOWS[workflow]["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def commands(text: str) -> set[str]:
    """Return the targets of make and the scripts that a text calls."""
    found = set(re.findall(r"^(?:if )?(scripts/[a-z-]+)", text, re.M))
    makes = r"^(?:PROCESSES=\d )?(?:nice make|make|alone|side_by_side)((?: [a-z-]+)+)"
    for targets in re.findall(makes, text, re.M):
        found |= {f"make {target}" for target in targets.split()}
    return found


def test_the_workflows_call_the_commands_of_ci():
    called = {
        name: commands("\n".join(step["run"] for step in steps(name) if "run" in step))
        for name in WORKFLOWS
    }
    local_ci = commands((ROOT / ".ci/run").read_text())
    # `make test-rest` has both; here they run side by side.
    both = {"make test-long", "make test-serving"}
    here = local_ci - both | {"make test-rest"} if both <= local_ci else local_ci
    # The matrix of GitHub's workflow has the newest Python.
    assert called["ci.yml"] | {"make install", "make test-python"} == here
    assert called["docs.yml"] | called["release.yml"] <= local_ci
    text = (ROOT / "Makefile").read_text() + " ".join(local_ci)
    scripts = re.findall(r"scripts/[a-z-]+(?!\S)", text)
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []
