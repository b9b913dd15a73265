"""How large is it? Lines, files, knobs and uses of private names in tests, each with its limit;
exits 1 if one is over.

A knob is a field of the chat model that is not LangChain's, an option of the method, an argument of
a member, or a flag of the command; a name that is the same in several places counts once. A private
use in a test is an attribute ``x._name`` (not of ``self`` or ``cls``) or an import of a ``_name``
from the package; names that other packages give their objects do not count.

    python benchmarks/size.py [--list]
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from langchain_core.language_models import BaseChatModel

from langchain_specfuse import (
    LlamaCppMember,
    RayMember,
    ServerMember,
    SpecFuseChatModel,
    TransformersMember,
)
from langchain_specfuse.core.method import options

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "langchain_specfuse"
LIMITS = {
    "lines of the package": 20_000,
    "files of the package": 125,
    "lines of tests": 20_000,
    "lines of benchmarks and studies": 3_000,
    "knobs": 100,
    "private uses in tests": 40,
}
OUTSIDE = {
    *(
        "_agenerate",
        "_astream",
        "_generate",
        "_stream",
        "_llm_type",
        "_identifying_params",
        "_get_ls_params",
    ),
    *("_get_llm_string", "_start_trace", "_end_trace"),  # LangChain
    *(
        "_attn_implementation",
        "_name_or_path",
        "_forward_hooks",
        "_hf_hook",
        "_schema",
    ),  # transformers, torch, accelerate
    *("_asdict", "_fields", "_replace", "_exit", "_repr_html_"),  # Python, IPython
}
"""Names that other packages give their objects."""


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[Path]:
    found = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in suffixes
    ]
    return sorted(path for path in found if "__pycache__" not in path.parts)


def lines(paths: list[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def knobs() -> dict[str, list[str]]:
    """name -> where it can be given."""
    found: dict[str, list[str]] = {}
    for name in SpecFuseChatModel.model_fields.keys() - BaseChatModel.model_fields.keys():
        found.setdefault(name, []).append("chat model")
    for name in options():
        found.setdefault(name, []).append("method")
    for member in (LlamaCppMember, TransformersMember, ServerMember, RayMember):
        for name, one in inspect.signature(member).parameters.items():
            if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
                found.setdefault(name, []).append(member.__name__)
    for command in ([], ["eval"], ["doctor"], ["serve"]):
        call = [sys.executable, "-m", PACKAGE, *command, "--help"]
        shown = subprocess.run(call, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        for flag in sorted(
            set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", shown)) - {"help", "version"}
        ):
            found.setdefault(flag.replace("-", "_"), []).append(" ".join(["command", *command]))
    return found


def private(name: str) -> bool:
    return (
        name.startswith("_") and not name.startswith("__") and name != "_" and name not in OUTSIDE
    )


def private_uses(path: Path) -> Iterator[str]:
    """The private uses in one file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"{where} {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").startswith(PACKAGE)
        ):
            yield from (
                f"{where} import {alias.name}" for alias in node.names if private(alias.name)
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--list", action="store_true", help="also print the knobs and the private uses"
    )
    given = parser.parse_args()
    package, tests = files(PACKAGE, suffixes=(".py", ".js")), files("tests")
    all_knobs, uses = knobs(), [use for path in tests for use in private_uses(path)]
    written = lines(files("benchmarks", "studies"))
    numbers = (lines(package), len(package), lines(tests), written, len(all_knobs), len(uses))
    counts = dict(zip(LIMITS, numbers, strict=True))
    if given.list:
        print(
            *(f"{name}: {', '.join(where)}" for name, where in sorted(all_knobs.items())),
            *uses,
            sep="\n",
        )
    for name, limit in LIMITS.items():
        print(
            f"{name:34} {counts[name]:>7,} of "
            f"{limit:>7,}{'' if counts[name] <= limit else '  OVER'}"
        )
    return int(any(counts[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
