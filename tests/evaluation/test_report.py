"""What a report counts and compares; the report as a table and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from langchain_specfuse.evaluation import Graded, Plan, Results, run, summary, table
from langchain_specfuse.evaluation.comparison import two_sided

from .parts import knows, plan, sums


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """ann knows every second sum, bob every third, cyd all but a few, and cyd's votes count
    least."""
    folder = tmp_path_factory.mktemp("summary")
    members = [
        knows("ann", lambda n: n % 4 == 1),
        knows("bob", lambda n: n % 3 == 0),
        knows("cyd", lambda n: n % 10 != 1, confidence=3.0),
    ]
    planned = plan(sums(folder, 40), members)
    with Results(folder) as results:
        return planned, run(planned, results)


def rescored(answers: list[Graded], scores: dict[str, list[float]]) -> list[Graded]:
    """The answers with other scores: per system, a score for each question."""
    return [
        replace(graded, score=scores[graded.system][int(graded.question) - 1]) for graded in answers
    ]


def test_a_row_per_system(finished):
    report = summary(*finished)
    assert [row.system for row in report.rows] == ["ann", "bob", "cyd", "ensemble"]
    scores = {row.system: row.score for row in report.rows}
    numbers = [2 * first + 1 for first in range(40)]
    assert scores["ann"] == sum(n % 4 == 1 for n in numbers) / 40
    assert scores["cyd"] == sum(n % 10 != 1 for n in numbers) / 40
    # "The sum is 7." has four tokens; together, each member drafts them.
    assert report.row("ann").tokens == report.row("ensemble").tokens == 4
    assert report.row("ann").passes == 4 and report.row("ensemble").passes >= 12


def test_the_ensemble_is_compared_with_each_member_alone(finished):
    report = summary(*finished)
    scores = {
        name: {graded.question: graded.score for graded in finished[1] if graded.system == name}
        for name in ("ann", "bob", "cyd", "ensemble")
    }
    assert [comparison.other for comparison in report.comparisons] == ["ann", "bob", "cyd"]
    for comparison in report.comparisons:
        pairs = [(scores["ensemble"][q], scores[comparison.other][q]) for q in scores["ensemble"]]
        wins = sum(ours > theirs for ours, theirs in pairs)
        losses = sum(ours < theirs for ours, theirs in pairs)
        assert (comparison.wins, comparison.losses, comparison.p) == (
            wins,
            losses,
            two_sided(wins, losses),
        )
        assert comparison.difference.mean == pytest.approx((wins - losses) / 40)


@pytest.mark.parametrize(
    ("ann", "verdict"),
    [
        ([0.0] * 40, "better"),
        ([1.0] * 34 + [0.0] * 6, "open"),
        ([1.0] * 40, "open"),
    ],
)
def test_better_is_better_than_each_member(finished, ann, verdict):
    """Far better than two members and hardly better than the third shows nothing."""
    none, most = [0.0] * 40, [1.0] * 38 + [0.0] * 2
    scores = {"ann": ann, "bob": none, "cyd": none, "ensemble": most}
    report = summary(finished[0], rescored(finished[1], scores))
    assert report.verdict("ensemble") == verdict


def test_worse_is_worse_than_one_member_corrected_for_their_number(finished):
    none, six_right, more = [0.0] * 40, [1.0] * 6 + [0.0] * 34, [1.0] * 8 + [0.0] * 32
    scores = {"ann": six_right, "bob": none, "cyd": none, "ensemble": none}
    report = summary(finished[0], rescored(finished[1], scores))
    # p = 0.031 would do against one member, but there are three
    assert report.comparisons[0].p < 0.05 and report.verdict("ensemble") == "open"
    report = summary(finished[0], rescored(finished[1], scores | {"ann": more}))
    assert report.verdict("ensemble") == "worse"
    assert "ensemble is worse than ann alone." in table(report)


def test_graded_scores_show_something_only_where_mean_and_most_questions_agree(finished):
    slightly, once = [0.4] * 39 + [1.0], [0.41] * 39 + [0.0]
    scores = {"ann": once, "bob": once, "cyd": once, "ensemble": slightly}
    report = summary(finished[0], rescored(finished[1], scores))
    first = report.comparisons[0]
    assert (first.wins, first.losses) == (1, 39) and first.difference.mean > 0
    assert report.verdict("ensemble") == "open"


def test_failures_and_missing_results_are_reported(finished):
    kept = [graded for graded in finished[1] if graded.system != "bob"][:-3]
    kept[0] = replace(kept[0], error="EnsembleError: no", score=0.0)
    text = table(summary(finished[0], kept))
    assert "1 question failed" in text and "no result yet for 3 questions" in text
    right = table(summary(finished[0], [replace(graded, score=1.0) for graded in finished[1]]))
    assert "do not tell them apart" in right and "do not tell them apart" not in text


def test_the_table_says_in_words_what_it_shows(finished):
    text = table(summary(*finished))
    lines = text.splitlines()
    assert lines[0] == "sums: 40 questions, score = share of right answers, in percent"
    assert lines[2].split() == ["system", "score", "failed", "empty", "tokens", "passes", "seconds"]
    assert lines[4].split()[0] == "ann"
    assert re.search(
        r"^ensemble: \d+ won, \d+ lost against cyd alone, p = \S+, \S+ points \[.*\]; "
        r"\S+ times its passes, \S+ times its seconds$",
        text,
        re.M,
    )


def test_a_report_is_plain_json(finished):
    planned, answers = finished
    single = Plan(planned.task, planned.systems[:1], planned.members)
    for each in (summary(planned, answers), summary(single, answers)):
        content = json.loads(json.dumps(each.as_dict(), allow_nan=False))
        assert content["rows"][0]["system"] == "ann" and content["about"]["version"]
    assert summary(single, answers).comparisons == ()
