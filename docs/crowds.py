"""The tables of what an ensemble does under load, from what ``benchmarks/load.py`` measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def load(results: Sequence[Mapping[str, Any]]) -> str:
    """The highest rate, what is beyond it, and what one long question does to the others."""
    if not results:
        return "No numbers yet: `make bench` makes them.\n"
    run = results[0]
    parts = [part for name, table in TABLES.items() if name in run for part in (*table(run), "")]
    told = f"Members: {' and '.join(run['members'])}; {run['clock']} ({run['machine']}); {run['arrivals']} questions at"
    told += " each rate. Made by `benchmarks/load.py`."
    return "\n".join([*parts, told, ""])


def _rates(run: Mapping[str, Any]) -> Iterator[str]:
    measured = run["load"]
    yield "The 99th percentile of the time to the first segment stays under twice what it is alone up to a rate of "
    yield f"**{measured['highest_rate']:.2f}** questions in the time that one answer takes alone:"
    yield ""
    yield from _head(
        "questions in that time", "first segment, in the median", "99th percentile", "answers in that time"
    )
    for row in measured["rates"]:
        times = f"{row['p50_to_alone']:.2f} times | {row['p99_to_alone']:.2f} times"
        yield f"| {row['rate']:.2f} | {times} | {row['answers_per_lone_answer']:.2f} |"


def _line(run: Mapping[str, Any]) -> Iterator[str]:
    measured = run["line"]
    bounds = f"`at_once={measured['at_once']}, max_waiting={measured['max_waiting']}`"
    yield f"Twice as many as can be answered ({measured['capacity']:.2f} can in that time; the bounds are {bounds}):"
    yield ""
    times = ("first segment, in the median", "99th percentile", "of the urgent")
    yield from _head("line", "answered", "refused", "most that waited", *times)
    for name, row in measured["ways"].items():
        counts = f"{row['answered']} | {row['refused']} | {row['most_waiting']}"
        times = f"{row['p50_to_alone']:.1f} times | {row['p99_to_alone']:.1f} times"
        urgent = row["urgent_p99_to_alone"]
        yield f"| {name} | {counts} | {times} | {'' if urgent is None else f'{urgent:.1f} times'} |"


def _long(run: Mapping[str, Any]) -> Iterator[str]:
    first = next(iter(run["long"].values()))
    yield f"One question of {first['tokens']} tokens on its way to its first segment, and the time between the segments"
    yield "of others meanwhile (1: the median without it):"
    yield ""
    yield from _head("others", "it is read", "median", "99th percentile", "longest", "its own first segment after")
    for others, measured in run["long"].items():
        calm = measured["calm"]
        yield f"| {others} | not at all | 1 | {calm['p99']:.2f} | {calm['longest']:.2f} | |"
        for way in ("in pieces", "at once"):
            row = measured[way]
            own = row["first_segment_of_the_long_one"]
            yield f"| {others} | {way} | {row['median']:.2f} | {row['p99']:.2f} | {row['longest']:.2f} | {own:.0f} |"


def _head(*names: str) -> Iterator[str]:
    yield f"| {' | '.join(names)} |"
    yield "|" + "---|" * len(names)


TABLES = {"load": _rates, "line": _line, "long": _long}
