"""The work of members that wait for others: a thread for each job, as many as the member allows."""

from __future__ import annotations

import threading
from collections import deque
from functools import partial

import pytest

from langchain_specfuse.core.call import interrupted_by, note_arrival
from langchain_specfuse.core.values import Failure
from langchain_specfuse.engine import calls as calls_module
from langchain_specfuse.engine.calls import Calls, Task
from langchain_specfuse.errors import MemberError

from .conftest import our_threads, until


class Member:
    name = "m"
    max_concurrency = None


class Work:
    """Waits until it is told to reply, or is interrupted."""

    def __init__(self, query_id="q", is_exclusive=False):
        self.gate, self.began, self.ended = threading.Event(), threading.Event(), False
        self.replies = []
        self.task = Task(self.wait, self.replies.append, query_id, is_exclusive=is_exclusive)

    def wait(self):
        self.began.set()
        try:
            with interrupted_by(self.gate.set):
                self.gate.wait(30)
            note_arrival()
            return "done"
        finally:
            self.ended = True


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def calls(member):
    return Calls("m", lambda: member.max_concurrency)


def begun(calls, *works):
    for work in works:
        calls.begin(work.task)
    return works


def test_each_reply_is_delivered_when_it_is_there(calls):
    first, second = begun(calls, Work(), Work())
    second.gate.set()
    assert until(lambda: second.replies == ["done"])
    assert first.began.wait(5) and not first.replies
    first.gate.set()
    assert until(lambda: first.replies == ["done"])


def test_at_most_max_concurrency_are_under_way_and_a_closed_one_makes_room_at_once(calls, member):
    member.max_concurrency = 1
    first, second, third = begun(calls, Work(), Work(), Work())
    assert first.began.wait(5) and not second.began.is_set()
    assert second.task.last is None, "its clock has not started"
    calls.close(first.task)
    assert second.began.wait(5)
    calls.close(third.task)
    second.gate.set()
    assert until(lambda: second.replies == ["done"])
    assert until(lambda: first.ended)
    assert not third.began.is_set() and not first.replies and not third.replies


def test_what_a_job_raises_is_its_failure(calls):
    replies = []

    def fail():
        raise SystemExit(1)

    calls.begin(Task(fail, replies.append))
    assert until(lambda: replies)
    assert isinstance(replies[0], Failure) and "SystemExit" in replies[0].message


def test_a_receiver_that_raises_hurts_nobody_else(calls, caplog):
    def bad(reply):
        raise RuntimeError("no")

    replies = []
    calls.begin(Task(lambda: 1, bad))
    calls.begin(Task(lambda: 2, replies.append))
    assert until(lambda: replies == [2])


def test_where_the_system_has_no_room_for_a_thread_the_job_fails(calls, monkeypatch):
    """As CPython says in a container with a limit of processes, and while it shuts down."""

    def refuse(function, name=""):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(calls_module, "start", refuse)
    replies = []
    calls.begin(Task(lambda: 1, replies.append))
    assert replies[0].kind == "error" and "can't start new thread" in replies[0].message


def test_a_thread_without_work_takes_the_next_and_ends_after_a_while(calls, monkeypatch):
    idle, threads, others = deque(), [], set(threading.enumerate())
    monkeypatch.setattr(calls_module, "_IDLE", idle)
    for idle_s in (30.0, 30.0, 0.01):
        begun(calls, work := Work())
        assert work.began.wait(5)
        ours = {thread for thread in threading.enumerate() if thread.name == "specfuse-m"}
        threads += ours - others
        monkeypatch.setattr(calls_module, "IDLE_S", idle_s)
        work.gate.set()
        if idle_s > 1:
            assert until(lambda: idle)
    assert len(set(threads)) == 1
    assert until(lambda: not threads[0].is_alive())


def test_a_query_is_forgotten_when_none_of_its_work_is_under_way(calls):
    """Otherwise what is freed would be in use."""
    forgotten = []
    one, other, another_query = begun(calls, Work("a"), Work("a"), Work("b"))
    assert one.began.wait(5) and other.began.wait(5)
    calls.forget("a", lambda: forgotten.append((one.ended, other.ended)))
    assert until(lambda: forgotten == [(True, True)])
    assert not one.replies and not other.replies
    calls.forget("c", partial(forgotten.append, "c"))
    assert until(lambda: forgotten[1:] == ["c"])
    another_query.gate.set()
    assert until(lambda: another_query.replies == ["done"])


def test_an_exclusive_call_waits_for_work_under_way_and_later_work_waits_for_it(calls):
    """So ``unload`` disturbs no answer."""
    first, unload, later = begun(calls, Work(), Work(is_exclusive=True), Work())
    assert first.began.wait(5)
    assert not unload.began.wait(0.05)
    first.gate.set()
    assert unload.began.wait(5) and not later.began.wait(0.05)
    unload.gate.set()
    assert later.began.wait(5)
    later.gate.set()
    assert until(lambda: later.replies == ["done"])


def test_work_that_was_closed_ends_where_it_next_notes_an_arrival(calls):
    errors, arrived = [], threading.Event()

    def read():
        try:
            while True:
                note_arrival()
                arrived.set()
        except MemberError as error:
            errors.append(error)
            raise

    task = Task(read, errors.append)
    calls.begin(task)
    assert arrived.wait(5)
    calls.close(task)
    assert until(lambda: errors)
    assert "given up" in str(errors[0])
    assert until(lambda: not our_threads()), "its thread ends"
    assert len(errors) == 1, "what it returns is dropped"
