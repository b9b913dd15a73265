"""Which rows of a slab are read together: a pass is as wide as its longest row, and every pass reads the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """A row that is asked: where it lies, and how many of its columns are seen."""

    index: int
    width: int


def passes(places: Sequence[Place], weights: float) -> list[slice]:
    """How to part these rows, in the order in which they lie, so that least is read in all.

    ``weights``: so many columns of one row cost as much as reading the weights once more. Rows that lie between two
    of one pass are read along.

    >>> passes([Place(0, 8000), Place(1, 90), Place(2, 100)], weights=500.0)
    [slice(0, 1, None), slice(1, 3, None)]
    >>> passes([Place(0, 300), Place(1, 90), Place(2, 100)], weights=500.0)
    [slice(0, 3, None)]
    """
    least = [0.0]  # what the first n rows cost
    begins: list[int] = []  # where the last pass over the first n rows begins
    for end in range(1, len(places) + 1):
        width, options = 0, []
        for begin in reversed(range(end)):
            width = max(width, places[begin].width)
            rows = places[end - 1].index - places[begin].index + 1
            options.append((least[begin] + weights + rows * width, begin))
        cost, begin = min(options)
        least.append(cost)
        begins.append(begin)
    cuts, end = [], len(places)
    while end:
        cuts.append(slice(begins[end - 1], end))
        end = begins[end - 1]
    return cuts[::-1]
