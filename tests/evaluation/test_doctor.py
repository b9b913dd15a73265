"""The doctor: what it finds in sound members and in broken ones, and what it advises."""

from __future__ import annotations

import json
import pprint
from collections import Counter

import pytest

from langchain_specfuse import SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.routing import Router
from langchain_specfuse.core.values import Query, Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results
from langchain_specfuse.evaluation.doctor import WAYS, diagnosed, own_task
from langchain_specfuse.evaluation.health import examine, load

from .parts import Confident, Forgetful, Known, Missing, Shifted, knows, sum_of, sums


def verdicts(member) -> dict[str, str]:
    """check -> verdict, of one member."""
    probe, finding = load(member)
    findings = [finding, *(examine(member, probe) if probe else ())]
    return {result.check: result.verdict for result in findings}


# --- checks ---------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen3-next"])
@pytest.mark.filterwarnings("ignore")
def test_tiny_models_are_found_sound(arch):
    """Attention, sliding windows, and a state that cannot go back (whose noise may be read as other
    tokens)."""
    from tests.members import tiny

    checks = verdicts(tiny.member(arch))
    assert checks["seams"] == "good" and checks["scores"] in {
        "good",
        "watch" if arch == "qwen3-next" else "good",
    }, checks
    assert checks["template"] in ("good", "watch")


# --- advice ---------------------------------------------------------------------------------------


def diagnosis(folder, *members, count: int = 60, **options):
    settings = Settings(max_tokens=64, method=Method(**options))
    with Results(folder) as results:
        return diagnosed(sums(folder, count), list(members), settings, results)


def rows(diagnosed) -> dict[str, float]:
    return {row.system: row.score for row in diagnosed.report.rows}


def test_members_that_know_different_things_make_a_good_ensemble(tmp_path):
    members = [
        Confident(name, lambda n, at=at: (n // 2) % 3 == at)
        for at, name in enumerate(("ann", "bob", "cyd"))
    ]
    diagnosed = diagnosis(tmp_path, *members, count=90)
    assert (
        rows(diagnosed)["vote"] > 0.9
        and max(rows(diagnosed)[name] for name in ("ann", "bob", "cyd")) < 0.4
    )
    assert (
        diagnosed.verdict == "ensemble"
        and diagnosed.calibration.use == "vote"
        and not diagnosed.calibration.leads
    )
    assert diagnosed.advice[-1] == "Use vote: all members voting as equals."
    (vote,) = [attempt for attempt in diagnosed.calibration.tried if attempt.name == "vote"]
    assert vote.opened and vote.wins > 50 and vote.losses == 0 and vote.passes > 1


def test_a_diagnosis_prints_its_verdict_and_where_to_read_more(tmp_path):
    members = [Confident(name, lambda n: n % 2) for name in ("ann", "bob")]
    diagnosed = diagnosis(tmp_path, *members, count=20)
    for shown in (str(diagnosed), repr(diagnosed), pprint.pformat(diagnosed)):
        assert diagnosed.verdict in shown and ".advice" in shown and ".report" in shown
        assert len(shown) < 300


def test_a_calibration_does_not_print_the_weights_of_its_router():
    router = Router({"ann": 0.5, "bob": 0.5}, dict.fromkeys(range(4096), (0.25, 0.75)))
    shown = repr(Calibration("ann", {"ann": 0.5, "bob": 0.5}, 90, use="router", router=router))
    assert "'ann': 0.5" in shown and len(shown) < 1_000


def test_one_member_that_knows_everything_leads_and_nothing_is_opened(tmp_path):
    """Two know everything with little confidence; one knows next to nothing, and would win every
    vote."""
    wise = [knows(name, lambda n: True, confidence=0.01) for name in ("ann", "bob")]
    loud = knows("loud", lambda n: n % 16 == 1, confidence=9.0)
    diagnosed = diagnosis(tmp_path, loud, *wise, weighting="equal", reward="wins")
    assert rows(diagnosed)["ann"] == 1.0 and rows(diagnosed)["vote"] < 0.2
    assert diagnosed.verdict == "alone" and diagnosed.calibration.lead in ("ann", "bob")
    assert (diagnosed.calibration.use, diagnosed.calibration.method) == ("alone", {})
    json.dumps(diagnosed.as_dict(), allow_nan=False)
    assert "leads: alone it is right on 100% of 60 prompts (loud 13%, " in diagnosed.advice[0]
    assert "no way of using several members was shown to help" in diagnosed.advice[-1]


def test_whole_answers_are_tried_where_the_grader_says_what_an_answer_comes_to(tmp_path):
    """Any two of three are right, whoever is the surest."""
    members = [
        knows(name, lambda n, at=at: (n // 2) % 3 != at, 0.1)
        for at, name in enumerate(("ann", "bob", "cyd"))
    ]
    diagnosed = diagnosis(tmp_path, *members, count=90)
    assert (
        rows(diagnosed)["consensus"] == 1.0
        and max(rows(diagnosed)[name] for name in ("ann", "bob", "cyd")) < 0.7
    )
    assert (diagnosed.calibration.use, diagnosed.calibration.result) == ("consensus", "number")


def test_with_few_prompts_it_cannot_tell_and_says_how_many_would(tmp_path):
    diagnosed = diagnosis(
        tmp_path, knows("ann", lambda n: n % 4 == 1), knows("bob", lambda n: n % 4 == 3), count=20
    )
    assert diagnosed.verdict == "cannot tell"
    (line,) = [line for line in diagnosed.advice if "alone for now" in line]
    assert line == diagnosed.advice[-1] and "Still possible: " in line and "; about " in line
    assert line.endswith(" prompts can show a difference of 5 points.")
    with pytest.raises(UsageError, match="at least 20 prompts, got 19"):
        diagnosis(tmp_path, knows("ann", lambda n: True), count=19)


def test_more_prompts_are_asked_for_only_if_it_takes_more(tmp_path):
    equal = [knows(name, lambda n: n % 4 == 1) for name in ("ann", "bob")]
    diagnosed = diagnosis(tmp_path, *equal, count=40)
    assert diagnosed.verdict == "cannot tell"
    assert diagnosed.advice[-1].endswith("; more prompts could show it.")


@pytest.mark.parametrize(
    ("ann", "bob", "count", "points"),
    [
        (lambda n: True, lambda n: n % 4 == 1, 0, 8.8),  # 1 - 0.025 ** (1 / 40)
        (lambda n: n > 1, lambda n: n == 1, 1, 13.2),
        (lambda n: n % 4 == 1, lambda n: n % 4 == 1, 0, 8.8),  # equal on every question
        (lambda n: n % 4 == 1, lambda n: n % 4 == 3, 20, 66.2),  # equally often right
        (lambda n: False, lambda n: False, 0, 8.8),
    ],
)
def test_what_choosing_can_gain_is_bounded_by_where_the_best_is_wrong_and_another_right(
    tmp_path, ann, bob, count, points
):
    told: list[str] = []
    members = [knows("ann", ann), knows("bob", bob)]
    settings = Settings(max_tokens=64)
    with Results(tmp_path) as results:
        found = diagnosed(sums(tmp_path, 40), members, settings, results, progress=told.append)
    assert (found.ceiling.count, found.ceiling.questions) == (count, 40)
    line = f"Choosing among these members can gain at most {points} points (with 95% confidence)"
    assert found.advice[1].startswith(line) and told[-1] == found.advice[1]
    assert round(100 * found.as_dict()["ceiling"]["share"], 1) == points


def test_one_member_alone_has_no_ceiling(tmp_path):
    found = diagnosis(tmp_path, knows("ann", lambda n: True), count=20)
    assert found.ceiling is None and found.as_dict()["ceiling"] is None
    assert not any("Choosing" in line for line in found.advice)


def failing(name: str, times: int) -> Known:
    """A member that is right about every sum, but fails so many times on the first seven."""
    strong, asked = knows(name, lambda n: True), Counter[int]()

    def answer(query: Query) -> str:
        asked[sum_of(query)] += 1
        if 0 < sum_of(query) < 14 and asked[sum_of(query)] <= times:
            raise RuntimeError("429")
        return strong.answer(query)

    return Known(answer, name=name)


def test_a_temporary_error_does_not_decide_who_leads(tmp_path):
    weak = knows("weak", lambda n: n % 20 != 1)
    diagnosed = diagnosis(tmp_path, failing("strong", times=1), weak, count=40)
    members = {name: rows(diagnosed)[name] for name in ("strong", "weak")}
    assert members == diagnosed.calibration.members == {"strong": 1.0, "weak": 0.9}
    assert diagnosed.calibration.lead == "strong"
    assert "strong leads: alone it is right on 100% of 40 prompts" in diagnosed.advice[0]


def test_lasting_errors_count_as_wrong_and_the_advice_says_so(tmp_path):
    weak = knows("weak", lambda n: n % 20 != 1)
    diagnosed = diagnosis(tmp_path, failing("strong", times=2), weak, count=40)
    members = {name: rows(diagnosed)[name] for name in ("strong", "weak")}
    assert members == diagnosed.calibration.members == {"strong": 33 / 40, "weak": 0.9}
    stored = tmp_path / "results.jsonl"
    assert f"strong failed on 7 prompts, counted as wrong: see {stored}." in diagnosed.advice
    assert not any(line.startswith("weak failed") for line in diagnosed.advice)


def unable(query: Query) -> str:
    raise RuntimeError("401")


def test_members_that_never_answer_get_no_calibration(tmp_path):
    members = [Known(unable, name=name) for name in ("ann", "bob")]
    diagnosed = diagnosis(tmp_path, *members, count=20)
    assert (diagnosed.verdict, diagnosed.calibration) == ("none", None)
    assert rows(diagnosed) == {"ann": 0.0, "bob": 0.0}
    assert diagnosed.advice[-1] == "No member answered any prompt: there is nothing to compare."
    json.dumps(diagnosed.as_dict(), allow_nan=False)


def test_a_member_that_never_answers_does_not_lead_one_that_answers_wrongly(tmp_path):
    members = [Known(unable, name="ann"), knows("bob", lambda n: False)]
    diagnosed = diagnosis(tmp_path, *members, count=20)
    assert diagnosed.calibration.lead == "bob"
    json.dumps(diagnosed.calibration.as_dict(), allow_nan=False)
    json.dumps(diagnosed.as_dict(), allow_nan=False)


@pytest.mark.parametrize("name", sorted(WAYS))
def test_a_member_that_has_the_name_of_a_way_is_refused_before_anything_is_asked(tmp_path, name):
    members = [knows("ann", lambda n: True), knows(name, lambda n: True)]
    with pytest.raises(UsageError, match=f"no member that is called '{name}'") as refused:
        diagnosis(tmp_path, *members)
    assert "rename the member with name=" in refused.value.notes[0]
    assert [member.draft_calls for member in members] == [0, 0]


# --- the calibration file -------------------------------------------------------------------------


def test_a_chat_model_does_what_its_calibration_says(tmp_path):
    wise = knows("wise", lambda n: True, confidence=0.01)
    loud = knows("loud", lambda n: n % 16 == 1, confidence=9.0)
    diagnosed = diagnosis(tmp_path, loud, wise)
    file = tmp_path / "profile.json"
    diagnosed.calibration.save(file)
    assert Calibration.load(file) == diagnosed.calibration
    llm = SpecFuseChatModel(members=[loud, wise], calibration=str(file))
    assert llm.invoke("2 + 3?").text == wise.answer(Query("q", (Turn("user", "2 + 3?"),)))
    # What is chosen is kept, and one model that is asked instead has no calibration.
    chosen = SpecFuseChatModel(members=[loud, wise], calibration=str(file), lead="loud")
    by_itself = loud.answer(Query("q", (Turn("user", "2 + 3?"),)))
    assert chosen.invoke("2 + 3?").text == llm.invoke("2 + 3?", model=loud).text == by_itself


def test_a_calibration_that_opened_the_vote_or_whole_answers_is_applied(tmp_path):
    ann, bob = knows("ann", lambda n: True), knows("bob", lambda n: True)
    file = tmp_path / "profile.json"
    shared = {"lead": "bob", "members": {"ann": 0.5, "bob": 0.6}, "questions": 40}
    Calibration(**shared, use="vote", leads=False).save(file)
    seen: list = []
    watch = {"callbacks": [SpecFuseCallbackHandler(on_round=seen.append)]}
    llm = SpecFuseChatModel(members=[ann, bob], calibration=str(file))
    llm.invoke("2 + 3?", watch)
    assert {round.lead for round in seen} == {""} and set(seen[0].drafts) == {"ann", "bob"}
    assert (
        SpecFuseChatModel(members=[ann, bob], calibration=file, method="specem")
        .invoke("2 + 3?")
        .text
    )
    Calibration(**shared, use="consensus", result="number").save(file)
    seen.clear()
    llm.invoke("2 + 3?", watch)
    assert len(seen) == 1 and seen[0].lead == "bob"


def test_a_calibration_that_does_not_fit_is_refused(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: True)]
    file = tmp_path / "profile.json"
    for text, said in [
        (None, "cannot be read"),
        ("{}", "it is not a calibration file"),
        ("nonsense", "cannot be read"),
    ]:
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match=said) as error:
            SpecFuseChatModel(members=members, calibration=str(file))
        assert "doctor" in error.value.notes[0]
    file.unlink()
    Calibration("eve", {"eve": 1.0, "bob": 0.1}, 40).save(file)
    with pytest.raises(UsageError, match="was made for eve, bob, but the members are ann, bob"):
        SpecFuseChatModel(members=members, calibration=str(file))


# --- questions ------------------------------------------------------------------------------------

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
        assert echo == 0 or question.id in ("13", "14", "15", "16", "21", "22", "23", "24"), (
            question.text
        )
    json.dumps([question.reference for question in task.questions])
