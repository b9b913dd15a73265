"""Questions from files: what can be read, what is refused and how, and when old results no longer count."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import builtin
from langchain_specfuse.evaluation.tasks import Grade, questions_of

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def file(tmp_path):
    def written(*lines: object) -> str:
        path = tmp_path / "task.jsonl"
        path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
        return str(path)

    return written


def test_a_line_is_a_question_with_its_own_checker_or_the_task_s(file):
    path = file(
        {"input": "2 + 2?", "reference": 4},
        "",
        {"input": "Capital of France?", "reference": ["Paris", "paris"], "checker": "contains", "id": "fr"},
    )
    task = builtin.jsonl(path, "number")
    assert [question.id for question in task.questions] == ["1", "fr"]
    first, second = task.questions
    assert task.grade(first, "It is 4.").score == 1 and task.grade(first, "It is 5.").score == 0
    assert task.grade(second, "Paris!").score == 1 and task.grade(second, "4").score == 0


def test_messages_may_be_given_as_a_list(file):
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    (question,) = questions_of(file({"input": turns}))
    assert [(turn.role, turn.text) for turn in question.turns] == [("system", "Be brief."), ("user", "Hi")]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["{"], ":1 is not JSON"),
        (["[1]"], ":1 must be an object, got list"),
        ([{"reference": "4"}], ":1 has no 'input'"),
        ([{"input": ""}], "input must be a text"),
        ([{"input": [{"role": "assistant", "content": "x"}]}], "ends with the user"),
        ([{"input": "a", "id": 1}, {"input": "b", "id": 1}], "two questions have the id '1'"),
        ([], "holds no questions"),
        ([{"input": "a", "reference": "none"}], "holds no number"),
        ([{"input": "a"}], "has no reference"),
        ([{"input": "a", "reference": 1}, {"input": "b", "id": 1}], ":2: two questions have the id '1', .* line 1"),
        ([{"input": "a", "reference": "1"}, '{"input": "x \\ud800"}'], ":2 holds '.*ud800', half a character"),
        ([{"input": "a", "reference": ["1", "\ud83d"]}], ":1 holds '.*ud83d'"),
        *(
            ([{"input": "a", "reference": empty, "checker": checker}], "has an empty reference")
            for checker in ("contains", "regex", "exact", "choice")
            for empty in ("", " ", ["yes", ""], [None])
        ),
        *(
            (
                [{"input": "a", "reference": wrong, "checker": "choice", "choices": ["carrot", "banana"]}],
                f"must be a letter from A to B, or one of the choices, got '{wrong}'",
            )
            for wrong in ("C", 0, "apple", "AB")
        ),
        ([{"input": "a", "reference": "Paris", "checker": "choice"}], "must be a letter from A to J, got 'Paris'"),
        *(
            ([{"input": "a", "reference": "A", "checker": "choice", "choices": choices}], "must be a list of 2 to 26")
            for choices in (5, True, "AB", {"a": 1, "b": 2}, [], ["one"], [["a"], ["b"]], ["x"] * 27)
        ),
        ([{"input": "a", "reference": "1", "checker": "magic"}], "no checker 'magic'"),
        ([{"input": "a", "reference": "(", "checker": "regex"}], "no regular expression"),
    ],
)
def test_what_cannot_be_used_is_told_before_anything_is_asked(file, lines, told):
    with pytest.raises(UsageError, match=told.replace("(", r"\(")) as raised:
        builtin.jsonl(file(*lines), "number")
    assert raised.value.__notes__


def test_an_id_that_is_null_is_none_and_a_byte_order_mark_is_no_text(tmp_path):
    path = tmp_path / "marked.jsonl"
    path.write_text("\n".join(['{"input": "a", "id": null}'] * 2), encoding="utf-8-sig")
    assert [question.id for question in questions_of(path)] == ["1", "2"]


def test_a_choice_may_be_named_by_letter_or_text_in_any_case(file):
    choices, references = ["carrot", "banana"], ["B", "(b)", "Banana", ["banana ", "BANANA"]]
    lines = [{"input": "?", "reference": one, "checker": "choice", "choices": choices} for one in references]
    task = builtin.jsonl(file(*lines))
    assert {task.grade(question, "The answer is B.").score for question in task.questions} == {1.0}
    assert {task.grade(question, "carrot").score for question in task.questions} == {0.0}


def test_a_file_without_checkers_needs_one(file):
    with pytest.raises(UsageError, match="not every line names a checker"):
        builtin.jsonl(file({"input": "a", "reference": "1"}))


def test_an_unknown_task_says_what_there_is():
    with pytest.raises(UsageError, match="no task and no file 'gsm9k'") as raised:
        builtin.task_named("gsm9k")
    assert "humaneval" in raised.value.__notes__[0]


def test_an_empty_answer_is_wrong_whatever_the_checker_thinks(file):
    task = replace(builtin.jsonl(file({"input": "a", "reference": "x"}), "exact"), checker=lambda q, a: Grade(1.0))
    assert task.grade(task.questions[0], " \n").score == 0
    assert task.grade(task.questions[0], "y").score == 1


def test_a_score_outside_the_scale_is_refused(file):
    task = replace(builtin.jsonl(file({"input": "a", "reference": "x"}), "exact"), checker=lambda q, a: Grade(7.0))
    with pytest.raises(UsageError, match="from 0 to 1, got 7"):
        task.grade(task.questions[0], "x")


def test_a_fingerprint_changes_with_whatever_can_change_a_grade(file):
    first = builtin.jsonl(file({"input": "a", "reference": "x"}), "exact")
    marks = {first.fingerprint(first.questions[0])}
    for line, checker in [
        ({"input": "b", "reference": "x"}, "exact"),
        ({"input": "a", "reference": "y"}, "exact"),
        ({"input": "a", "reference": "x"}, "contains"),
        ({"input": "a", "reference": "x", "choices": ["x", "y"]}, "exact"),
    ]:
        task = builtin.jsonl(file(line), checker)
        marks.add(task.fingerprint(task.questions[0]))
    assert len(marks) == 5
    again = builtin.jsonl(file({"input": "a", "reference": "x"}), "exact")
    assert again.fingerprint(again.questions[0]) in marks


# --- GSM8K --------------------------------------------------------------------------------------------------------


def test_every_published_solution_of_gsm8k_is_right_and_its_number_plus_one_is_wrong():
    task = builtin.gsm8k(DATA / "gsm8k-train-sample.jsonl")
    lines = [json.loads(line) for line in (DATA / "gsm8k-train-sample.jsonl").read_text().splitlines()]
    assert len(task.questions) == len(lines) == 186
    for question, line in zip(task.questions, lines, strict=True):
        assert line["question"] in question.text and "####" not in question.reference
        assert task.grade(question, line["answer"]).score == 1
        number = question.reference.replace(",", "")
        assert task.grade(question, f"So it is {number}.").score == 1
        assert task.grade(question, f"#### {float(number) + 1}").score == 0


def test_the_data_of_a_task_is_found_or_named(tmp_path):
    assert len(builtin.task_named("gsm8k").questions) == 186
    assert len(builtin.task_named("ifeval").questions) == 270
    with pytest.raises(UsageError, match="data of gsm8k is not here"):
        builtin.task_named("gsm8k", data=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="has no 'question'"):
        builtin.task_named("gsm8k", data=DATA / "ifeval-even.jsonl")
