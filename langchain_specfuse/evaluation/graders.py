"""Graders: functions that grade an answer. Built-in graders have names; others are functions in
the user's own files.

A grader takes a :class:`Question` and the answer's text and returns a :class:`Grade`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from ..core.letters import LETTERS, chosen_letter
from ..core.results import final_number
from ..core.values import Turn
from ..errors import UsageError, advised
from ..user_code import named_in_file


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a task."""

    id: str
    turns: tuple[Turn, ...]
    reference: Any = None
    """What the grader compares the answer with: plain JSON."""
    grader: str = ""
    """The grader that the question itself names. If it is empty, the task's grader is used."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Other facts for the grader, such as ``choices``: plain JSON."""

    @property
    def text(self) -> str:
        """The user's last message."""
        return self.turns[-1].text


@dataclass(frozen=True, slots=True)
class Grade:
    """How good an answer is: 0 to 1."""

    score: float
    note: str = ""
    """Why the answer is wrong."""


Grader: TypeAlias = Callable[[Question, str], Grade]


def _references(question: Question) -> list[str]:
    """The right answers: the reference, or each of a list."""
    reference = question.reference
    references = reference if isinstance(reference, list) else [reference]
    if not references or any(item is None or not str(item).strip() for item in references):
        error = UsageError(
            f"question {question.id!r} has no reference, or an empty one: {reference!r:.60}"
        )
        raise advised(error, 'every line needs one, such as {"input": "2 + 2?", "reference": "4"}')
    return [str(item) for item in references]


def _grade(right: bool, note: str) -> Grade:
    return Grade(1.0) if right else Grade(0.0, note)


# --- texts ----------------------------------------------------------------------------------------


def exact(question: Question, answer: str) -> Grade:
    """Right if the answer is the reference, letter by letter, without the white space around it."""
    text = answer.strip()
    right = text in [reference.strip() for reference in _references(question)]
    return _grade(right, f"answered {text!r:.60}")


def contains(question: Question, answer: str) -> Grade:
    """Right if the answer contains the reference as whole words, in any case ("42" does not contain
    "4")."""
    text = answer.strip()
    patterns = [rf"(?<!\w){re.escape(item.strip())}(?!\w)" for item in _references(question)]
    right = any(re.search(pattern, answer, re.I) for pattern in patterns)
    return _grade(right, f"not in {text!r:.60}")


def regex(question: Question, answer: str) -> Grade:
    """Right if the reference, a regular expression, matches somewhere in the answer."""
    try:
        right = any(re.search(pattern, answer) for pattern in _references(question))
    except re.error as error:
        broken = UsageError(
            f"the reference of {question.id!r} is not a regular expression: {error}"
        )
        raise advised(broken, "grader 'contains' takes plain text") from error
    return _grade(right, "no match")


# --- numbers --------------------------------------------------------------------------------------


def number(question: Question, answer: str) -> Grade:
    """Right if the answer's number is the reference's: the number after ``####``, else in
    ``\\boxed{}``, else the last one."""
    numbers = [final_number(reference) for reference in _references(question)]
    right = [value for value in numbers if value is not None]
    if not right:
        error = UsageError(
            f"the reference of {question.id!r} contains no number: {question.reference!r:.60}"
        )
        raise advised(error, "grader 'number' needs one; 'contains' takes any text")
    value = final_number(answer)
    if value is None:
        return Grade(0.0, "no number")
    return _grade(value in right, f"answered {value}")


# --- choices --------------------------------------------------------------------------------------


def choice(question: Question, answer: str) -> Grade:
    """Right if the answer chooses the reference: by its letter ("B", "(b)", "the answer is B") or
    by the text of the choice."""
    choices = _choices(question)
    right = {_letter(question, reference, choices) for reference in _references(question)}
    letter = chosen_letter(answer, choices)
    return _grade(letter in right, f"chose {letter or 'nothing'}")


def _choices(question: Question) -> list[str]:
    choices = question.facts.get("choices")
    if choices is None:
        return []
    if (
        not isinstance(choices, list)
        or not 2 <= len(choices) <= 26
        or not all(isinstance(text, str | int) for text in choices)
    ):
        error = UsageError(
            f"the choices of {question.id!r} must be a list of 2 to 26 texts, got {choices!r:.80}"
        )
        raise advised(
            error,
            '"choices": ["carrot", "banana"]; leave them out if the question names the letters',
        )
    return [str(text) for text in choices]


def _letter(question: Question, reference: str, choices: Sequence[str]) -> str:
    """The letter of a reference, which is a letter or the text of a choice."""
    letters = LETTERS[: len(choices) or 10]
    letter = reference.strip().strip("().").upper()
    if len(letter) == 1 and letter in letters:
        return letter
    text = reference.strip().casefold()
    for position, candidate in enumerate(choices):
        if candidate.strip().casefold() == text:
            return letters[position]
    expected = f"a letter from A to {letters[-1]}"
    if choices:
        expected += ", or one of the choices"
    error = UsageError(
        f"the reference of {question.id!r} must be {expected}, got {reference!r:.60}"
    )
    raise advised(error, "no answer could choose it, so every answer would be wrong")


GRADERS: Mapping[str, Grader] = MappingProxyType(
    {"exact": exact, "number": number, "contains": contains, "regex": regex, "choice": choice}
)


# --- the user's own functions ---------------------------------------------------------------------

ARGUMENTS = ("answer", "reference", "question", "inputs", "outputs", "reference_outputs")


def grader_named(name: str) -> tuple[Grader, str]:
    """The grader with this name, or the function of ``FILE.py:FUNCTION``, and a text that changes
    when the grader changes."""
    if name in GRADERS:
        return GRADERS[name], f"{name} 1"
    if ":" in name:
        return from_file(name)
    raise advised(
        UsageError(f"there is no grader {name!r}"),
        f"there are {', '.join(GRADERS)}, or FILE.py:FUNCTION",
    )


def from_file(name: str) -> tuple[Grader, str]:
    """The function of ``path/to/file.py:function`` as a grader, and a text that changes with the
    file."""
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        error = UsageError(f"a grader is a name or FILE.py:FUNCTION, got {name!r}")
        raise advised(error, "for example grading.py:grade")
    function, source = named_in_file(path, attribute, "grader")
    if not callable(function) or inspect.isclass(function):
        raise advised(
            UsageError(f"{path} has no function {attribute!r}"),
            "FILE.py:FUNCTION names a function of the file",
        )
    return from_function(function), f"{attribute} {source}"


def from_function(function: Callable[..., Any]) -> Grader:
    """A user's function as a grader.

    The names of its parameters say what it gets: any of ``answer``, ``reference`` and ``question``,
    or of ``inputs``, ``outputs`` and ``reference_outputs``, as LangSmith's evaluators have them.

    >>> grade = from_function(lambda outputs, reference_outputs: outputs == reference_outputs)
    >>> grade(Question("1", (Turn("user", "2 + 2?"),), "4"), "4").score
    1.0
    """
    names = _argument_names(function)

    def grade(question: Question, answer: str) -> Grade:
        reference = question.reference
        if isinstance(reference, Mapping):
            reference_outputs = dict(reference)
        else:
            reference_outputs = {"output": reference}
        values = {
            "question": question,
            "answer": answer,
            "reference": reference,
            "inputs": {"input": question.text, **question.facts},
            "outputs": {"output": answer},
            "reference_outputs": reference_outputs,
        }
        result = function(**{name: values[name] for name in names})
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        return as_grade(result)

    return grade


def _argument_names(function: Callable[..., Any]) -> list[str]:
    """Those of ``ARGUMENTS`` that the function takes. An error is raised if it needs others or
    takes none."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [parameter for parameter in parameters if parameter.kind not in variadic]
    names = [parameter.name for parameter in named if parameter.name in ARGUMENTS]
    required = [parameter for parameter in named if parameter.default is parameter.empty]
    unusable = [
        parameter
        for parameter in required
        if parameter.name not in ARGUMENTS or parameter.kind is parameter.POSITIONAL_ONLY
    ]
    if names and not unusable:
        return names
    signature = ", ".join(map(str, parameters))
    error = UsageError(
        f"a grader's parameters must be among {', '.join(ARGUMENTS)}, got ({signature})"
    )
    raise advised(error, "name them so; they are passed by name, so none may be positional-only")


def as_grade(result: Any) -> Grade:
    """The grade that a function returned: a grade, True or False, a number, or a dict with
    ``score``."""
    if isinstance(result, Grade):
        return Grade(as_grade(result.score).score, result.note)
    if isinstance(result, Mapping) and "score" in result:
        return Grade(as_grade(result["score"]).score, str(result.get("comment") or ""))
    if type(result).__module__ == "numpy" and getattr(result, "shape", None) == ():
        result = result.item()
    if isinstance(result, bool | int | float):
        return Grade(float(result))
    error = UsageError(
        f"a grader must return True, False or a number from 0 to 1, got {result!r:.80}"
    )
    raise advised(
        error, 'return 1.0 for right and 0.0 for wrong, or {"score": 1.0, "comment": "why"}'
    )
