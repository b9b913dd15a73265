"""What the commands of the studies share: their options, and what they say when they are stopped."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


def arguments(
    doc: str | None,
    parts: Sequence[str] = (),
    at_once: int | None = None,
    threads: int | None = None,
    table: str = "only show the results so far",
) -> argparse.ArgumentParser:
    """A parser of the options that say what a study asks, and where its answers and rows go.
    ``parts``: the parts that its questions are split into; the first one is the default.
    ``at_once``: how many questions are asked in parallel, if the study can do that. ``threads``:
    how many each member uses by default. ``table``: what ``--table`` does."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if parts:
        parser.add_argument("--part", choices=list(parts), default=parts[0])
    parser.add_argument("--data", type=Path, help="the folder with the published sets")
    parser.add_argument(
        "--threads",
        type=int,
        default=threads,
        help=f"of each member (default: {threads or 'as many as help'})",
    )
    if at_once is not None:
        parser.add_argument(
            "--at-once",
            type=int,
            default=at_once,
            help="questions that are asked in parallel (default: %(default)s)",
        )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("specfuse-study"),
        help="where answers are kept (default: %(default)s)",
    )
    parser.add_argument("--plan", action="store_true", help="only say how long it would take")
    parser.add_argument("--table", action="store_true", help=table)
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
        print(f"{what}: stopped; the same command continues it", file=sys.stderr)
        raise SystemExit(130) from None
