"""The code of the pages runs and prints what they say."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from langchain_specfuse import unload
from tests.members.failing_server import FailingServer

from . import shell
from .blocks import PAGES, PROPOSED, ROOT, blocks, fences, fences_of

WITH_CODE = [page for page in [*PAGES, PROPOSED] if any(not block.mark for block in blocks(page))]
REAL = [block for page in PAGES for block in blocks(page) if block.mark == "real"]
WITH_COMMANDS = [page for page in PAGES if any(not block.mark for block in blocks(page, "console"))]
SLOW_PAGES = {
    "command.md",
    "decisions.md",
    "doctor.md",
    "tracing.md",
}
"""`make test-rest` runs their commands, which take seconds each."""
SKIPPED = {"skip", "needs"}
LANGUAGES = {"python", "console", "json", "text", "{toctree}", "{eval-rst}"}
"""The first three are run or parsed, ``text`` is a drawing, the last two belong to the site (see
``test_site``)."""


@pytest.fixture
def actors(monkeypatch, tmp_path):
    """Replace named members by scripted ones, and write files to a folder of the test."""
    monkeypatch.chdir(tmp_path)
    shell.replace_members(monkeypatch.setitem)
    yield
    unload()


@pytest.mark.usefixtures("actors")
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.name)
def test_a_page_runs_from_top_to_bottom_and_prints_what_it_says(page):
    names = {"__name__": "page"}
    for block in blocks(page):
        if not block.mark:
            printed = block.run(names)
            assert not block.promised or printed == block.promised, block.where


def test_the_first_program_of_the_readme_runs_with_any_key(monkeypatch):
    server = FailingServer("any", script=["A light ", "bicycle."])
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    try:
        printed = blocks(ROOT / "README.md")[0].run({"__name__": "page"})
    finally:
        unload()
        server.stop()
    assert printed == ["A light bicycle."]
    assert [asked["model"] for asked in server.asked] == ["gpt-4.1"]


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize("block", REAL, ids=lambda block: block.where)
def test_a_block_with_real_models_runs(block):
    assert block.run({"__name__": "page"})


@pytest.mark.skipif(shell.BASH is None, reason="the commands of the pages are those of bash")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.long) if page.name in SLOW_PAGES else page
        for page in WITH_COMMANDS
    ],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page_run_from_top_to_bottom(page, tmp_path):
    for lines in blocks(page, "json"):
        (tmp_path / "questions.jsonl").write_text(lines.code)
    for block in blocks(page, "console"):
        if not block.mark:
            ended = shell.run(block, tmp_path)
            assert ended.returncode == 0, f"{block.where}: {ended.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_json_and_skipped_blocks_can_at_least_be_parsed_and_no_block_is_overlooked(page):
    blocks = list(fences(page))
    assert len(re.findall(r"^[ >]*(```|~~~)", page.read_text(), re.M)) == 2 * len(blocks)
    for block in blocks:
        assert block.language in LANGUAGES, block.where
        if block.language == "json":
            lines = block.code.splitlines() if "}\n{" in block.code else [block.code]
            assert all(json.loads(line) for line in lines), block.where
        elif block.mark in SKIPPED and block.language == "python":
            block.compiled()
        elif block.mark in SKIPPED:
            subprocess.run([str(shell.BASH), "-n", "-c", block.code], check=True)


def test_blocks_are_found_at_any_indentation_and_unknown_marks_are_refused():
    lines = [
        "<!-- skip: why -->",
        "```python",
        "1",
        "```",
        "- a list",
        "",
        "  ~~~console",
        "  make",
        "  ~~~",
    ]
    parsed = [(block.language, block.mark, block.code) for block in fences_of(ROOT, lines)]
    assert parsed == [("python", "skip", "1\n"), ("console", "", "make\n")]
    with pytest.raises(AssertionError, match="skpi"):
        list(fences_of(ROOT, ["<!-- skpi: why -->", "```python", "```"]))
    with pytest.raises(AssertionError, match="does not end"):
        list(fences_of(ROOT, ["```python", "1"]))
