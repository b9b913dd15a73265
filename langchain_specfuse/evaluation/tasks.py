"""What is asked and how answers are graded: questions, grades, tasks, and the user's own JSONL.

Knows texts and numbers; nothing of members, rounds or results. The built-in tasks are in ``builtin``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..core.values import Turn
from ..errors import UsageError, advised

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a task."""

    id: str
    turns: tuple[Turn, ...]
    reference: Any = None
    """What the checker compares with: plain JSON."""
    checker: str = ""
    """Of a JSONL line that names its own checker; "": the task's."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the checker needs, plain JSON."""

    @property
    def text(self) -> str:
        """What the user said last."""
        return self.turns[-1].text


@dataclass(frozen=True, slots=True)
class Grade:
    """How good an answer is: 0 to 1."""

    score: float
    parts: Mapping[str, bool] = field(default_factory=dict)
    """What the answer had to do, and whether it did, where there are several things."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """Other measures of the same answer."""
    note: str = ""
    """Why it is wrong, for people."""
    unchecked: str = ""
    """What the checker raised: then the score means nothing."""


Checker = Callable[[Question, str], Grade]


@dataclass(frozen=True, slots=True)
class Task:
    """Questions and a checker."""

    name: str
    questions: tuple[Question, ...]
    checker: Checker
    mark: str
    """What tells this checker from another: results under an old one are not taken for results under a new one."""
    max_tokens: int = 256
    graded: bool = False
    """True: scores lie between 0 and 1. False: an answer is right or wrong, or only the scores will tell."""
    measure: str = "share of right answers"
    note: str = ""
    """What one should know before it runs."""
    judges: bool = True
    """False: nobody knows what is right; every answer that is not empty scores 1."""
    corpus: Callable[[Sequence[tuple[Question, str]]], Mapping[str, float]] | None = None
    """Measures of all answers together, which are no means of single ones."""

    def first(self, count: int | None) -> Task:
        """The task with its first ``count`` questions."""
        return self if count is None else replace(self, questions=self.questions[:count])

    def grade(self, question: Question, answer: str) -> Grade:
        """The checker's grade. An empty answer is wrong, whatever the checker thinks of it."""
        if not answer.strip():
            return Grade(0.0, note="empty answer")
        found = self.checker(question, answer)
        if not 0.0 <= found.score <= 1.0:
            error = UsageError(f"a checker must give a score from 0 to 1, got {found.score!r} for {question.id!r}")
            raise advised(error, "divide by the highest score that it can give")
        return found

    def fingerprint(self, question: Question) -> str:
        """Changes with anything that can change this question's grade, beside the answer."""
        told = [
            [[turn.role, turn.text] for turn in question.turns],
            question.reference,
            question.checker,
            dict(question.facts),
        ]
        return digest([self.name, self.mark, question.id, told])


def digest(told: Any) -> str:
    """A short name for plain data."""
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def numbered(questions: Iterable[Question]) -> tuple[Question, ...]:
    """The questions, if no two have one id."""
    told = tuple(questions)
    seen: set[str] = set()
    for question in told:
        if question.id in seen:
            raise advised(
                UsageError(f"two questions have the id {question.id!r}"), "leave ids out, or make them differ"
            )
        seen.add(question.id)
    return told


def json_lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise advised(UsageError(f"{path} cannot be read: {error}"), "a task file is JSONL in UTF-8") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            told = json.loads(line)
            half = _half(told)
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            where = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
            wrong = UsageError(f"{path}:{number} is not JSON: {where}")
            raise advised(wrong, 'one object per line: {"input": "2 + 2?", "reference": "4"}') from error
        if not isinstance(told, dict):
            wrong = UsageError(f"{path}:{number} must be an object, got {type(told).__name__}")
            raise advised(wrong, 'for example {"input": "2 + 2?", "reference": "4"}')
        if half:
            wrong = UsageError(f"{path}:{number} holds {half!r}, half a character, which cannot be written or asked")
            raise advised(wrong, "something has cut the text in the middle of a character: mend that line")
        yield number, told


def _half(told: Any) -> str:
    """A lone surrogate in this JSON: what ``\\ud800`` stands for without its other half."""
    found = re.search("[\ud800-\udfff]", json.dumps(told, ensure_ascii=False))
    return found[0] if found else ""


def turns_of(given: Any, where: str) -> tuple[Turn, ...]:
    """A text, or a list of messages ``{"role": ..., "content": ...}``, as turns that end with the user's."""
    if isinstance(given, str) and given.strip():
        return (Turn("user", given),)
    if isinstance(given, Sequence) and not isinstance(given, str) and given and all(map(_is_message, given)):
        turns = tuple(Turn(message["role"], message["content"]) for message in given)
        if turns[-1].role == "user":
            return turns
    wanted = 'a text, or a list of {"role": "user", "content": "..."} that ends with the user'
    raise advised(UsageError(f"{where}: input must be {wanted}, got {given!r:.120}"), "see docs/evaluation.md")


def _is_message(given: Any) -> bool:
    return isinstance(given, Mapping) and given.get("role") in ROLES and isinstance(given.get("content"), str)


def questions_of(path: str | Path) -> tuple[Question, ...]:
    """The questions of a JSONL file: ``input``, ``reference``, optional ``id``, ``checker`` and ``choices``."""
    questions = []
    known = {"input", "reference", "id", "checker", "choices"}
    lines: dict[str, int] = {}
    for number, line in json_lines(path):
        where = f"{path}:{number}"
        if "input" not in line:
            raise advised(UsageError(f"{where} has no 'input', only {sorted(line)}"), "'input' is the question")
        facts = {key: value for key, value in line.items() if key not in known - {"choices"}}
        turns = turns_of(line["input"], where)
        own = str(line.get("checker") or "")
        name = str(number if line.get("id") is None else line["id"])
        if lines.setdefault(name, number) != number:
            error = UsageError(f"{where}: two questions have the id {name!r}, this one and that of line {lines[name]}")
            raise advised(error, "leave ids out, or make them differ")
        questions.append(Question(name, turns, line.get("reference"), own, facts))
    if not questions:
        raise advised(UsageError(f"{path} holds no questions"), 'one object per line: {"input": ..., "reference": ...}')
    return tuple(questions)
