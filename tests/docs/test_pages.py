"""The pages tell the truth: their code runs, prints what they say, and what they link to is there."""

from __future__ import annotations

import re

import pytest

from langchain_specfuse import ScriptedMember, _registry, unload

from .blocks import PAGES, ROOT, blocks

WITH_CODE = [page for page in PAGES if any(block.mark == "" for block in blocks(page))]
REAL = [block for page in PAGES for block in blocks(page) if block.mark == "real"]


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
        if block.mark:
            continue
        printed = block.run(names)
        if block.said:
            assert printed == block.said, block.where


@pytest.mark.real
@pytest.mark.parametrize("block", REAL, ids=lambda block: block.where)
def test_a_block_with_real_models_runs(block):
    assert block.run({"__name__": "page"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
    links = re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_reached_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name})" not in readme] == []


def test_every_file_of_the_readme_s_tree_is_there():
    tree = re.search(r"```text\nlangchain_specfuse/\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert tree
    rooms = ["langchain_specfuse/"]
    for line in tree[1].splitlines():
        indent, name = len(line) - len(line.lstrip()), line.split()[0]
        rooms = [rooms[0], *rooms[1:2]][: 1 + (indent > 2)] if indent else []
        assert (ROOT / "".join(rooms) / name).exists(), name
        rooms = [*rooms, name] if name.endswith("/") else rooms


def test_no_python_block_is_hidden_from_the_tests():
    for page in PAGES:
        assert page.read_text().count("```python") == len(list(blocks(page))), page
