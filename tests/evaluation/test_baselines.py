"""What people do instead of an ensemble, as systems of an evaluation: surest writer, synthesis,
router, samples."""

from __future__ import annotations

import json

import pytest

from langchain_specfuse.evaluation import Results, jsonl, run, summary

from .parts import Known, knows, plan, sums


def answers(folder, members, systems, count=12):
    made = plan(sums(folder, count), members, systems)
    with Results(folder) as results:
        return summary(made, found := run(made, results)), found


def test_the_surest_writers_answer_is_taken(tmp_path):
    members = [
        knows("ann", lambda n: n % 3 == 0, confidence=9.0),
        knows("bob", lambda n: n % 3, confidence=0.1),
    ]
    report, found = answers(tmp_path, members, ("singles", "surest"))
    assert report.row("surest").score == report.row("bob").score != report.row("ann").score
    # Both have answered, in whole.
    alone = {
        name: sum(r.passes for r in found if r.system == name) for name in ("ann", "bob", "surest")
    }
    assert alone["surest"] == alone["ann"] + alone["bob"]


def test_a_synthesis_is_written_by_the_lead_from_all_answers(tmp_path):
    seen = []

    def reads(query):
        text = query.turns[-1].text
        if "Several assistants" not in text:
            return "I do not know."
        seen.append(text)
        return text.split("Answer 2:\n")[1].split("\n")[0]

    members = [Known(reads, name="reader"), knows("bob", lambda n: True)]
    report, _ = answers(tmp_path, members, ("singles", "synthesis"), 4)
    assert (report.row("reader").score.mean, report.row("synthesis").score.mean) == (0.0, 1.0)
    assert (
        "0 + 1?" in seen[0]
        and "Answer 1:\nI do not know." in seen[0]
        and "Answer 2:\nThe sum is 1." in seen[0]
    )


def test_the_router_takes_the_member_that_is_best_on_other_questions_of_the_kind(tmp_path):
    lines = [
        {
            "input": f"{at} + {at + 1}?",
            "reference": str(2 * at + 1),
            "kind": "small" if at < 10 else "large",
        }
        for at in range(20)
    ]
    (tmp_path / "kinds.jsonl").write_text("\n".join(map(json.dumps, lines)))
    members = [knows("ann", lambda n: n < 20), knows("bob", lambda n: n > 22)]
    made = plan(jsonl(tmp_path / "kinds.jsonl", "number"), members, ("singles", "ensemble"))
    with Results(tmp_path) as results:
        report = summary(made, run(made, results))
    # bob is wrong about the first large sum
    assert report.row("router").score.mean == pytest.approx(19 / 20)
    assert report.row("ann").score.mean == 0.5
    assert answers(tmp_path, members, ("singles", "ensemble"))[0].row("router") is None


def test_leads_results_and_samples_are_changes_of_a_system(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: False)]
    systems = (
        "singles",
        "led:lead=ann,margin=inf",
        "vote",
        "agreed:lead=ann,result=number",
        "five:members=bob,samples=5,result=number",
    )
    report, found = answers(tmp_path, members, systems)
    assert report.row("led").score == report.row("ann").score
    assert {r.rounds for r in found if r.system == "agreed"} == {1}
    by = {
        name: [r.answer for r in found if r.system == name]
        for name in ("agreed", "ann", "five", "bob")
    }
    assert sorted(by["agreed"]) == sorted(by["ann"]) and sorted(by["five"]) == sorted(by["bob"])
    assert not next(
        one for one in plan(sums(tmp_path), members, systems).systems if one.name == "five"
    ).alone


def test_the_best_member_is_told_with_wins_and_losses_and_corrected_for_the_number_of_systems(
    tmp_path,
):
    members = [
        knows("ann", lambda n: n % 4 == 1, confidence=9.0),
        knows("bob", lambda n: n % 3 == 0, confidence=0.1),
    ]
    one, _ = answers(tmp_path, members, ("singles", "ensemble"), 40)
    three, _ = answers(tmp_path, members, ("singles", "ensemble", "vote", "no-exit:exit=never"), 40)
    best, corrected = one.best["ensemble"], three.best["ensemble"]
    assert (best.wins, best.losses) == (corrected.wins, corrected.losses)
    assert corrected.p_worse == pytest.approx(min(1.0, 3 * best.p_worse))
    assert corrected.apart.low <= best.apart.low and corrected.apart.high >= best.apart.high
