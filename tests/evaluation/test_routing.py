"""The router learns who knows what, is tested on questions that it has not seen, and stays with the
best member where there is nothing to learn."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable

import pytest

from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.routing import n_grams
from langchain_specfuse.core.values import Turn
from langchain_specfuse.evaluation import Results, jsonl
from langchain_specfuse.evaluation.comparison import one_sided
from langchain_specfuse.evaluation.doctor import diagnosed
from langchain_specfuse.evaluation.gate import opens
from langchain_specfuse.evaluation.routing import fitted, left_out

from .parts import Known

KINDS = ("Add {} and {}.", "Translate item {} of list {} into Spanish, please.")


def question(number: int) -> str:
    """Questions of two kinds, in turn."""
    return KINDS[number % 2].format(number, 3 * number)


def features(count: int):
    return [n_grams(question(number)) for number in range(count)]


def lead(router, text: str) -> str:
    predicted = router.predicted(n_grams(text))
    return max(predicted, key=predicted.__getitem__)


@pytest.mark.parametrize("seed", range(3))
def test_leaving_a_question_out_is_the_same_as_learning_from_all_others(seed):
    chance = random.Random(seed)
    count = 24
    seen = features(count)
    scores = {name: [float(chance.random() < 0.5) for _ in range(count)] for name in "abc"}
    scores["a"] = [score or chance.random() for score in scores["a"]]  # graded scores
    leads = left_out(seen, scores)
    for i in range(count):
        others = {name: row[:i] + row[i + 1 :] for name, row in scores.items()}
        predicted = fitted(seen[:i] + seen[i + 1 :], others).predicted(seen[i])
        assert predicted[leads[i]] == pytest.approx(max(predicted.values()))


def test_it_finds_the_member_that_knows_a_kind_of_question_even_in_new_words():
    count = 40
    scores = {
        "adder": [float(number % 2 == 0) for number in range(count)],
        "spanish": [float(number % 2 == 1) for number in range(count)],
    }
    router = fitted(features(count), scores)
    assert lead(router, "Add 812 and 7.") == "adder"
    assert lead(router, "Please translate item 5 into Spanish!") == "spanish"
    right = sum(scores[name][i] for i, name in enumerate(left_out(features(count), scores)))
    assert right >= 38


def test_without_different_skills_the_gate_opens_in_at_most_one_of_ten_calibrations():
    """Two hundred simulated calibrations, in which a question's text says nothing about who is
    right."""
    chance = random.Random(3)
    seen = features(60)
    opened = 0
    for _ in range(200):
        scores = {
            name: [float(chance.random() < share) for _ in seen]
            for name, share in (("a", 0.6), ("b", 0.5), ("c", 0.5))
        }
        leader = max(scores, key=lambda name: math.fsum(scores[name]))
        pairs = [
            (scores[name][i], scores[leader][i]) for i, name in enumerate(left_out(seen, scores))
        ]
        wins = sum(mine > other for mine, other in pairs)
        losses = sum(mine < other for mine, other in pairs)
        opened += opens(wins, losses, 1)
        assert opens(wins, losses, 1) == (one_sided(wins, losses) < 0.1)
    assert opened <= 20


# --- the doctor -----------------------------------------------------------------------------------


def knows(name: str, right: Callable[[str], bool]) -> Known:
    """A member that gives the right number to questions for which this holds."""

    def answer(query) -> str:
        text = query.turns[-1].text
        digits = [int(word) for word in text.replace(".", " ").split() if word.isdigit()]
        return f"It is {sum(digits) + (not right(text))}."

    return Known(answer, name=name)


def task(folder, count: int):
    path = folder / "questions.jsonl"
    lines = [{"input": question(number), "reference": str(4 * number)} for number in range(count)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return jsonl(path, "number")


def diagnosis(folder, *members, count: int = 40, **more):
    with Results(folder) as results:
        return diagnosed(
            task(folder, count),
            {member.name: member for member in members},
            Settings(max_tokens=32),
            results,
            **more,
        )


def specialists():
    return [
        knows("adder", lambda text: text.startswith("Add")),
        knows("spanish", lambda text: "Spanish" in text),
    ]


def test_the_doctor_opens_a_router_for_members_with_different_skills(tmp_path):
    found = diagnosis(tmp_path, *specialists())
    calibration = found.calibration
    assert found.verdict == "ensemble" and calibration.use == "router"
    (attempt,) = [item for item in calibration.tried if item.name == "router"]
    assert attempt.wins >= 18 and attempt.losses == 0 and attempt.passes < 1.05
    assert found.report.row("router").score > 0.9
    routing = calibration.lead_for([Turn("user", "Translate item 9 into Spanish.")])
    assert (routing.lead, routing.by) == ("spanish", "router")
    assert routing.expected["spanish"] > routing.expected["adder"]
    assert (
        "Use router: each question to the member that was right on similar ones."
        in (found.advice[-1])
    )


def test_a_router_that_does_not_win_is_not_kept(tmp_path):
    members = [knows("wise", lambda text: True), knows("loud", lambda text: False)]
    calibration = diagnosis(tmp_path, *members).calibration
    assert (calibration.lead, calibration.use, calibration.router) == ("wise", "alone", None)
    routing = calibration.lead_for([Turn("user", "Add 1 and 2.")])
    assert (routing.lead, routing.by) == ("wise", "calibration")


def test_the_file_returns_the_same_router_and_contains_no_question(tmp_path):
    calibration = diagnosis(tmp_path, *specialists()).calibration
    file = tmp_path / "calibration.json"
    calibration.save(file)
    read = Calibration.load(file)
    for number in range(40):
        turns = [Turn("user", question(number))]
        assert read.lead_for(turns).lead == calibration.lead_for(turns).lead
    read.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == file.read_text()
    text = file.read_text().casefold()
    assert "translate" not in text and "item" not in text
    assert max(map(len, text.splitlines())) < 200
