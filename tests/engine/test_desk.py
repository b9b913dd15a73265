"""The desk: batches, order, failures, hanging members, and the races between its thread and its timers."""

from __future__ import annotations

import gc
import random
import threading
import time

import pytest

from langchain_specfuse.core.values import Failure
from langchain_specfuse.engine.desk import Desk, desk_for
from langchain_specfuse.engine.task import Task

from .conftest import our_threads, until


class Doubler:
    """Replies with twice the job. Sleeps on request, raises on request."""

    name = "doubler"

    def __init__(self):
        self.sizes, self.gate, self.running = [], threading.Event(), 0
        self.gate.set()

    def draft(self, jobs):
        self.running += 1
        assert self.running == 1
        self.sizes.append(len(jobs))
        self.gate.wait(10)
        try:
            for job in jobs:
                if isinstance(job, BaseException):
                    raise job
                if isinstance(job, float):
                    time.sleep(job)
            return [job * 2 for job in jobs]
        finally:
            self.running -= 1

    score = draft


def ask(desk, member, *jobs, work="draft", timeout_s=None, wanted=lambda: True):
    """Put one task per job; the replies come in the list returned."""
    replies = []
    desk.put(*(Task(member, work, job, replies.append, wanted, timeout_s) for job in jobs))
    return replies


def test_what_waits_together_is_one_batch_with_replies_in_order(device):
    desk, member = Desk(device), Doubler()
    member.gate.clear()
    first = ask(desk, member, 1)
    assert until(lambda: member.sizes)
    rest = [ask(desk, member, k) for k in range(2, 9)]
    other = ask(desk, member, 10, 11, work="score")
    member.gate.set()
    assert until(lambda: len(other) == 2)
    assert [first, *rest] == [[k * 2] for k in range(1, 9)]
    assert other == [20, 22]
    assert list(desk.batches) == [("doubler", "draft", 1), ("doubler", "draft", 7), ("doubler", "score", 2)]


def test_members_take_turns_the_oldest_task_first(device):
    desk, one, two = Desk(device), Doubler(), Doubler()
    one.gate.clear()
    order = []
    tasks = [(one, 1), (two, 2), (one, 3), (two, 4), (one, 5)]
    desk.put(Task(one, "draft", 0, order.append))
    assert until(lambda: one.sizes)
    for member, job in tasks:
        desk.put(Task(member, "draft", job, order.append))
    one.gate.set()
    assert until(lambda: len(order) == 6)
    assert order == [0, 2, 6, 10, 4, 8]


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit(), MemoryError()], ids=repr
)
def test_whatever_a_member_raises_is_a_failure_and_the_desk_goes_on(device, error):
    desk, member = Desk(device), Doubler()
    replies = ask(desk, member, error)
    assert until(lambda: replies)
    (failure,) = replies
    assert (failure.kind, failure.cause) == ("error", error)
    assert type(error).__name__ in failure.message
    later = ask(desk, member, 21)
    assert until(lambda: later == [42])


def test_an_error_that_says_what_kind_it_is_is_believed_if_that_kind_exists(device):
    desk, member = Desk(device), Doubler()
    known, unknown = RuntimeError("long"), RuntimeError("odd")
    known.kind, unknown.kind = "overflow", 7
    one = ask(desk, member, known)
    assert until(lambda: one)
    two = ask(desk, member, unknown)
    assert until(lambda: two)
    assert [one[0].kind, two[0].kind] == ["overflow", "error"]


@pytest.mark.parametrize("replies", [[], [1, 2, 3], None, 5])
def test_a_wrong_number_of_replies_fails_the_whole_batch(device, replies):
    class Odd:
        def draft(self, jobs):
            return replies

    desk = Desk(device)
    told = ask(desk, Odd(), 1, 2)
    assert until(lambda: len(told) == 2)
    assert {reply.kind for reply in told} == {"error"}


def test_a_receiver_that_raises_does_not_stop_the_desk(device, caplog):
    desk, member = Desk(device), Doubler()

    def bad(reply):
        raise SystemExit("receiver")

    desk.put(Task(member, "draft", 1, bad))
    later = ask(desk, member, 2, 3)
    assert until(lambda: sorted(later) == [4, 6])
    assert "could not be delivered" in caplog.text


def test_what_nobody_wants_any_more_is_not_done(device):
    desk, member = Desk(device), Doubler()
    member.gate.clear()
    first = ask(desk, member, 1)
    assert until(lambda: member.sizes)
    unwanted = ask(desk, member, 2, wanted=lambda: False)
    last = ask(desk, member, 3)
    member.gate.set()
    assert until(lambda: last)
    assert (first, unwanted, last, member.sizes) == ([2], [], [6], [1, 1])


def test_the_thread_ends_when_idle_and_the_next_task_starts_another(device):
    desk, member = Desk(device), Doubler()
    for _ in range(3):
        replies = ask(desk, member, 4)
        assert until(lambda: replies == [8])  # noqa: B023
        assert until(lambda: f"specfuse-{device}" not in our_threads())


def test_no_task_is_lost_when_the_thread_ends_just_as_it_comes(device, monkeypatch):
    from langchain_specfuse.engine import desk as module

    monkeypatch.setattr(module, "IDLE_S", 0.001)
    desk, member = Desk(device), Doubler()
    rng = random.Random(0)
    for k in range(300):
        replies = ask(desk, member, k)
        assert until(lambda: replies), f"task {k} was lost"  # noqa: B023
        time.sleep(rng.choice([0, 0.0005, 0.001, 0.0015]))


# --- hanging ----------------------------------------------------------------------------------------------------


def test_a_hanging_member_fails_after_its_limit_and_the_desk_goes_on_without_it(device):
    desk, hung, fine = Desk(device), Doubler(), Doubler()
    hung.gate.clear()
    late = ask(desk, hung, 1, timeout_s=0.05)
    other = ask(desk, fine, 2)
    assert until(lambda: late and other)
    assert (late[0].kind, other) == ("timeout", [4])
    assert "0.05" in late[0].message
    again = ask(desk, hung, 3, timeout_s=0.05)
    assert until(lambda: again)
    assert again[0] == Failure("timeout", "still busy with a call that took too long before")
    hung.gate.set()
    assert until(lambda: not desk._hung)
    assert len(late) == 1
    back = ask(desk, hung, 4)
    assert until(lambda: back == [8])


def test_nobody_fails_because_a_member_hangs_at_somebody_elses_limit(device):
    """Who waits longer, or without end, still gets its reply; who waits less has waited long enough."""
    desk, hung = Desk(device), Doubler()
    hung.gate.clear()
    late = ask(desk, hung, 1, timeout_s=0.05)
    assert until(lambda: late)
    patient, longer, shorter = ask(desk, hung, 2), ask(desk, hung, 3, timeout_s=9.0), ask(desk, hung, 4, timeout_s=0.01)
    middling = ask(desk, hung, 5, timeout_s=0.15)
    assert until(lambda: shorter and middling)
    assert (shorter[0].kind, middling[0].kind, patient, longer) == ("timeout", "timeout", [], [])
    hung.gate.set()
    assert until(lambda: patient and longer)
    assert (late[0].kind, patient, longer, len(shorter), len(middling)) == ("timeout", [4], [6], 1, 1)
    assert sorted(hung.sizes) == [1, 1, 1]  # what failed was never done


def test_nobody_waits_twice_for_the_same_call(device):
    desk, hung = Desk(device), Doubler()
    hung.gate.clear()
    late = ask(desk, hung, 1, timeout_s=1.0)
    assert until(lambda: late)
    again = ask(desk, hung, 2, timeout_s=1.0)
    assert until(lambda: again, timeout_s=0.5)  # that call has lasted so long already
    hung.gate.set()
    assert until(lambda: not desk._hung)


def test_a_timer_of_work_that_is_done_changes_nothing_though_the_member_hangs_again(device):
    desk, hung = Desk(device), Doubler()
    hung.gate.clear()
    last = ask(desk, hung, 3, timeout_s=0.02)
    assert until(lambda: last)
    done, told = Task(hung, "draft", 2, lambda reply: told.append(reply), timeout_s=0.01), []
    desk._still_out([done])
    assert told == []
    hung.gate.set()
    assert until(lambda: not desk._hung)


def test_who_stays_is_told_to_be_late_and_delivers_when_it_is_back(device):
    desk, slow, fine = Desk(device), Doubler(), Doubler()
    slow.gate.clear()
    told = []
    desk.put(Task(slow, "draft", 1, told.append, timeout_s=0.03, stays=True))
    assert until(lambda: told)
    assert told[0] == Failure("late", "did not answer within member_timeout=0.03 s")
    other = ask(desk, fine, 2)
    assert until(lambda: other == [4])
    slow.gate.set()
    assert until(lambda: told[1:] == [2])


def test_each_is_told_in_its_own_words_that_it_took_too_long(device):
    """Also when both waited together: who stays is late, who does not has failed."""
    desk, slow = Desk(device), Doubler()
    slow.gate.clear()
    first = ask(desk, slow, 0, timeout_s=0.03)
    staying, leaving = [], []
    assert until(lambda: slow.running)
    desk.put(
        Task(slow, "draft", 1, staying.append, timeout_s=0.06, stays=True),
        Task(slow, "draft", 2, leaving.append, timeout_s=0.06),
    )
    assert until(lambda: staying and leaving)
    assert (first[0].kind, staying[0].kind, leaving[0].kind) == ("timeout", "late", "timeout")
    slow.gate.set()
    assert until(lambda: staying[1:] == [2])
    assert (len(leaving), sorted(slow.sizes)) == (1, [1, 1])


def test_jobs_for_a_straggler_do_not_pile_up(device):
    """While it is out, what nobody wants any more is forgotten; when it is back, it does the last one only."""
    desk, slow = Desk(device), Doubler()
    slow.gate.clear()
    current, told = [0], []

    def put(number):
        current[0] = number
        desk.put(Task(slow, "draft", number, told.append, lambda: current[0] == number, 0.03, stays=True))
        assert until(lambda: len(told) == number)

    for number in range(1, 50):
        put(number)
    assert {failure.kind for failure in told} == {"late"}
    (absence,) = desk._hung.values()
    assert len(absence.waiting) == 1
    slow.gate.set()
    assert until(lambda: told[-1] == 98)
    assert (told[49:], slow.sizes) == ([98], [1, 1])


def test_a_late_reply_is_not_delivered_by_a_closed_desk(device):
    desk, slow = Desk(device), Doubler()
    slow.gate.clear()
    told = []
    desk.put(Task(slow, "draft", 1, told.append, timeout_s=0.02, stays=True))
    assert until(lambda: told)
    desk.close()
    slow.gate.set()
    assert until(lambda: not slow.running)
    time.sleep(0.02)
    assert [failure.kind for failure in told] == ["late"]


def test_calls_for_a_hanging_member_wait_until_it_is_back_and_never_run_beside_it(device):
    desk, hung, fine = Desk(device), Doubler(), Doubler()
    hung.gate.clear()
    seen = []
    late = ask(desk, hung, 1, timeout_s=0.03)
    assert until(lambda: late)
    desk.put(Task(hung, "call", lambda: seen.append(hung.running), lambda _: None))
    other = ask(desk, fine, 1)
    assert until(lambda: other)
    assert seen == []
    hung.gate.set()
    assert until(lambda: seen)
    assert seen == [0]


def test_nobody_fails_at_somebody_elses_limit(device):
    desk, member = Desk(device), Doubler()
    member.gate.clear()
    first = ask(desk, member, 0)
    assert until(lambda: member.sizes)
    patient, hasty = ask(desk, member, 0.2), ask(desk, member, 0.2, timeout_s=0.05)
    member.gate.set()
    assert until(lambda: patient and hasty)
    assert (first, patient, hasty[0].kind) == ([0], [0.4], "timeout")
    assert until(lambda: not desk._hung)


def test_a_reply_and_its_time_limit_that_meet_are_delivered_once(device):
    """The batch takes as long as it may: whoever is first, one delivers, and the member is not marked for ever."""
    desk, member = Desk(device), Doubler()
    rng = random.Random(1)
    for _ in range(80):
        replies = ask(desk, member, 0.003, timeout_s=0.003 + rng.uniform(-0.0006, 0.0006))
        assert until(lambda: replies)  # noqa: B023
        assert until(lambda: not desk._hung)
        assert len(replies) == 1
    time.sleep(0.02)
    assert not desk._hung
    last = ask(desk, member, 1)
    assert until(lambda: last == [2])


def test_a_timer_that_fires_after_the_reply_changes_nothing(device):
    desk, member = Desk(device), Doubler()
    batch = [Task(member, "draft", 1, lambda reply: pytest.fail("delivered twice"), timeout_s=9.0)]
    done = ask(desk, member, 1)
    assert until(lambda: done)
    desk._give_up(batch, time.monotonic())
    assert not desk._hung


# --- finalizers and the end -------------------------------------------------------------------------------------


def test_a_finalizer_may_put_work_in_while_the_desk_looks_through_its_inbox(device):
    """A forgotten iterator is closed by the garbage collector, on any thread, also inside the desk's own lock."""
    desk, member = Desk(device), Doubler()
    late, done = [], []

    def nosy():
        if not late:
            late.append(True)
            desk.put(Task(member, "call", lambda: done.append("forgotten"), lambda _: None))
        return True

    replies = ask(desk, member, *range(20), wanted=nosy)
    assert until(lambda: len(replies) == 20 and done)
    assert sorted(replies) == [2 * k for k in range(20)]
    gc.collect()


def test_a_closed_desk_takes_no_work_and_lets_the_running_batch_end(device):
    desk, member = Desk(device), Doubler()
    member.gate.clear()
    running = ask(desk, member, 1)
    assert until(lambda: member.running)
    waiting = ask(desk, member, 2)
    threading.Timer(0.05, member.gate.set).start()
    desk.close()
    assert member.running == 0
    late = ask(desk, member, 3)
    time.sleep(0.02)
    assert (running, waiting, late, member.sizes) == ([], [], [], [1])


def test_one_desk_per_device(device):
    found = []
    threads = [threading.Thread(target=lambda: found.append(desk_for(device))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
