"""Tasks: questions with a grader, read from the user's own JSONL files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.values import Turn
from ..errors import UsageError, advised
from .graders import GRADERS, Grade, Grader, Question, grader_named

ROLES = ("system", "user", "assistant")
EXAMPLE = 'one object per line: {"input": "2 + 2?", "reference": "4"}'
RESULTS_OF = {"number": "number", "choice": "choice", "exact": "text"}
"""grader -> the result by which whole answers can be compared (``core.results``)."""
_COLUMNS = ("input", "reference", "id", "grader")
"""Keys of a line; the others are facts for the grader."""


@dataclass(frozen=True, slots=True)
class Task:
    """Questions and a grader."""

    name: str
    questions: tuple[Question, ...]
    grader: Grader
    mark: str
    """Identifies the grader. Answers that another grader graded are graded again."""
    max_tokens: int = 256
    measure: str = "share of right answers"
    result: str | None = None
    """The result by which whole answers can be compared (``core.results``), if the grader implies
    one."""

    def first(self, count: int | None) -> Task:
        """The task with its first ``count`` questions, or with all if it is None."""
        return self if count is None else replace(self, questions=self.questions[:count])

    def grade(self, question: Question, answer: str) -> Grade:
        """The grader's grade. An empty answer is wrong, whatever the grader returns."""
        if not answer.strip():
            return Grade(0.0, note="empty answer")
        try:
            grade = self.grader(question, answer)
        except UsageError:
            raise
        except Exception as error:  # the user's function, on an answer that it did not expect
            failure = UsageError(
                f"the grader raised on the answer {answer!r:.80} to question {question.id!r}: "
                f"{type(error).__name__}: {error}"
            )
            raise advised(failure, "fix it, and run this again: graded answers are kept") from error
        if not 0.0 <= grade.score <= 1.0:
            out_of_range = UsageError(
                f"a grader must return a score from 0 to 1, got {grade.score!r} for {question.id!r}"
            )
            raise advised(out_of_range, "divide by the highest score that it can return")
        return grade

    def fingerprint(self, question: Question) -> str:
        """A hash of everything besides the answer that can change this question's grade."""
        turns = [[turn.role, turn.text] for turn in question.turns]
        parts = [turns, question.reference, question.grader, dict(question.facts)]
        return digest([self.name, self.mark, question.id, parts])


def digest(data: Any) -> str:
    """A short hash of plain data."""
    text = json.dumps(data, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def jsonl(path: str | Path, grader: str | None = None, *, allow_code: bool = False) -> Task:
    """The questions of a JSONL file.

    ``grader``, a name or ``FILE.py:FUNCTION``, is for lines that do not name one. A line may name
    ``FILE.py:FUNCTION`` only with ``allow_code``, because that file is run.
    """
    questions = questions_of(path)
    if grader is None and any(not question.grader for question in questions):
        error = UsageError(f"{path}: not every line names a grader")
        raise advised(error, f"--grader NAME, one of {', '.join(GRADERS)}, or FILE.py:FUNCTION")
    default = {grader} if grader else set()
    in_file = {question.grader for question in questions} - {""}
    if not allow_code:
        _refuse_code(path, in_file - default)
    names = in_file | default
    by_name = {name: grader_named(name) for name in sorted(names)}

    def grade(question: Question, answer: str) -> Grade:
        graded, _ = by_name[question.grader or str(grader)]
        return graded(question, answer)

    for question in questions:  # refuse an unusable reference now, not after an hour
        if (question.grader or grader) in GRADERS:
            grade(question, "?")
    custom = names - GRADERS.keys()
    return Task(
        Path(path).stem,
        questions,
        grade,
        mark=f"{grader} " + " ".join(mark for _, mark in by_name.values()),
        measure="mean score" if custom else "share of right answers",
        result=RESULTS_OF.get(*names) if len(names) == 1 else None,
    )


def _refuse_code(path: str | Path, graders: set[str]) -> None:
    """Refuse graders that are code, because a file of questions may come from someone else."""
    files = sorted(name for name in graders if ":" in name and name not in GRADERS)
    if not files:
        return
    error = UsageError(
        f"{path} names code to run as a grader, which is not allowed: {', '.join(files)}"
    )
    raise advised(
        error,
        "read that code, then allow it with --allow-code (in Python: allow_code=True); or leave "
        "the grader out of the lines and name it yourself with --grader",
    )


def questions_of(path: str | Path) -> tuple[Question, ...]:
    """The questions of a JSONL file: ``input``, ``reference``, optional ``id``, ``grader``,
    ``choices`` and others."""
    questions = []
    line_of: dict[str, int] = {}
    for number, line in json_lines(path):
        where = f"{path}:{number}"
        if "input" not in line:
            raise advised(UsageError(f"{where} has no 'input', only {sorted(line)}"), EXAMPLE)
        name = str(number if line.get("id") is None else line["id"])
        if name in line_of:
            error = UsageError(
                f"{where}: two questions have the id {name!r}, this one and that of line "
                f"{line_of[name]}"
            )
            raise advised(error, "leave ids out, or make them differ")
        line_of[name] = number
        questions.append(
            Question(
                name,
                _turns(line["input"], where),
                line.get("reference"),
                grader=str(line.get("grader") or ""),
                facts={key: value for key, value in line.items() if key not in _COLUMNS},
            )
        )
    if not questions:
        raise advised(UsageError(f"{path} contains no questions"), EXAMPLE)
    return tuple(questions)


def json_lines(path: str | Path, example: str = EXAMPLE) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line that is not blank. ``example``: what an error shows."""
    try:
        # some editors begin a file with a byte order mark
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        unreadable = UsageError(f"{path} cannot be read: {error}")
        raise advised(unreadable, f"name a JSONL file in UTF-8, {example}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of thousands of digits
            reason: object = error
            if isinstance(error, json.JSONDecodeError):
                reason = f"{error.msg} at character {error.pos + 1}"
            raise advised(UsageError(f"{path}:{number} is not JSON: {reason}"), example) from error
        if not isinstance(value, dict):
            raise advised(
                UsageError(f"{path}:{number} must be an object, got {type(value).__name__}"),
                example,
            )
        yield number, value


def _turns(content: Any, where: str) -> tuple[Turn, ...]:
    """The turns of a text, or of a list of messages ``{"role": ..., "content": ...}`` that ends
    with the user's."""
    if isinstance(content, str) and content.strip():
        return (Turn("user", content),)
    if _is_conversation(content):
        return tuple(Turn(message["role"], message["content"]) for message in content)
    expected = 'a text, or a list of {"role": "user", "content": "..."} that ends with the user'
    raise advised(
        UsageError(f"{where}: input must be {expected}, got {content!r:.120}"),
        "see docs/doctor.md#write-questions",
    )


def _is_conversation(content: Any) -> bool:
    if not isinstance(content, Sequence) or not content or isinstance(content, str):
        return False
    return all(map(_is_message, content)) and content[-1]["role"] == "user"


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.get("role") in ROLES
        and isinstance(value.get("content"), str)
    )
