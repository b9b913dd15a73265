"""Predicts from the text of a question which member should lead.

A :class:`Router` is a linear model. A question is a vector of unit length: hashed n-grams. The
prediction for a member is its share of right answers on all labelled questions, plus the sum of the
vector's values times the member's weights. The weights come from ridge regression
(``evaluation.routing``). With little evidence, the prediction therefore stays near the share, and
the best single member leads.

A prediction needs no other package. It takes about a millisecond for a question of any length,
because at most :data:`LONGEST` characters of it are read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, TypeAlias
from zlib import crc32

from .values import Turn

N_GRAMS = "n-grams 1"
"""The name of :func:`n_grams` in files. Another way to make features needs another name, because
weights fit only the features that they were made for."""
BUCKETS = 4096
FIRST = 0.15
"""For a question with two parts, the member that knows the first part leads
(docs/development/log.md)."""
LONGEST = 2000
"""Characters of the question that are read: the beginning and the end of a longer one."""
BEFORE = 200
"""Characters of the user's message before the last one that are read."""
_WORD = re.compile(r"\w+|[^\w\s]")
_DIGIT = re.compile(r"\d")

Features: TypeAlias = Mapping[int, float]
"""A vector of unit length: position -> value, without zeros."""


def features_of(turns: Iterable[Turn]) -> dict[int, float]:
    """The features of a conversation: those of the user's last message, plus half of those of the
    beginning of the one before, because "And the second one?" says little alone.

    System messages, answers and results of tools are left out, so one member leads through all tool
    calls that follow a question.

    >>> one = features_of([Turn("user", "Add 2 and 3.")])
    >>> one == features_of([Turn("user", "Add 2 and 3."), Turn("tool", "5")])
    True
    """
    said = [turn.text for turn in turns if turn.role == "user"] or [""]
    last = said[-1]
    if len(last) > LONGEST:
        last = f"{last[: LONGEST // 2]} {last[-LONGEST // 2 :]}"
    features = n_grams(last)
    if len(said) > 1:
        for position, value in n_grams(said[-2][:BEFORE]).items():
            features[position] = features.get(position, 0.0) + value / 2
    return unit(features)


def n_grams(text: str) -> dict[int, float]:
    """The features of a text: its words and its sequences of four bytes, hashed.

    Case and white space do not matter, and every digit counts as the same. A bucket with n
    occurrences has the value 1 + ln n, before all values are divided by the vector's length. The
    first word, which often says what is to be done, is a feature of its own with the share
    :data:`FIRST` of the squared length.

    >>> n_grams("Add 12 and 34.") == n_grams("add  56 AND 78.")
    True
    """
    plain = _DIGIT.sub("0", " ".join(text.casefold().split()))
    # A surrogate cannot be encoded, but a question may contain one.
    padded = f" {plain} ".encode("utf-8", "replace")
    grams = [padded[start : start + 4] for start in range(len(padded) - 3)]
    words = [word.encode("utf-8", "replace") for word in _WORD.findall(plain)]
    grams += [b"word " + word for word in words]
    counts = Counter([crc32(gram) % BUCKETS for gram in grams])
    features = unit({bucket: 1 + math.log(count) for bucket, count in counts.items()})
    if words:
        first = crc32(b"first " + words[0]) % BUCKETS
        features[first] = features.get(first, 0.0) + math.sqrt(FIRST / (1 - FIRST))
    return unit(features)


def unit(values: Mapping[int, float]) -> dict[int, float]:
    """The vector scaled to length 1, without zeros.

    >>> unit({0: 3.0, 1: 4.0, 2: 0.0})
    {0: 0.6, 1: 0.8}
    """
    length = math.sqrt(math.fsum(value * value for value in values.values()))
    if math.isclose(length, 1.0, rel_tol=1e-12):
        length = 1.0  # so that a vector of unit length stays as it is
    return {position: value / length for position, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Router:
    """Predicts how likely each member's answer is to be right."""

    shares: Mapping[str, float]
    """member -> its share of right answers. The first of those with the highest share leads unless
    the weights favour another."""
    weights: Mapping[int, Sequence[float]] = field(repr=False)
    """position -> a weight for each member, in the order of ``shares``."""
    features: str = N_GRAMS

    def predicted(self, features: Features) -> dict[str, float]:
        """member -> the prediction for a question with these features. It is not limited to 0 to
        1, so that members near 1 can be told apart.

        >>> router = Router({"a": 0.5, "b": 0.25}, {7: [-0.5, 0.5]})
        >>> router.predicted({7: 1.0}), router.predicted({8: 1.0})
        ({'a': 0.0, 'b': 0.75}, {'a': 0.5, 'b': 0.25})
        """
        known = [position for position in features if position in self.weights]
        values = [features[position] for position in known]
        columns = zip(*(self.weights[position] for position in known), strict=True)
        sums = [sum(map(mul, values, column)) for column in columns] or [0.0] * len(self.shares)
        return {
            name: share + total
            for (name, share), total in zip(self.shares.items(), sums, strict=True)
        }

    def as_dict(self) -> dict[str, Any]:
        """The router as plain JSON, with weights of four digits."""
        rows = {
            str(position): [float(f"{weight:.4g}") for weight in row]
            for position, row in sorted(self.weights.items())
        }
        return {
            "features": self.features,
            "shares": dict(self.shares),
            "weights": rows,
        }


def best(values: Mapping[str, float], favourite: str | None = None) -> str:
    """The name with the highest value; among equals the favourite, otherwise the first. A
    difference below 1e-9 is none.

    >>> best({"a": 0.5, "b": 0.5}), best({"a": 0.5, "b": 0.5}, "b")
    ('a', 'b')
    """
    highest = max(values.values())
    equal = [name for name, value in values.items() if value > highest - 1e-9]
    return favourite if favourite in equal else equal[0]
