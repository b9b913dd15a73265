"""The blocks of the pages, and how they are run.

A page is one script: its Python blocks share their names, from top to bottom. Lines that begin with ``# >`` are what a
block prints. Commands run in one folder, also from top to bottom (``shell`` says with what programs). JSON is read. A
comment in the line before a block says what is special:

``<!-- real -->``         runs real models, alone
``<!-- needs: a.b -->``   runs where the module a.b is
``<!-- skip: why -->``    cannot run as it stands; it is only looked at
"""

from __future__ import annotations

import contextlib
import io
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *REFERENCE]

_FENCE = re.compile(r"^(?P<indent>[ >]*)(?P<fence>`{3,}|~{3,})(?P<info>[^`]*)$")
_MARK = re.compile(r"<!-- (real|needs|skip)(?:: (.*\S))? -->")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    mark: str
    why: str
    """What the mark says behind its colon."""
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def said(self) -> list[str]:
        """What the page says that this prints."""
        return [line[4:] for line in self.code.splitlines() if line == "# >" or line.startswith("# > ")]

    @property
    def runs(self) -> bool:
        """Whether it runs here, among the page's other blocks."""
        if self.mark == "needs":
            return found(self.why)
        return self.mark == ""

    def compiled(self) -> Any:
        return compile("\n" * (self.line - 1) + self.code, str(self.page), "exec")

    def run(self, names: dict[str, Any]) -> list[str]:
        """Run it among these names; the lines that it prints."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(self.compiled(), names)
        return out.getvalue().splitlines()


def found(module: str) -> bool:
    """Whether a module is there, and all that it is in."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def fences(page: Path) -> Iterator[Block]:
    """Every fenced block of a page, whatever its language and wherever it stands."""
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
            yield Block(page, begin + 1, language, *_mark(lines[begin - 2] if begin > 1 else ""), code)
            start = None
    assert start is None, f"{page.name}:{begin} begins a block that does not end"


def _mark(line: str) -> tuple[str, str]:
    """What the comment in this line says of the block below it, and why; the builder's own comments say nothing."""
    comment = line.strip()
    if not comment.startswith("<!--") or comment.startswith("<!-- docs/build.py:") or comment == "<!-- end -->":
        return "", ""
    known = _MARK.fullmatch(comment)
    assert known, f"{comment} is no mark that the tests know"
    return known[1], known[2] or ""


def blocks(page: Path, language: str = "python") -> list[Block]:
    return [block for block in fences(page) if block.language == language]
