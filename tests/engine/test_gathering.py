"""The replies to one ask, in whatever order they come: told once, whole, and only when they are enough."""

from __future__ import annotations

import itertools

import pytest

from langchain_specfuse.core.values import LATE, Ask, Draft, DraftJob, Failure, Query, Sampling
from langchain_specfuse.engine.gathering import Gathering

JOB = DraftJob(Query("q", ()), (), 5, 5, Sampling())
TOO_LATE, ILL, NONSENSE = Failure(LATE, "late"), Failure("error", "ill"), Draft("x", logprobs=(1.0,))
HELLO, WORLD = Draft("hello"), Draft("world")


def gathering(*names, spare=False):
    return Gathering(Ask(dict.fromkeys(names, JOB), 1, spare))


@pytest.mark.parametrize("order", list(itertools.permutations([("a", HELLO), ("b", WORLD), ("c", ILL)])))
def test_all_replies_are_told_once_in_the_order_of_the_ask(order):
    one = gathering("a", "b", "c")
    told = [one.take(*reply) for reply in order]
    assert told[:2] == [None, None]
    assert list(told[2].items()) == [("a", HELLO), ("b", WORLD), ("c", ILL)]
    assert one.over and one.take("a", WORLD) is None


def test_who_is_late_is_not_waited_for_where_another_answers():
    one = gathering("a", "b")
    assert one.take("a", TOO_LATE) is None
    assert one.take("b", WORLD) == {"a": TOO_LATE, "b": WORLD}
    assert one.take("a", HELLO) is None  # too late for this ask, and there is no other that it could be taken for


def test_a_late_reply_counts_while_others_are_still_awaited():
    one = gathering("a", "b")
    one.take("a", TOO_LATE)
    assert one.take("a", HELLO) is None
    assert one.take("b", WORLD) == {"a": HELLO, "b": WORLD}


def test_word_of_lateness_that_comes_after_the_reply_takes_nothing_away():
    one = gathering("a", "b")
    one.take("a", HELLO)
    assert one.take("a", TOO_LATE) is None
    assert one.take("b", ILL) == {"a": HELLO, "b": ILL}


@pytest.mark.parametrize("other", [TOO_LATE, ILL, NONSENSE], ids=["late", "ill", "nonsense"])
def test_one_answer_at_least_is_waited_for(other):
    one = gathering("a", "b")
    assert one.take("b", other) is None and one.take("a", TOO_LATE) is None and not one.over
    assert one.take("a", HELLO) == {"a": HELLO, "b": other}


def test_who_can_still_fail_may_end_the_waiting_too():
    one = gathering("a", "b")
    assert one.take("b", ILL) is None and one.take("a", TOO_LATE) is None
    assert one.take("a", ILL) == {"a": ILL, "b": ILL}


def test_nobody_is_waited_for_where_there_are_others_to_ask():
    one = gathering("a", "b", spare=True)
    assert one.take("a", TOO_LATE) is None
    assert one.take("b", TOO_LATE) == {"a": TOO_LATE, "b": TOO_LATE}
