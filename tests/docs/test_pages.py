"""The pages tell the truth: their code runs, prints what they say, and what they link to is there."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import subprocess

import pytest

from langchain_specfuse import ScriptedMember, _registry, unload

from .blocks import PAGES, ROOT, blocks, fences, fences_of, found
from .shell import BASH, NOT_DONE, STAND_INS, done

WITH_CODE = [page for page in PAGES if any(block.runs for block in blocks(page))]
REAL = [block for page in PAGES for block in blocks(page) if block.mark == "real"]
WITH_COMMANDS = [page for page in PAGES if any(block.runs for block in blocks(page, "console"))]
SKIPPED = [block for page in PAGES for block in fences(page) if block.mark == "skip"]
JSON = [block for page in PAGES for block in blocks(page, "json")]

RUN = {"python", "console", "json"}
LOOKED_AT = {
    "text": "a tree or a drawing",
    "{toctree}": "the site's tree: see test_site",
    "{eval-rst}": "see test_site",
}
"""Languages of blocks that nothing runs, and why."""


@pytest.fixture
def actors(monkeypatch, tmp_path):
    """Members that are named play a scripted part: the pages name models that are not here. Files go elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_registry, "_made", lambda arguments: ScriptedMember("An answer.", name=arguments["name"]))
    yield
    unload()


@pytest.mark.usefixtures("actors")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(page):
    names = {"__name__": "page"}
    for block in blocks(page):
        if not block.runs:
            continue
        printed = block.run(names)
        if block.said:
            assert printed == block.said, block.where


@pytest.mark.real
@pytest.mark.parametrize("block", REAL, ids=lambda block: block.where)
def test_a_block_with_real_models_runs(block):
    assert block.run({"__name__": "page"})


@pytest.mark.skipif(BASH is None, reason="the commands of the pages are those of bash")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_the_commands_of_a_page_run_from_top_to_bottom(page, tmp_path):
    for lines in blocks(page, "json"):
        (tmp_path / "questions.jsonl").write_text(lines.code)
    for block in blocks(page, "console"):
        if block.runs:
            ended = done(block, tmp_path)
            assert ended.returncode == 0, f"{block.where}: {ended.stderr}"


@pytest.mark.parametrize("block", JSON, ids=lambda block: block.where)
def test_a_block_of_json_can_be_read(block):
    try:
        assert json.loads(block.code)
    except json.JSONDecodeError:  # or an object a line
        assert all(json.loads(line) for line in block.code.splitlines())


def test_what_is_not_run_says_why():
    for block in SKIPPED:
        print(f"{block.where} ({block.language}): {block.why}")
        assert len(block.why.split()) > 2, block.where
    assert set(NOT_DONE) < set(STAND_INS) and all(len(why.split()) > 2 for why in NOT_DONE.values())


@pytest.mark.parametrize("block", SKIPPED, ids=lambda block: block.where)
def test_what_is_not_run_can_at_least_be_read(block):
    if block.language == "python":
        block.compiled()
    else:
        subprocess.run([str(BASH), "-n", "-c", block.code], check=True)


def test_no_block_is_hidden_from_the_tests():
    for page in PAGES:
        text = page.read_text()
        assert len(re.findall(r"^[ >]*(```|~~~)", text, re.M)) == 2 * len(list(fences(page))), page
        for block in fences(page):
            assert block.language in RUN | set(LOOKED_AT), f"{block.where} is {block.language or 'of no language'}"


def test_a_block_is_found_wherever_it_stands():
    lines = ["<!-- skip: why -->", "```python", "1", "```", "- a list", "", "  ~~~console", "  make", "  ~~~"]
    told = [(block.language, block.mark, block.code) for block in fences_of(ROOT, lines)]
    assert told == [("python", "skip", "1\n"), ("console", "", "make\n")]


def test_a_mark_that_nobody_knows_is_refused():
    """A slip of the pen must not make a block run, or not run."""
    with pytest.raises(AssertionError, match="skpi"):
        list(fences_of(ROOT, ["<!-- skpi: why -->", "```python", "```"]))
    with pytest.raises(AssertionError, match="does not end"):
        list(fences_of(ROOT, ["```python", "1"]))


@pytest.mark.skipif(not found("langchain_core.decisions"), reason="decision models need langchain-core 1.8")
def test_the_examples_of_decisions_are_right():
    tried = doctest.testmod(importlib.import_module("langchain_specfuse.decisions"))
    assert tried.attempted > 3 and tried.failed == 0


def test_every_file_of_the_readme_s_tree_is_there():
    tree = re.search(r"```text\nlangchain_specfuse/\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert tree
    rooms = ["langchain_specfuse/"]
    for line in tree[1].splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        rooms = [rooms[0], *rooms[1:2]][: 1 + (indent > 2)] if indent else []
        assert (ROOT / "".join(rooms) / name).exists(), name
        rooms = [*rooms, name] if name.endswith("/") else rooms
