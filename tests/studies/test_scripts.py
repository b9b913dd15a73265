"""The studies' scripts run: their arguments, and a small run with scripted members."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import lead
import pytest

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Turn
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.evaluation import Question

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.long
@pytest.mark.parametrize(
    "script",
    [
        *("checked", "compare", "decisions", "lead", "paper", "routing"),
        *("specialists", "transcripts"),
    ],
)
def test_a_script_says_what_its_arguments_are(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(STUDIES / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 0 and "usage" in capsys.readouterr().out


@pytest.mark.long
def test_the_questions_of_the_recorded_results_are_drawn_again():
    import specialists

    worlds = json.loads((STUDIES / "specialists.json").read_text())
    for world in worlds.values():
        assert specialists.routed(world) == world["ways"]["router"]["marks"]


@pytest.mark.long
def test_a_stopped_run_of_specialists_continues():
    import specialists

    asked = specialists.questions({"members": "tiny", "seed": 102, "singles": 2, "mixed": 1})
    members = [ScriptedMember("I do not know.", name=name) for name in ("sums", "turning")]
    rows = specialists.rows_of(["ours", f"{specialists.ALONE}sums"], {})

    def store():
        if specialists.answers_in(rows["ours"]) == 3:
            raise KeyboardInterrupt

    with pytest.raises(SystemExit):
        specialists.ask_all(Ensemble(members), rows, asked, "vague-1", store)
    plan = specialists.plan_of(rows, asked).splitlines()
    assert plan[0].startswith("ours: 6 answers") and plan[1].startswith("alone: sums: 9 answers")
    specialists.ask_all(Ensemble(members), rows, asked, "vague-1", lambda: None)
    assert [specialists.answers_in(row) for row in rows.values()] == [9, 9]


def test_rules_are_compared_with_the_lead_and_a_stopped_run_continues(tmp_path):
    members = [
        ScriptedMember("The answer is 4, I think, or is it 5?", name="strong", confidence=0.01),
        ScriptedMember("The answer is 4.", name="weak", confidence=9.0),
    ]
    questions = [
        Question(f"math {n}", (Turn("user", "2 + 2?"),), "4", facts={"kind": "math"})
        for n in range(3)
    ]
    path = tmp_path / "answers.jsonl"
    rules = ["lead", "vote", "0.4@0.5"]
    lead.ask(rules[:1], members, questions[:2], lead.stored(path))
    calls = members[0].draft_calls
    answers = lead.stored(path)
    lead.ask(rules[:1], members, questions[:2], answers)
    assert members[0].draft_calls == calls
    assert [len(lead.left(answers, rule, questions)) for rule in rules] == [1, 3, 3]
    lead.ask(rules, members, questions, answers)
    assert answers.all == lead.stored(path).all
    assert len(answers.all) == len(path.read_text().splitlines()) == 9
    rows = {(row["rule"], row["set"]): row for row in lead.table(answers.all, rules, "lead")}
    assert rows["lead", "all"]["right"] == 0 and rows["lead", "all"]["passes"] == 1.0
    assert rows["vote", "math"]["wins"] == rows["vote", "all"]["wins"] == 3
    assert rows["vote", "all"]["consulted"] > rows["lead", "all"]["consulted"] == 0
    assert len(rows) == 6
