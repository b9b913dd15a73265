"""The pages are in the site's tree, linked and complete, and their generated parts are up to date.

``make docs`` checks that the site builds without a warning; CI calls it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import langchain_specfuse
from langchain_specfuse import evaluation

from .blocks import DOCS, PAGES, REFERENCE, ROOT, blocks

INDEX = DOCS / "index.md"
DEVELOPMENT = DOCS / "development" / "index.md"
"""Lists the pages that the navigation of users leaves out."""
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")
NAMED_TEST = re.compile(r"`(?:tests/)?([\w/]+\.py)::(\w+)`")
PUBLIC = [
    (langchain_specfuse, name) for name in langchain_specfuse.__all__ if name != "__version__"
]
PUBLIC += [(evaluation, name) for name in evaluation.__all__]


def slug(heading: str) -> str:
    """Return a heading's anchor as code hosts and the site generate it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^( *)(```|~~~).*?^\1\2$", "", page.read_text(), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def tree() -> list[Path]:
    """Return the pages of the two trees, in order."""
    return [
        page
        for index in (INDEX, DEVELOPMENT)
        for block in blocks(index, "{toctree}")
        for entry in block.code.splitlines()
        if entry and entry[0] != ":"
        for page in sorted(index.parent.glob(f"{entry}.md"))
    ]


def documented() -> set[str]:
    """Return all names for which the reference has a directive."""
    names, module = set(), ""
    for page in REFERENCE:
        for line in page.read_text().splitlines():
            if directive := re.match(r"\.\. (currentmodule|auto\w+|class|data):: ([\w.]+)", line):
                module = directive[2] if directive[1] == "currentmodule" else module
                names |= {directive[2], f"{module}.{directive[2]}"}
    return names


def test_every_page_is_once_in_the_tree_and_linked_from_another():
    """A code host does not show the tree."""
    assert sorted([ROOT / "README.md", INDEX, DEVELOPMENT, *tree()]) == sorted(PAGES)
    linked = {
        (page.parent / link).resolve()
        for page in PAGES
        for link, _ in LINK.findall(page.read_text())
        if link
    }
    assert [page.name for page in (INDEX, DEVELOPMENT, *tree()) if page not in linked] == []


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "SECURITY.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name
)
def test_links_and_tests_that_a_page_names_exist(page):
    for link, anchor in LINK.findall(page.read_text()):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"
    for file, test in NAMED_TEST.findall(page.read_text()):
        assert re.search(rf"^(async )?def {test}\(", (ROOT / "tests" / file).read_text(), re.M), (
            f"{file}::{test}"
        )


def test_every_public_name_is_in_the_reference_and_has_a_docstring_of_its_own():
    there = documented()
    assert [name for home, name in PUBLIC if f"{home.__name__}.{name}" not in there] == []
    values = [getattr(home, name) for home, name in PUBLIC]
    objects = [value for value in values if isinstance(value, type) or callable(value)]
    assert [
        item
        for item in objects
        if not (item.__doc__ or "").strip() or item.__doc__.startswith(f"{item.__name__}(")
    ] == []


def test_every_folder_of_the_architecture_exists_and_no_other():
    table = (DOCS / "development" / "architecture.md").read_text().split("## The data")[0]
    named = re.findall(r"^\| `(\w+)/` \|", table, re.M)
    package = ROOT / "langchain_specfuse"
    assert sorted(named) == sorted(path.parent.name for path in package.glob("*/__init__.py"))


def test_every_file_that_the_architecture_names_exists():
    text = (DOCS / "development" / "architecture.md").read_text()
    package = ROOT / "langchain_specfuse"
    named = re.findall(r"`(\w[\w/]*/\w+\.py)`", text)
    assert (
        named
        and [name for name in named if not any((*package.rglob(name), *ROOT.glob(name)))] == []
    )


def test_every_generated_part_has_its_place_and_is_up_to_date(build):
    text = "".join(page.read_text() for page in PAGES)
    assert {part[1] for part in build.PART.findall(text)} == set(build.PARTS)
    assert build.stale() == [], "run: make docs"


CAST = """{"version": 2}
[0.5, "o", "loading\\r\\n"]
[1.0, "o", "\\r\\n1. A vote.\\r\\n$ ask <it>\\r\\n\\r\\n"]
[2.0, "o", "\\u001b[36mann\\u001b[0m\\r\\n\\r\\n\\u001b[2;9;31mno\\u001b[0m "]
[3.0, "o", "\\u001b[36mYes.\\u001b[0m\\r\\n\\r\\nthe table\\r\\n\\r\\nthe summary\\r\\n-> done\\r\\n\\r\\nBye"]
"""


def test_the_film_shows_the_acts_as_the_terminal_did_and_moves_only_for_those_who_want_it(build):
    svg = build.filmed(CAST)
    shown = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert shown == ["1. A vote.", "$ ask &lt;it&gt;", "ann", "no", "Yes.", "-&gt; done"]
    assert re.search(r'fill="#ff8f7e"[^>]*line-through[^>]*>no<', svg)
    # one group for each moment; what moves or hides is within the query
    assert svg.count("<g ") == 3 and "<script" not in svg
    plain = re.sub(r"@media \(prefers-reduced-motion:no-preference\)\{.*\}\}</style>", "", svg)
    assert "opacity:0" not in plain and "animation" not in plain


def test_users_read_at_most_200_kilobytes() -> None:
    """A page that grows takes the place of what its readers need less."""
    pages = [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]
    assert sum(page.stat().st_size for page in pages) <= 200_000
