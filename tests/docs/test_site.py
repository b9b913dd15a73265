"""The site: every page is in its tree, every link leads somewhere, every public name is in the reference.

That all of it builds without a warning is what ``make docs`` says, which CI calls; here a small site is built.
"""

from __future__ import annotations

import html
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import langchain_specfuse
from langchain_specfuse import evaluation

from .blocks import DOCS, PAGES, REFERENCE, ROOT, blocks

pytest.importorskip("sphinx")
INDEX = DOCS / "index.md"
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def slug(heading: str) -> str:
    """A heading's name in links, as code hosts and the site make it."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)|`", r"\1", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = re.sub(r"^( *)(```|~~~).*?^\1\2$", "", page.read_text(), flags=re.M | re.S)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def tree() -> list[Path]:
    """The pages of the site's tree, in its order."""
    entries = [line for block in blocks(INDEX, "{toctree}") for line in block.code.splitlines()]
    return [page for entry in entries if entry and entry[0] != ":" for page in sorted(DOCS.glob(f"{entry}.md"))]


def documented() -> set[str]:
    """What the reference has a directive for, by full name."""
    names, module = set(), ""
    for page in REFERENCE:
        for line in page.read_text().splitlines():
            if found := re.match(r"\.\. (currentmodule|auto\w+|class|data):: ([\w.]+)", line):
                module = found[2] if found[1] == "currentmodule" else module
                names |= {found[2], f"{module}.{found[2]}"}
    return names


def test_every_page_is_once_in_the_tree():
    assert sorted([INDEX, *tree()]) == sorted([*DOCS.glob("*.md"), *REFERENCE])


def test_every_page_of_the_tree_is_reached_by_a_link_too():
    """On a code host nobody sees the tree."""
    linked = {(page.parent / link).resolve() for page in PAGES for link, _ in _LINK.findall(page.read_text()) if link}
    assert [page.name for page in tree() if page not in linked] == []
    assert INDEX in {(ROOT / link).resolve() for link, _ in _LINK.findall((ROOT / "README.md").read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page):
    for link, anchor in _LINK.findall(page.read_text()):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


def test_a_dead_anchor_is_seen():
    assert slug("What is a reconstruction, and what is `ours`") == "what-is-a-reconstruction-and-what-is-ours"
    assert "caches" in anchors(DOCS / "members.md") and "no-such-thing" not in anchors(DOCS / "members.md")
    assert "a hub id" not in anchors(DOCS / "members.md")  # a comment in code is no heading


def test_every_public_name_is_in_the_reference():
    there = documented()
    assert [name for name in langchain_specfuse.__all__ if f"langchain_specfuse.{name}" not in there] == []
    missing = [name for name in evaluation.__all__ if f"langchain_specfuse.evaluation.{name}" not in there]
    assert missing == []


def test_everything_public_has_a_docstring_of_its_own():
    homes = [(langchain_specfuse, langchain_specfuse.__all__), (evaluation, evaluation.__all__)]
    told = [getattr(home, name) for home, names in homes for name in names if name != "__version__"]
    assert [one for one in told if not (one.__doc__ or "").strip() or one.__doc__.startswith(f"{one.__name__}(")] == []


# --- how it is made ---------------------------------------------------------------------------------------------

PAGE = """\
# A page

Inline $w_i$, and the loop: [rounds](../langchain_specfuse/core/rounds.py), [a run](pictures/run.html).

$$w_i \\leftarrow w_i \\cdot e^{r_i}$$

```{eval-rst}
.. autoclass:: langchain_specfuse.SpecFuseChatModel

.. autoclass:: langchain_specfuse.RoundEvent

.. autofunction:: langchain_specfuse.core.rounds.rounds

.. autoclass:: langchain_specfuse.decisions.SpecFuseDecision
```
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page made as the real ones are, and what was warned of. It stands in docs/ as far as its links know."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "docs").mkdir()
    (folder / "docs" / "index.md").write_text(PAGE)
    for name in ("langchain_specfuse", "docs/pictures"):
        (folder / name).symlink_to(ROOT / name)
    warned = folder / "warnings"
    # In a process of its own: it reads modules as type checkers do, and what else is imported meanwhile stays so.
    told = ["-b", "html", "-q", "-c", DOCS, "-d", folder / "trees", "-w", warned, folder / "docs", folder / "out"]
    subprocess.run([sys.executable, "-m", "sphinx", *map(str, told)], check=True, capture_output=True, cwd=ROOT)
    return (folder / "out" / "index.html").read_text(), warned.read_text()


def test_a_page_is_made_without_a_warning(site):
    _, warned = site
    assert [line for line in warned.splitlines() if "reference target not found" not in line] == []


def test_a_field_is_told_with_its_docstring_type_and_default(site):
    text = html.unescape(re.sub(r"<[^>]+>", "", site[0]))
    assert re.search(r"0 is greedy: the same question gets the same answer\.\s+float, default 0\.0", text)
    assert re.search(r"Who writes: hub ids[^|]{0,200}?list\[Any\], needed", text)
    assert "SpecFuseChatModel(**fields)" in text and "This chat model with tools that it may call" in text


def test_what_langchain_and_pydantic_brought_along_is_left_out(site):
    named = set(re.findall(r'id="langchain_specfuse\.SpecFuseChatModel\.(\w+)"', site[0]))
    assert {"members", "temperature", "bind_tools", "unload"} <= named
    assert not {"invoke", "with_retry", "lc_id", "model_config", "model_dump", "rate_limiter", "astream"} & named


def test_a_record_shows_all_that_it_holds(site):
    fields = importlib.import_module("dataclasses").fields(langchain_specfuse.RoundEvent)
    assert [field.name for field in fields if f'id="langchain_specfuse.RoundEvent.{field.name}"' not in site[0]] == []


def test_formulas_are_drawn_by_the_browser_itself(site):
    assert site[0].count("<math") == 2


def test_nothing_is_fetched_from_elsewhere(site):
    assert re.findall(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?:https?:)?//[^"]*"', site[0]) == []


def test_links_to_pictures_and_code_stay_on_the_site(site):
    assert 'href="pictures/run.html"' in site[0]
    assert 'href="_modules/langchain_specfuse/core/rounds.html"' in site[0]


def test_ci_makes_the_site_and_takes_warnings_for_errors():
    assert re.search(r"^make docs$", (ROOT / ".ci" / "run").read_text(), re.M)
    assert re.search(r"sphinx .*-W", (ROOT / "Makefile").read_text())
