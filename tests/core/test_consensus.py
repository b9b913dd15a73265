"""Whole answers: equal results win by weight, ties go to the lead, and no request is wasted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.checks import CheckAsk
from langchain_specfuse.core.consensus import answers, voters
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.panel import Panel
from langchain_specfuse.core.results import final_number
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Ask, Draft, Failure, Panelist
from langchain_specfuse.errors import CheckError, UsageError
from tests.methods import changed

from .play import QUERY, verdict_of

NUMBER = Settings(max_tokens=20, method=Method(segment="answer", result="number"))


def says(*texts, ended=True):
    """Return a member that writes these answers, one per sample."""
    return lambda job, number: Draft(texts[number % len(texts)], ended, (1, 2, 3))


def asked_of(members, settings=NUMBER, prior=None, lead=None, sizes=None):
    """Return the round and, per ask, the members that were asked."""
    sizes = sizes or {}
    panelists = [Panelist(name, size=sizes.get(name, 0)) for name in members]
    loop = answers(QUERY, settings, Panel.of(panelists, prior, lead))
    replies, asks, times = None, [], dict.fromkeys(members, 0)
    while True:
        item = loop.send(replies)
        if isinstance(item, Round):
            return item, asks
        if isinstance(item, CheckAsk):
            replies = tuple(map(verdict_of, item.jobs))
            continue
        assert isinstance(item, Ask)
        asks.append(item)
        replies = {}
        for name, job in item.jobs.items():
            replies[name] = members[name](job, times[name])
            times[name] += 1


def names(asks):
    return [list(ask.jobs) for ask in asks]


THREE = {"a": says("It is 41."), "b": says("Say 42"), "c": says("I found 42.")}


def test_the_result_that_most_of_the_weight_agrees_on_wins():
    round, _ = asked_of(THREE)
    assert (round.text, round.winner, round.authors, round.finish) == (
        "Say 42",
        "b",
        ("b", "c"),
        "stop",
    )
    assert round.totals == pytest.approx({"a": 1 / 3, "b": 2 / 3, "c": 2 / 3})
    assert asked_of(THREE, prior={"a": 5.0})[0].text == "It is 41."


def test_members_that_cannot_change_the_result_are_not_asked():
    same = {name: says(f"{name}: 7") for name in "abcde"}
    assert names(asked_of(same)[1]) == [["a", "b", "c"]]
    assert names(asked_of(THREE)[1]) == [["a", "b"], ["c"]]
    assert names(asked_of(THREE, prior={"c": 9.0})[1]) == [["c"]]


def test_ties_go_to_the_lead_and_it_is_asked_first():
    two = {"a": says("1"), "b": says("2")}
    assert asked_of(two)[0].winner == "a"
    round, asks = asked_of(two, lead="b")
    assert (round.winner, round.lead, names(asks)) == ("b", "b", [["b", "a"]])


def test_further_samples_are_drawn_with_other_seeds_and_a_temperature():
    alone = {"a": says("7", "8", "8", "8")}
    round, asks = asked_of(alone, changed(NUMBER, samples=4))
    assert (round.text, round.winner, round.authors) == ("8", "a#2", ("a#2", "a#3", "a#4"))
    how = [job.sampling for ask in asks for job in ask.jobs.values()]
    assert [(sampling.temperature, sampling.seed) for sampling in how] == [
        (0.0, 0),
        (0.7, 1),
        (0.7, 2),
        (0.7, 3),
    ]
    assert names(asked_of({"a": says("7")}, changed(NUMBER, samples=5))[1]) == [["a"]] * 3


def test_an_answer_without_a_result_does_not_count():
    round, _ = asked_of({"a": says("No idea."), "b": says("Perhaps 3"), "c": says("Who knows?")})
    assert (round.text, round.winner) == ("Perhaps 3", "b")
    nothing, _ = asked_of({"a": says("No idea."), "b": says("Who knows?")})
    assert (nothing.text, nothing.winner) == ("No idea.", "a")


def test_a_function_extracts_the_result_of_an_answer():
    by_length = changed(NUMBER, result=len)
    assert asked_of({"a": says("abc"), "b": says("xy"), "c": says("zw")}, by_length)[0].text == "xy"
    for wrong, reason in (
        (lambda text: [text], "unhashable"),
        (lambda text: 1 / 0, "ZeroDivisionError"),
    ):
        with pytest.raises(UsageError, match=f"result.*{reason}"):
            asked_of(THREE, changed(NUMBER, result=wrong))


def test_a_failed_member_does_not_hurt_the_others():
    fails = lambda job, number: Failure("error", "fell over")
    round, _ = asked_of({**THREE, "b": fails})
    assert (round.text, [departure.member for departure in round.left]) == ("It is 41.", ["b"])
    round, _ = asked_of({"a": says("5"), "b": fails}, changed(NUMBER, samples=2))
    assert round.text == "5"


def test_finish_records_a_used_up_budget_or_a_stop_string():
    assert asked_of({"a": says("It is 4", ended=False)})[0].finish == "length"
    stopped, _ = asked_of({"a": says("It is 4\nNo, 5", ended=False)}, changed(NUMBER, stop=["\n"]))
    assert (stopped.text, stopped.finish) == ("It is 4", "stop_string")


results = st.lists(st.tuples(st.integers(1, 3), st.floats(0.1, 5.0)), min_size=1, max_size=7)


@given(results, st.integers(1, 3))
def test_stopping_early_never_changes_the_result(results, samples):
    members = {f"m{i}": says(f"it is {number}") for i, (number, _) in enumerate(results)}
    prior = {f"m{i}": weight for i, (_, weight) in enumerate(results)}
    round, _ = asked_of(members, changed(NUMBER, samples=samples), prior)
    panel = Panel.of([Panelist(name) for name in members], prior)
    totals: dict = {}
    for voter in voters(panel, samples):
        result = final_number(members[voter.member](None, 0).text)
        totals[result] = totals.get(result, 0.0) + voter.weight
    best = max(totals.values())
    assert totals[final_number(round.text)] == pytest.approx(best)


# --- with checks ----------------------------------------------------------------------------------


def has_42(text):
    return None if "42" in text else "does not say 42"


def is_polite(text):
    return None if text.startswith("I ") else "is not polite"


CHECKED = Settings(max_tokens=20, method=Method(segment="answer", samples=3), checks=[has_42])


def test_without_a_result_the_first_answer_that_passes_wins_and_nobody_else_is_asked():
    round, asks = asked_of(THREE, CHECKED)
    assert (round.text, round.winner) == ("Say 42", "b")
    assert names(asks) == [["a"], ["b"]]
    assert [(r.member, r.text, r.reason) for r in round.rejected] == [
        ("a", "It is 41.", "does not say 42")
    ]
    assert round.checks == {"has_42": {"passed": 1, "rejected": 1}}
    assert round.totals["a"] == 0.0


def test_the_cheapest_members_are_asked_first_and_greedy_answers_before_samples():
    members = {"big": says("no", "no", "42"), "small": says("no", "no", "no")}
    round, asks = asked_of(members, CHECKED, sizes={"big": 1500, "small": 135})
    assert names(asks) == [["small"], ["big"], ["small"], ["big"], ["small"], ["big"]]
    assert round.text == "42"
    assert round.member == "big"
    assert round.winner == "big#3"
    temperatures = [job.sampling.temperature for ask in asks for job in ask.jobs.values()]
    assert temperatures[:2] == [0.0, 0.0]
    assert min(temperatures[2:]) >= 0.7


def test_with_a_result_members_agree_on_one_of_the_answers_that_pass():
    settings = changed(NUMBER, checks=Settings(checks=[is_polite]).checks)
    round, _ = asked_of(THREE, settings)
    assert round.text == "I found 42."
    assert {rejection.member for rejection in round.rejected} == {"a", "b"}


def test_no_answer_that_passes_is_an_error_an_empty_answer_or_the_greedy_one():
    bad = {"a": says("one", "two"), "b": says("three", "four")}
    with pytest.raises(CheckError, match=r"has_42.*does not say 42") as raised:
        asked_of(bad, CHECKED, lead="b")
    assert raised.value.text == ""
    for how, text, finish in (("end", "", "check"), ("keep", "three", "stop")):
        settings = CHECKED.model_copy(update={"on_failure": how})
        round, asks = asked_of(bad, settings, lead="b")
        assert (round.text, round.finish) == (text, finish)
        assert len(asks) == 6
    assert [r.member for r in round.rejected if r.is_shown] == ["b"]
