"""All places of the code marked ``Paper:``: where it differs from the paper or its published reference."""

from __future__ import annotations

import ast
import re
from pathlib import Path


def table(package: Path) -> str:
    """Where, and what is said there."""
    rows = ["| where | how |", "|---|---|"]
    for file in sorted(package.rglob("*.py")):
        source = file.read_text()
        for number, line in enumerate(source.splitlines(), 1):
            if re.match(r"\s*(#\s*)?Paper:", line):
                name = file.relative_to(package).as_posix()
                rows.append(f"| `{name}`, `{_home(source, number)}` | {_paragraph(source, number)} |")
    return "\n".join([*rows, ""])


def _home(source: str, number: int) -> str:
    """The innermost definition (or assignment) that holds this line."""
    named: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        end = getattr(node, "end_lineno", None) or 0
        if getattr(node, "lineno", number + 1) > number or end < number:
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            named.append((node.lineno, node.name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.col_offset == 0:
            named.append((node.lineno, node.target.id))
    return max(named)[1] if named else "module"


def _paragraph(source: str, number: int) -> str:
    """The words behind ``Paper:`` up to the end of their paragraph."""
    words = []
    comment = source.splitlines()[number - 1].lstrip().startswith("#")
    for line in source.splitlines()[number - 1 :]:
        text = line.strip()
        if not text or text.startswith('"""') or comment != text.startswith("#"):
            break
        words.append(text.lstrip("# ").split('"""')[0])
    told = " ".join(words).removeprefix("Paper:").strip().replace("``", "`").replace("|", "\\|")
    return told[0].upper() + told[1:]
