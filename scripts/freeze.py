"""Write requirements/dev.txt: the installed version of every package that dev.in and the extras
require, directly or not."""

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
HEAD = """\
# The exact versions that development and CI install. scripts/freeze.py writes them, from an
# environment in which all tests pass. `pip install -c requirements/dev.txt ...` installs nothing
# by itself; it limits what other arguments install to these versions.
"""
UNPINNED = {"pip", "setuptools", "wheel", "langchain-specfuse"}
ALONE = ("deepagents",)
"""The Makefile installs this without its own dependencies."""


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required() -> list[Requirement]:
    lines = [
        line.split("#")[0].strip() for line in (REQUIREMENTS / "dev.in").read_text().splitlines()
    ]
    return [Requirement(line) for line in lines if line] + [
        Requirement("langchain-specfuse[demo,ray,serve,server,transformers]")
    ]


def closure(todo: list[Requirement]) -> dict[str, str]:
    """Name -> installed version of everything that these require, directly or not."""
    found: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        need = todo.pop()
        key = canonical(need.name), frozenset(need.extras)
        if key in seen or (need.marker and not need.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        dist = metadata.distribution(need.name)
        found[key[0]] = dist.version.split("+")[0]
        for line in dist.requires or ():
            child = Requirement(line)
            if not child.marker or any(
                child.marker.evaluate({"extra": extra}) for extra in ("", *need.extras)
            ):
                child.marker = None
                todo.append(child)
    return found


def main() -> None:
    pins = closure(required()) | {name: metadata.version(name) for name in ALONE}
    for name in UNPINNED:
        pins.pop(name, None)
    (REQUIREMENTS / "dev.txt").write_text(
        HEAD + "".join(f"{name}=={pins[name]}\n" for name in sorted(pins))
    )
    print(f"{len(pins)} pins", file=sys.stderr)


if __name__ == "__main__":
    main()
