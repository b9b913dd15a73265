"""Known holes in what we depend on: asks the package index about every pin and about the lowest version we allow.

    python constraints/audit.py            # `make audit`

The index tells what is known of a release in its JSON (`vulnerabilities`, from the Python advisory database).
Exit codes: 0 nothing is known, 1 something is, 2 the index cannot be asked (then nothing is said).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
INDEX = "https://pypi.org/pypi"
ACCEPTED = {
    # id -> why it does not touch us
    "CVE-2025-32434": "torch.load: nothing is unpickled here, weights are safetensors or GGUF",
}


def pinned() -> Iterator[tuple[str, str]]:
    """What development and CI install."""
    for line in (ROOT / "constraints/dev.txt").read_text().splitlines():
        if found := re.fullmatch(r"([\w.-]+)==([\w.!+-]+)", line.split("#")[0].strip()):
            yield found[1], found[2].split("+")[0]


def lowest() -> Iterator[tuple[str, str]]:
    """The lowest version of each range that users may have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    for need in map(Requirement, needs):
        for part in need.specifier:
            if part.operator == ">=" and need.name != "langchain-specfuse":
                yield need.name, part.version


def holes(index: str, name: str, version: str) -> list[str]:
    """What is known of this release, without what has been withdrawn or does not touch us."""
    padded = version if version.count(".") else f"{version}.0"
    told = None
    for spelled in dict.fromkeys((version, padded, f"{padded}.0")):
        try:
            with urllib.request.urlopen(f"{index}/{name}/{spelled}/json", timeout=20) as answer:
                told = json.load(answer)
                break
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
    if told is None:
        raise LookupError(f"the index does not know {name} {version}")
    known = [hole for hole in told.get("vulnerabilities") or () if not hole.get("withdrawn")]
    return [
        f"{hole['id']} ({', '.join(hole.get('aliases') or ())}), fixed in {', '.join(hole.get('fixed_in') or ['?'])}: "
        f"{(hole.get('summary') or hole.get('details') or '').strip().splitlines()[:1]}"
        for hole in known
        if not {hole["id"], *(hole.get("aliases") or ())} & ACCEPTED.keys()
    ]


def main(told: list[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="audit", description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--index", default=INDEX)
    index = made.parse_args(told).index
    found = 0
    unknown = []
    for what, releases in (("pinned", pinned()), ("lowest allowed", lowest())):
        for name, version in sorted(set(releases)):
            try:
                for hole in holes(index, name, version):
                    found += 1
                    print(f"{name} {version} ({what}): {hole}")
            except LookupError as error:
                unknown.append(str(error))
            except OSError as error:
                print(f"{index} cannot be asked: {error}\n-> try again where it can be reached", file=sys.stderr)
                return 2
    for one in unknown:
        print(f"note: {one}", file=sys.stderr)
    print(f"{found} known holes")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
