"""Figures are measured by scripts that work, shown by tables that fit, and refused once their code
has changed."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from importlib import import_module

import pytest

from .blocks import ROOT

SCRIPTED, REAL = ("endpoint", "tracing"), ("engines", "prefix")
SLOW = {"load", "rounds"}
"""Minutes even with --tiny. A change of what they measure, or of them, makes the docs build ask for
a whole run."""
MINUTES = (pytest.mark.real, pytest.mark.long)


@pytest.mark.parametrize("module", ["common", "fresh", "member_sets"])
def test_examples_in_docstrings_hold(build, module):
    assert doctest.testmod(import_module(module)).failed == 0


def test_a_digest_ignores_comments_and_sentences_and_nothing_else(build):
    code = "def f(x: int = 1) -> str:\n    return f'{x!r:>8} of ' + 'a'\n"
    told = (
        '"""About."""\ndef f(x: int=1) -> str:\n    """It says."""\n    return f"{x!r:>8} out '
        'of " + "a"  # why\n'
    )
    assert build.fresh.digest(code) == build.fresh.digest(told) == "e10bf39a2ec7", (
        "the same under every Python"
    )
    others = [
        code.replace("1", "2"),
        code.replace("'a'", "'b'"),
        code.replace(">8", ">9"),
        code.replace("int", "str"),
    ]
    assert len({build.fresh.digest(one) for one in [code, *others]}) == 5


def test_a_figure_that_is_older_than_its_code_is_refused_and_the_script_named(build, tmp_path):
    about = {"commit": "abc1234", "code": build.fresh.code_of("prefix")}
    (tmp_path / "prefix.json").write_text(json.dumps({"about": about}))
    assert build.outdated(tmp_path) == [] and set(build.fresh.MEASURES) == {*SCRIPTED, *REAL, *SLOW}
    about["code"]["langchain_specfuse/members/llamacpp/cache.py"] = "another"
    (tmp_path / "prefix.json").write_text(json.dumps({"about": about}))
    (message,) = build.outdated(tmp_path)
    assert (
        "abc1234" in message
        and "llamacpp/cache.py changed: run python benchmarks/prefix.py" in message
    )


@pytest.mark.parametrize("script", [*SCRIPTED, *(pytest.param(one, marks=MINUTES) for one in REAL)])
def test_a_benchmark_runs_and_its_tables_can_be_made(build, script, tmp_path):
    out = tmp_path / f"{script}.json"
    asked = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--tiny", "--out", str(out)]
    subprocess.run(asked, check=True, cwd=tmp_path)
    results = json.loads(out.read_text())
    assert {"commit", "version", "arguments", "machine", "date"} <= results["about"].keys()
    assert build.outdated(tmp_path) == []
    made = [
        make(results)
        for make, source in build.MEASURED.values()
        if source == f"benchmarks/{script}"
    ]
    assert made and all(text.startswith("|") and "older code" not in text for text in made)
