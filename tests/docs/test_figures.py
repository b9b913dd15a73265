"""Figures come from scripts that work and tables that fit; the site marks them once their code has
changed."""

from __future__ import annotations

import asyncio
import doctest
import json
import subprocess
import sys
from importlib import import_module

import pytest

from .blocks import ROOT

SCRIPTED, REAL = ("endpoint", "tracing"), ("engines", "prefix", "served", "takeover")


def test_examples_in_docstrings_hold(build, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    assert doctest.testmod(import_module("common")).failed == 0


@pytest.fixture
def history(tmp_path):
    """Create a repository with two commits, the second of which changes ``code/one.py``."""

    def git(*words):
        who = ["-c", "user.name=A", "-c", "user.email=a@example.com"]
        command = ["git", "-C", str(tmp_path), *who, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    (tmp_path / "code").mkdir()
    git("init", "-q")
    for text in ("x = 1", "x = 2"):
        (tmp_path / "code" / "one.py").write_text(text)
        (tmp_path / "other.py").write_text("x = 1")
        git("add", ".")
        git("commit", "-qm", text)
    return tmp_path, git("rev-parse", "--short", "HEAD~1"), git("rev-parse", "--short", "HEAD")


def test_the_site_counts_the_commits_that_changed_the_measured_code(build, history):
    root, first, last = history
    since = import_module("site_hooks").commits_since
    assert since(root, first, ["code"]) == since(root, first, ["code", "other.py"]) == 1
    assert since(root, first, ["other.py"]) == since(root, last, ["code"]) == 0


def test_the_site_says_nothing_of_a_commit_that_git_does_not_know(build, history, tmp_path):
    root, _, _ = history
    since = import_module("site_hooks").commits_since
    assert since(root, "abc1234", ["code"]) == since(tmp_path / "nowhere", "abc1234", ["code"]) == 0


def test_an_old_figure_is_marked_below_its_table_and_changes_nothing_else(build, monkeypatch):
    hooks = import_module("site_hooks")
    page = (ROOT / "docs" / "development" / "measurements.md").read_text(encoding="utf-8")
    for count, words in (
        (0, ""),
        (1, " Since then 1 commit has"),
        (7, " Since then 7 commits have"),
    ):
        monkeypatch.setattr(hooks, "commits_since", lambda *arguments, count=count: count)
        contents = [page]
        hooks.mark_old_figures(None, "development/measurements", contents)
        marked = contents[0].count(f"{words} changed the code that it measures.*") if words else 0
        assert marked == (page.count("*Made by `benchmarks/") if words else 0)
        assert contents[0].replace(f"{words} changed the code that it measures.", "") == page


def test_every_measured_path_exists():
    for file in (ROOT / "benchmarks").glob("*.json"):
        for path in json.loads(file.read_text(encoding="utf-8"))["about"]["measures"]:
            assert (ROOT / "langchain_specfuse" / path).exists(), f"{file.name}: {path} is gone"


def test_the_streams_that_are_compared_have_the_same_text(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    stream = import_module("stream")
    monkeypatch.setattr(stream, "FIRST_S", 0.005)
    pairs = ["server", "chat"]
    # it raises unless both clients have read the prepared text
    rows = asyncio.run(
        stream.measured(pairs, stream.TINY, repeats=1, tokens=10, rate=1000, enough=0.0)
    )
    assert [(row["pair"], row["at_once"]) for row in rows] == [
        (pair, at_once) for pair in pairs for at_once in stream.TINY
    ]
    for row in rows:
        assert row["requests"] >= 1 and row["ratio"] > 0 and stream.row(row)


@pytest.mark.long
@pytest.mark.parametrize(
    "script", [*SCRIPTED, *(pytest.param(path, marks=pytest.mark.real) for path in REAL)]
)
def test_a_benchmark_runs_and_its_tables_can_be_made(build, script, tmp_path):
    out = tmp_path / f"{script}.json"
    asked = [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), "--tiny", "--out", str(out)]
    subprocess.run(asked, check=True, cwd=tmp_path)
    results = json.loads(out.read_text())
    assert {"commit", "version", "arguments", "machine", "date"} <= results["about"].keys()
    tables = [
        make(results)
        for make, source in build.MEASURED.values()
        if source == f"benchmarks/{script}"
    ]
    assert all(tables) and any(text.startswith("|") for text in tables)
