"""What a system's name means in a comparison, and what people do instead of an ensemble."""

from __future__ import annotations

import pytest
from compare import best_of, evaluated, oracle, router
from systems import chosen

from langchain_specfuse.core.options import METHODS, Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation import Results
from langchain_specfuse.evaluation.comparison import by_system, mean, scores_of
from tests.evaluation.parts import knows, sums


def compared(folder, members, names, count=12):
    """The systems and their graded answers."""
    by_name = {member.name: member for member in members}
    systems = chosen(names, list(by_name), Settings(max_tokens=64))
    with Results(folder) as results:
        answers = evaluated(sums(folder, count), systems, by_name, results)
    return systems, by_system(answers)


def score(answers, name):
    return mean(scores_of(answers[name]).values())


# --- names ----------------------------------------------------------------------------------------


def test_names_are_systems():
    names = [
        "singles",
        "ensemble",
        "vote",
        "lead-alone",
        "surest",
        "own:score=mean_prob,members=a+b",
    ]
    systems = chosen(names, ["a", "b", "c"], Settings())
    assert [system.name for system in systems] == [
        *("a", "b", "c", "ensemble", "vote", "lead-alone", "surest", "own")
    ]
    by_name = {system.name: system for system in systems}
    assert by_name["vote"].settings.lead is None
    assert by_name["lead-alone"].settings.method.margin == float("inf")
    assert by_name["own"].settings.method.score == "mean_prob"
    assert by_name["own"].members == ("a", "b")


def test_changes_apply_to_the_method_the_sampling_and_the_answer():
    changes = "exit=never,segment-tokens=4,temperature=0.7,seed=3,method=specem"
    (system,) = chosen([f"x:{changes}"], ["a", "b"], Settings(max_tokens=99))
    settings = system.settings
    assert (settings.segment_tokens, settings.max_tokens) == (4, 99)
    assert (settings.temperature, settings.seed) == (0.7, 3)
    assert settings.method.exit == "never" and settings.method.score == METHODS["specem"].score


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["magic"], "no system 'magic'"),
        (["x:magic=1"], "no option 'magic'"),
        (["x:exit=magic"], "exit must be .*, got 'magic'"),
        (["x:min_p=NaN"], "min_p must be .*, got 'NaN'"),
        (["x:members=a+z"], "no member 'z'"),
        (["x:lead=z"], "no member 'z'"),
        (["x:exit"], "'exit' is not key=value"),
        (["a:exit=never"], "'a' is taken"),
        (["singles", "a"], "two systems are called 'a'"),
    ],
)
def test_a_wrong_name_is_refused(names, message):
    with pytest.raises(UsageError, match=message) as error:
        chosen(names, ["a", "b"], Settings())
    assert error.value.__notes__[0].startswith("-> ")


# --- baselines ------------------------------------------------------------------------------------


def test_the_surest_writers_answer_is_taken(tmp_path):
    members = [
        knows("ann", lambda n: n % 3 == 0, confidence=9.0),
        knows("bob", lambda n: n % 3, confidence=0.1),
    ]
    _, answers = compared(tmp_path, members, ["singles", "surest"])
    assert score(answers, "surest") == score(answers, "bob") != score(answers, "ann")
    passes = {name: sum(item.passes for item in answers[name]) for name in answers}
    assert passes["surest"] == passes["ann"] + passes["bob"]


def test_samples_and_whole_answers_are_changes_of_a_system(tmp_path):
    members = [knows("ann", lambda n: True), knows("bob", lambda n: False)]
    names = ["singles", "agreed:lead=ann,result=number", "five:members=bob,samples=5,result=number"]
    systems, answers = compared(tmp_path, members, names)
    text = {name: [item.answer for item in answers[name]] for name in answers}
    assert text["agreed"] == text["ann"] and text["five"] == text["bob"]
    assert not systems[-1].alone


# --- what there is to gain ------------------------------------------------------------------------


def test_oracle_and_router():
    """The router picks the member that is best on the other questions of the kind."""
    kinds = {str(n): "small" if n < 10 else "large" for n in range(20)}
    ann = {str(n): float(n < 10) for n in range(20)}
    bob = {str(n): float(n > 10) for n in range(20)}
    singles = {"ann": ann, "bob": bob}
    assert sum(oracle(singles)) == sum(router(singles, kinds)) == 19
    assert router(singles, dict.fromkeys(kinds)) == []


def test_the_best_member_is_corrected_for_the_number_of_systems(tmp_path):
    members = [
        knows("ann", lambda n: n % 4 == 1, confidence=9.0),
        knows("bob", lambda n: n % 3 == 0, confidence=0.1),
    ]

    def best(*names):
        systems, answers = compared(tmp_path, members, ["singles", "ensemble", *names], 40)
        scores = {name: scores_of(answers[name]) for name in answers}
        return best_of(systems, scores)["ensemble"]

    one, three = best(), best("vote", "no-exit:exit=never")
    assert (one.wins, one.losses) == (three.wins, three.losses)
    assert three.p_worse == pytest.approx(min(1.0, 3 * one.p_worse))
    assert three.difference.low <= one.difference.low
    assert three.difference.high >= one.difference.high


def test_the_script_prints_what_was_compared(tmp_path, monkeypatch, capsys):
    import compare

    members = {"ann": knows("ann", lambda n: True), "bob": knows("bob", lambda n: False)}
    sums(tmp_path, 6)

    class Two:
        def __init__(self, *names):
            self.members = members

    monkeypatch.setattr(compare, "ensemble_for", Two)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sys.argv",
        [
            *("compare.py", "sums.jsonl", "--grader", "number", "--members", "ann", "bob"),
            *("--systems", "singles", "ensemble", "lead-alone", "--lead", "ann"),
            *("--record", "bank.sqlite"),
        ],
    )
    compare.main()
    printed = capsys.readouterr().out
    assert "oracle" in printed and "against ann alone" in printed
    assert (tmp_path / "bank.sqlite").exists()
