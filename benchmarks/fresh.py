"""Which code each benchmark measures, and whether that code is still the same. Needs nothing but
Python.

A result keeps a digest of every file that it measures. Comments, docstrings and texts (strings with
a space: messages, help) do not count, so a corrected sentence leaves a figure valid; any other
change makes ``docs/build.py`` fail until the benchmark has run again.

    python benchmarks/fresh.py   # the scripts that `make bench` runs
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
METHOD = (
    *(f"core/{name}.py" for name in ("rounds", "answer", "voting", "panel", "lead", "method")),
    *(f"engine/{name}.py" for name in ("drive", "queue", "worker")),
)
LLAMACPP = ("members/local/*.py", "members/llamacpp/*.py", "members/text/words.py")
MEASURES: Mapping[str, tuple[str, ...]] = {
    "engines": (
        *METHOD,
        *LLAMACPP,
        *(f"members/transformers/{name}.py" for name in ("member", "cache")),
        *(f"members/server/{name}.py" for name in ("member", "http", "tokens", "llamacpp")),
    ),
    "rounds": (
        *METHOD,
        *LLAMACPP,
        *(f"constraints/{name}.py" for name in ("referee", "grammar", "vocabulary")),
    ),
    "prefix": LLAMACPP,
    "load": (*METHOD, *LLAMACPP, "engine/admission.py", "chat/model.py"),
    "endpoint": ("serve/*.py", "chat/model.py", "chat/chunks.py"),
    "tracing": tuple(f"chat/{name}.py" for name in ("model", "tracing", "spans", "callbacks")),
}
"""Benchmark -> the files of the package that decide its figures, in the order in which ``make
bench`` runs them."""


def code_of(script: str) -> dict[str, str]:
    """Path -> digest, of the files that a benchmark measures and of the benchmark."""
    found = {}
    for pattern in (
        *(f"langchain_specfuse/{one}" for one in MEASURES[script]),
        f"benchmarks/{script}.py",
    ):
        files = sorted(ROOT.glob(pattern))
        assert files, f"{pattern} is gone: mend MEASURES"
        found |= {
            path.relative_to(ROOT).as_posix(): digest(path.read_text(encoding="utf-8"))
            for path in files
        }
    return found


def changes(script: str, about: Mapping[str, Any]) -> list[str]:
    """The files that have changed since a result was measured; none if it is too old to say so."""
    before, now = about.get("code"), code_of(script)
    return [] if before is None else sorted({path for path, _ in before.items() ^ now.items()})


def digest(source: str) -> str:
    """Of what a Python file does, the same under every version of Python.

    >>> (
    ...     digest("x = 1") == digest("'''About x.'''\\nx = (1)  # one"),
    ...     digest("x = 1") == digest("x = 2"),
    ... )
    (True, False)
    >>> digest("raise E(f'no {x} here')") == digest("raise E(f'found no {x} here')")
    True
    """
    return hashlib.sha256(_plain(ast.parse(source)).encode()).hexdigest()[:12]


def _plain(node: object) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return ""  # a docstring
    if isinstance(node, ast.AST):
        # Newer versions of Python have more fields, which are empty here.
        fields = (
            f"{key}={_plain(value)}"
            for key, value in ast.iter_fields(node)
            if value not in (None, [])
        )
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(filter(None, map(_plain, node)))}]"
    return "text" if isinstance(node, str) and " " in node else repr(node)


if __name__ == "__main__":
    print(*(f"benchmarks/{script}.py" for script in MEASURES))
