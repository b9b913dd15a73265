"""Whose turn it is at a desk."""

from __future__ import annotations

from langchain_specfuse.engine.inbox import Inbox
from langchain_specfuse.engine.task import Task

ONE, OTHER = object(), object()


def task(job, priority=0, member=ONE, wanted=lambda: True, work="draft"):
    return Task(member, work, job, lambda _: None, wanted, priority=priority)


def jobs(batch):
    return [task.job for task in batch]


def served(inbox):
    """All batches, until nothing waits."""
    told = []
    while batch := inbox.take():
        told.append(jobs(batch))
    return told


def test_the_oldest_goes_first_and_all_that_are_like_it_go_along():
    inbox = Inbox()
    inbox.put([task(1), task(2, member=OTHER), task(3)])
    inbox.put([task(4, member=OTHER)])
    assert served(inbox) == [[1, 3], [2, 4]]


def test_the_urgent_go_first_and_take_along_who_is_like_them():
    inbox = Inbox()
    inbox.put([task("slow", member=OTHER), task("urgent", 2), task("also slow", member=OTHER), task("like it")])
    assert served(inbox) == [["urgent", "like it"], ["slow", "also slow"]]


def test_the_more_urgent_join_a_batch_of_the_less_urgent():
    """They would be next anyway, and a batch costs hardly more for them."""
    inbox = Inbox()
    inbox.put([task("old")])
    inbox.put([task("other", 9, OTHER), task("other", 9, OTHER)])
    inbox.take()
    inbox.put([task("new", 1)])
    assert jobs(inbox.take()) == ["old", "new"]


def test_nobody_waits_longer_than_the_others_are_more_urgent():
    """A new urgent task before every turn: the one that is not urgent has its turn after as many."""
    for priority in (0, 1, 7):
        inbox, before = Inbox(), 0
        inbox.put([task("patient", member=OTHER)])
        while True:
            inbox.put([task("urgent", priority)])
            if "patient" in jobs(inbox.take()):
                break
            before += 1
            assert before < 50
        assert before == priority


def test_of_equals_nobody_is_overtaken():
    inbox, order = Inbox(), []
    for number in range(20):
        inbox.put([task(number, member=object())])
        if number % 3 == 2:
            order += jobs(inbox.take())
    while batch := inbox.take():
        order += jobs(batch)
    assert order == list(range(20))


def test_what_nobody_wants_is_thrown_away_and_leads_no_batch():
    inbox = Inbox()
    inbox.put([task("gone", 9, wanted=lambda: False), task("here")])
    assert served(inbox) == [["here"]]
    assert len(inbox) == 0


def test_what_has_waited_elsewhere_goes_first_in_its_order():
    inbox = Inbox()
    inbox.put([task(3, member=OTHER)])
    inbox.put_first([task(1, member=object()), task(2, member=object())])
    assert served(inbox) == [[1], [2], [3]]


def test_what_is_put_in_while_somebody_looks_through_is_not_lost():
    inbox, late = Inbox(), []

    def nosy():
        if not late:
            late.append(True)
            inbox.put([task("late", member=OTHER)])
        return True

    inbox.put([task("a", wanted=nosy), task("b")])
    assert served(inbox) == [["a", "b"], ["late"]]


def test_calls_come_one_by_one():
    inbox = Inbox()
    inbox.put([task(1, work="call"), task(2, work="call")])
    assert served(inbox) == [[1], [2]]
