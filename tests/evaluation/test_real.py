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
        assert [one for one in examine(member, probe) if one.verdict == "bad"] == []
    systems = alone_and_together(members, Settings(max_tokens=8))
    plan = Plan(own_task().first(4), systems, members, at_once=4)
    with Results(tmp_path) as results:
        found = run(plan, results)
    assert len(found) == 12 and not any(one.error for one in found)
    assert sum(bool(one.answer.strip()) for one in found) >= 9
    report = summary(plan, found)
    assert report.row("ensemble").passes >= report.row("ensemble").tokens > 0
    assert "against SmolLM2-135M alone" in table(report)
