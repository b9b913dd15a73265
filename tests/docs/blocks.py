"""The code blocks of the pages, and how they are run.

A page is one script: its Python blocks share their names, from top to bottom. Lines that begin with
``# >`` are what a block prints. Commands run in one folder, also from top to bottom (see
``shell``). JSON is parsed. A comment in the line before a block marks exceptions:

``<!-- real -->``         runs real models, alone
``<!-- skip: why -->``    cannot run as it stands; only its syntax is checked
``<!-- needs: what -->``  the same, where something is not installed for tests
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if "_site" not in page.parts),
]

PROPOSED = DOCS / "integrations" / "specfuse.mdx"
"""The page for LangChain's own documentation uses its template and is not part of this site."""

_FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_MARK = re.compile(r"<!-- (real|(?:skip|needs): .*\S) -->")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    mark: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def promised(self) -> list[str]:
        """Return the lines that the page says the block prints."""
        return [
            line[4:] for line in self.code.splitlines() if line == "# >" or line.startswith("# > ")
        ]

    def compiled(self) -> Any:
        source = "\n" * (self.line - 1) + self.code
        # A page does not have the future features of this file.
        return compile(source, str(self.page), "exec", dont_inherit=True)

    def run(self, names: dict[str, Any]) -> list[str]:
        """Run it with these names; return the lines that it prints."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(self.compiled(), names)
        return out.getvalue().splitlines()


def fences(page: Path) -> Iterator[Block]:
    """Return every fenced block of a page, in any language and at any indentation."""
    yield from fences_of(page, page.read_text().splitlines())


def fences_of(page: Path, lines: list[str]) -> Iterator[Block]:
    start: re.Match[str] | None = None
    begin = 0
    for number, line in enumerate(lines, 1):
        here = _FENCE.match(line)
        if start is None:
            start, begin = here, number
        elif here and here["fence"].startswith(start["fence"]) and not here["info"].strip():
            language = next(iter(start["info"].split()), "")
            code = textwrap.dedent("".join(f"{text}\n" for text in lines[begin : number - 1]))
            yield Block(
                page, begin + 1, language, _mark(lines[begin - 2] if begin > 1 else ""), code
            )
            start = None
    assert start is None, f"{page.name}:{begin} begins a block that does not end"


def _mark(line: str) -> str:
    """Return the mark in this line: ``real``, ``skip``, ``needs`` or ""; comments around generated
    parts are not marks."""
    comment = line.strip()
    if (
        not comment.startswith("<!--")
        or comment.startswith("<!-- generated:")
        or comment == "<!-- end -->"
    ):
        return ""
    known = _MARK.fullmatch(comment)
    assert known, f"unknown mark: {comment}"
    return known[1].partition(":")[0]


def blocks(page: Path, language: str = "python") -> list[Block]:
    return [block for block in fences(page) if block.language == language]
