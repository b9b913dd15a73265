"""What the numbers of a report are, in the table, as JSON and on the page."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest

from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation import Question, Results, page, run, summary, table
from langchain_specfuse.evaluation.results import Result
from langchain_specfuse.evaluation.statistics import mcnemar

from .parts import knows, plan, sums


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """ann knows every second sum, bob every third, cyd all but a few, and cyd is listened to least."""
    folder = tmp_path_factory.mktemp("summary")
    members = [
        knows("ann", lambda n: n % 4 == 1),
        knows("bob", lambda n: n % 3 == 0),
        knows("cyd", lambda n: n % 10 != 1, confidence=3.0),
    ]
    made = plan(sums(folder, 40), members, ("singles", "ensemble", "segment-2"))
    with Results(folder) as results:
        return made, run(made, results)


def test_a_row_per_system_and_one_for_the_oracle(told):
    report = summary(*told)
    assert [row.system for row in report.rows] == ["ann", "bob", "cyd", "ensemble", "segment-2", "oracle"]
    scores = {row.system: row.score.mean for row in report.rows}
    numbers = [2 * at + 1 for at in range(40)]
    assert scores["ann"] == sum(n % 4 == 1 for n in numbers) / 40
    assert scores["cyd"] == sum(n % 10 != 1 for n in numbers) / 40
    assert scores["oracle"] == sum(n % 4 == 1 or n % 3 == 0 or n % 10 != 1 for n in numbers) / 40


def test_the_ensemble_is_compared_with_the_best_single_and_the_oracle(told):
    plan_, results = told
    report = summary(plan_, results)
    by = {name: {r.question: r.score for r in results if r.system == name} for name in ("cyd", "ensemble")}
    better = sum(by["ensemble"][q] > by["cyd"][q] for q in by["cyd"])
    worse = sum(by["ensemble"][q] < by["cyd"][q] for q in by["cyd"])
    best = report.best["ensemble"]
    assert best.best == "cyd" and best.p_plain == mcnemar(better, worse)
    assert best.apart.mean == pytest.approx((better - worse) / 40)
    pairs = [(one.system, one.other) for one in report.comparisons]
    assert pairs == [("ensemble", "oracle"), ("segment-2", "oracle"), ("segment-2", "ensemble")]


def test_a_run_s_rounds_are_counted(told):
    report = summary(*told)
    whole, short, ann = (report.row(name) for name in ("ensemble", "segment-2", "ann"))
    assert (whole.rounds, short.rounds, ann.rounds) == (1.0, 2.0, 1.0)
    assert (whole.members_per_round, ann.members_per_round) == (3.0, 1.0)
    assert ann.shared is None and short.shared == pytest.approx(0.5, abs=0.2)  # they all begin with "The sum"
    assert whole.tokens == 4.0 and whole.tokens_per_second > 0 and whole.first_s > 0
    assert sum(whole.wins.values()) == pytest.approx(1) and set(whole.rewards) == {"ann", "bob", "cyd"}


def test_busy_time_is_counted_once_where_questions_overlap_and_not_where_nothing_ran(told):
    plan_, results = told
    own = [r for r in results if r.system == "ann"][:3]
    times = [(0.0, 2.0), (1.0, 2.0), (100.0, 1.0)]
    moved = [replace(r, began=began, seconds=seconds) for r, (began, seconds) in zip(own, times, strict=True)]
    row = summary(plan_, moved).row("ann")
    assert row.seconds == 4.0 and row.tokens_per_second == 3.0


def test_failures_are_told_and_unfinished_runs_too(told):
    plan_, results = told
    some = [r for r in results if r.system != "bob"][:-3]
    some[0] = replace(some[0], error="EnsembleError: no", score=0.0)
    said = table(summary(plan_, some))
    assert "1 question failed and counts as wrong" in said and "3 questions have no result yet" in said


def test_seeds_are_averaged_per_question(told):
    plan_, results = told
    one = [r for r in results if r.system == "ann"]
    flipped = [replace(r, seed=1, score=1 - r.score) for r in one]
    report = summary(replace(plan_, seeds=(0, 1)), [*one, *flipped])
    assert report.row("ann").score.mean == 0.5 and report.row("ann").questions == 40 and report.graded


def test_parts_are_counted_over_all_questions(told):
    plan_, results = told
    parts = [{"a#0": True, "b#1": False}, {"a#0": True}]
    own = [replace(r, parts=p) for r, p in zip([r for r in results if r.system == "ann"][:2], parts, strict=True)]
    row = summary(plan_, own).row("ann")
    assert row.followed == pytest.approx(2 / 3) and row.by_part == {"a": (2, 2), "b": (0, 1)}
    assert ">2/2<" in page(summary(plan_, own))


def test_the_table_says_in_words_what_it_shows(told):
    said = table(summary(*told))
    lines = said.splitlines()
    assert lines[0] == "sums: 40 questions, score = share of right answers, in percent"
    assert lines[2].split()[:2] == ["system", "score"] and lines[4].split()[0] == "ann"
    assert re.search(r"^ensemble is (worse|better|neither).* against cyd \[", said, re.M)


@pytest.mark.parametrize(("known", "same"), [((1, 1), True), ((0, 0), True), ((1, 0), False)])
def test_a_task_tells_systems_apart_unless_all_have_everything_or_nothing(tmp_path, known, same):
    members = [knows(name, lambda n, able=able: bool(able)) for name, able in zip(("ann", "bob"), known, strict=True)]
    made = plan(sums(tmp_path, 3), members, ("singles",))
    with Results(tmp_path) as results:
        said = table(summary(made, run(made, results)))
    assert ("does not tell them apart" in said) == same


def test_the_report_is_plain_json(told):
    report = summary(*told)
    again = json.loads(json.dumps(report.as_dict()))
    assert again["rows"][0]["system"] == "ann" and again["verdicts"]["ensemble"] in ("better", "worse", "open")
    assert again["about"]["members"]["ann"] == {"known": "ann"}


class Reader(HTMLParser):
    """Tags and texts; complains about what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_the_page_is_whole_and_takes_nothing_from_outside(told):
    plan_, results = told
    reader = Reader()
    made = page(summary(plan_, results), results, plan_.task)
    reader.feed(made)
    assert reader.open == [] and "script" not in reader.tags and "link" not in reader.tags
    assert not [value for name, value in reader.attributes if name in ("src", "href")]
    assert "url(" not in made and "http" not in made
    assert "prefers-color-scheme: dark" in made and reader.tags.count("details") == 40
    assert "cyd" in reader.text and "The sum is 1." in reader.text


def test_nothing_that_a_member_or_a_task_wrote_becomes_part_of_the_page(told):
    plan_, results = told
    evil = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>"
    bad = [replace(r, answer=evil, note=evil, error=evil, system=r.system) for r in results]
    questions = tuple(Question(q.id, (Turn("user", evil),), evil) for q in plan_.task.questions)
    task = replace(plan_.task, name=evil, questions=questions, measure=evil)
    made = page(summary(replace(plan_, task=task), bad), bad, task, first=[evil])
    reader = Reader()
    reader.feed(made)
    assert reader.open == [] and not {"script", "img"} & set(reader.tags)
    assert reader.text.count("<script>alert(1)</script>") > 40


def test_what_would_turn_text_around_or_command_a_terminal_is_shown_as_a_picture(tmp_path):
    odd = "a\x1b[2Jb\x00\u202ec\u2066d\ud800e"
    made = plan(sums(tmp_path, 3), [knows("x\x1b[2Jy", lambda n: True), knows("bob", lambda n: True)], ("singles",))
    with Results(tmp_path) as results:
        found = [replace(result, answer=odd, note=odd) for result in run(made, results)]
    told = page(summary(made, found), found, made.task, first=[odd])
    told.encode()
    assert not set("\x00\x1b\u202e\u2066\ud800") & set(told) and "a\u241b[2Jb\u2400\ufffdc\ufffdd\ufffde" in told
    assert "\x1b" not in (shown := table(summary(made, found))) and "x\u241b[2Jy" in shown


def test_a_result_survives_the_file(told, tmp_path):
    with Results(tmp_path) as results:
        for result in told[1]:
            results.add(result)
    assert Results(tmp_path).found() == [Result(**asdict(result)) for result in told[1]] == list(told[1])
