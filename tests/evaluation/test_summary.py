"""What a report counts and compares; the report as a table, as JSON and as a page."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation import Question, Results, page, run, summary, table
from langchain_specfuse.evaluation.statistics import mcnemar

from .parts import knows, plan, sums


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """ann knows every second sum, bob every third, cyd all but a few, and cyd's votes count least."""
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
    assert [row.system for row in report.rows] == ["ann", "bob", "cyd", "ensemble", "short", "oracle"]
    scores = {row.system: row.score.mean for row in report.rows}
    numbers = [2 * at + 1 for at in range(40)]
    assert scores["ann"] == sum(n % 4 == 1 for n in numbers) / 40
    assert scores["cyd"] == sum(n % 10 != 1 for n in numbers) / 40
    assert scores["oracle"] == sum(n % 4 == 1 or n % 3 == 0 or n % 10 != 1 for n in numbers) / 40


def test_the_ensemble_is_compared_with_the_best_single_and_the_oracle(finished):
    report = summary(*finished)
    by = {name: {r.question: r.score for r in finished[1] if r.system == name} for name in ("cyd", "ensemble")}
    better = sum(by["ensemble"][q] > by["cyd"][q] for q in by["cyd"])
    worse = sum(by["ensemble"][q] < by["cyd"][q] for q in by["cyd"])
    best = report.best["ensemble"]
    assert best.best == "cyd" and best.p_plain == mcnemar(better, worse)
    assert best.apart.mean == pytest.approx((better - worse) / 40)
    pairs = [(one.system, one.other) for one in report.comparisons]
    assert pairs == [("ensemble", "oracle"), ("short", "oracle"), ("short", "ensemble")]


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
        r"^ensemble: \d+ won, \d+ lost against cyd alone \(uncorrected p .*; it is (worse|better|neither).* corrected",
        text,
        re.M,
    )


class Reader(HTMLParser):
    """Tags, attributes and text; asserts that what is opened is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_loads_nothing_and_escapes_what_members_and_tasks_wrote(finished):
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>"
    bad = [replace(r, answer=evil, note=evil, error=evil) for r in finished[1]]
    questions = tuple(Question(q.id, (Turn("user", evil),), evil) for q in finished[0].task.questions)
    task = replace(finished[0].task, name=evil, questions=questions, measure=evil)
    reader = Reader(page(summary(replace(finished[0], task=task), bad), bad, task, first=[evil]))
    assert not {"script", "img", "link"} & set(reader.tags) and not {"src", "href"} & set(reader.attributes)
    assert reader.text.count("<script>alert(1)</script>") > 40 and reader.tags.count("details") == 40
    assert "cyd" in reader.text
