"""Checks of words: what they find, and that every beginning of a good text is good."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import UsageError, checks
from langchain_specfuse.core.checks import CheckContext

TEXTS = st.text(alphabet=st.sampled_from("aB1. ,!?\n天。”'-_éǅ"), max_size=60)
CLOSED = [
    checks.forbids("a."),
    checks.forbids(re.compile("AB", re.IGNORECASE)),
    checks.max_words(3),
    checks.max_sentences(2),
    checks.lowercase(),
]


@pytest.mark.parametrize("check", CLOSED, ids=lambda check: check.name)
@given(text=TEXTS)
def test_every_beginning_of_a_text_that_passes_passes(check, text):
    verdicts = [check.function(text[:end]) for end in range(len(text) + 1)]
    first_fault = next((end for end, reason in enumerate(verdicts) if reason), len(verdicts))
    assert verdicts[0] is None
    assert all(verdicts[first_fault:])


@pytest.mark.parametrize("check", [checks.max_words(3), checks.max_sentences(2)])
@given(texts=st.lists(TEXTS, max_size=4), cut=st.integers(0, 60))
def test_what_was_counted_before_changes_no_verdict(check, texts, cut):
    grown = ["".join(texts[:end]) for end in range(1, len(texts) + 1)]
    context = CheckContext([], "", "a", ended=False)
    for text in [*grown, "".join(texts)[:cut], *grown]:
        assert check.function(text, context) == check.function(text)


@given(text=TEXTS)
def test_capitals_are_those_of_python(text):
    is_lower = text.islower() or not any(letter.isalpha() for letter in text)
    uncased = text == text.lower() == text.upper()
    assert (checks.lowercase().function(text) is None) == (is_lower or uncased)


@pytest.mark.parametrize(
    ("check", "text", "reason"),
    [
        (checks.forbids("cat"), "a Cat", None),
        (checks.forbids("(?i)cat"), "a Cat", "contains 'Cat'"),
        (checks.forbids(re.compile("cat", re.IGNORECASE)), "a Cat", "contains 'Cat'"),
        (checks.forbids(","), "one, two", "contains ','"),
        (checks.forbids("\n"), "one\ntwo", r"matches '\n'"),
        (checks.requires(r"\d{4}"), "in 1998", None),
        (checks.requires("Dear"), "Hello", "contains nothing like 'Dear'"),
        (checks.max_words(2), "one - two", None),
        (checks.max_words(2), "it's 3.5%", None),
        (checks.max_words(1), "one two", "has 2 words, more than 1"),
        (checks.max_words(3), "天空是蓝", "has 4 words, more than 3"),
        (checks.max_sentences(2), "It is 9.30 now. Go!", None),
        (checks.max_sentences(1), "Go! “Now.” Yes", "has 3 sentences, more than 1"),
        (checks.max_sentences(3), "1. One\n2. Two\n3. Three", None),
        (checks.max_sentences(1), "天空是蓝的。是的。", "has 2 sentences, more than 1"),
        (checks.lowercase(), "naïve, 3 times", None),
        (checks.lowercase(), "to Ulm.", "has a capital letter: 'Ulm.'"),
    ],
    ids=repr,
)
def test_what_a_check_says(check, text, reason):
    found = check.function(text)
    assert getattr(found, "reason", found) == reason


def test_a_long_pattern_is_shortened_in_the_name_and_not_in_what_is_searched():
    pattern = "a" * 100
    check = checks.forbids(pattern)
    assert len(check.name) < 60
    assert check.function("a" * 99) is None
    assert check.function(pattern)


def test_patterns_that_cannot_work_are_refused_with_a_way_out():
    for make in (checks.forbids, checks.requires):
        for pattern, said in (
            ("(", "not a regular expression"),
            ("a*", "every text"),
            (b"a", "b'a'"),
            (3, "3"),
        ):
            with pytest.raises(UsageError, match=said) as caught:
                make(pattern)
            assert caught.value.notes[0].startswith("-> ")


@pytest.mark.parametrize("make", [checks.max_words, checks.max_sentences])
@pytest.mark.parametrize("n", [0, -1, 2.5, "3", True, None])
def test_a_limit_is_a_whole_number(make, n):
    with pytest.raises(UsageError, match=re.escape(repr(n))):
        make(n)
