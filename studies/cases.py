"""A question of the study of checks: what is asked, the checks that its answer must pass, and how a
finished answer is graded.

The grades do not use the checks, so that a wrong check is noticed.
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
    """The grade of an answer. It is recorded; the answer's text is not."""

    right: bool
    note: str = ""
    """What is wrong with it."""
    faults: int = 0
    """The number of faults, if they are counted."""


@dataclass(frozen=True)
class Case:
    """One question."""

    id: str
    kind: str
    """The rule or the kind of question. Tables have a row for each."""
    text: str
    checks: tuple[Any, ...]
    grade: Callable[[str], Grade]
    limits_length: bool = False
    """Whether its rules limit the length, so that a short answer is not a fault."""


def hashed(text: str) -> str:
    """A hash that splits and orders questions, so that nobody chooses them."""
    return hashlib.sha256(text.encode()).hexdigest()


def part_of(text: str, development: int) -> str:
    """The part that a question belongs to. One question in ``development`` is a development
    question. The hash of its text decides, so the part does not depend on other questions."""
    return SEALED if int(hashed(text), 16) % development else DEVELOPMENT


def spread(cases: Sequence[Case], count: int | None) -> list[Case]:
    """The first ``count`` cases, in an order that depends only on their ids, so that even a few
    cases are of many kinds."""
    return sorted(cases, key=lambda case: hashed(case.id))[:count]
