"""The study of fusion with scripted members: what is stored, compared and left to do."""

from __future__ import annotations

import fusion
import pytest
from cases import Case, Grade
from fusion import FUSION, LEAD, SELF_FUSION, WAYS, Answer

from langchain_specfuse import ScriptedMember

CASES = [
    ("math", Case(f"q{n}", "math", f"What is {n} + 1?", (), lambda text: Grade("both" in text)))
    for n in range(4)
]


def members():
    def merges(query):
        text = query.turns[-1].text
        return "It is both." if "It is one." in text and "Answer 3:" in text else "It is two."

    return [ScriptedMember(merges, name="lead"), *map(other, ("a", "b"))]


def other(name):
    return ScriptedMember("It is one.", name=name)


def test_a_stopped_run_continues_and_every_way_asks_its_members(tmp_path):
    path, ensemble = tmp_path / "answers.jsonl", members()
    fusion.ask([LEAD], ensemble, CASES[:2], fusion.stored(path))
    with path.open("a") as file:
        file.write('{"way": "lead", "quest')  # stopped while it was written
    answers = fusion.stored(path)
    assert [len(fusion.left(answers, way, CASES)) for way in WAYS] == [2, 4, 4]
    fusion.ask(WAYS, ensemble, CASES, answers)
    assert answers.all == fusion.stored(path).all and len(answers.all) == 12
    by_way = {way: [item for item in answers.all if item.way == way] for way in WAYS}
    assert [list(by_way[way][0].own) for way in WAYS] == [
        [],
        ["lead", "lead#2", "lead#3"],
        ["lead", "a", "b"],
    ]
    assert [sum(item.score for item in by_way[way]) for way in WAYS] == [0, 0, 4]
    assert all(item.passes == 4 * 3 for item in by_way[SELF_FUSION] + by_way[FUSION])


def answered(way, question, score, own=()):
    scores = {f"m{n}": value for n, value in enumerate(own)}
    return Answer(way, question, "math", "text", score, scores, passes=3, read=9, seconds=2.0)


@pytest.fixture
def rows():
    answers = [
        *(answered(LEAD, f"q{n}", float(n == 0)) for n in range(4)),
        answered(FUSION, "q0", 0.0, (1.0, 0.0)),
        answered(FUSION, "q1", 1.0, (0.0, 1.0)),
        answered(FUSION, "q2", 1.0, (0.0, 0.0)),
    ]
    return {(row["way"], row["set"]): row for row in fusion.table(answers)}


def test_ways_are_compared_on_the_questions_that_all_have_answered(rows):
    assert rows[FUSION, "all"] == rows[FUSION, "math"] | {"set": "all"}
    assert rows[FUSION, "all"]["questions"] == rows[LEAD, "all"]["questions"] == 3
    assert rows[FUSION, "all"]["against lead"] == {"won": 2, "lost": 1, "p": 1.0}


def test_the_table_says_what_became_of_right_answers(rows):
    row = rows[FUSION, "all"]
    counted = ("an own answer right", "kept right", "right from wrong ones")
    assert [row[name] for name in counted] == [2, 1, 1]
