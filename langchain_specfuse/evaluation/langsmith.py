"""LangSmith's evaluators as checkers: ``(run, example)``, ``(inputs, outputs, reference_outputs)``, and objects.

They are called here, with the question and the answer in LangSmith's own records; nothing is sent anywhere. The only
file of this room that knows LangSmith, which comes with langchain-core.
"""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ..errors import UsageError, advised
from .checkers import as_number
from .tasks import Checker, Grade, Question

NAMES = frozenset({"run", "example", "inputs", "outputs", "reference_outputs", "attachments"})
"""The parameters by which LangSmith knows what a function wants."""


def is_evaluator(function: Any) -> bool:
    """Whether this is written for LangSmith: an object with ``evaluate_run``, or a function with its parameters."""
    if callable(getattr(function, "evaluate_run", None)):
        return True
    parameters = inspect.signature(function).parameters.values()
    wanted = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    return bool(wanted) and set(wanted) <= NAMES


def evaluator_checker(evaluator: Any) -> Checker:
    """The evaluator as a checker. Its score must lie between 0 and 1.

    >>> def same(outputs: dict, reference_outputs: dict) -> bool:
    ...     return outputs["output"] == reference_outputs["output"]
    >>> from langchain_specfuse.core.values import Turn
    >>> evaluator_checker(same)(Question("1", (Turn("user", "2 + 2?"),), "4"), "4").score
    1.0
    """

    def check(question: Question, answer: str) -> Grade:
        run, example = _records(question, answer)
        if callable(getattr(evaluator, "evaluate_run", None)):
            return _grade(evaluator.evaluate_run(run, example))
        return _grade(_called(evaluator, run, example))

    return check


def _records(question: Question, answer: str) -> tuple[Any, Any]:
    from langsmith.schemas import Example, Run

    inputs = {"input": question.text, "messages": [{"role": t.role, "content": t.text} for t in question.turns]}
    now, own = datetime.now(UTC), uuid.uuid4()
    run = Run(
        id=own,
        trace_id=own,
        name="specfuse",
        run_type="chain",
        start_time=now,
        end_time=now,
        inputs=inputs,
        outputs={"output": answer},
    )
    # Under the name that the answer has: evaluators that compare the two as they are must find them alike.
    told = question.reference
    reference = dict(told) if isinstance(told, Mapping) else {} if told is None else {"output": told}
    return run, Example(id=uuid.uuid4(), inputs={**inputs, **question.facts}, outputs=reference)


def _called(function: Callable[..., Any], run: Any, example: Any) -> Any:
    at_hand = {
        "run": run,
        "example": example,
        "inputs": example.inputs,
        "outputs": run.outputs,
        "reference_outputs": example.outputs,
        "attachments": {},
    }
    parameters = inspect.signature(function).parameters
    told = function(**{name: at_hand[name] for name in parameters if name in at_hand})
    return asyncio.run(told) if inspect.iscoroutine(told) else told


def _grade(told: Any) -> Grade:
    """From whatever LangSmith lets an evaluator return."""
    if (number := as_number(told)) is not None:
        return Grade(number)
    results = told.get("results") if isinstance(told, Mapping) else getattr(told, "results", None)
    if isinstance(told, Sequence) and not isinstance(told, str):
        results = told
    if results:
        grades = [_grade(one) for one in results]
        named = [str(_field(one, "key") or at) for at, one in enumerate(results)]
        numbers = {name: grade.score for name, grade in zip(named, grades, strict=True)}
        return Grade(grades[0].score, numbers=numbers, note=grades[0].note)
    score = as_number(_field(told, "score"))
    if score is None:
        error = UsageError(f"the evaluator gave no score, but {told!r:.120}")
        raise advised(error, 'return a number from 0 to 1, or {"key": "right", "score": 1.0}')
    return Grade(score, note=str(_field(told, "comment") or ""))


def _field(told: Any, name: str) -> Any:
    return told.get(name) if isinstance(told, Mapping) else getattr(told, name, None)
