"""A question of the study of checks: what is asked, the checks that its answer must pass, and how a
finished answer is graded.

The grades do not use the checks: a check that is wrong must show.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

DEVELOPMENT, SEALED = "development", "sealed"
PARTS = (DEVELOPMENT, SEALED)


@dataclass(frozen=True)
class Grade:
    """What is recorded of an answer. The text is not."""

    right: bool
    note: str = ""
    """What is wrong with it."""
    faults: int = 0
    """How many, where they are counted."""


@dataclass(frozen=True)
class Case:
    """One question."""

    id: str
    kind: str
    """For the rows of a table: the rule, or the kind of question."""
    text: str
    checks: tuple[Any, ...]
    grade: Callable[[str], Grade]
    limits_length: bool = False
    """Whether its rules limit the length, so a short answer is no fault."""


def part_of(text: str, development: int) -> str:
    """The part that a question belongs to: one in ``development`` is for trying. Its hash decides,
    so that other questions do not matter."""
    number = int(hashlib.sha256(text.encode()).hexdigest(), 16)
    return SEALED if number % development else DEVELOPMENT


def spread(cases: Sequence[Case], count: int | None) -> list[Case]:
    """The first ``count`` cases in an order that depends on their ids alone, so that the first few
    are of all kinds."""
    ordered = sorted(cases, key=lambda case: hashlib.sha256(case.id.encode()).hexdigest())
    return ordered[:count]
