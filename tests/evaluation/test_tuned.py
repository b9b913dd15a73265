"""The pure parts of benchmarks/tuned.py: its questions and their one right answer, its ways to count, its exits."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core import panel as panels
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.values import Seat

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not (BENCHMARKS / "tuned.py").exists():
    pytest.skip("not in a checkout", allow_module_level=True)
SKILLS = ("sums", "words", "spanish", "orders")
NAMES = ("a", "b", "c")
rows = st.lists(st.floats(-8, 0), min_size=3, max_size=3)
ballots = st.fixed_dictionaries(dict.fromkeys(NAMES, rows))
AUTHORS = [(name,) for name in NAMES]


@pytest.fixture(scope="module", autouse=True)
def reachable():
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def skills():
    return pytest.importorskip("tuned_skills")


@pytest.fixture(scope="module")
def rules():
    return pytest.importorskip("tuned_rules")


@pytest.mark.parametrize("skill", SKILLS)
def test_no_question_that_is_measured_was_trained_on(skills, skill):
    chance = random.Random(1)
    trained = {skills.part(skill, chance, 2, held=False).question for _ in range(400)}
    asked = {parts[0].question for parts in skills.questions(50, 0) if parts[0].skill == skill}
    assert asked and not asked & trained


def test_no_spanish_number_that_is_measured_was_trained_on(skills):
    def numbers(held: bool) -> set[str]:
        chance = random.Random(2)
        told = " ".join(skills.part("spanish", chance, 2, held=held).question for _ in range(400))
        return set(re.findall(r"\d+", told))

    assert numbers(True) and numbers(False) and not numbers(True) & numbers(False)


@given(a=st.integers(10, 99), b=st.integers(10, 99))
def test_every_line_of_a_sum_adds_up(skills, a, b):
    told = skills.added(a, b)
    lines = re.findall(r"([\d +]+) = (\d+)\.", told)
    assert [sum(map(int, left.split("+"))) for left, _ in lines] == [int(right) for _, right in lines]
    assert told.endswith(f"Sum: {a + b}.")


def test_two_parts_are_of_two_skills_and_every_pair_comes(skills):
    pairs = [tuple(part.skill for part in parts) for parts in skills.questions(0, 24)]
    assert {len(set(pair)) for pair in pairs} == {2}
    assert len(set(pairs)) == 12


@given(scores=ballots)
def test_nobody_votes_for_its_own_draft_by_others(rules, scores):
    cast = rules.by_others("mean_logprob", scores, AUTHORS, None)
    assert all(cast[name][at] == 0.0 and abs(sum(cast[name]) - 1) < 1e-9 for at, name in enumerate(NAMES))


@pytest.mark.parametrize("rule", ["likely", "likelier"])
@given(scores=ballots)
def test_who_is_unsure_of_every_draft_cannot_outvote_who_is_sure_of_one(rules, rule, scores):
    cast = rules.COUNTS[rule]("mean_logprob", scores | {"a": [0.0, -20.0, -20.0], "b": [-3.0] * 3}, AUTHORS, None)
    assert sum(cast["b"]) < sum(cast["a"]) == pytest.approx(1.0, abs=1e-6)


def test_a_draft_that_one_finds_impossible_is_out_of_the_pool(rules):
    scores = {"a": [-0.1, -1.0, -1.0], "b": [-0.1, -1.0, -1.0], "c": [-90.0, -1.0, -1.0]}
    assert max(rules.pooled("mean_logprob", scores, AUTHORS, None)["a"][1:]) > 0.49
    assert rules.COUNTS["plain"]("mean_logprob", scores, AUTHORS, None)["a"][0] > 0.5


@pytest.mark.parametrize("factor", [3.0, 1.0])
def test_another_factor_is_another_temperature_and_nothing_stays_behind(rules, factor):
    panel = Panel.of([Seat(name) for name in NAMES])
    for _ in range(3):
        panel = panels.observed(panel, {"a": 0.5, "b": 0.3, "c": 0.2}, "a")
    before, constants = panels.keep_probabilities("studentized", panel), (panels.PATIENCE, panels.FIRST_EXIT)
    with rules.constants(factor=factor, patience=1, first=1):
        inside = panels.keep_probabilities("studentized", panel)
        assert (panels.PATIENCE, panels.FIRST_EXIT) == (1, 1)
    assert inside["a"] / inside["c"] == pytest.approx((before["a"] / before["c"]) ** (panels.HEAT / factor))
    assert constants == (panels.PATIENCE, panels.FIRST_EXIT)
    assert panels.keep_probabilities("studentized", panel) == before
