"""The doctor: what it finds in members that are well and in members that are not, and what it advises."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.values import Settings, Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results
from langchain_specfuse.evaluation.checks import examined, loaded
from langchain_specfuse.evaluation.doctor import answers_of, diagnosed
from langchain_specfuse.evaluation.priors import MOST, learned
from langchain_specfuse.evaluation.prompts import ASKED, prompts

from .parts import Forgetful, Known, Shifted, knows, sums


def verdicts(member) -> dict[str, str]:
    """check -> verdict, of one member."""
    probe, finding = loaded(member)
    found = [finding, *(examined(member, probe) if probe else ())]
    return {one.check: one.verdict for one in found}


# --- checks ---------------------------------------------------------------------------------------------------------


def test_a_member_that_is_well_is_found_well_and_left_as_it_was():
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
    ],
)
def test_what_is_wrong_with_a_member_is_found(member, check, verdict):
    assert verdicts(member)[check] == verdict


def test_a_member_that_cannot_be_loaded_is_told_so():
    class Missing(Known):
        def probe(self) -> Probe:
            raise OSError("no such file")

    assert verdicts(Missing("x", name="a")) == {"loading": "bad"}


@pytest.fixture(scope="module")
def tiny():
    pytest.importorskip("torch")
    from tests.members import tiny

    return tiny


@pytest.mark.parametrize(("arch", "scores"), [("llama", {"good"}), ("gemma3", {"good"}), ("mamba", {"good", "watch"})])
@pytest.mark.filterwarnings("ignore")
def test_tiny_models_are_found_well(tiny, arch, scores):
    """Attention, sliding windows, and a state that cannot go back (whose noise may be read as other tokens)."""
    told = verdicts(tiny.member(arch))
    assert told["seams"] == "good" and told["scores"] in scores, told
    assert told["template"] in ("good", "watch") and told["stop tokens"] in ("good", "watch")


# --- advice ---------------------------------------------------------------------------------------------------------


def advised(folder, *members, count: int = 60, **chosen):
    with Results(folder) as results:
        settings = Settings(max_tokens=64, **chosen)
        return diagnosed(sums(folder, count), {member.name: member for member in members}, settings, results)


def rows(told) -> dict[str, float]:
    return {row.system: row.score.mean for row in told.report.rows}


def test_a_member_that_knows_everything_makes_an_ensemble_of_fools_a_bad_idea(tmp_path):
    told = advised(
        tmp_path,
        knows("wise", lambda n: True, confidence=0.01),
        knows("fool", lambda n: n % 8 == 1),
        knows("dunce", lambda n: n % 8 == 1),
    )
    assert rows(told)["wise"] == 1.0 and rows(told)["ensemble"] < 0.5
    assert told.advice.verdict == "alone"
    assert told.advice.lines[0].startswith("Do not use this ensemble: wise alone is better.")
    assert told.prior["wise"] > 1 > told.prior["fool"] == told.prior["dunce"]


class Sure(Known):
    """Its log-probabilities are near 0 where it knows the answer; where it does not, it takes everybody's word."""

    def __init__(self, answer, *, name, right):
        super().__init__(answer, name=name)
        self.right = right

    def _at(self, query):
        from .parts import sum_of

        self.confidence = 3.0 if self.right(sum_of(query)) else 0.001

    def _draft(self, job):
        self._at(job.query)
        return super()._draft(job)

    def _score(self, job):
        self._at(job.query)
        return super()._score(job)


def third(name: str, which: int) -> Sure:
    def right(number: int) -> bool:
        return (number // 2) % 3 == which

    return Sure(knows(name, right).answer, name=name, right=right)


def test_members_that_know_different_things_make_a_good_ensemble(tmp_path):
    told = advised(tmp_path, *(third(name, at) for at, name in enumerate(("ann", "bob", "cyd"))), count=90)
    assert rows(told)["ensemble"] > 0.9 and max(rows(told)[name] for name in ("ann", "bob", "cyd")) < 0.4
    assert told.advice.verdict == "ensemble"
    assert "better than its best member" in told.advice.lines[0]
    helps = [line for line in told.advice.lines if " helps: with it" in line]
    assert [line.split()[0] for line in helps] == ["ann", "bob", "cyd"]


def test_a_member_that_hurts_is_told_to_leave(tmp_path):
    """Two know everything, and speak softly; one knows next to nothing, and is heard, as weights alone decide."""
    wise = [knows(name, lambda n: True, confidence=0.01) for name in ("ann", "bob")]
    told = advised(tmp_path, *wise, knows("loud", lambda n: n % 16 == 1, confidence=9.0), voice="equal", reward="wins")
    assert rows(told)["without loud"] == 1.0 and rows(told)["ensemble"] < 0.2
    assert any(line.startswith("loud hurts: leave it out") for line in told.advice.lines)


def test_with_twenty_prompts_and_small_differences_it_cannot_tell_and_says_how_many_would(tmp_path):
    told = advised(tmp_path, knows("ann", lambda n: n % 4 == 1), knows("bob", lambda n: n % 4 == 3), count=20)
    assert told.advice.verdict == "cannot tell"
    assert "Cannot tell with 20 prompts" in told.advice.lines[0] and "prompts would show" in told.advice.lines[0]


def test_twins_are_alike_and_the_cheaper_one_is_taken_when_there_are_prompts_enough(tmp_path):
    told = advised(tmp_path, *(knows(name, lambda n: n % 4 == 1) for name in ("ann", "bob")), count=200)
    assert told.advice.verdict == "alone" and told.advice.lines[0].startswith("Take ann alone")
    assert set(told.prior.values()) == {1.0} and "ensemble with prior" not in rows(told)


def test_a_prior_is_tried_on_questions_that_it_was_not_learned_from(tmp_path):
    told = advised(tmp_path, knows("wise", lambda n: True), knows("fool", lambda n: False), count=40)
    assert rows(told)["ensemble with prior"] == 1.0 > rows(told)["ensemble"] or rows(told)["ensemble"] == 1.0
    assert any("prior" in line for line in told.advice.lines)
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(lines) == answers_of(2, 40) == 160


def test_a_half_s_own_questions_teach_its_prior_nothing(tmp_path):
    """Each knows one half, and on that half it is the other's weight that was learned: a prior that had seen the
    answers would be neutral here, and look harmless."""
    ann, bob = knows("ann", lambda n: n % 4 == 1 or n == 3), knows("bob", lambda n: n % 4 == 3)
    told = advised(tmp_path, ann, bob, count=40)
    assert rows(told)["ensemble"] >= 0.5 and rows(told)["ensemble with prior"] < 0.1
    assert any(line.startswith("Do not give the prior: it hurts") for line in told.advice.lines)


def test_a_broken_member_is_named_first_and_one_that_does_not_load_is_left_out(tmp_path):
    class Missing(Known):
        def probe(self) -> Probe:
            raise OSError("no such file")

    odd = Shifted("The sum is 1.", name="odd")
    told = advised(tmp_path, knows("ann", lambda n: True), Missing("x", name="gone"), odd, count=20)
    assert set(rows(told)) == {"ann", "odd", "ensemble", "ensemble with prior", "oracle"}
    assert [line for line in told.advice.lines if line.startswith("Mend")] == [
        "Mend gone first, or leave it out: a check failed.",
        "Mend odd first, or leave it out: a check failed.",
    ]


def test_nobody_loaded_and_one_alone_are_no_ensembles(tmp_path):
    class Missing(Known):
        def probe(self) -> Probe:
            raise OSError("no such file")

    nobody = advised(tmp_path, Missing("x", name="gone"), count=20)
    assert nobody.advice.verdict == "none" and nobody.report is None
    told = advised(tmp_path, knows("ann", lambda n: True), count=20)
    assert told.advice.verdict == "none" and told.prior == {} and set(rows(told)) == {"ann"}


def test_too_few_prompts_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at least 20 prompts, got 19"):
        advised(tmp_path, knows("ann", lambda n: True), count=19)


def test_without_references_nobody_is_called_better(tmp_path):
    task = replace(sums(tmp_path, 20), judges=False)
    members = {name: knows(name, lambda n: True) for name in ("ann", "bob")}
    with Results(tmp_path) as results:
        told = diagnosed(task, members, Settings(max_tokens=64), results)
    assert told.advice.verdict == "cannot tell" and "no prompt has a reference" in told.advice.lines[0]


def test_answers_that_do_not_end_are_noticed(tmp_path):
    told = advised(tmp_path, Known("word " * 400, name="endless"), knows("ann", lambda n: True), count=20)
    findings = {(one.member, one.check): one for one in told.findings}
    assert findings["endless", "answers"].verdict == "watch" and findings["ann", "answers"].verdict == "good"
    assert findings["endless", "answers"].text == "0 of 20 answers end by themselves"


# --- prior and prompts ----------------------------------------------------------------------------------------------

SHARES = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(lambda two: (float(min(two)), max(two)))


@given(st.dictionaries(st.sampled_from("abcde"), SHARES, min_size=2))
def test_a_prior_is_bounded_neutral_in_the_middle_and_keeps_the_order(right):
    prior = learned(right)
    assert set(prior) == set(right) and all(1 / MOST <= weight <= MOST for weight in prior.values())
    same = {name: count for name, (_, count) in right.items()}
    if len(set(same.values())) == 1:
        ordered = sorted(right, key=lambda name: right[name][0])
        assert all(prior[one] <= prior[other] for one, other in zip(ordered, ordered[1:], strict=False))


def test_little_evidence_moves_a_prior_little():
    assert learned({"a": (1.0, 1), "b": (0.0, 1)})["a"] <= 1.1
    assert learned({"a": (0.0, 28), "b": (1.0, 28)})["b"] <= 1.1
    assert learned({"a": (90.0, 100), "b": (50.0, 100)})["a"] > 2


def test_votes_move_a_prior_too_but_less():
    by_votes = learned({"a": (0.0, 0), "b": (0.0, 0)}, {"a": (80.0, 100), "b": (20.0, 100)})
    by_results = learned({"a": (80.0, 100), "b": (20.0, 100)})
    assert 1 < by_votes["a"] < by_results["a"]


def test_a_prior_is_what_the_chat_model_takes():
    from langchain_specfuse import ScriptedMember, SpecFuseChatModel

    prior = learned({"a": (1.0, 30), "b": (29.0, 30)})
    members = [ScriptedMember("One two.", name="a"), ScriptedMember("Three four.", name="b")]
    assert SpecFuseChatModel(members=members, prior=prior).invoke("x").text == "Three four."


RIGHT = """15|24|32|12 apples|There are 120 minutes.|Paris|Tokyo.|Mars|William Shakespeare|Honey|H2O|The blue whale.|
marzipan|On Thursday.|green|apple|Cold|children|¡Buenos días!|Merci|Positive.|B|The answer is C|Carl is the shortest.|
1, 2, 3, 4, 5|1. red\n2. blue\n3. green|`len(x)`|{"ok": true}""".replace("|\n", "|").split("|")


def test_every_prompt_of_the_doctor_has_a_right_answer_and_is_not_right_for_all():
    task = prompts()
    assert len(task.questions) == len(ASKED) == len(RIGHT) >= 20
    for question, answer in zip(task.questions, RIGHT, strict=True):
        assert task.grade(question, answer).score == 1, (question.text, answer)
        assert task.grade(question, "I do not know that, 999 sorry.").score == 0, question.text
        echo = task.grade(question, question.text).score
        assert echo == 0 or question.id in ("13", "14", "15", "16", "21", "22", "23", "24"), question.text
    assert all(isinstance(question.turns[0], Turn) for question in task.questions)
