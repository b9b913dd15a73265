"""The sets of the study on real members: published ones, cut to what members of this size can do, and our own.

Every set is mixed once by a digest of its questions, so its first n are a fair sample of it. Knows questions and
budgets; nothing of members or of results.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from quality_long import recall, steps, stories

from langchain_specfuse.evaluation import Grade, Question, Task, gsm8k, human_eval, if_eval, jsonl

HERE = Path(__file__).parent
DATA = HERE.parent / "tests" / "data"
SETS = HERE / "quality_sets"
LONG_WINDED = (
    "length_constraints:",
    "combination:",
    "detectable_format:multiple_sections",
    "detectable_format:json_format",
)
"""Instructions of IFEval that an answer of 128 tokens cannot follow, or that ask for the prompt once more."""


@dataclass(frozen=True)
class Set:
    """A task as this study asks it."""

    task: Task
    about: str
    ours: bool = False

    @property
    def ids(self) -> list[str]:
        return [question.id for question in self.task.questions]


def mixed(questions: Sequence[Question]) -> tuple[Question, ...]:
    """In an order that has nothing to do with theirs, always the same."""
    return tuple(sorted(questions, key=lambda q: hashlib.sha256(f"{q.id} {q.text}".encode()).digest()))


def cut(task: Task, count: int, tokens: int, wanted: Callable[[Question], bool] = lambda question: True) -> Task:
    chosen = mixed([question for question in task.questions if wanted(question)])[:count]
    return replace(task, questions=chosen, max_tokens=tokens)


def in_chinese(task: Task) -> Task:
    """The task, with the share of an answer's letters that are Chinese told beside its grade."""

    def grade(question: Question, answer: str) -> Grade:
        return replace(task.checker(question, answer), numbers={"in Chinese": chinese(answer)})

    return replace(task, checker=grade)


def chinese(text: str) -> float:
    """The share of the letters that are Chinese.

    >>> chinese("天空是蓝色的。"), chinese("The sky 天空"), chinese("42")
    (1.0, 0.25, 0.0)
    """
    letters = [letter for letter in text if letter.isalpha()]
    return sum("\u4e00" <= letter <= "\u9fff" for letter in letters) / max(len(letters), 1)


def short(letters: int) -> Callable[[Question], bool]:
    return lambda question: len(question.text) <= letters


def _quick(question: Question) -> bool:
    rules: Sequence[str] = question.facts["instructions"]
    return short(400)(question) and not any(rule.startswith(LONG_WINDED) for rule in rules)


def sets() -> Mapping[str, Set]:
    """Every set by name, the most telling first."""
    return {
        "ours": Set(cut(jsonl(SETS / "ours.jsonl"), 60, 32), "short questions in English", ours=True),
        "facts": Set(cut(jsonl(SETS / "facts.jsonl"), 104, 24), "capitals, opposites, symbols and the like", ours=True),
        "chinese": Set(in_chinese(cut(jsonl(SETS / "chinese.jsonl"), 44, 32)), "short questions in Chinese", ours=True),
        "ifeval": Set(
            cut(if_eval(DATA / "ifeval-even.jsonl"), 32, 128, _quick),
            "IFEval, prompts of at most 400 characters that can be followed in 128 tokens",
        ),
        "gsm8k": Set(
            cut(gsm8k(DATA / "gsm8k-train-sample.jsonl"), 20, 128, short(300)),
            "GSM8K, of the training split, at most 300 characters",
        ),
        "humaneval": Set(cut(human_eval(), 20, 128, short(500)), "HumanEval, prompts of at most 500 characters"),
        "recall": Set(recall(), "a fact from the beginning of 1,000 tokens and more", ours=True),
        "steps": Set(steps(), "sums in ten steps, each on the last one's result", ours=True),
        "stories": Set(stories(), "stories of 1,000 tokens with facts to keep to", ours=True),
    }
