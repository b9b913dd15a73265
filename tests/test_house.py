"""The repository itself: what is in the wheel, that make explains its targets, that files which say
the same agree."""

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


def test_the_wheel_is_typed_complete_and_holds_nothing_else(tmp_path):
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
    pins = dict(
        line.split("==")
        for line in (ROOT / "requirements/dev.txt").read_text().split()
        if "==" in line
    )
    project = PYPROJECT["project"]
    needs = [
        *project["dependencies"],
        *(need for extra in project["optional-dependencies"].values() for need in extra),
    ]
    for need in map(Requirement, needs):
        if need.name != "langchain-specfuse":
            assert need.specifier.contains(pins[need.name.replace("_", "-").lower()]), need


WORKFLOWS = {
    path.name: yaml.safe_load(path.read_text())
    for path in (ROOT / ".github/workflows").glob("*.yml")
}


def steps(workflow: str) -> list[dict[str, str]]:
    jobs = WORKFLOWS[workflow]["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


def commands(text: str) -> set[str]:
    """The targets of make and the scripts that a text calls, as they are written there."""
    return set(re.findall(r"^(?:if )?(make [a-z-]+|scripts/[a-z-]+)", text, re.M))


def test_the_workflows_call_the_commands_of_ci():
    called = {
        name: commands("\n".join(step["run"] for step in steps(name) if "run" in step))
        for name in WORKFLOWS
    }
    in_one_go = commands((ROOT / ".ci/run").read_text())
    # The matrix of GitHub's workflow has the newest Python.
    assert called["ci.yml"] | {"scripts/test-python"} == in_one_go
    assert called["docs.yml"] | called["release.yml"] <= in_one_go
    text = (ROOT / "Makefile").read_text() + " ".join(in_one_go)
    scripts = re.findall(r"scripts/[a-z-]+(?!\S)", text)
    assert [name for name in scripts if not os.access(ROOT / name, os.X_OK)] == []


def test_the_workflows_pin_the_major_versions_of_their_actions():
    used = [step["uses"] for name in WORKFLOWS for step in steps(name) if "uses" in step]
    assert [action for action in used if not re.search(r"@(release/)?v\d+$", action)] == []


def test_the_workflows_use_the_oldest_and_the_newest_python():
    pythons = re.findall(r"Python :: (3\.\d+)", str(PYPROJECT["project"]["classifiers"]))
    matrix = WORKFLOWS["ci.yml"]["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == [pythons[0], pythons[-1]]
    assert PYPROJECT["project"]["requires-python"] == f">={pythons[0]}"


def test_the_address_of_the_repository_is_the_same_everywhere():
    kinds = ("*.md", "*.cff", "*.toml", ".github/**/*.*", "docs/**/*.md")
    pages = {
        path.name: path.read_text() for kind in kinds for path in ROOT.glob(kind) if path.is_file()
    }
    address = re.compile(r"github(?:usercontent)?\.com/([\w-]+/langchain-specfuse)")
    found = {name: {*address.findall(text)} for name, text in pages.items()}
    own = address.search(PYPROJECT["project"]["urls"]["Source"])[1]
    assert {name: names for name, names in found.items() if names - {own}} == {}
    assert all(
        found[name] for name in ("pyproject.toml", "CITATION.cff", "CONTRIBUTING.md", "config.yml")
    )
