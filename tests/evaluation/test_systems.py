"""What a system's name means, and what is refused."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_specfuse.core.values import PRESETS, Sampling, Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation.systems import ABLATIONS, KEYS, SAMPLING, System, changed, chosen

WHOLE = System("ensemble", ("a", "b", "c"), Settings(max_tokens=99), {"a": 2.0, "c": 0.5})


def test_every_setting_can_be_changed():
    assert set(KEYS) | {"stop", "sampling"} == {field.name for field in fields(Settings)}
    assert set(SAMPLING) == {field.name for field in fields(Sampling)}


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ("segment_tokens=4", Settings(max_tokens=99, segment_tokens=4)),
        ("segment-tokens=4,exit=never", Settings(max_tokens=99, segment_tokens=4, exit="never")),
        ("loop_guard=off,feedback=off", Settings(max_tokens=99, loop_guard=False, feedback="off")),
        ("temperature=0.7,seed=3", Settings(max_tokens=99, sampling=Sampling(temperature=0.7, seed=3))),
        ("exit=never,preset=specfuse", Settings(max_tokens=99, **{**PRESETS["specfuse"], "exit": "never"})),
        ("preset=specem", Settings(max_tokens=99, **PRESETS["specem"])),
    ],
)
def test_changes_by_key_and_value(told, wanted):
    assert changed(WHOLE, "x", told).settings == wanted


def test_some_of_the_members_keep_their_prior():
    system = changed(WHOLE, "x", "members=a+b")
    assert (system.members, system.prior) == (("a", "b"), {"a": 2.0})


def test_every_ablation_changes_something_and_no_two_the_same():
    systems = chosen(["ensemble", "ablations"], ["a", "b"], Settings())
    marks = [system.fingerprint({"a": 1, "b": 2}) for system in systems]
    assert len(set(marks)) == len(marks) == len(ABLATIONS) + 1


def test_names_mean_systems():
    systems = chosen(["singles", "ensemble", "no-exit", "segment-7", "mine:score=mean_prob"], ["a", "b"], Settings())
    assert [system.name for system in systems] == ["a", "b", "ensemble", "no-exit", "segment-7", "mine"]
    assert [system.alone for system in systems] == [True, True, False, False, False, False]
    assert systems[4].settings.segment_tokens == 7
    assert [system.name for system in chosen(["b"], ["a", "b"], Settings())] == ["b"]


def test_one_member_is_no_ensemble():
    assert [system.name for system in chosen(["singles", "ensemble"], ["a"], Settings())] == ["a"]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["magic"], "no system 'magic'"),
        (["x:magic=1"], "no setting 'magic'"),
        (["x:exit=magic"], "exit must be one of studentized, quiet, literal, fixed, never, got 'magic'"),
        (["x:segment_tokens=0"], "segment_tokens must be a whole number of at least 1, got '0'"),
        (["x:segment_tokens=four"], "segment_tokens must be a whole number of at least 1, got 'four'"),
        (["x:temperature=-1"], "temperature must be a number of at least 0, got '-1'"),
        (["x:learning_rate=inf"], "learning_rate must be a number of at least 0, got 'inf'"),
        (["x:top_p=1.5"], "top_p must be a number above 0 and at most 1, got '1.5'"),
        (["x:min_p=nan"], "min_p must be a number from 0 to 1, got 'nan'"),
        (["x:repetition_penalty=0"], "repetition_penalty must be a number above 0, got '0'"),
        (["x:seed=x"], "seed must be a whole number, got 'x'"),
        (["x:umpire=maybe"], "umpire must be one of true, on, false, off, got 'maybe'"),
        (["x:speculate=maybe"], "speculate must be one of auto, true, on, false, off, got 'maybe'"),
        (["x:preset=magic"], "preset must be one of specfuse, specem, robust, got 'magic'"),
        (["x:members=a+z"], "no member 'z'"),
        (["x:exit"], "'exit' is not key=value"),
        (["a:exit=never"], "'a' is taken"),
        (["singles", "a"], "two systems are called 'a'"),
        (["x:exit=never", "x:exit=fixed"], "two systems are called 'x'"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_to_do(names, told):
    with pytest.raises(UsageError, match=told) as raised:
        chosen(names, ["a", "b"], Settings())
    assert raised.value.__notes__


@pytest.mark.parametrize("key", sorted({**KEYS, **SAMPLING}))
def test_every_setting_takes_what_it_says_and_says_what_it_takes(key):
    wanted = _wanted(key)
    choices = wanted.removeprefix("one of ").split(", ") if wanted.startswith("one of ") else ["1"]
    assert all(changed(WHOLE, "x", f"{key}={choice}") for choice in choices)


def _wanted(key):
    with pytest.raises(UsageError) as raised:
        changed(WHOLE, "x", f"{key}=?")
    return re.fullmatch(rf"system 'x': {key} must be (.*), got '\?'", str(raised.value))[1]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted({**KEYS, **SAMPLING})), st.text(max_size=8))
def test_any_text_is_a_value_or_a_usage_error(key, text):
    try:
        changed(WHOLE, "x", f"{key}={text}")
    except UsageError:
        pass


@pytest.mark.parametrize("word", ["oracle", "ensemble", "singles", "ablations", "a"])
def test_a_word_that_means_something_is_no_system_s_name(word):
    with pytest.raises(UsageError, match="is taken as a system's name"):
        chosen(["singles", f"{word}:exit=never"], ["a", "b"], Settings())


def test_no_member_is_compared_under_the_oracle_s_name():
    with pytest.raises(UsageError, match="no system may be called 'oracle'"):
        chosen(["singles"], ["oracle", "b"], Settings())


def test_a_prior_counts_only_where_several_vote():
    alone = System("a", ("a",), Settings())
    assert alone.fingerprint({"a": 1}) == System("a", ("a",), Settings(), {"a": 2.0}).fingerprint({"a": 1})
    both = System("e", ("a", "b"), Settings())
    told = {"a": 1, "b": 2}
    assert both.fingerprint(told) != System("e", ("a", "b"), Settings(), {"a": 2.0}).fingerprint(told)
