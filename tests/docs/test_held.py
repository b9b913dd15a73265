"""Pages that promise name the tests that hold what they say: each of them is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [page for page in (ROOT / "docs/faults.md", ROOT / "SECURITY.md") if page.exists()]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
if not PAGES:
    pytest.skip("not in a checkout", allow_module_level=True)


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {one.name for one in tree.body if isinstance(one, kinds) and one.name.startswith("test_")}


def rows(page: Path) -> list[str]:
    """The rows of all tables whose last column says what holds them."""
    found, inside = [], False
    for line in page.read_text().splitlines():
        if line.startswith("|") and "held by" in line:
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|- "):
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_names_tests_that_are_there(page):
    assert len(rows(page)) > 10
    for row in rows(page):
        last = row.rstrip("| ").rsplit("|", 1)[1]
        named = NAMED.findall(last)
        assert named, f"nothing holds: {row[:80]}"
        assert not [f"{file}::{name}" for file, name in named if name not in names_in(file)], row[:80]


def test_a_name_that_is_not_there_would_be_found():
    assert NAMED.findall("`members/test_faults.py::test_nothing_of_the_kind`")[0][1] not in names_in(
        "members/test_faults.py"
    )
