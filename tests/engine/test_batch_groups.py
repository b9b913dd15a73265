"""Members of a batch group share a batch, but not their failures."""

from __future__ import annotations

import threading

import pytest

from langchain_specfuse.core.member import BatchGroup
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.worker import QueuedJob, Worker
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import BLUE, GREY, fresh_device, query, until


class Group:
    """Records which jobs came together. Raises where a job is an error; waits while its gate is
    closed."""

    def __init__(self):
        self.calls, self.gate = [], threading.Event()
        self.gate.set()

    def draft(self, jobs):
        self.calls.append([(member.name, job) for member, job in jobs])
        return self.replies(jobs)

    score = draft

    def replies(self, jobs):
        self.gate.wait(60)
        for _, job in jobs:
            if isinstance(job, BaseException):
                raise job
        return [f"{member.name}{job}" for member, job in jobs]


class Member:
    def __init__(self, name, group):
        self.name, self.batch_group, self.alone = name, group, []

    def draft(self, jobs):
        self.alone.append(list(jobs))
        if self.batch_group is None:
            return [f"{self.name}{job}" for job in jobs]
        return self.batch_group.replies([(self, job) for job in jobs])

    score = draft


def put(worker, *jobs):
    """Queue a job per (member, work, job), all at once; the list returned fills with (member, job,
    reply)."""
    replies = []

    def queued(member, work, job):
        def deliver(reply):
            replies.append((member.name, job, reply))

        return QueuedJob(member, work, job, deliver)

    worker.put(*(queued(*job) for job in jobs))
    return replies


@pytest.fixture
def worker():
    return Worker(fresh_device())


@pytest.fixture
def trio():
    group = Group()
    return group, *(Member(name, group) for name in "abc")


def test_jobs_of_a_group_are_one_batch_with_replies_to_the_right_member(worker, trio):
    group, a, b, c = trio
    replies = put(
        worker, (a, "draft", 1), (b, "score", 9), (c, "draft", 2), (b, "draft", 3), (a, "draft", 4)
    )
    assert until(lambda: len(replies) == 5)
    assert group.calls == [[("a", 1), ("c", 2), ("b", 3), ("a", 4)]] and b.alone == [[9]]
    jobs = [("a", 1), ("a", 4), ("b", 3), ("b", 9), ("c", 2)]
    assert sorted(replies) == [(name, job, f"{name}{job}") for name, job in jobs]


def test_jobs_of_one_member_go_to_the_member_itself(worker, trio):
    group, a, *_ = trio
    replies = put(worker, (a, "draft", 1), (a, "draft", 2))
    assert until(lambda: len(replies) == 2)
    assert group.calls == [] and a.alone == [[1, 2]]


def test_members_with_another_group_or_none_are_batches_of_their_own(worker, trio):
    group, a, b, _ = trio
    other, alone = Member("x", Group()), Member("y", None)
    replies = put(worker, *((m, "draft", 0) for m in (a, other, alone, b)))
    assert until(lambda: len(replies) == 4)
    assert group.calls == [[("a", 0), ("b", 0)]]
    assert (other.alone, alone.alone) == ([[0]], [[0]])


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), MemoryError()], ids=repr)
def test_the_member_whose_job_fails_fails_alone(worker, trio, error):
    _, a, b, c = trio
    replies = put(worker, (a, "draft", 1), (b, "draft", error), (c, "draft", 3), (a, "draft", 4))
    assert until(lambda: len(replies) == 4)
    outcomes = {(name, job): reply for name, job, reply in replies}
    assert outcomes["b", error].cause is error
    assert (outcomes["a", 1], outcomes["a", 4], outcomes["c", 3]) == ("a1", "a4", "c3")


class Scripts:
    """Scripted members as a group: every job is answered by its own member."""

    def __init__(self):
        self.batches = []

    def draft(self, jobs):
        self.batches.append([member.name for member, _ in jobs])
        return [member.draft([job])[0] for member, job in jobs]

    def score(self, jobs):
        self.batches.append([member.name for member, _ in jobs])
        return [member.score([job])[0] for member, job in jobs]


def test_same_answer_in_a_group_whose_first_jobs_are_one_batch_too():
    apart = [
        ScriptedMember(text, name=f"m{k}", device=fresh_device())
        for k, text in enumerate((BLUE, GREY))
    ]
    truth = "".join(
        round.text
        for round in Ensemble(apart).rounds(query(), Settings(method=Method(segment_tokens=4)))
    )
    device, group = fresh_device(), Scripts()
    shared = [
        ScriptedMember(text, name=f"m{k}", device=device) for k, text in enumerate((BLUE, GREY))
    ]
    for member in shared:
        member.batch_group = group
    assert isinstance(group, BatchGroup)
    assert (
        "".join(
            round.text
            for round in Ensemble(shared).rounds(query(), Settings(method=Method(segment_tokens=4)))
        )
        == truth
    )
    assert [member.draft_calls for member in shared] == [len(group.batches) // 2] * 2
    assert set(map(tuple, group.batches)) == {("m0", "m1")}
