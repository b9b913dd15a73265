"""The answers of a study: a stopped run continues, and says how long it still takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from answers import Answers

from langchain_specfuse.errors import UsageError


@dataclass(frozen=True)
class Part:
    right: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class Answer:
    way: str
    question: str
    parts: tuple[Part, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)


def stored(path):
    return Answers(path, Answer, lambda answer: (answer.way, answer.question), {"alone": 60.0})


def left(answers, way):
    return answers.left(["q1", "q2", "q3"], lambda question: (way, question))


WHOLE = Answer("alone", "q1", (Part(True, 1.5), Part(False)), {"a": 0.5})


def test_answers_come_back_as_they_were_and_are_not_asked_again(tmp_path):
    path = tmp_path / "study" / "answers.jsonl"
    stored(path).store("alone", 2, iter([WHOLE, Answer("alone", "q3")]))
    again = stored(path)
    assert again.all == [WHOLE, Answer("alone", "q3")]
    assert left(again, "alone") == ["q2"] and left(again, "pair") == ["q1", "q2", "q3"]


def test_a_stopped_run_keeps_what_it_has_and_says_that_it_continues(tmp_path, capsys):
    def stopped():
        yield WHOLE
        raise KeyboardInterrupt

    answers = stored(tmp_path / "answers.jsonl")
    with pytest.raises(SystemExit) as end:
        answers.store("alone", 3, stopped())
    assert end.value.code == 130
    assert "alone: 1 of 3" in (printed := capsys.readouterr().err) and "continues" in printed
    assert stored(answers.path).all == [WHOLE]


def test_a_line_that_was_cut_off_is_left_out_and_removed_by_the_next_run_only(tmp_path):
    path = tmp_path / "answers.jsonl"
    stored(path).store("alone", 1, [WHOLE])
    complete = path.read_bytes()
    path.write_bytes(complete + b'{"way": "al')
    answers = stored(path)
    assert answers.all == [WHOLE]
    assert path.read_bytes() != complete  # another process may be writing this line
    answers.store("pair", 1, [Answer("pair", "q1")])
    assert stored(path).all == [WHOLE, Answer("pair", "q1")]


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text('{"way": "alone"}\n')
    with pytest.raises(UsageError, match=r"answers.jsonl:1 .* question: Field required"):
        stored(path)


def test_the_plan_assumes_a_pace_until_it_is_measured(tmp_path):
    answers = stored(tmp_path / "answers.jsonl")
    assert answers.plan({"alone": 3, "pair": 1}).splitlines() == [
        "alone: 3 answers, 3 min",
        "pair: 1 answers, not measured yet",
        "together 3 min, without 1 that are not measured yet",
    ]
    answers.store("alone", 1, [WHOLE])
    assert "alone: 300 answers, 1 min" in stored(answers.path).plan({"alone": 300})
