"""The demo ensemble's real weights through the doctor's checks and a short evaluation."""

from __future__ import annotations

import pytest

from langchain_specfuse import demo_members
from langchain_specfuse.core.options import Settings
from langchain_specfuse.evaluation import Plan, Results, alone_and_together, run, summary, table
from langchain_specfuse.evaluation.doctor import own_task
from langchain_specfuse.evaluation.health import examine, load

pytestmark = pytest.mark.real


@pytest.mark.long
def test_the_demo_s_members_are_found_sound_and_evaluated(tmp_path):
    members = {member.name: member for member in demo_members()}
    for member in members.values():
        probe, finding = load(member)
        assert finding.verdict == "good" and probe is not None
        assert [finding for finding in examine(member, probe) if finding.verdict == "bad"] == []
    systems = alone_and_together(members, Settings(max_tokens=8))
    plan = Plan(own_task().first(4), systems, members, at_once=4)
    with Results(tmp_path) as results:
        answers = run(plan, results)
    assert len(answers) == 12 and not any(graded.error for graded in answers)
    assert sum(bool(graded.answer.strip()) for graded in answers) >= 9
    report = summary(plan, answers)
    assert report.row("ensemble").passes >= report.row("ensemble").tokens > 0
    assert "against SmolLM2-135M alone" in table(report)
