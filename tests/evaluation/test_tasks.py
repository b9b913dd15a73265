"""Questions from files, and what each grader accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy
import pytest

from langchain_specfuse.core.values import Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Grade, Question, jsonl
from langchain_specfuse.evaluation.graders import (
    GRADERS,
    chosen_letter,
    final_number,
    from_file,
    from_function,
)


def question(reference: Any, **facts: Any) -> Question:
    return Question("1", (Turn("user", "What?"),), reference, facts=facts)


# --- built-in graders ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("#### 42", 42),
        ("3 + 4 = 7, and 7 * 2 = 14", 14),
        ("Thus -5.", -5),
        ("10-5", 5),
        ("$1,234.50 or about 12%", 12),
        ("so $1,234.50!", "1234.50"),
        ("\\boxed{36} (out of 40)", 36),
        ("#### 7\n\nI hope that helps 100%!", 7),
        ("x2 is not a number, 3 is", 3),
        ("no number at all", None),
    ],
)
def test_the_final_number_of_an_answer(text, number):
    assert final_number(text) == (None if number is None else Decimal(str(number)))


@pytest.mark.parametrize(
    ("name", "reference", "right", "wrong"),
    [
        ("exact", "Yes", [" Yes\n"], ["yes", "Yes."]),
        (
            "number",
            "1,000",
            ["1000", "= 1,000.00", "#### 1000\n5"],
            ["1001", "1000 or 1001", "none"],
        ),
        ("contains", "Paris", ["It is paris.", "PARIS"], ["Parisian", "Lyon"]),
        ("contains", ["4", "four"], ["the 4.", "four"], ["42", "14"]),
        ("contains", "len(x)", ["`len(x)`"], ["len(xs)"]),
        ("regex", r"(?i)^yes\b", ["Yes!"], ["Oh yes", "yesterday"]),
    ],
)
def test_right_and_wrong_by_name(name, reference, right, wrong):
    grade = GRADERS[name]
    assert [grade(question(reference), answer).score for answer in right] == [1.0] * len(right)
    assert [grade(question(reference), answer).score for answer in wrong] == [0.0] * len(wrong)
    assert all(grade(question(reference), answer).note for answer in wrong)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(b) because", "B"),
        ("The answer is C.", "C"),
        ("First I thought the answer is A, but the answer is B", "B"),
        ("It is the GREEN one", "B"),
        ("A or B", ""),
        ("red or green", ""),
        ("I'd say so", ""),
    ],
)
def test_the_choice_that_an_answer_makes(answer, letter):
    choices = ["red", "green", "blue", "grey"]
    assert chosen_letter(answer, choices) == letter
    for reference in (letter, choices["ABCD".index(letter)].upper()) if letter else ():
        assert GRADERS["choice"](question(reference, choices=choices), answer).score == 1
    assert GRADERS["choice"](question("A", choices=choices), answer).score == (letter == "A")


# --- the user's own functions ---------------------------------------------------------------------

SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
import beside_it
@dataclass
class Pair:
    one: str
    other: str
def plain(answer, reference):
    from later_on import same
    return same(answer, reference) and Pair(answer, beside_it.WORD) == Pair(answer, "yes")
def ours(question, answer): return 0.5 if question.reference in answer else 0
def langsmith(inputs, outputs, reference_outputs): return outputs["output"] == reference_outputs["output"]
def either(outputs, reference_outputs): return outputs["output"] in reference_outputs["any"]
def alone(outputs): return {"key": "length", "score": len(outputs["output"]) / 10, "comment": "short"}
async def later(outputs, reference_outputs): return outputs == reference_outputs
def whole(*, outputs, reference_outputs, **more): return outputs == reference_outputs
def optional(answer, reference, strict=True): return strict and answer == reference
def strange(a, b): return 1
def nameless(answer, reference, /): return 1
def text(answer, reference): return "good"
class Kind: pass
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside_it.py").write_text("WORD = 'yes'")
    (tmp_path / "later_on.py").write_text("def same(one, other): return one == other")
    (tmp_path / "grading.py").write_text(SOURCE)
    return str(tmp_path / "grading.py")


@pytest.mark.parametrize("name", ["plain", "langsmith", "later", "whole", "optional"])
def test_a_function_gets_what_its_parameters_are_named_for(file, name):
    grade, mark = from_file(f"{file}:{name}")
    assert grade(question("yes"), "yes") == Grade(1.0)
    assert grade(question("yes"), "no") == Grade(0.0)
    assert SOURCE in mark


def test_a_function_may_return_a_number_or_a_dict_with_a_score(file):
    assert from_file(f"{file}:ours")[0](question("yes"), "yes, yes") == Grade(0.5)
    assert from_file(f"{file}:alone")[0](question("yes"), "yes") == Grade(0.3, note="short")
    assert from_file(f"{file}:either")[0](question({"any": ["a", "yes"]}), "yes") == Grade(1.0)
    grade = from_function(lambda answer: numpy.float32(1))(question("x"), "x")
    assert grade == Grade(1.0) and json.dumps(grade.score) == "1.0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("text", "must return True, False or a number"),
        ("strange", r"parameters must be among .*, got \(a, b\)"),
        ("nameless", "parameters must be among"),
        ("Kind", "has no function 'Kind'"),
        ("nobody", "has no 'nobody'"),
    ],
)
def test_a_function_that_cannot_be_used_is_refused(file, name, message):
    with pytest.raises(UsageError, match=message):
        from_file(f"{file}:{name}")[0](question("x"), "x")


# --- files of questions ---------------------------------------------------------------------------


@pytest.fixture
def task_file(tmp_path):
    def written(*lines: object) -> str:
        path = tmp_path / "task.jsonl"
        path.write_text(
            "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        )
        return str(path)

    return written


def test_a_line_is_a_question_with_its_own_grader_or_the_task_s(task_file):
    path = task_file(
        {"input": "2 + 2?", "reference": 4},
        "",
        {
            "input": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "Capital of France?"},
            ],
            "reference": ["Paris", "paris"],
            "grader": "contains",
            "id": "fr",
        },
    )
    task = jsonl(path, "number")
    assert [question.id for question in task.questions] == ["1", "fr"]
    assert [turn.text for turn in task.questions[1].turns] == ["Be brief.", "Capital of France?"]
    first, second = task.questions
    assert task.grade(first, "It is 4.").score == 1 and task.grade(first, "It is 5.").score == 0
    assert task.grade(second, "Paris!").score == 1 and task.grade(second, "4").score == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], ":1 is not JSON"),
        (["[1]"], ":1 must be an object, got list"),
        ([{"reference": "4"}], ":1 has no 'input'"),
        ([{"input": ""}], "input must be a text"),
        (
            [{"input": "a", "reference": 1}, {"input": "b", "id": 1}],
            ":2: two questions have the id '1', .* line 1",
        ),
        ([], "contains no questions"),
        ([{"input": "a", "reference": "none"}], "contains no number"),
        ([{"input": "a"}], "no reference, or an empty one"),
        ([{"input": "a", "reference": "", "grader": "contains"}], "no reference, or an empty one"),
        (
            [{"input": "a", "reference": "Paris", "grader": "choice"}],
            "must be a letter from A to J, got 'Paris'",
        ),
        (
            [{"input": "a", "reference": "C", "grader": "choice", "choices": ["x", "y"]}],
            "from A to B, or one of",
        ),
        (
            [{"input": "a", "reference": "A", "grader": "choice", "choices": "AB"}],
            "must be a list of 2 to 26",
        ),
        ([{"input": "a", "reference": "1", "grader": "magic"}], "no grader 'magic'"),
        ([{"input": "a", "reference": "(", "grader": "regex"}], "not a regular expression"),
    ],
)
def test_a_line_that_cannot_be_used_is_refused_before_anything_is_asked(task_file, lines, message):
    with pytest.raises(UsageError, match=message) as raised:
        jsonl(task_file(*lines), "number")
    assert raised.value.notes


def test_a_grader_that_raises_ends_the_run_with_the_answer_that_it_raised_on(task_file):
    task = replace(
        jsonl(task_file({"input": "a", "reference": 1}), "exact"),
        grader=lambda question, answer: 1 / 0,
    )
    with pytest.raises(
        UsageError, match="grader raised on the answer 'x' to question '1': ZeroDivisionError"
    ):
        task.grade(task.questions[0], "x")


def test_a_fingerprint_changes_with_whatever_can_change_a_grade(task_file):
    line = {"input": "a", "reference": "x"}
    lines = [line, line | {"input": "b"}, line | {"reference": "y"}, line | {"choices": ["x", "y"]}]
    tasks = [jsonl(task_file(text), "exact") for text in lines] + [
        jsonl(task_file(line), "contains")
    ]
    marks = [task.fingerprint(task.questions[0]) for task in tasks]
    assert (
        len(set(marks)) == 5
        and jsonl(task_file(line), "exact").fingerprint(tasks[0].questions[0]) == marks[0]
    )
