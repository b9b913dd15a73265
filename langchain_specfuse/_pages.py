"""What the command keeps of a run: ``--html`` writes its page, ``--from`` makes one of rounds that were kept before."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .core.values import Round
from .errors import UsageError, advised
from .show.trace import Trace, unsavable

SUFFIXES = (".html", ".htm")


def check(given: argparse.Namespace) -> None:
    """Refuse a file that cannot be written before anybody works for it."""
    if given.kept and not given.html:
        raise advised(UsageError("--from reads a run, but nothing says what to make of it"), "add --html run.html")
    if given.html is None:
        return
    if Path(given.html).suffix.lower() not in SUFFIXES:
        raise advised(UsageError(f"--html writes a page, got {given.html!r}"), f"end its name in {SUFFIXES[0]}")
    if problem := unsavable(given.html):
        raise problem


def redraw(given: argparse.Namespace) -> None:
    """The page of a run that was kept as JSON; a question on the command line is its title."""
    trace = Trace.load(given.kept)
    trace.question = given.question or trace.question
    _save(trace, given)


@contextmanager
def recorded(
    rounds: Iterator[Round], given: argparse.Namespace, question: str, members: Sequence[str]
) -> Iterator[Iterator[Round]]:
    """The same rounds; however this ends, the page shows what was agreed until then."""
    if given.html is None:
        yield rounds
        return
    trace = Trace(question=question, members=members)
    try:
        yield _noted(rounds, trace)
    except BaseException as error:
        trace.error = "interrupted" if isinstance(error, KeyboardInterrupt) else f"{error or type(error).__name__}"
        try:
            _save(trace, given)
        except (OSError, UsageError) as unsaved:  # what happened first is told by the command
            print(f"specfuse: the run could not be kept: {unsaved}", file=sys.stderr)
        raise
    _save(trace, given)


def _noted(rounds: Iterator[Round], trace: Trace) -> Iterator[Round]:
    for item in rounds:
        trace.add(item)
        yield item


def _save(trace: Trace, given: argparse.Namespace) -> None:
    trace.save(given.html)
    if not given.quiet:
        print(f"specfuse: the run is in {given.html}", file=sys.stderr, flush=True)
