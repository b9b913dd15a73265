"""What a system's name means, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.options import METHODS, Method, Settings
from langchain_specfuse.errors import UsageError
from langchain_specfuse.evaluation.systems import SAMPLING, System, changed, chosen

WHOLE = System("ensemble", ("a", "b", "c"), Settings(max_tokens=99), {"a": 2.0, "c": 0.5})


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        (
            "segment-tokens=4,exit=never",
            Settings(max_tokens=99, segment_tokens=4, method=Method(exit="never")),
        ),
        ("loop_guard=false", Settings(max_tokens=99, method=Method(loop_guard=False))),
        (
            "temperature=0.7,seed=3",
            Settings(max_tokens=99, temperature=0.7, seed=3),
        ),
        (
            "exit=never,method=specfuse",
            Settings(max_tokens=99, method=Method.named("specfuse", exit="never")),
        ),
        ("max_tokens=7,method=specem", Settings(max_tokens=7, method=METHODS["specem"])),
    ],
)
def test_changes_by_key_and_value(changes, settings):
    system = changed(WHOLE, "x", f"{changes},members=a+b")
    assert (system.settings, system.members, system.prior) == (settings, ("a", "b"), {"a": 2.0})


def test_names_mean_systems():
    systems = chosen(
        ["singles", "ensemble", "vote", "lead-alone", "mine:score=mean_prob"],
        ["a", "b"],
        Settings(),
    )
    assert [system.name for system in systems] == [
        "a",
        "b",
        "ensemble",
        "vote",
        "lead-alone",
        "mine",
    ]
    assert [system.alone for system in systems] == [True, True, False, False, False, False]
    assert (systems[3].settings.lead, systems[4].settings.method.margin) == (None, float("inf"))
    assert [system.name for system in chosen(["b"], ["a", "b"], Settings())] == ["b"]
    assert [system.name for system in chosen(["singles", "ensemble"], ["a"], Settings())] == ["a"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["magic"], "no system 'magic'"),
        (["x:magic=1"], "no option 'magic'"),
        (["x:exit=magic"], "exit must be .*, got 'magic'"),
        (["x:segment_tokens=0"], "segment_tokens must be greater than or equal to 1, got '0'"),
        (["x:segment_tokens=four"], "segment_tokens must be a valid integer.*, got 'four'"),
        (["x:min_p=NaN"], "min_p must be less than or equal to 1, got 'NaN'"),
        (
            ["x:method=magic"],
            "method must be one of 'robust', 'specfuse', 'specem' or a Method, got 'magic'",
        ),
        (["x:members=a+z"], "no member 'z'"),
        (["x:exit"], "'exit' is not key=value"),
        (["a:exit=never"], "'a' is taken"),
        (["oracle:exit=never"], "'oracle' is taken"),
        (["singles", "a"], "two systems are called 'a'"),
        (["x:exit=never", "x:exit=studentized"], "two systems are called 'x'"),
    ],
)
def test_a_mistake_says_what_is_wrong_and_what_to_do(names, message):
    with pytest.raises(UsageError, match=message) as raised:
        chosen(names, ["a", "b"], Settings())
    notes = raised.value.__notes__
    assert notes[0].startswith("-> ") and ("system 'x'" in notes[-1]) == (
        names[0][0] == "x" and len(names) == 1
    )


@given(st.sampled_from(sorted({*Method.model_fields, *SAMPLING})), st.text(max_size=8))
def test_any_text_is_a_value_or_a_usage_error(key, text):
    try:
        changed(WHOLE, "x", f"{key}={text}")
    except UsageError:
        pass


def test_a_prior_counts_only_where_several_vote():
    alone = System("a", ("a",), Settings())
    assert alone.fingerprint({"a": 1}) == System("a", ("a",), Settings(), {"a": 2.0}).fingerprint(
        {"a": 1}
    )
    both = System("e", ("a", "b"), Settings())
    marks = {"a": 1, "b": 2}
    assert both.fingerprint(marks) != System("e", ("a", "b"), Settings(), {"a": 2.0}).fingerprint(
        marks
    )
