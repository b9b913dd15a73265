"""What a report counts and compares; the report as a table and as JSON."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from langchain_specfuse.evaluation import Results, run, summary, table
from langchain_specfuse.evaluation.statistics import mcnemar

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
    made = plan(sums(folder, 40), members, ("singles", "ensemble", "short:segment_tokens=2"))
    with Results(folder) as results:
        return made, run(made, results)


def test_a_row_per_system_and_one_for_the_oracle(finished):
    report = summary(*finished)
    assert [row.system for row in report.rows] == [
        "ann",
        "bob",
        "cyd",
        "ensemble",
        "short",
        "oracle",
    ]
    scores = {row.system: row.score.mean for row in report.rows}
    numbers = [2 * at + 1 for at in range(40)]
    assert scores["ann"] == sum(n % 4 == 1 for n in numbers) / 40
    assert scores["cyd"] == sum(n % 10 != 1 for n in numbers) / 40
    assert scores["oracle"] == sum(n % 4 == 1 or n % 3 == 0 or n % 10 != 1 for n in numbers) / 40


def test_the_ensemble_is_compared_with_the_best_single(finished):
    report = summary(*finished)
    by = {
        name: {r.question: r.score for r in finished[1] if r.system == name}
        for name in ("cyd", "ensemble")
    }
    better = sum(by["ensemble"][q] > by["cyd"][q] for q in by["cyd"])
    worse = sum(by["ensemble"][q] < by["cyd"][q] for q in by["cyd"])
    best = report.best["ensemble"]
    assert best.best == "cyd" and best.p_plain == mcnemar(better, worse)
    assert best.apart.mean == pytest.approx((better - worse) / 40)
    pairs = [(one.system, one.other) for one in report.comparisons]
    assert pairs == [("short", "ensemble")]


def test_failures_and_missing_results_are_reported(finished):
    some = [r for r in finished[1] if r.system != "bob"][:-3]
    some[0] = replace(some[0], error="EnsembleError: no", score=0.0)
    text = table(summary(finished[0], some))
    assert "1 question failed" in text and "no result yet for 3 questions" in text
    right = table(summary(finished[0], [replace(r, score=1.0) for r in finished[1]]))
    assert "does not tell them apart" in right and "does not tell them apart" not in text


def test_the_table_says_in_words_what_it_shows(finished):
    text = table(summary(*finished))
    lines = text.splitlines()
    assert lines[0] == "sums: 40 questions, score = share of right answers, in percent"
    assert lines[2].split()[:2] == ["system", "score"] and lines[4].split()[0] == "ann"
    assert re.search(
        r"^ensemble: \d+ won, \d+ lost against cyd alone \(uncorrected p .*; it is "
        r"(worse|better|neither).* corrected",
        text,
        re.M,
    )
