"""Checkers: functions that grade an answer. Built-in ones by name, and functions from the user's
own files.

A checker takes a :class:`Question` and the answer's text and returns a :class:`Grade`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from ..core.letters import LETTERS, chosen_letter
from ..core.results import final_number
from ..core.values import Turn
from ..errors import UsageError, advised


@dataclass(frozen=True, slots=True)
class Question:
    """One question of a task."""

    id: str
    turns: tuple[Turn, ...]
    reference: Any = None
    """What the checker compares the answer with: plain JSON."""
    checker: str = ""
    """The checker that the question itself names; empty: the task's."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else the checker needs, such as ``choices``: plain JSON."""

    @property
    def text(self) -> str:
        """The user's last message."""
        return self.turns[-1].text


@dataclass(frozen=True, slots=True)
class Grade:
    """How good an answer is: 0 to 1."""

    score: float
    note: str = ""
    """Why it is wrong, for people."""


Checker: TypeAlias = Callable[[Question, str], Grade]


def _references(question: Question) -> list[str]:
    """The right answers: one reference, or any of a list."""
    given = question.reference if isinstance(question.reference, list) else [question.reference]
    if not given or any(one is None or not str(one).strip() for one in given):
        error = UsageError(
            f"question {question.id!r} has no reference, or an empty one: "
            f"{question.reference!r:.60}"
        )
        raise advised(error, 'every line needs one, such as {"input": "2 + 2?", "reference": "4"}')
    return [str(one) for one in given]


def _grade(right: bool, note: str) -> Grade:
    return Grade(1.0) if right else Grade(0.0, note)


def exact(question: Question, answer: str) -> Grade:
    """Right: the answer is the reference, letter by letter, without the white space around it."""
    return _grade(
        answer.strip() in [one.strip() for one in _references(question)],
        f"said {answer.strip()!r:.60}",
    )


def contains(question: Question, answer: str) -> Grade:
    """Right: the answer contains the reference, in any case, as whole words ("42" does not contain
    "4")."""
    patterns = [rf"(?<!\w){re.escape(one.strip())}(?!\w)" for one in _references(question)]
    return _grade(
        any(re.search(one, answer, re.I) for one in patterns), f"not in {answer.strip()!r:.60}"
    )


def regex(question: Question, answer: str) -> Grade:
    """Right: the reference, a regular expression, matches somewhere in the answer."""
    try:
        return _grade(any(re.search(one, answer) for one in _references(question)), "no match")
    except re.error as error:
        wrong = UsageError(f"the reference of {question.id!r} is not a regular expression: {error}")
        raise advised(wrong, "checker 'contains' takes plain text") from error


# --- numbers --------------------------------------------------------------------------------------


def number(question: Question, answer: str) -> Grade:
    """Right: the answer's number is the reference's. The number is that after ``####``, else in
    ``\\boxed{}``, else the last one."""
    said = final_number(answer)
    wanted = [value for one in _references(question) if (value := final_number(one)) is not None]
    if not wanted:
        error = UsageError(
            f"the reference of {question.id!r} contains no number: {question.reference!r:.60}"
        )
        raise advised(error, "checker 'number' needs one; 'contains' takes any text")
    return _grade(
        said is not None and said in wanted, "no number" if said is None else f"said {said}"
    )


# --- choices --------------------------------------------------------------------------------------


def choice(question: Question, answer: str) -> Grade:
    """Right: the answer chooses the reference: a letter ("B", "(b)", "the answer is B") or the text
    of a choice."""
    choices = _choices(question)
    said = chosen_letter(answer, choices)
    wanted = {_letter(question, one, choices) for one in _references(question)}
    return _grade(said in wanted, f"chose {said or 'nothing'}")


def _choices(question: Question) -> list[str]:
    if (given := question.facts.get("choices")) is None:
        return []
    if (
        not isinstance(given, list)
        or not 2 <= len(given) <= 26
        or not all(isinstance(one, str | int) for one in given)
    ):
        error = UsageError(
            f"the choices of {question.id!r} must be a list of 2 to 26 texts, got {given!r:.80}"
        )
        raise advised(
            error,
            '"choices": ["carrot", "banana"]; leave them out if the question names the letters',
        )
    return [str(one) for one in given]


def _letter(question: Question, reference: str, choices: Sequence[str]) -> str:
    """The letter of this reference, which is a letter or the text of a choice."""
    letters = LETTERS[: len(choices) or 10]
    letter = reference.strip().strip("().").upper()
    if len(letter) == 1 and letter in letters:
        return letter
    same = [
        at
        for at, text in enumerate(choices)
        if text.strip().casefold() == reference.strip().casefold()
    ]
    if not same:
        wanted = f"a letter from A to {letters[-1]}" + (
            ", or one of the choices" if choices else ""
        )
        error = UsageError(
            f"the reference of {question.id!r} must be {wanted}, got {reference!r:.60}"
        )
        raise advised(error, "no answer could choose it, so every answer would be wrong")
    return letters[same[0]]


CHECKERS: Mapping[str, Checker] = MappingProxyType(
    {"exact": exact, "number": number, "contains": contains, "regex": regex, "choice": choice}
)


# --- the user's own -------------------------------------------------------------------------------

ARGUMENTS = ("answer", "reference", "question", "inputs", "outputs", "reference_outputs")


def checker_named(name: str) -> tuple[Checker, str]:
    """The checker of this name or of ``FILE.py:FUNCTION``, and a mark that changes with it."""
    if name in CHECKERS:
        return CHECKERS[name], f"{name} 1"
    if ":" in name:
        return from_file(name)
    raise advised(
        UsageError(f"there is no checker {name!r}"),
        f"there are {', '.join(CHECKERS)}, or FILE.py:FUNCTION",
    )


def from_file(name: str) -> tuple[Checker, str]:
    """The function of ``path/to/file.py:function`` as a checker, and a mark that changes with the
    file."""
    path, _, attribute = name.rpartition(":")
    if not path.endswith(".py") or not attribute.isidentifier():
        error = UsageError(f"a checker is a name or FILE.py:FUNCTION, got {name!r}")
        raise advised(error, "for example check.py:grade")
    try:
        source, module = Path(path).read_text(errors="replace"), _module(path)
    except Exception as error:
        wrong = UsageError(
            f"the checker's file {path} cannot be used: {type(error).__name__}: {error}"
        )
        raise advised(wrong, f"python {path} must run without an error") from error
    function = getattr(module, attribute, None)
    if not callable(function) or inspect.isclass(function):
        raise advised(
            UsageError(f"{path} has no function {attribute!r}"),
            "FILE.py:FUNCTION names one of the file",
        )
    return from_function(function), f"{attribute} {source}"


def _module(path: str) -> Any:
    """The file as a module. It can import its neighbours, as when it is run by itself."""
    name = f"specfuse_checker_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the names in annotations
    if (folder := str(Path(path).resolve().parent)) not in sys.path:
        # last, so that it hides nothing installed, and for good: functions import later
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module


def from_function(function: Callable[..., Any]) -> Checker:
    """A user's function as a checker. Its parameters' names say what it gets: any of ``answer``,
    ``reference`` and ``question``, or of ``inputs``, ``outputs`` and ``reference_outputs``, as
    LangSmith's evaluators have them.

    >>> check = from_function(lambda outputs, reference_outputs: outputs == reference_outputs)
    >>> check(Question("1", (Turn("user", "2 + 2?"),), "4"), "4").score
    1.0
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = [
        one for one in inspect.signature(function).parameters.values() if one.kind not in variadic
    ]
    wanted = [one.name for one in parameters if one.name in ARGUMENTS]
    needed = [one for one in parameters if one.default is one.empty]
    if not wanted or any(
        one.name not in ARGUMENTS or one.kind is one.POSITIONAL_ONLY for one in needed
    ):
        names = ", ".join(str(one) for one in inspect.signature(function).parameters.values())
        error = UsageError(
            f"a checker's parameters must be among {', '.join(ARGUMENTS)}, got ({names})"
        )
        raise advised(
            error, "name them so; they are passed by name, so none may be positional-only"
        )

    def check(question: Question, answer: str) -> Grade:
        reference = question.reference
        values = {
            "question": question,
            "answer": answer,
            "reference": reference,
            "inputs": {"input": question.text, **question.facts},
            "outputs": {"output": answer},
            "reference_outputs": dict(reference)
            if isinstance(reference, Mapping)
            else {"output": reference},
        }
        result = function(**{name: values[name] for name in wanted})
        return as_grade(asyncio.run(result) if inspect.iscoroutine(result) else result)

    return check


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
        f"a checker must return True, False or a number from 0 to 1, got {result!r:.80}"
    )
    raise advised(
        error, 'return 1.0 for right and 0.0 for wrong, or {"score": 1.0, "comment": "why"}'
    )
