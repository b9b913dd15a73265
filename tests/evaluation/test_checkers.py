"""What each checker takes for right, and what not."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.values import Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import checkers, overlap
from langchain_specfuse.evaluation.tasks import Grade, Question


def question(reference: Any, **facts: Any) -> Question:
    return Question("1", (Turn("user", "What?"),), reference, facts=facts)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#### 42", 42),
        ("3 + 4 = 7, and 7 * 2 = 14", 14),
        ("It costs $1,234.50 in all.", "1234.50"),
        ("Thus -5.", -5),
        ("10-5", 5),
        ("- 5 apples", 5),
        ("about 12%", 12),
        ("\\boxed{36} (out of 40)", 36),
        ("#### 7\n\nI hope that helps 100%!", 7),
        ("x2 is not a number, 3 is", 3),
        ("half is .5", "0.5"),
        ("€3 or £4", 4),
        ("The years 1,2,3", 3),
        ("no number at all", None),
    ],
)
def test_the_number_that_an_answer_comes_to(text, said):
    assert checkers.told_number(text) == (None if said is None else Decimal(str(said)))


@given(st.decimals(min_value=-(10**6), max_value=10**6, places=2), st.sampled_from(["{}", "{:,}", "so {}.", "${:,}!"]))
def test_any_number_is_read_back_however_it_is_written(value, form):
    if value < 0 and "$" in form:
        form = "{}"
    assert checkers.told_number(form.format(value)) == value


@pytest.mark.parametrize(
    ("name", "reference", "right", "wrong"),
    [
        ("exact", "Yes", [" Yes\n"], ["yes", "Yes.", "Yes it is"]),
        ("number", "1,000", ["1000", "= 1,000.00", "#### 1000\n5"], ["1001", "1000 or 1001", "none"]),
        ("contains", "Paris", ["It is paris.", "PARIS"], ["Parisian", "Lyon"]),
        ("contains", "4", ["4", "the 4."], ["42", "14"]),
        ("contains", ["len(x)"], ["`len(x)`"], ["len(xs)"]),
        ("regex", r"(?i)^yes\b", ["Yes!"], ["Oh yes", "yesterday"]),
    ],
)
def test_right_and_wrong_by_name(name, reference, right, wrong):
    check = checkers.CHECKERS[name]
    assert [check(question(reference), answer).score for answer in right] == [1.0] * len(right)
    assert [check(question(reference), answer).score for answer in wrong] == [0.0] * len(wrong)
    assert all(check(question(reference), answer).note for answer in wrong)


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(b) because", "B"),
        ("b) green", "B"),
        ("The answer is C.", "C"),
        ("Answer: (d)", "D"),
        ("First I thought the answer is A, but the answer is B", "B"),
        ("green", "B"),
        ("It is the GREEN one", "B"),
        ("A or B", ""),
        ("red or green", ""),
        ("I'd say so", ""),
        ("none of them", ""),
    ],
)
def test_the_choice_that_an_answer_makes(answer, letter):
    choices = ["red", "green", "blue", "grey"]
    assert checkers.chosen(answer, choices) == letter
    if letter:
        assert checkers.choice(question(letter, choices=choices), answer).score == 1
        assert checkers.choice(question(choices["ABCD".index(letter)], choices=choices), answer).score == 1
    assert checkers.choice(question("A", choices=choices), answer).score == (letter == "A")


# --- the user's own functions -------------------------------------------------------------------------------------

SOURCE = """
def plain(answer, reference): return answer == reference
def ours(question, answer): return 0.5 if question.reference in answer else 0
def old(run, example): return {"key": "k", "score": run.outputs["output"] == example.outputs["output"]}
def new(inputs, outputs, reference_outputs): return outputs["output"] == reference_outputs["output"]
def alone(outputs): return len(outputs["output"]) / 10
async def later(outputs, reference_outputs): return outputs["output"] == reference_outputs["output"]
def whole(*, outputs, reference_outputs, **more): return {"key": "same", "score": outputs == reference_outputs}
def several(outputs):
    return [{"key": "first", "score": 1}, {"key": "second", "score": 0.25}]
def mute(run, example): return {"key": "k"}
def named(*, reference, answer): return answer == reference
def strange(a, b): return 1
def nameless(answer, reference, /): return 1
def text(answer, reference): return "good"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "check.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        *((name, 1, 0) for name in ("plain", "old", "new", "later", "whole", "named")),
        ("ours", 0.5, 0),
        ("alone", 0.3, 0.5),
    ],
)
def test_a_function_gets_what_its_parameters_ask_for(file, name, right, wrong):
    check, mark = checkers.from_file(f"{file}:{name}")
    assert check(question("yes"), "yes") == Grade(right)
    assert check(question("yes"), "maybe"[: int(wrong * 10) or 5]).score == wrong
    assert SOURCE in mark


def test_an_evaluator_of_several_scores_gives_its_first_and_tells_the_others(file):
    check, _ = checkers.from_file(f"{file}:several")
    assert check(question("x"), "x") == Grade(1.0, numbers={"first": 1.0, "second": 0.25})


def test_a_reference_that_is_an_object_is_handed_on_as_it_is(tmp_path):
    path = tmp_path / "check.py"
    path.write_text("def f(outputs, reference_outputs): return outputs['output'] in reference_outputs['any']")
    check, _ = checkers.from_file(f"{path}:f")
    assert check(question({"any": ["a", "b"]}), "b").score == 1 and check(question({"any": []}), "b").score == 0


def test_langsmith_s_own_evaluator_objects_are_taken():
    from langsmith.evaluation import run_evaluator

    @run_evaluator
    def same(run, example):
        return {"key": "same", "score": int(run.outputs["output"] == example.outputs["output"]), "comment": "looked"}

    check = checkers.from_function(same)
    assert check(question("yes"), "yes") == Grade(1.0, note="looked")
    assert check(question("yes"), "no").score == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [("mute", "gave no score"), ("text", "must return True, False or a number"), ("strange", "parameters must be"),
     ("nameless", "got .answer, /, reference, /."),
     ("nobody", "has no function 'nobody'")],
)  # fmt: skip
def test_a_function_that_cannot_be_used_is_told(file, name, told):
    with pytest.raises(UsageError, match=told):
        checkers.from_file(f"{file}:{name}")[0](question("x"), "x")


def test_a_file_that_cannot_be_used_is_told(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    for given_, told in [(f"{broken}:f", "raised ZeroDivisionError"), ("none.py:f", "cannot be read"),
                         ("check.txt:f", "a checker is a name or")]:  # fmt: skip
        with pytest.raises(UsageError, match=told):
            checkers.from_file(given_)


def test_a_checker_s_file_may_do_what_it_may_when_it_runs_by_itself(tmp_path):
    (tmp_path / "beside_it.py").write_text("WANTED = 'yes'")
    (tmp_path / "later_on.py").write_text("def right(answer): return answer == 'yes'")
    path = tmp_path / "check.py"
    path.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport beside_it\n"
        "@dataclass\nclass Pair:\n    one: str\n    other: str\n"
        "def f(answer, reference):\n    from later_on import right\n"
        "    return right(answer) and Pair(answer, beside_it.WANTED) == Pair('yes', 'yes')\n"
    )
    check, _ = checkers.from_file(f"{path}:f")
    assert check(question("x"), "yes").score == 1 and check(question("x"), "no").score == 0


RUN_EVALUATOR = """
class Same:
    def evaluate_run(self, run, example):
        return {"score": run.outputs["output"] == example.outputs["output"]}
same = Same()
"""


def test_an_evaluator_object_in_a_file_is_taken_and_its_class_is_not(tmp_path):
    path = tmp_path / "check.py"
    path.write_text(RUN_EVALUATOR)
    check, _ = checkers.from_file(f"{path}:same")
    assert check(question("yes"), "yes").score == 1 and check(question("yes"), "no").score == 0
    with pytest.raises(UsageError, match="is a class") as raised:
        checkers.from_file(f"{path}:Same")
    assert "same = Same()" in raised.value.__notes__[0]


@pytest.mark.parametrize("kind", ["float32", "float64", "int64", "bool_", "array"])
def test_a_number_of_numpy_s_is_a_number(kind):
    numpy = pytest.importorskip("numpy")
    one = getattr(numpy, kind)(1)
    assert checkers.from_function(lambda answer, reference: one)(question("x"), "x") == Grade(1.0)
    assert json.dumps(checkers.as_grade(Grade(one, note="why")).score) == "1.0"
    assert checkers.from_function(lambda outputs: {"score": one})(question("x"), "x") == Grade(1.0)
    with pytest.raises(UsageError, match="must return True, False or a number"):
        checkers.as_grade(numpy.ones(2))


# --- graded -------------------------------------------------------------------------------------------------------


def test_rouge_and_bleu_are_those_of_the_libraries():
    sacrebleu = pytest.importorskip("sacrebleu")
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    said, wanted = "the cat sat on a mat", "the cat sits on the mat"
    rouge = scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True).score(wanted, said)
    grade = overlap.CHECKERS["rougeL"](question(wanted), said)
    assert grade.score == rouge["rougeL"].fmeasure
    assert grade.numbers == {name: one.fmeasure for name, one in rouge.items()}
    bleu = overlap.CHECKERS["bleu"](question(wanted), said)
    assert bleu.score == sacrebleu.sentence_bleu(said, [wanted]).score / 100
    assert overlap.CHECKERS["chrf"](question(wanted), said).score == sacrebleu.sentence_chrf(said, [wanted]).score / 100
    several = [(question([wanted, "a dog"]), said), (question("a cow"), "a cow")]
    told = sacrebleu.corpus_bleu([said, "a cow"], [[wanted, "a cow"], ["a dog", None]]).score / 100
    assert overlap.corpus_bleu(several) == {"corpus BLEU": told}


@pytest.mark.parametrize("name", overlap.CHECKERS)
def test_a_graded_checker_is_1_for_the_reference_and_0_for_something_else(name):
    pytest.importorskip("sacrebleu")
    wanted = "the quick brown fox jumps over the lazy dog"
    assert overlap.CHECKERS[name](question([wanted, "else"]), wanted).score == pytest.approx(1.0)
    assert overlap.CHECKERS[name](question(wanted), "zzz qqq xxx www").score < 0.1
