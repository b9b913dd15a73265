"""Members that share what does their work: their jobs are one batch, and one's trouble is not another's."""

from __future__ import annotations

import threading

import pytest

from langchain_specfuse.core.member import Kin, kin_of
from langchain_specfuse.core.values import Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.desk import Desk, desk_for
from langchain_specfuse.engine.task import Task
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import BLUE, GREY, fresh_device, query, until


class Shared:
    """Tells which jobs came together. Raises where a job is an error; waits while its gate is shut."""

    def __init__(self):
        self.calls, self.gate = [], threading.Event()
        self.gate.set()

    def draft(self, jobs):
        self.calls.append([(member.name, job) for member, job in jobs])
        return self.said(jobs)

    def score(self, jobs):
        return self.draft(jobs)

    def said(self, jobs):
        self.gate.wait(10)
        for _, job in jobs:
            if isinstance(job, BaseException):
                raise job
        return [f"{member.name}{job}" for member, job in jobs]


class Sharing:
    def __init__(self, name, kin):
        self.name, self.kin, self.alone = name, kin, []

    def draft(self, jobs):
        self.alone.append(list(jobs))
        return self.kin.said([(self, job) for job in jobs]) if self.kin else [f"{self.name}{job}" for job in jobs]

    score = draft


def put(desk, *told, timeout_s=None):
    """One task per (member, work, job), all at once; the replies come in the list returned, with their job."""
    replies = []
    desk.put(*(Task(m, work, job, lambda r, m=m, j=job: replies.append((m.name, j, r)), timeout_s=timeout_s)
               for m, work, job in told))  # fmt: skip
    return replies


@pytest.fixture
def trio():
    kin = Shared()
    return kin, *(Sharing(name, kin) for name in "abc")


def test_jobs_of_kin_are_one_batch_with_replies_to_the_right_member(device, trio):
    kin, a, b, c = trio
    desk = Desk(device)
    replies = put(desk, (a, "draft", 1), (b, "score", 9), (c, "draft", 2), (b, "draft", 3), (a, "draft", 4))
    assert until(lambda: len(replies) == 5)
    assert kin.calls == [[("a", 1), ("c", 2), ("b", 3), ("a", 4)]]
    assert b.alone == [[9]]
    assert sorted(replies) == [(m, j, f"{m}{j}") for m, j in [("a", 1), ("a", 4), ("b", 3), ("b", 9), ("c", 2)]]
    assert list(desk.batches) == [("a+c+b", "draft", 4), ("b", "score", 1)]


def test_a_member_alone_is_asked_itself(device, trio):
    kin, a, *_ = trio
    replies = put(Desk(device), (a, "draft", 1), (a, "draft", 2))
    assert until(lambda: len(replies) == 2)
    assert kin.calls == [] and a.alone == [[1, 2]]


def test_members_with_other_kin_or_none_are_batches_of_their_own(device, trio):
    _, a, b, _ = trio
    other, alone = Sharing("x", Shared()), Sharing("y", None)
    replies = put(desk := Desk(device), *((m, "draft", 0) for m in (a, other, alone, b)))
    assert until(lambda: len(replies) == 4)
    assert list(desk.batches) == [("a+b", "draft", 2), ("x", "draft", 1), ("y", "draft", 1)]


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(1), MemoryError()], ids=repr)
def test_whose_job_fails_the_batch_fails_alone(device, trio, error):
    _, a, b, c = trio
    replies = put(Desk(device), (a, "draft", 1), (b, "draft", error), (c, "draft", 3), (a, "draft", 4))
    assert until(lambda: len(replies) == 4)
    told = {(name, job): reply for name, job, reply in replies}
    assert told["b", error].cause is error
    assert (told["a", 1], told["a", 4], told["c", 3]) == ("a1", "a4", "c3")


def test_a_wrong_number_of_replies_is_asked_for_again_member_by_member(device, trio):
    kin, a, b, _ = trio
    kin.draft = lambda jobs: ["too few"]
    replies = put(Desk(device), (a, "draft", 1), (b, "draft", 2))
    assert until(lambda: len(replies) == 2)
    assert sorted(replies) == [("a", 1, "a1"), ("b", 2, "b2")]


def test_while_kin_hang_none_of_them_is_asked_for_anything(device, trio):
    """They share what does the work: a second call would meet the first in it."""
    kin, a, b, c = trio
    kin.gate.clear()
    desk, called = Desk(device), []
    hanging = put(desk, (a, "draft", 1), (b, "draft", 2), timeout_s=0.05)
    assert until(lambda: len(hanging) == 2)
    assert {reply.kind for _, _, reply in hanging} == {"timeout"}
    late = put(desk, (c, "draft", 3), timeout_s=0.05)
    desk.put(Task(c, "call", lambda: called.append(True), lambda _: None))
    other = put(desk, (Sharing("x", None), "draft", 5))
    assert until(lambda: late and other)
    assert late[0][2].kind == "timeout" and other == [("x", 5, "x5")] and not called and not c.alone
    kin.gate.set()
    assert until(lambda: called)
    again = put(desk, (c, "draft", 6))
    assert until(lambda: again == [("c", 6, "c6")])


def test_a_member_that_comes_by_its_kin_while_it_hangs_comes_back_all_the_same(device):
    """The kin is known only when a member is loaded, which its first job may do."""
    kin, late = Shared(), Sharing("late", None)

    def loads(jobs):
        late.kin = kin
        return kin.said([(late, job) for job in jobs])

    kin.gate.clear()
    late.draft, called, desk = loads, [], Desk(device)
    replies = put(desk, (late, "draft", 1), timeout_s=0.05)
    assert until(lambda: replies)
    kin.gate.set()
    assert until(lambda: not desk._hung)
    desk.put(Task(late, "call", lambda: called.append(True), lambda _: None))
    assert until(lambda: called)


class Scripts:
    """Scripted members as kin: every job is answered by its own member."""

    def draft(self, jobs):
        return [member.draft([job])[0] for member, job in jobs]

    def score(self, jobs):
        return [member.score([job])[0] for member, job in jobs]


def test_the_first_jobs_of_an_answer_are_one_batch_too_and_the_answer_is_the_same():
    members = [ScriptedMember(text, name=f"m{k}", device=fresh_device()) for k, text in enumerate((BLUE, GREY))]
    truth = "".join(one.text for one in Ensemble(members).rounds(query(), Settings(segment_tokens=4)))
    device, kin = fresh_device(), Scripts()
    shared = [ScriptedMember(text, name=f"m{k}", device=device) for k, text in enumerate((BLUE, GREY))]
    for member in shared:
        member.kin = kin
    assert isinstance(kin, Kin) and kin_of(shared[0]) is kin
    assert "".join(one.text for one in Ensemble(shared).rounds(query(), Settings(segment_tokens=4))) == truth
    told = [(names, size) for names, work, size in desk_for(device).batches if work in ("draft", "score")]
    assert told and set(told) == {("m0+m1", 2)}
