"""Checks in evaluations: what they said is counted, and an answer that they end is wrong."""

from __future__ import annotations

import json

import pytest

from langchain_specfuse.cli.main import FINE, main
from langchain_specfuse.core.options import Settings
from langchain_specfuse.evaluation import Plan, Results, alone_and_together, run, summary, table
from tests.demo_members import replace_demo

from .parts import knows, sums


def no_seven(text: str) -> str | None:
    return "has a seven" if "7" in text else None


def planned(folder, *names, **options):
    members = {name: knows(name, lambda n: True) for name in names}
    settings = Settings(max_tokens=64, checks=[no_seven], **options)
    return Plan(sums(folder, 10), alone_and_together(members, settings), members)


def test_an_answer_that_a_check_ends_is_wrong_with_its_reason_and_the_run_goes_on(tmp_path):
    plan = planned(tmp_path, "ann")
    with Results(tmp_path) as results:
        answers = run(plan, results)
    assert len(answers) == 10
    for graded in answers:
        has_seven = "7" in plan.task.questions[int(graded.question) - 1].reference
        assert graded.score == (not has_seven)
        assert bool(graded.error) == has_seven
        assert graded.note == ("no_seven: has a seven" if has_seven else "")
    report = summary(plan, answers)
    counts = report.row("ann").checks["no_seven"]
    assert counts["ended"] == report.row("ann").failed == 2  # 7 and 17
    assert counts["rejected"] >= 2 and counts["passed"] >= 8
    assert "ann: the check 'no_seven' passed" in table(report)
    assert "it ended 2 answers" in table(report)


def test_an_answer_that_ends_before_a_fault_is_no_error(tmp_path):
    plan = planned(tmp_path, "ann", on_failure="end")
    with Results(tmp_path) as results:
        answers = run(plan, results)
    report = summary(plan, answers)
    assert report.row("ann").failed == 0
    assert report.row("ann").checks["no_seven"]["ended"] == 2
    assert report.row("ann").score == 0.8


def test_checks_are_part_of_what_identifies_a_result(tmp_path):
    plain = Settings(max_tokens=64)
    keys = set()
    for settings in (
        plain,
        plain.model_copy(update={"redrafts": 1}),  # the same answers, because nothing is checked
        Settings(max_tokens=64, checks=[no_seven]),
        Settings(max_tokens=64, checks=[no_seven], redrafts=1),
        Settings(max_tokens=64, checks=[lambda text: None]),
    ):
        members = {"ann": knows("ann", lambda n: True)}
        plan = Plan(sums(tmp_path, 1), alone_and_together(members, settings), members)
        keys.add(plan.asks(plan.systems[0])[0].key)
    assert len(keys) == 4


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sums(tmp_path, 24)
    replace_demo([knows(name, lambda n: True) for name in ("ann", "bob")], monkeypatch.setattr)

    def called(*argv: str):
        return (main(argv), *capsys.readouterr())

    return called


def test_eval_and_doctor_take_checks_and_report_them(call, tmp_path):
    (tmp_path / "mine.py").write_text(
        "def rule(text):\n    return 'has a seven' if '7' in text else None\n"
    )
    options = ("--grader", "number", "--check", "mine.py:rule", "--json", "-q")
    code, out, _ = call("eval", "sums.jsonl", *options)
    report = json.loads(out)
    assert code == FINE
    assert [row["checks"]["rule"]["ended"] for row in report["rows"]] == [5, 5, 5]
    assert report["about"]["systems"]["ann"]["settings"]["checks"] == ["rule"]
    code, out, _ = call("doctor", "--prompts", "sums.jsonl", *options)
    rows = {row["system"]: row for row in json.loads(out)["report"]["rows"]}
    assert code == FINE
    assert rows["ann"]["checks"]["rule"]["ended"] == rows["ann"]["failed"] == 5


def test_a_check_may_ask_for_the_conversation(tmp_path):
    seen = []

    def asks(text, context):
        seen.append([message.text for message in context.messages])

    members = {"ann": knows("ann", lambda n: True)}
    settings = Settings(max_tokens=64, checks=[asks])
    plan = Plan(sums(tmp_path, 1), alone_and_together(members, settings), members)
    with Results(tmp_path) as results:
        assert run(plan, results)[0].score == 1
    assert seen and all(messages == ["0 + 1?"] for messages in seen)
