"""A worker: what it makes of failures and of members that exceed their time limit, and the races of
its thread and timers. Batches are in ``test_queue`` and ``test_batch_groups``."""

from __future__ import annotations

import random
import threading
import time

import pytest

from langchain_specfuse.core.values import Failure
from langchain_specfuse.engine import worker as worker_module
from langchain_specfuse.engine.worker import QueuedJob, Worker, worker_for

from .conftest import PATIENCE_S, our_threads, until

STILL_BUSY = Failure("timeout", "still busy with an earlier call that took too long")


class Doubler:
    """Replies with twice the job, or raises it. Waits while its gate is closed."""

    name = "doubler"

    def __init__(self, closed=False):
        self.batches = []
        """(work, size) of every batch."""
        self.gate, self.running = threading.Event(), 0
        if not closed:
            self.gate.set()

    def draft(self, jobs):
        return self.doubled("draft", jobs)

    def score(self, jobs):
        return self.doubled("score", jobs)

    def doubled(self, work, jobs):
        self.running += 1
        try:
            assert self.running == 1
            self.batches.append((work, len(jobs)))
            self.gate.wait(2 * PATIENCE_S)
            for job in jobs:
                if isinstance(job, BaseException):
                    raise job
            return [job * 2 for job in jobs]
        finally:
            self.running -= 1


def ask(worker, member, *jobs, work="draft", **options):
    """Queue jobs, all at once; the list returned fills with their replies."""
    replies = []
    worker.put(*(QueuedJob(member, work, job, replies.append, **options) for job in jobs))
    return replies


def hanging(worker, timeout_s=0.03, **options):
    """A member that has exceeded its time limit in its first job, and the replies to that job."""
    member = Doubler(closed=True)
    replies = ask(worker, member, 1, timeout_s=timeout_s, **options)
    assert until(lambda: replies)
    return member, replies


def test_jobs_that_wait_together_are_one_batch_with_replies_in_order(device):
    worker, member = Worker(device), Doubler(closed=True)
    first = ask(worker, member, 1)
    assert until(lambda: member.batches)
    rest = [ask(worker, member, k) for k in range(2, 9)]
    scores = ask(worker, member, 10, 11, work="score")
    member.gate.set()
    assert until(lambda: len(scores) == 2)
    assert [first, *rest] == [[k * 2] for k in range(1, 9)]
    assert scores == [20, 22]
    assert member.batches == [("draft", 1), ("draft", 7), ("score", 2)]


@pytest.mark.parametrize(
    "error", [RuntimeError("x"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()], ids=repr
)
def test_whatever_a_member_raises_is_a_failure_and_the_worker_goes_on(device, error):
    worker, member = Worker(device), Doubler()
    replies = ask(worker, member, error)
    assert until(lambda: replies)
    (failure,) = replies
    assert (failure.kind, failure.cause) == ("error", error)
    assert type(error).__name__ in failure.message
    later = ask(worker, member, 21)
    assert until(lambda: later == [42])


# --- members that exceed their time limit ---------------------------------------------------------


def test_a_hanging_member_fails_at_its_limit_and_the_worker_goes_on_without_it(device):
    worker = Worker(device)
    other = ask(worker, fine := Doubler(), 2)
    member, late = hanging(worker)
    assert late == [Failure("timeout", "did not answer within member_timeout=0.03 s")]
    assert until(lambda: other == [4])
    again, another = ask(worker, member, 3, timeout_s=0.03), ask(worker, fine, 4)
    assert until(lambda: again == [STILL_BUSY] and another == [8])
    member.gate.set()
    back = ask(worker, member, 5)
    assert until(lambda: back == [10])
    # The job that failed while the member hung never reached it.
    assert (len(late), member.batches) == (1, [("draft", 1)] * 2)


class ManualTimer:
    """Stands in for ``threading.Timer``; expires when the test says so."""

    def __init__(self, after_s, act, arguments):
        self.after_s, self.expire = after_s, lambda: act(*arguments)

    def start(self):
        self.started.append(self)

    def cancel(self):
        pass


@pytest.fixture
def timers(monkeypatch):
    """The timers that were started."""
    started = []
    monkeypatch.setattr(threading, "Timer", type("Timer", (ManualTimer,), {"started": started}))
    return started


def test_no_job_waits_twice_for_the_same_call(device, timers):
    """The time for which the call has lasted counts for jobs that come later."""
    worker, member = Worker(device), Doubler(closed=True)
    ask(worker, member, 1, timeout_s=600)
    assert until(lambda: member.batches)
    timers[0].expire()
    again = ask(worker, member, 2, timeout_s=600)
    assert until(lambda: len(timers) == 2)
    assert timers[1].after_s < 600
    timers[1].expire()
    assert again == [STILL_BUSY]
    member.gate.set()


def test_a_batch_that_waits_fails_at_its_limit_though_its_first_job_is_no_longer_wanted(
    device, timers
):
    worker, member = Worker(device), Doubler(closed=True)
    ask(worker, member, 1, timeout_s=600)
    assert until(lambda: member.batches)
    timers[0].expire()
    wanted, replies = [True], []
    first = QueuedJob(member, "draft", 2, replies.append, lambda: bool(wanted), timeout_s=600)
    worker.put(first, QueuedJob(member, "draft", 3, replies.append, timeout_s=600))
    assert until(lambda: len(timers) == 2)
    wanted.clear()
    ask(worker, member, 4, timeout_s=600)
    assert until(lambda: len(timers) == 3)
    timers[1].expire()
    assert replies == [STILL_BUSY]
    member.gate.set()


def test_unwanted_jobs_do_not_pile_up_behind_a_hanging_member(device):
    """When the member returns, it gets only the jobs that are still wanted."""
    worker = Worker(device)
    current, replies = [0], []
    member, _ = hanging(worker)
    for number in range(1, 30):
        current[0] = number
        wanted = lambda number=number: current[0] == number
        worker.put(QueuedJob(member, "draft", number, replies.append, wanted))
    member.gate.set()
    assert until(lambda: replies == [58])
    assert member.batches == [("draft", 1)] * 2


def test_the_end_of_one_wait_does_not_end_a_later_wait(device, timers):
    """A job waits for a hanging call, and then for another one of the same member."""
    worker, member = Worker(device), Doubler(closed=True)
    ask(worker, member, 1, timeout_s=600)
    assert until(lambda: member.batches)
    timers[0].expire()
    drafts = ask(worker, member, 2, timeout_s=600)
    scores = ask(worker, member, 3, timeout_s=600, work="score")
    assert until(lambda: len(timers) == 3)
    first_gate, member.gate = member.gate, threading.Event()
    first_gate.set()
    assert until(lambda: len(timers) == 4)
    timers[3].expire()
    assert drafts == [Failure("timeout", "did not answer within member_timeout=600 s")]
    assert until(lambda: len(timers) == 5)
    timers[2].expire()
    member.gate.set()
    assert until(lambda: scores == [6])


def test_calls_for_a_hanging_member_wait_until_it_returns(device):
    worker, seen = Worker(device), []
    member, _ = hanging(worker)
    worker.call(member, lambda: seen.append(member.running))
    other = ask(worker, Doubler(), 1)
    assert until(lambda: other)
    assert seen == []
    member.gate.set()
    assert until(lambda: seen)
    assert seen == [0]


def test_a_reply_that_meets_its_time_limit_is_delivered_once(device):
    """Either the thread or the timer delivers, and the member gets further jobs."""
    rng = random.Random(1)

    class Slow(Doubler):
        def draft(self, jobs):
            time.sleep(0.003)
            return super().draft(jobs)

    worker, member = Worker(device), Slow()
    for _ in range(80):
        replies = ask(worker, member, 1, timeout_s=0.003 + rng.uniform(-0.0006, 0.0006))
        last = ask(worker, member, 2)  # runs after it, whether or not it was given up
        assert until(lambda: replies and last)  # noqa: B023
        assert len(replies) == 1 and last == [4]


# --- one worker per device ------------------------------------------------------------------------


def test_a_device_without_work_has_no_worker(device):
    replies = []
    worker_for(device).put(QueuedJob(Doubler(), "draft", 1, replies.append))
    assert until(lambda: replies and device not in worker_module._WORKERS)
    worker_for(device).put(QueuedJob(Doubler(), "draft", 2, replies.append))
    assert until(lambda: replies == [2, 4])


def test_a_device_whose_member_is_still_in_a_call_keeps_its_worker(device):
    """A second worker would call the member while it is busy."""
    member, replies = Doubler(closed=True), []
    worker_for(device).put(QueuedJob(member, "draft", 1, replies.append, timeout_s=0.03))
    assert until(lambda: replies)
    time.sleep(5 * worker_module.IDLE_S)
    worker_for(device).put(QueuedJob(member, "draft", 2, replies.append))
    member.gate.set()
    assert until(lambda: replies[1:] == [4])


def test_a_device_has_one_worker_at_a_time_however_often_it_falls_idle(device, monkeypatch):
    """Doubler asserts that nobody calls it while it is busy."""
    monkeypatch.setattr(worker_module, "IDLE_S", 0.0005)
    member, replies, rng = Doubler(), [], random.Random(1)

    def asking(pauses):
        for pause in pauses:
            worker_for(device).put(QueuedJob(member, "draft", 1, replies.append))
            time.sleep(pause)

    threads = [
        threading.Thread(target=asking, args=([rng.uniform(0, 0.002) for _ in range(100)],))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert until(lambda: len(replies) == 400)
    assert replies == [2] * 400
    assert until(lambda: device not in worker_module._WORKERS)


# --- finalizers and the end -----------------------------------------------------------------------


def test_a_closed_worker_drops_jobs_and_late_replies_and_lets_the_running_batch_end(device):
    worker, member = Worker(device), Doubler(closed=True)
    slow, late = hanging(worker)
    running = ask(worker, member, 1)
    assert until(lambda: member.running)
    waiting = ask(worker, member, 2)
    threading.Timer(0.05, member.gate.set).start()
    worker.close()
    assert member.running == 0
    after = ask(worker, member, 3)
    slow.gate.set()
    assert until(lambda: f"specfuse-{device}" not in our_threads()), our_threads()
    assert (running, waiting, after, len(member.batches), len(late)) == ([], [], [], 1, 1)
