"""The circuit breaker of a member: when it pauses, for how long, and when it is tried again."""

from __future__ import annotations

import pytest

from langchain_specfuse.engine import breaker
from langchain_specfuse.engine.breaker import FAILURES, LONGEST_PAUSE_S, PAUSE_S, Breaker


class Now:
    seconds = 50.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    monkeypatch.setattr(breaker, "time", clock)
    return clock


def pause_after(failures: Breaker, now: Now) -> float:
    """Return how long the member pauses from now on."""
    began = now.seconds
    while failures.is_paused("a"):
        now.seconds += 1
    pause, now.seconds = now.seconds - began, began
    return pause


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_a_failed_member_pauses_and_no_other_does(now, kind):
    failures = Breaker()
    assert not failures.is_paused("a")
    failures.failed("a", kind)
    assert failures.is_paused("a") and not failures.is_paused("b")
    now.seconds += PAUSE_S
    assert not failures.is_paused("a")


@pytest.mark.parametrize("kind", ["overflow", "budget", "refusal", "exit"])
def test_a_failure_that_concerns_one_answer_causes_no_pause(now, kind):
    failures = Breaker()
    failures.failed("a", kind)
    assert not failures.is_paused("a")


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_only_the_pauses_after_timeouts_double_up_to_the_longest(now, kind):
    """Each of them costs an answer the limit of silence."""
    failures = Breaker()
    pauses = []
    for _ in range(7):
        failures.try_again("a")
        failures.failed("a", kind)
        pauses.append(pause_after(failures, now))
        now.seconds += pauses[-1]
    doubled = [10, 20, 40, 80, 160, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    assert pauses == (doubled if kind == "timeout" else [PAUSE_S] * 7)


def test_a_member_is_used_again_soon_after_it_works_again(now):
    """As in scenario S15 of Failover Bench: 503 for a minute, and a question every four seconds.
    https://github.com/failoverbench/failoverbench"""
    failures, began, tried = Breaker(), now.seconds, []
    while not (tried and tried[-1] >= 60):
        if not failures.is_paused("a"):
            failures.try_again("a")
            tried.append(now.seconds - began)
            if tried[-1] < 60:
                failures.failed("a", "error")
            else:
                failures.worked("a")
        now.seconds += 4
    assert tried[-1] <= 60 + 12 and len(tried) <= 7


def test_answers_that_note_the_same_failure_do_not_prolong_the_pause(now):
    failures = Breaker()
    for _ in range(20):
        failures.failed("a", "timeout")
    assert pause_after(failures, now) == PAUSE_S


def test_while_one_answer_tries_a_member_again_it_pauses_for_the_others(now):
    failures = Breaker()
    failures.failed("a", "error")
    now.seconds += PAUSE_S
    failures.try_again("a")
    assert failures.is_paused("a")
    failures.worked("a")
    assert not failures.is_paused("a")
    failures.failed("a", "error")
    assert pause_after(failures, now) == PAUSE_S, "its earlier failures are forgotten"


def test_a_member_that_falls_silent_in_each_answer_pauses_longer_each_time(now):
    failures = Breaker()
    pauses = []
    failures.failed("a", "timeout")
    for _ in range(3):
        now.seconds += LONGEST_PAUSE_S
        failures.try_again("a")
        failures.worked("a", is_done=False)
        failures.try_again("a")
        assert not failures.is_paused("a"), "the other answers need not wait for its end"
        failures.failed("a", "timeout")
        pauses.append(pause_after(failures, now))
    assert pauses == [20, 40, 80]


def test_an_answer_that_began_before_the_failure_does_not_end_the_pause(now):
    failures = Breaker()
    failures.failed("a", "error")
    failures.worked("a", is_done=False)
    assert pause_after(failures, now) == PAUSE_S


def test_trying_a_member_that_has_not_failed_changes_nothing(now):
    failures = Breaker()
    failures.try_again("a")
    assert not failures.is_paused("a")
