"""The house itself: what is in the wheel, that the targets explain themselves, that pins and needs agree."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
if not (ROOT / "Makefile").exists():
    pytest.skip("not in a checkout", allow_module_level=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> list[str]:
    """The names of the files in the wheel."""
    pytest.importorskip("hatchling")
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(target.glob("*.whl"))) as archive:
        return archive.namelist()


PAGE = ("page.html", "page.css", "page.js", "plot.js", "round.js")


def test_the_wheel_is_typed_and_holds_no_tests(wheel):
    assert "langchain_specfuse/py.typed" in wheel
    assert "langchain_specfuse/core/rounds.py" in wheel
    assert {f"langchain_specfuse/show/{name}" for name in PAGE} <= set(wheel)
    outside = [name for name in wheel if not re.match(r"langchain_specfuse(-[\d.]+\.dist-info)?/", name)]
    assert outside == []
    assert any(name.endswith("licenses/LICENSE") for name in wheel)


def test_make_help_prints_every_target_that_people_may_call():
    make = ["make", "--no-print-directory", "help"]  # this test may itself run under make
    shown = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony
    assert [line.split()[0] for line in shown.splitlines()[1:]] == re.findall(r"^([a-z-]+):.*##", text, re.M)
    assert set(phony[1].split()) == set(re.findall(r"^([a-z-]+):.*##", text, re.M))


def test_every_need_of_the_package_is_pinned_within_its_range():
    from packaging.requirements import Requirement

    pins = dict(line.split("==") for line in (ROOT / "constraints/dev.txt").read_text().split() if "==" in line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    for need in map(Requirement, needs):
        if need.name != "langchain-specfuse":
            assert need.specifier.contains(pins[need.name.replace("_", "-").lower()]), need


def test_the_package_brings_nothing_heavy_by_default():
    code = "import sys, langchain_specfuse; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.strip() == "[]"
