"""The Python blocks of the pages, and how they are run.

A page is one script: its blocks share their names, from top to bottom. Lines that begin with ``# >`` are what a block
prints. A comment before a block says what is special: ``<!-- real -->`` runs real models (alone), ``<!-- skip -->``
cannot run as it stands, and says why.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?:<!-- (real|skip)[^>]*-->\n)?```python\n(.*?)```", re.S)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    mark: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def said(self) -> list[str]:
        """What the page says that this prints."""
        return [line[4:] for line in self.code.splitlines() if line == "# >" or line.startswith("# > ")]

    def run(self, names: dict[str, Any]) -> list[str]:
        """Run it among these names; the lines that it prints."""
        compiled = compile("\n" * (self.line - 1) + self.code, str(self.page), "exec")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compiled, names)
        return out.getvalue().splitlines()


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        yield Block(page, text.count("\n", 0, found.start(2)) + 1, found[1] or "", found[2])
