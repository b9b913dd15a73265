"""The examples in docstrings are run: pytest looks into every module, and there is none that it cannot see."""

from __future__ import annotations

import ast
import tomllib

import pytest

from .blocks import ROOT

FILES = sorted((ROOT / "langchain_specfuse").rglob("*.py"))
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]


def seen(source: str) -> int:
    """How many lines of examples stand where doctest looks: not under attributes, not in comments."""
    found = [ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, WITH_DOCSTRING)]
    return sum(text.count(">>> ") for text in found if text)


def test_pytest_runs_the_examples_of_the_whole_package():
    assert "--doctest-modules" in OPTIONS["addopts"] and "langchain_specfuse" in OPTIONS["testpaths"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_example_of_a_docstring_is_hidden_or_skipped(file):
    source = file.read_text()
    assert source.count(">>> ") == seen(source)
    assert "doctest: +SKIP" not in source


def test_an_example_where_doctest_does_not_look_is_noticed():
    source = 'class A:\n    x: int = 1\n    """The first.\n\n    >>> A.x\n    1\n    """\n'
    assert source.count(">>> ") == 1 and seen(source) == 0
