"""What a system's name means, and what is refused."""

from __future__ import annotations

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
        (["x:exit=magic"], "exit cannot be 'magic'"),
        (["x:segment_tokens=0"], "at least 1"),
        (["x:segment_tokens=four"], "segment_tokens cannot be 'four'"),
        (["x:temperature=-1"], "0 or more"),
        (["x:loop_guard=maybe"], "loop_guard cannot be"),
        (["x:preset=magic"], "preset cannot be"),
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


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KEYS)), st.text(max_size=8))
def test_any_text_is_a_value_or_a_usage_error(key, text):
    try:
        changed(WHOLE, "x", f"{key}={text}")
    except UsageError:
        pass


def test_a_prior_counts_only_where_several_vote():
    alone = System("a", ("a",), Settings())
    assert alone.fingerprint({"a": 1}) == System("a", ("a",), Settings(), {"a": 2.0}).fingerprint({"a": 1})
    both = System("e", ("a", "b"), Settings())
    told = {"a": 1, "b": 2}
    assert both.fingerprint(told) != System("e", ("a", "b"), Settings(), {"a": 2.0}).fingerprint(told)
