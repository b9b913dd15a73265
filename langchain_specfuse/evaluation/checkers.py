"""Checkers by name, and functions from the user's own files. Each says what it takes for right.

Knows questions and answers as text. ``ifeval``, ``humaneval`` and ``overlap`` hold the larger ones.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import UsageError, advised
from .tasks import Checker, Grade, Question

_NUMBER = re.compile(r"(?<![\w.])[-+−]?[$€£]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.])[-+−]?[$€£]?\.\d+")
_MARKED = re.compile(r"####\s*([^\n]*)")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")


def references(question: Question) -> list[str]:
    """What may be right: one reference, or any of a list."""
    told = question.reference if isinstance(question.reference, list) else [question.reference]
    if question.reference is None or not told:
        error = UsageError(f"question {question.id!r} has no reference")
        raise advised(error, "add 'reference', or give a checker that needs none")
    if any(one is None or not str(one).strip() for one in told):
        error = UsageError(f"question {question.id!r} has an empty reference: {question.reference!r:.60}")
        raise advised(error, "an empty answer is never right, and an empty text stands in every other")
    return [str(one) for one in told]


def exact(question: Question, answer: str) -> Grade:
    """The answer is the reference, letter by letter; white space around it does not count."""
    return _right(answer.strip() in [one.strip() for one in references(question)], f"said {answer.strip()!r:.60}")


def contains(question: Question, answer: str) -> Grade:
    """The reference stands in the answer, in any case, as whole words ("4" does not stand in "42")."""
    found = any(re.search(rf"(?<!\w){re.escape(r.strip())}(?!\w)", answer, re.I) for r in references(question))
    return _right(found, f"not in {answer.strip()!r:.60}")


def pattern(question: Question, answer: str) -> Grade:
    """The reference, a regular expression, matches somewhere in the answer."""
    try:
        return _right(any(re.search(one, answer) for one in references(question)), "no match")
    except re.error as error:
        wrong = UsageError(f"the reference of {question.id!r} is no regular expression: {error}")
        raise advised(wrong, "checker 'contains' takes plain text") from error


def number(question: Question, answer: str) -> Grade:
    """The answer's number is the reference: the one after ``####``, else in ``\\boxed{}``, else the last one."""
    said = told_number(answer)
    wanted = [value for one in references(question) if (value := told_number(one)) is not None]
    if not wanted:
        error = UsageError(f"the reference of {question.id!r} holds no number: {question.reference!r:.60}")
        raise advised(error, "checker 'number' needs one; 'contains' takes any text")
    return _right(said is not None and said in wanted, "no number" if said is None else f"said {said}")


def told_number(text: str) -> Decimal | None:
    """The number that a text comes to.

    >>> told_number("12 + 30 = 42, so it costs $1,042.50."), told_number("#### 7\\n(of 9)"), told_number("none")
    (Decimal('1042.50'), Decimal('7'), None)
    """
    for mark in (_MARKED, _BOXED):
        marked = [value for found in mark.findall(text) if (value := _numbers(found))]
        if marked:
            return marked[-1][0]
    found = _numbers(text)
    return found[-1] if found else None


def _numbers(text: str) -> list[Decimal]:
    plain = [re.sub(r"[^\d.\-]", "", found.replace("−", "-")) for found in _NUMBER.findall(text)]
    values = []
    for one in plain:
        try:
            values.append(Decimal(one))
        except InvalidOperation:
            continue
    return values


def choice(question: Question, answer: str) -> Grade:
    """The answer chooses the reference: a letter ("B", "(b)", "the answer is B"), or a text of ``choices``."""
    texts = _choices(question)
    said = chosen(answer, texts)
    wanted = {_letter(question, one, texts) for one in references(question)}
    return _right(said in wanted, f"chose {said or 'nothing'}")


def _choices(question: Question) -> list[str]:
    told = question.facts.get("choices")
    if told is None:
        return []
    if not isinstance(told, list) or not 2 <= len(told) <= 26 or not all(isinstance(one, str | int) for one in told):
        error = UsageError(f"the choices of {question.id!r} must be a list of 2 to 26 texts, got {told!r:.80}")
        raise advised(error, '"choices": ["carrot", "banana"]; leave them out if the question names the letters')
    return [str(one) for one in told]


def _letter(question: Question, reference: str, texts: Sequence[str]) -> str:
    """The letter that this reference means: it is one, or the text of a choice."""
    letters = LETTERS[: len(texts) or 10]
    letter = reference.strip().strip("().").upper()
    if len(letter) == 1 and letter in letters:
        return letter
    named = [at for at, text in enumerate(texts) if text.strip().casefold() == reference.strip().casefold()]
    if not named:
        wanted = f"a letter from A to {letters[-1]}" + (", or one of the choices" if texts else "")
        error = UsageError(f"the reference of {question.id!r} must be {wanted}, got {reference!r:.60}")
        raise advised(error, "nobody could choose it, so every answer would be wrong")
    return letters[named[0]]


def chosen(answer: str, choices: Any = ()) -> str:
    """The letter that an answer chooses; "" if it chooses none, or several.

    >>> chosen("B"), chosen("The answer is (c)."), chosen("It is red", ["blue", "red"]), chosen("A or B")
    ('B', 'C', 'B', '')
    """
    letters = LETTERS[: len(choices) or 10]
    told = re.findall(rf"(?:answer|choice|option)\b(?:\s+is)?\s*:?\s*\(?([{letters}])\b(?!['’])", answer, re.I)
    if told:
        return str(told[-1]).upper()
    alone = re.match(rf"\s*(?:\(([{letters}])\)|([{letters}])(?:[).:,]|\s*$))", answer, re.I)
    if alone:
        return (alone[1] or alone[2]).upper()
    named = [at for at, text in enumerate(choices) if re.search(rf"(?<!\w){re.escape(str(text))}(?!\w)", answer, re.I)]
    if len(named) == 1:
        return chr(65 + named[0])
    found = set(re.findall(rf"(?<!\w)\(?([{letters}])\)?(?!\w)(?!['’])", answer)) if not named else set()
    return found.pop() if len(found) == 1 else ""


def _right(right: bool, why_not: str) -> Grade:
    return Grade(1.0) if right else Grade(0.0, note=why_not)


CHECKERS: Mapping[str, Checker] = MappingProxyType(
    {"exact": exact, "number": number, "contains": contains, "regex": pattern, "choice": choice}
)
"""Right or wrong, by name. ``overlap`` has graded ones."""


# --- the user's own ---------------------------------------------------------------------------------------------


def from_file(told: str) -> tuple[Checker, str]:
    """The function of ``path/to/file.py:name`` as a checker, and a mark that changes with the file.

    Its parameters say what it gets: ``(question, answer)`` or ``(answer, reference)``, or what LangSmith's evaluators
    take: ``(run, example)``, or any of ``inputs, outputs, reference_outputs``.
    """
    path, _, name = told.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise advised(
            UsageError(f"a checker is a name or FILE.py:FUNCTION, got {told!r}"), "for example check.py:grade"
        )
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise advised(UsageError(f"the checker's file cannot be read: {error}"), "name an existing .py file") from error
    function = getattr(_module(path), name, None)
    if not callable(function) and not hasattr(function, "evaluate_run"):
        raise advised(UsageError(f"{path} has no function {name!r}"), "FILE.py:FUNCTION names a function of the file")
    if inspect.isclass(function):
        wrong = UsageError(f"{path}:{name} is a class, not a checker")
        raise advised(wrong, f"make one in the file, and name that: {name.lower()} = {name}()")
    return from_function(function), f"{name} {source.decode(errors='replace')}"


def _module(path: str) -> Any:
    """The file as a module, as it is when it runs by itself: what lies beside it can be imported."""
    name = f"specfuse_checker_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise advised(UsageError(f"{path} cannot be imported"), "a checker's file is a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the names in annotations
    if (beside := str(Path(path).resolve().parent)) not in sys.path:
        sys.path.append(beside)  # last, so that nothing installed is hidden, and for good: functions import later
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        wrong = UsageError(f"the checker's file {path} raised {type(error).__name__}: {error}")
        raise advised(wrong, f"python {path} must run by itself") from error
    return module


def from_function(function: Callable[..., Any]) -> Checker:
    """Any callable as a checker: ours, a plain ``(answer, reference)``, or a LangSmith evaluator."""
    from .langsmith import evaluator_checker, is_evaluator

    if is_evaluator(function):
        return evaluator_checker(function)
    parameters = inspect.signature(function).parameters
    names = list(parameters)
    if any(parameter.kind is parameter.POSITIONAL_ONLY for parameter in parameters.values()):
        names = [f"{name}, /" for name in names]  # what is handed over by name has no name here
    if set(names) == {"question", "answer"}:
        return lambda question, answer: as_grade(function(question=question, answer=answer))
    if set(names) == {"answer", "reference"}:
        return lambda question, answer: as_grade(function(answer=answer, reference=question.reference))
    wanted = "(question, answer), (answer, reference), (run, example) or (inputs, outputs, reference_outputs)"
    error = UsageError(f"a checker's parameters must be {wanted}, got ({', '.join(names)})")
    raise advised(error, "name them so: that is how it is known what to hand over")


def as_number(told: Any) -> float | None:
    """A truth or a number, also numpy's; None where it is neither."""
    if type(told).__module__ == "numpy" and getattr(told, "shape", None) == ():
        told = told.item()
    return float(told) if isinstance(told, bool | int | float) else None


def as_grade(told: Any) -> Grade:
    """A grade from what a function returned: a grade, True or False, or a number from 0 to 1."""
    if isinstance(told, Grade):
        return replace(told, score=as_grade(told.score).score)
    if (number := as_number(told)) is not None:
        return Grade(number)
    error = UsageError(f"a checker must return True, False or a number from 0 to 1, got {told!r:.80}")
    raise advised(error, "return 1.0 for right and 0.0 for wrong")
