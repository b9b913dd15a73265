"""Members that work on each job by itself: the worker hands them their jobs, and waits for none."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from langchain_specfuse.core.values import Failure
from langchain_specfuse.engine.worker import QueuedJob, Worker

from .conftest import until


class Apart:
    """Keeps each job until it is told to reply."""

    name = "apart"

    def __init__(self):
        self.begun = {}
        """Job -> what takes its reply."""
        self.calls = []

    def begin(self, work, job, deliver):
        if isinstance(job, BaseException):
            raise job
        self.begun[job] = deliver

    def draft(self, jobs):
        raise AssertionError("begin is called instead")

    score = draft

    def forget(self, query_id):
        self.calls.append(query_id)


def ask(worker, member, *jobs, **options):
    replies = []
    worker.put(*(QueuedJob(member, "draft", job, replies.append, **options) for job in jobs))
    return replies


@pytest.fixture
def worker(device):
    return Worker(device)


def test_each_reply_is_delivered_when_it_is_there(worker):
    member = Apart()
    replies = ask(worker, member, 1, 2, 3)
    assert until(lambda: len(member.begun) == 3)
    member.begun[2]("two")
    assert replies == ["two"]
    later = ask(worker, member, 4)
    assert until(lambda: 4 in member.begun), "a job that hangs keeps no later one waiting"
    member.begun[4]("four")
    member.begun[1]("one")
    assert (replies, later) == (["two", "one"], ["four"])


def test_a_second_reply_to_a_job_is_dropped(worker):
    member = Apart()
    replies = ask(worker, member, 1)
    assert until(lambda: member.begun)
    member.begun[1]("first")
    member.begun[1]("second")
    assert replies == ["first"]


def test_a_job_that_cannot_begin_fails_alone(worker):
    member = Apart()
    replies = ask(worker, member, OSError("no more threads"), 2)
    assert until(lambda: replies and member.begun)
    assert replies == [Failure("error", "OSError: no more threads")]
    member.begun[2]("two")
    assert replies[1:] == ["two"]


def test_a_job_that_is_no_longer_needed_does_not_begin(worker):
    member = Apart()
    ask(worker, member, 1, is_needed=lambda: False)
    ask(worker, member, 2)
    assert until(lambda: member.begun)
    assert list(member.begun) == [2]


def test_a_call_waits_for_the_jobs_under_way_and_later_jobs_wait_for_it(worker):
    """So ``unload`` disturbs no answer."""
    member = Apart()
    ask(worker, member, 1, 2)
    assert until(lambda: len(member.begun) == 2)
    worker.call(member, partial(member.calls.append, "unloaded"))
    ask(worker, member, 3)
    other = Apart()
    ask(worker, other, 1)
    assert until(lambda: other.begun), "other members of the device are not held up"
    member.begun[1]("one")
    assert not member.calls and 3 not in member.begun
    member.begun[2]("two")
    assert until(lambda: 3 in member.begun)
    assert member.calls == ["unloaded"]


def test_a_call_is_not_overtaken_by_the_next_job_of_an_answer_under_way(worker):
    """Otherwise ``unload`` might have to wait for the end of the answer."""
    member = Apart()

    def ask_on(_):
        ask(worker, member, "second")
        assert until(lambda: member.calls or "second" in member.begun)

    worker.put(QueuedJob(member, "draft", "first", ask_on))
    assert until(lambda: member.begun)
    worker.call(member, lambda: member.calls.append(list(member.begun)))
    other = Apart()
    ask(worker, other, 1)
    assert until(lambda: other.begun), "so the call has been seen, and waits"
    member.begun["first"]("one")
    assert until(lambda: "second" in member.begun)
    assert until(lambda: member.calls)
    assert member.calls == [["first"]]


def test_an_answer_is_forgotten_while_others_are_under_way(worker):
    member = Apart()
    ask(worker, member, 1)
    assert until(lambda: member.begun)
    worker.forget(member, "over")
    assert until(lambda: member.calls == ["over"])


def test_a_call_does_not_wait_for_a_job_that_nobody_needs(worker):
    """Its answer is over, and it may hang forever."""
    member, is_over = Apart(), threading.Event()
    ask(worker, member, 1, is_needed=lambda: not is_over.is_set())
    assert until(lambda: member.begun)
    worker.call(member, partial(member.calls.append, "unloaded"))
    ask(worker, member, 2)
    other = Apart()
    ask(worker, other, 1)
    assert until(lambda: other.begun), "so the call has been seen, and waits"
    is_over.set()
    worker.forget(member, "over")
    assert until(lambda: 2 in member.begun)
    assert member.calls == ["over", "unloaded"]


def test_a_closed_worker_drops_the_replies(worker):
    member = Apart()
    replies = ask(worker, member, 1)
    assert until(lambda: member.begun)
    worker.close()
    member.begun[1]("too late")
    assert replies == []


class Overridden(Apart):
    """Changes the jobs on their way, as a user's subclass may."""

    def draft(self, jobs):
        self.calls.append(threading.current_thread().name)
        return [f"{job}!" for job in jobs]


def test_a_subclass_that_overrides_draft_is_asked_through_it(worker):
    member = Overridden()
    replies = ask(worker, member, 1, 2)
    assert until(lambda: len(replies) == 2)
    assert replies == ["1!", "2!"] and not member.begun


class Wrapped:
    """Passes everything but drafts to another member."""

    def __init__(self, member):
        self._member = member

    def __getattr__(self, name):
        return getattr(self._member, name)

    def draft(self, jobs):
        return ["wrapped"] * len(jobs)


def test_a_wrapper_of_such_a_member_is_asked_through_its_own_methods(worker):
    member = Apart()
    replies = ask(worker, Wrapped(member), 1)
    assert until(lambda: replies)
    assert replies == ["wrapped"] and not member.begun
