"""The tasks by name, and where their data is: ``gsm8k``, ``ifeval``, ``humaneval``, or the user's own JSONL.

Knows files and checkers; nothing of members.
"""

from __future__ import annotations

from pathlib import Path

from ..core.values import Turn
from ..errors import UsageError, advised
from . import checkers, humaneval, ifeval, overlap
from .tasks import Checker, Grade, Question, Task, json_lines, numbered, questions_of

GSM8K_PROMPT = "\n\nThink step by step. Then write the answer as a number on a last line of its own, after ####."
FILES = {"gsm8k": "gsm8k-train-sample.jsonl", "ifeval": "ifeval-even.jsonl"}
"""What the repository's ``tests/data`` holds of them."""
NAMES = (*FILES, "humaneval")


def task_named(told: str, *, data: str | Path | None = None, checker: str | None = None) -> Task:
    """The task of this name, or of this JSONL file.

    ``data`` is the file of ``gsm8k`` or ``ifeval``. ``checker`` is for JSONL: a name or ``FILE.py:FUNCTION``; a line
    may name another.
    """
    if told in NAMES and checker:
        raise advised(UsageError(f"{told} has its own checker"), "leave --checker out")
    if told == "gsm8k":
        return gsm8k(_data(told, data))
    if told == "ifeval":
        return if_eval(_data(told, data))
    if told == "humaneval":
        return human_eval()
    if not Path(told).is_file():
        error = UsageError(f"there is no task and no file {told!r}")
        raise advised(error, f"tasks are {', '.join(NAMES)}; or name a JSONL file")
    return jsonl(told, checker)


def _data(name: str, given: str | Path | None) -> Path:
    own = Path(__file__).parents[2] / "tests" / "data" / FILES[name]
    places = [Path(given)] if given else [Path("tests/data") / FILES[name], own]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        error = UsageError(f"the data of {name} is not here: {', '.join(map(str, places))}")
        raise advised(error, f"download it where it is published and name the file: --data {name}.jsonl")
    return found


def gsm8k(path: str | Path) -> Task:
    """Grade-school mathematics: the number counts. Lines have ``question`` and ``answer`` (its number behind ####)."""
    questions = []
    for number, line in json_lines(path):
        _need(line, ("question", "answer"), f"{path}:{number}")
        reference = str(line["answer"]).rpartition("####")[2].strip()
        questions.append(Question(str(number), (Turn("user", line["question"] + GSM8K_PROMPT),), reference))
    return Task("gsm8k", numbered(questions), checkers.number, "number 1", max_tokens=320)


def if_eval(path: str | Path) -> Task:
    """Instructions whose keeping can be verified. Lines are as published: ``prompt``, ``instruction_id_list``..."""
    questions = []
    for number, line in json_lines(path):
        _need(line, ("key", "prompt", "instruction_id_list", "kwargs"), f"{path}:{number}")
        unknown = set(line["instruction_id_list"]) - set(ifeval.RULES)
        if unknown:
            error = UsageError(f"{path}:{number}: no rule for {', '.join(sorted(unknown))}")
            raise advised(error, "these are not IFEval's published instructions")
        facts = {"instructions": line["instruction_id_list"], "kwargs": line["kwargs"]}
        questions.append(Question(str(line["key"]), (Turn("user", line["prompt"]),), facts=facts))
    told = "share of prompts of which every instruction is followed (strict)"
    return Task("ifeval", numbered(questions), ifeval.grade, "ifeval 1", max_tokens=768, measure=told)


def human_eval() -> Task:
    """Python functions, graded by their tests."""
    return Task(
        "humaneval",
        numbered(humaneval.questions()),
        humaneval.grade,
        "humaneval 1",
        max_tokens=512,
        measure="share of functions that pass their tests (pass@1)",
        note="the members' code runs here, in a process with limits (langchain_specfuse/evaluation/sandbox.py)",
    )


def jsonl(path: str | Path, checker: str | None = None) -> Task:
    """The user's own questions."""
    questions = questions_of(path)
    named = {question.checker for question in questions} - {""}
    if checker is None and any(not question.checker for question in questions):
        error = UsageError(f"{path}: not every line names a checker")
        raise advised(error, f"--checker NAME, one of {', '.join(_known())}, or FILE.py:FUNCTION")
    by_name = {name: _checker(name) for name in sorted(named | ({checker} if checker else set()))}

    def grade(question: Question, answer: str) -> Grade:
        return by_name[question.checker or str(checker)][0](question, answer)

    for question in questions:  # a reference that cannot be used is told now, not after an hour
        if ":" not in (question.checker or str(checker)):
            grade(question, "?")
    graded = any(name in overlap.CHECKERS for name in by_name)
    own = any(":" in name for name in by_name)  # what it returns is known when it has
    mark = f"{checker} " + " ".join(mark for _, mark in by_name.values())
    measure = "mean score" if graded or own else "share of right answers"
    corpus = overlap.corpus_bleu if set(by_name) == {"bleu"} else None
    return Task(Path(path).stem, questions, grade, mark, graded=graded, measure=measure, corpus=corpus)


def ungraded(path: str | Path) -> Task:
    """Prompts without references: only how they are answered can be measured, not how well."""
    mark, told = "ungraded 1", "share of answers that are not empty"
    return Task(Path(path).stem, questions_of(path), lambda *_: Grade(1.0), mark, measure=told, judges=False)


def by_checker(question: Question, answer: str) -> Grade:
    """The grade by the checker that the question names."""
    return _checker(question.checker)[0](question, answer)


def _known() -> list[str]:
    return [*checkers.CHECKERS, *overlap.CHECKERS]


def _checker(name: str) -> tuple[Checker, str]:
    by_name = {**checkers.CHECKERS, **overlap.CHECKERS}
    if name in by_name:
        return by_name[name], f"{name} 1"
    if ":" in name:
        return checkers.from_file(name)
    error = UsageError(f"there is no checker {name!r}")
    raise advised(error, f"there are {', '.join(_known())}, or FILE.py:FUNCTION")


def _need(line: dict[str, object], keys: tuple[str, ...], where: str) -> None:
    missing = [key for key in keys if key not in line]
    if missing:
        error = UsageError(f"{where} has no {missing[0]!r}, only {sorted(line)}")
        raise advised(error, "the file must be as it is published")
