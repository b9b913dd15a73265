"""What the commands of the studies share: their options, and what they say when they are stopped."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def arguments(
    doc: str | None, parts: Sequence[str] = (), at_once: int | None = None
) -> argparse.ArgumentParser:
    """A parser of what a study asks and where its answers and its table go. ``parts``: those that
    its questions are split into, the first one by default. ``at_once``: how many questions are
    asked in parallel, if the study can do that."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        parser.add_argument("--part", choices=list(parts), default=parts[0])
    parser.add_argument("--data", type=Path, help="the folder of the sets that are not made here")
    parser.add_argument("--threads", type=int, help="of each member (default: as many as help)")
    if at_once is not None:
        parser.add_argument(
            "--at-once",
            type=int,
            default=at_once,
            help="questions that are asked in parallel (%(default)s)",
        )
    parser.add_argument(
        "--folder", type=Path, default=Path("specfuse-study"), help="of the answers (%(default)s)"
    )
    parser.add_argument("--plan", action="store_true", help="only say how long it would take")
    parser.add_argument("--table", action="store_true", help="only show the results so far")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of this call. Members that are loaded afterwards use ``--threads``."""
    options = parser.parse_args()
    if options.threads:
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    return options


def need(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    """Stop if one of these options is missing."""
    for name in names:
        if getattr(options, name) is None:
            parser.error(f"--{name} is missing: questions cannot be asked without it")


@contextmanager
def stoppable(what: str) -> Iterator[None]:
    """A part of a run that Ctrl-C stops. Its answers are stored, so it continues later."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"{what}: stopped; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
