"""Admission: how many answers are under way at once, in which order the others begin, and when a
call is refused."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from langchain_specfuse import BusyError
from langchain_specfuse.core.options import Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.drive import Admission
from tests.methods import in_method

from .conftest import BLUE, PATIENCE_S, Gated, collected, query, text, until


def limited(max_concurrency, max_waiting=None, **settings):
    return Settings(
        **in_method(
            segment_tokens=2, max_concurrency=max_concurrency, max_waiting=max_waiting, **settings
        )
    )


ONE, TWO, EIGHT = limited(1), limited(2), limited(8)


def entering(admission, *names, settings=TWO):
    """Let answers with these names enter; the list returned fills with those that begin."""
    begun = []
    for name in names:
        admission.enter(name, settings, lambda name=name: begun.append(name))
    return begun


def test_answers_beyond_the_limit_follow_in_their_order():
    admission = Admission()
    begun = entering(admission, *"abcde")
    assert (begun, admission.under_way, admission.waiting) == (["a", "b"], 2, 3)
    admission.leave("b")
    admission.leave("a")
    assert begun == list("abcd")
    for name in "cde":
        admission.leave(name)
    assert (begun, admission.under_way, admission.waiting) == (list("abcde"), 0, 0)


def test_a_call_with_a_lower_limit_is_not_starved_by_later_calls_with_a_higher_one():
    admission, order = Admission(), []
    entering(admission, *range(8), settings=EIGHT)
    admission.enter("low", ONE, lambda: order.append("low"))
    for number in range(8):
        admission.enter(f"later {number}", EIGHT, lambda number=number: order.append(number))
        admission.leave(number)
    assert order == ["low", *range(7)]
    admission.leave("low")
    assert order == ["low", *range(8)]


def test_a_call_with_too_many_before_it_is_refused_with_a_hint():
    admission, short = Admission(), limited(2, max_waiting=3)
    entering(admission, *"abcde", settings=short)
    message = r"2 answers under way \(max_concurrency=2\) and 3 waiting \(max_waiting=3\)"
    with pytest.raises(BusyError, match=message) as raised:
        admission.enter("f", short, lambda: pytest.fail("it was refused"))
    # three are before it, and two at a time are answered
    assert raised.value.retry_after_s == 1 + 3 / 2
    assert "ask again in about" in raised.value.notes[0]
    admission.leave("a")
    assert entering(admission, "g", settings=short) == []
    assert (admission.under_way, admission.waiting) == (2, 3)


def test_an_answer_that_cannot_begin_does_not_block_the_others():
    def broken():
        raise KeyboardInterrupt

    admission = Admission()
    admission.enter("first", ONE, lambda: None)
    admission.enter("broken", ONE, broken)
    begun = entering(admission, "next", settings=ONE)
    with pytest.raises(KeyboardInterrupt):
        admission.leave("first")
    admission.leave("broken")
    assert begun == ["next"]


def test_calls_that_fit_are_never_refused_while_others_are_being_started():
    admission, none_may_wait = Admission(), limited(20, max_waiting=0)
    starting, gate, begun = threading.Event(), threading.Event(), []

    def slow():
        starting.set()
        assert gate.wait(PATIENCE_S)
        begun.append("slow")

    first = threading.Thread(target=admission.enter, args=("slow", none_may_wait, slow))
    first.start()
    assert starting.wait(PATIENCE_S)
    together = threading.Barrier(19)

    def enter(number):
        together.wait()
        admission.enter(number, none_may_wait, lambda: begun.append(number))

    with ThreadPoolExecutor(19) as pool:
        list(pool.map(enter, range(19)))
    assert (admission.under_way, admission.waiting) == (20, 0)
    with pytest.raises(BusyError, match="20 answers under way"):
        admission.enter("too many", none_may_wait, lambda: pytest.fail("it was refused"))
    admission.leave(3)
    admission.enter("instead", none_may_wait, lambda: begun.append("instead"))
    gate.set()
    first.join()
    assert set(begun) == {"slow", "instead", *range(19)} - {3}


# --- with answers ---------------------------------------------------------------------------------


def gated(device):
    member = Gated(BLUE, name="a", device=device)
    return member, Ensemble([member])


def test_answers_that_wait_are_the_same_and_never_too_many(device):
    member, ensemble = gated(device)
    member.gate.set()
    under_way = []
    draft = member.draft
    member.draft = lambda jobs: (under_way.append(ensemble.admission.under_way), draft(jobs))[1]

    async def crowd():
        return await asyncio.gather(*(collected(ensemble, query(), limited(4)) for _ in range(40)))

    assert {text(rounds) for rounds in asyncio.run(crowd())} == {BLUE}
    assert max(under_way) == 4
    assert (ensemble.admission.under_way, ensemble.admission.waiting) == (0, 0)


def test_refused_cancelled_and_timed_out_calls_reach_no_member_and_the_others_go_on(device):
    member, ensemble = gated(device)

    async def four():
        first = asyncio.create_task(collected(ensemble, query(), limited(1)))
        await asyncio.to_thread(member.inside.wait)
        with pytest.raises(BusyError):
            await collected(ensemble, query(), limited(1, 0))
        second = asyncio.create_task(collected(ensemble, query(), limited(1)))
        while not ensemble.admission.waiting:
            await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(TimeoutError):
            await collected(ensemble, query(), limited(1, timeout=0.01))
        assert ensemble.admission.waiting == 0
        member.gate.set()
        return await first

    assert text(asyncio.run(four())) == BLUE
    # nothing to forget of answers that never began
    assert until(lambda: len(member.forgotten) == 1)
