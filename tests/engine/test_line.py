"""Who waits before an ensemble, for how long, and who is told to come again."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from langchain_specfuse import BusyError
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.line import PASSED, Line, Turn

from .conftest import BLUE, SHORT, Gated, query, until
from .test_drive import collected, text

TWO = Turn(at_once=2)


def entered(line, *names, turn=TWO):
    begun = []
    for name in names:
        line.enter(name, turn, lambda name=name: begun.append(name))
    return begun


def test_so_many_are_under_way_and_the_others_follow_in_their_order():
    line = Line()
    begun = entered(line, *"abcde")
    assert (begun, line.under_way, line.waiting) == (["a", "b"], 2, 3)
    line.leave("b")
    line.leave("a")
    assert begun == list("abcd")
    for name in "cde":
        line.leave(name)
    assert (begun, line.under_way, line.waiting) == (list("abcde"), 0, 0)


def test_who_leaves_the_line_is_never_called_and_nobody_loses_a_turn():
    line = Line()
    begun = entered(line, *"abcd")
    line.leave("c")
    line.leave("c")
    line.leave("a")
    assert begun == ["a", "b", "d"]


def test_each_call_says_for_itself_how_much_company_it_wants():
    line = Line()
    picky, easy = entered(line, "a", "b", turn=Turn(at_once=1)), entered(line, "c", turn=Turn())
    assert (picky, easy) == (["a"], ["c"])
    line.leave("a")
    assert picky == ["a"]
    line.leave("c")
    assert picky == ["a", "b"]


def test_who_wants_less_company_is_passed_so_often_and_no_more():
    line, order = Line(), []
    under_way = [f"old {number}" for number in range(8)]
    entered(line, *under_way, turn=Turn(at_once=8))
    line.enter("picky", Turn(at_once=2), lambda: order.append("picky"))
    for number in range(PASSED + 20):  # there is always somebody who would fill the place
        line.enter(number, Turn(at_once=8), lambda number=number: (order.append(number), under_way.append(number)))
        line.leave(under_way.pop(0))
        if "picky" in order:
            break
    assert order[: PASSED + 1] == [*range(PASSED), "picky"]
    assert order[PASSED + 1 :] == list(range(PASSED, PASSED + 6))  # who waited for it follow at once
    assert line.under_way == 8


def test_who_comes_while_another_is_waited_for_waits_or_is_refused_unless_company_is_nothing_to_it():
    line = Line()
    entered(line, *"ab", turn=Turn(at_once=8))
    entered(line, "picky", turn=Turn(at_once=1, priority=PASSED))
    assert entered(line, "c", turn=Turn(at_once=8)) == []
    with pytest.raises(BusyError):
        line.enter("d", Turn(at_once=8, max_waiting=2), lambda: pytest.fail("it was refused"))
    assert entered(line, "e", turn=Turn()) == ["e"]
    for name in "abe":
        line.leave(name)
    assert list(line._began) == ["picky", "c"]  # it is alone when it begins; others want more company than that


def test_the_urgent_go_first_and_nobody_waits_for_ever():
    line, order = Line(), []
    line.enter("first", Turn(1), lambda: None)
    line.enter("patient", Turn(1), lambda: order.append("patient"))
    now = "first"
    for number in range(20):
        line.enter(number, Turn(1, priority=5), lambda number=number: order.append(number))
        line.leave(now)
        now = order[-1]
        if now == "patient":
            break
    assert order == [0, 1, 2, 3, 4, "patient"]


def test_who_would_have_too_many_before_it_is_refused_and_told_when_to_come_again():
    line, short = Line(), Turn(at_once=2, max_waiting=3)
    entered(line, *"abcde", turn=short)
    with pytest.raises(BusyError, match=r"2 answers are under way \(at_once=2\) and 3 wait before this one") as told:
        line.enter("f", short, lambda: pytest.fail("it was refused"))
    assert 0.1 <= told.value.retry_after_s <= 60
    assert "ask again in about" in told.value.__notes__[0]
    line.leave("a")
    assert entered(line, "g", turn=short) == []
    assert (line.under_way, line.waiting) == (2, 3)


def test_one_is_one():
    line, short = Line(), Turn(at_once=1, max_waiting=1)
    entered(line, *"ab", turn=short)
    with pytest.raises(BusyError, match=r"1 answer is under way \(at_once=1\) and 1 waits before this one"):
        line.enter("c", short, lambda: None)


def test_the_urgent_are_refused_by_those_before_them_only():
    line = Line()
    entered(line, *"abcde", turn=Turn(2, 3))
    assert entered(line, "urgent", turn=Turn(2, 3, priority=9)) == []
    line.leave("a")
    assert "urgent" in line._began


def test_a_line_of_no_length_refuses_whoever_cannot_begin_at_once():
    line, none = Line(), Turn(at_once=1, max_waiting=0)
    assert entered(line, "a", turn=none) == ["a"]
    with pytest.raises(BusyError):
        line.enter("b", none, lambda: None)
    line.leave("a")
    assert entered(line, "b", turn=none) == ["b"]


def test_the_hint_grows_with_what_answers_take_and_with_who_is_there(monkeypatch):
    from langchain_specfuse.engine import line as module

    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])

    def hint(seconds):
        line = Line()
        for number in range(60):
            line.enter(number, Turn(1), lambda: None)
            now[0] += seconds
            line.leave(number)
        entered(line, *"abc", turn=Turn(1, 2))
        with pytest.raises(BusyError) as told:
            line.enter("d", Turn(1, 2), lambda: None)
        return told.value.retry_after_s

    assert hint(4.0) == pytest.approx(3 * 4.0 / 2, rel=0.02)  # one under way and two before: on average half of that
    assert hint(0.001) == 0.1
    assert hint(1000.0) == 60.0


def test_thousands_that_end_as_they_begin_need_no_deep_stack():
    line, begun = Line(), []
    line.enter("first", Turn(1), lambda: None)

    def go(number):
        begun.append(number)
        line.leave(number)

    for number in range(5000):
        line.enter(number, Turn(1), lambda number=number: go(number))
    line.leave("first")
    assert begun == list(range(5000))
    assert (line.under_way, line.waiting) == (0, 0)


def test_one_that_cannot_begin_keeps_nobody_out():
    line, begun = Line(), []

    def broken():
        raise KeyboardInterrupt

    line.enter("first", Turn(1), lambda: None)
    line.enter("broken", Turn(1), broken)
    line.enter("next", Turn(1), lambda: begun.append("next"))
    with pytest.raises(KeyboardInterrupt):
        line.leave("first")
    line.leave("broken")
    assert begun == ["next"]


def test_threads_that_come_and_go_are_never_more_than_may_be():
    line, most, seen, lock = Line(), 3, [], threading.Lock()

    def ask(number):
        gate = threading.Event()
        line.enter(number, Turn(most), gate.set)
        assert gate.wait(20)
        with lock:
            seen.append(line.under_way)
        line.leave(number)

    threads = [threading.Thread(target=ask, args=[number]) for number in range(300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(seen) == 300
    assert max(seen) <= most
    assert (line.under_way, line.waiting) == (0, 0)


# --- with answers ------------------------------------------------------------------------------------------------


def gated(device):
    member = Gated(BLUE, name="a", device=device)
    return member, Ensemble([member])


def test_answers_that_wait_are_the_same_and_never_too_many(device):
    member, ensemble = gated(device)
    member.gate.set()
    most = []
    draft = member.draft
    member.draft = lambda jobs: (most.append(ensemble.line.under_way), draft(jobs))[1]

    async def crowd():
        asked = (collected(ensemble, query(), SHORT, turn=Turn(at_once=4)) for _ in range(40))
        return await asyncio.gather(*asked)

    assert {text(rounds) for rounds in asyncio.run(crowd())} == {BLUE}
    assert max(most) == 4
    assert (ensemble.line.under_way, ensemble.line.waiting) == (0, 0)


def test_who_is_refused_costs_nothing_and_the_others_go_on(device):
    member, ensemble = gated(device)
    one = Turn(at_once=1, max_waiting=0)

    async def two():
        first = asyncio.create_task(collected(ensemble, query(), SHORT, turn=one))
        await asyncio.to_thread(member.inside.wait)
        with pytest.raises(BusyError):
            await collected(ensemble, query(), SHORT, turn=one)
        member.gate.set()
        return await first

    assert text(asyncio.run(two())) == BLUE
    assert until(lambda: len(member.forgotten) == 1)  # the other was never told to anybody


def test_who_waits_and_is_cancelled_or_late_leaves_the_line(device):
    member, ensemble = gated(device)
    one = Turn(at_once=1)

    async def three():
        first = asyncio.create_task(collected(ensemble, query(), SHORT, turn=one))
        await asyncio.to_thread(member.inside.wait)
        second = asyncio.create_task(collected(ensemble, query(), SHORT, turn=one))
        third = asyncio.create_task(collected(ensemble, query(), SHORT, turn=one, timeout=0.05))
        await asyncio.sleep(0.01)
        second.cancel()
        with pytest.raises(TimeoutError):
            await third
        assert ensemble.line.waiting == 0
        member.gate.set()
        return await first

    assert text(asyncio.run(three())) == BLUE
    assert until(lambda: len(member.forgotten) == 1)  # who never began has nothing to be forgotten


def test_an_iterator_that_is_thrown_away_gives_its_place_back(device):
    member, ensemble = gated(device)
    member.gate.set()
    for _ in range(20):
        rounds = ensemble.rounds(query(), SHORT, turn=Turn(at_once=1))
        next(rounds)
        del rounds
        gc.collect()
    assert ensemble.line.under_way == 0
    assert until(lambda: not member.open_queries)
