"""The doctor: what it finds in sound members and in broken ones, and what it advises."""

from __future__ import annotations

import json

import pytest

from langchain_specfuse.core.method import Method, Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results
from langchain_specfuse.evaluation.checks import examine, load
from langchain_specfuse.evaluation.doctor import diagnosed, own_task

from .parts import Confident, Forgetful, Known, Missing, Shifted, knows, sums


def verdicts(member) -> dict[str, str]:
    """check -> verdict, of one member."""
    probe, finding = load(member)
    found = [finding, *(examine(member, probe) if probe else ())]
    return {one.check: one.verdict for one in found}


# --- checks ---------------------------------------------------------------------------------------------------------


def test_a_sound_member_is_found_sound_and_left_as_it_was():
    member = Known("The sky is blue because of the air.", name="ann")
    assert verdicts(member) == {"loading": "good", "scores": "good", "seams": "good"}
    assert member.open_queries == {}


@pytest.mark.parametrize(
    ("member", "check", "verdict"),
    [
        (Shifted("The sky is blue.", name="a"), "scores", "bad"),
        (Forgetful("The sky is blue because of the air, you know.", name="a"), "seams", "bad"),
        (Known("The sky is blue.", name="a", draft_only=True), "scores", "watch"),
        (Known("The sky is blue.", name="a", fails_in=1), "scores", "bad"),
        (Missing("x", name="a"), "loading", "bad"),
    ],
)
def test_what_is_wrong_with_a_member_is_found(member, check, verdict):
    assert verdicts(member)[check] == verdict


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba"])
@pytest.mark.filterwarnings("ignore")
def test_tiny_models_are_found_sound(arch):
    """Attention, sliding windows, and a state that cannot go back (whose noise may be read as other tokens)."""
    from tests.members import tiny

    found = verdicts(tiny.member(arch))
    assert found["seams"] == "good" and found["scores"] in {"good", "watch" if arch == "mamba" else "good"}, found
    assert found["template"] in ("good", "watch")


# --- advice ---------------------------------------------------------------------------------------------------------


def diagnosis(folder, *members, count: int = 60, **options):
    settings = Settings(max_tokens=64, method=Method(**options))
    with Results(folder) as results:
        return diagnosed(sums(folder, count), {member.name: member for member in members}, settings, results)


def rows(found) -> dict[str, float]:
    return {row.system: row.score.mean for row in found.report.rows}


def test_members_that_know_different_things_make_a_good_ensemble(tmp_path):
    members = [Confident(name, lambda n, at=at: (n // 2) % 3 == at) for at, name in enumerate(("ann", "bob", "cyd"))]
    found = diagnosis(tmp_path, *members, count=90)
    assert rows(found)["ensemble"] > 0.9 and max(rows(found)[name] for name in ("ann", "bob", "cyd")) < 0.4
    assert found.verdict == "ensemble" and "better than its best member" in found.advice[0]
    helps = [line for line in found.advice if " helps: with it" in line]
    assert [line.split()[0] for line in helps] == ["ann", "bob", "cyd"]


def test_one_member_that_knows_everything_is_better_alone_and_one_that_hurts_should_leave(tmp_path):
    """Two know everything with little confidence; one knows next to nothing, and weights alone decide."""
    wise = [knows(name, lambda n: True, confidence=0.01) for name in ("ann", "bob")]
    loud = knows("loud", lambda n: n % 16 == 1, confidence=9.0)
    found = diagnosis(tmp_path, *wise, loud, weighting="equal", reward="wins")
    assert rows(found)["without loud"] == rows(found)["ann"] == 1.0 and rows(found)["ensemble"] < 0.2
    assert found.verdict == "alone"
    assert found.advice[0].startswith("Do not use this ensemble: ann alone is better.")
    assert any(line.startswith("loud hurts: leave it out") for line in found.advice)


def test_with_few_prompts_it_cannot_tell_and_says_how_many_would(tmp_path):
    found = diagnosis(tmp_path, knows("ann", lambda n: n % 4 == 1), knows("bob", lambda n: n % 4 == 3), count=20)
    assert found.verdict == "cannot tell"
    assert "Cannot tell with 20 prompts" in found.advice[0] and "prompts would show" in found.advice[0]
    with pytest.raises(UsageError, match="at least 20 prompts, got 19"):
        diagnosis(tmp_path, knows("ann", lambda n: True), count=19)


# --- questions --------------------------------------------------------------------------------------------------

RIGHT = """15|24|32|12 apples|There are 120 minutes.|Paris|Tokyo.|Mars|William Shakespeare|Honey|H2O|The blue whale.|
marzipan|On Thursday.|green|apple|Cold|children|¡Buenos días!|Merci|Positive.|B|The answer is C|Carl is the shortest.|
1, 2, 3, 4, 5|1. red\n2. blue\n3. green|`len(x)`|{"ok": true}""".replace("|\n", "|").split("|")


def test_every_question_of_the_doctor_has_a_right_answer_and_others_are_wrong():
    task = own_task()
    assert len(task.questions) == len(RIGHT) >= 20
    for question, answer in zip(task.questions, RIGHT, strict=True):
        assert task.grade(question, answer).score == 1, (question.text, answer)
        assert task.grade(question, "I do not know that, 999 sorry.").score == 0, question.text
        echo = task.grade(question, question.text).score
        assert echo == 0 or question.id in ("13", "14", "15", "16", "21", "22", "23", "24"), question.text
    json.dumps([question.reference for question in task.questions])
