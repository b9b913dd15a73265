"""A worker: what it makes of failures, and the races of its thread. Batches are in ``test_queue``
and ``test_batch_groups``, time limits in ``test_limits`` and ``test_timeouts``."""

from __future__ import annotations

import random
import threading
import time

import pytest

from langchain_specfuse.engine import worker as worker_module
from langchain_specfuse.engine.worker import QueuedJob, Worker, worker_for

from .conftest import PATIENCE_S, our_threads, until


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


def test_unwanted_jobs_do_not_pile_up_behind_a_hanging_member(device):
    """When the member returns, it gets only the jobs that are still wanted."""
    worker = Worker(device)
    current, replies = [0], []
    member = Doubler(closed=True)
    ask(worker, member, 1)
    assert until(lambda: member.running)
    for number in range(1, 30):
        current[0] = number
        wanted = lambda number=number: current[0] == number
        worker.put(QueuedJob(member, "draft", number, replies.append, wanted))
    member.gate.set()
    assert until(lambda: replies == [58])
    assert member.batches == [("draft", 1)] * 2


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
    worker_for(device).put(QueuedJob(member, "draft", 1, replies.append))
    assert until(lambda: member.running)
    time.sleep(5 * worker_module.IDLE_S)
    worker_for(device).put(QueuedJob(member, "draft", 2, replies.append))
    member.gate.set()
    assert until(lambda: replies == [2, 4])


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


def test_a_closed_worker_drops_jobs_and_lets_the_running_batch_end(device):
    worker, member = Worker(device), Doubler(closed=True)
    ask(worker, member, 1)
    assert until(lambda: member.running)
    waiting = ask(worker, member, 2)
    threading.Timer(0.05, member.gate.set).start()
    worker.close()
    assert member.running == 0
    after = ask(worker, member, 3)
    assert until(lambda: f"specfuse-{device}" not in our_threads()), our_threads()
    assert (waiting, after, len(member.batches)) == ([], [], 1)
