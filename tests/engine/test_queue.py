"""Which jobs form the next batch, and how long prompts are read between batches."""

from __future__ import annotations

import pytest

from langchain_specfuse.core.values import Draft, DraftJob, Effort, PrefillPending, Sampling
from langchain_specfuse.engine import worker as worker_module
from langchain_specfuse.engine.worker import PREFILL_SHARE, JobQueue, QueuedJob, Worker

from .conftest import Gated, query, until

ONE, OTHER = object(), object()


def queued(job, member=ONE, wanted=lambda: True, work="draft"):
    return QueuedJob(member, work, job, lambda _: None, wanted)


def batches(queue):
    """All batches, until the queue is empty."""
    formed = []
    while batch := queue.take():
        formed.append([queued.job for queued in batch])
    return formed


def test_the_oldest_job_goes_first_with_all_that_can_share_its_batch():
    queue = JobQueue()
    queue.put([queued(1), queued(2, OTHER), queued(3), queued(5, work="score")])
    queue.put([queued(4, OTHER)])
    assert batches(queue) == [[1, 3], [2, 4], [5]]


def test_unwanted_jobs_are_dropped():
    queue = JobQueue()
    queue.put([queued("gone", wanted=lambda: False), queued("here")])
    assert batches(queue) == [["here"]]
    assert len(queue) == 0


def test_a_job_put_in_while_a_batch_is_chosen_is_not_lost():
    """A finalizer may cancel an answer anywhere, which puts a call into the queue."""
    queue, late = JobQueue(), []

    def putting():
        if not late:
            late.append(True)
            queue.put([queued("late", OTHER)])
        return True

    queue.put([queued("a", wanted=putting), queued("b")])
    assert batches(queue) == [["a", "b"], ["late"]]


# --- prefill in chunks ----------------------------------------------------------------------------


def job(chunks):
    """A job with a prompt of this many chunks."""
    return DraftJob(query(str(chunks)), (), 4, 20, Sampling())


class Reader(Gated):
    """Takes 3 s by its own clock to read a chunk and 1 s to draft. Waits at its gate in its first
    call."""

    chunk_s, draft_s = 3.0, 1.0

    def __init__(self, forgets=False):
        super().__init__("", name="reader")
        self.forgets, self.now = forgets, 0.0
        self.known: dict[str, int] = {}
        self.done: list[tuple[str, str]] = []

    def draft(self, jobs):
        if not self.draft_calls:
            super().draft(jobs)
        return [self.reply(job) for job in jobs]

    def reply(self, job):
        size, known = int(job.query.turns[-1].text), self.known.setdefault(job.query.id, 0)
        if job.prefill_chunks is None:
            known = size
        if known >= size:
            self.now += self.draft_s
            self.done.append(("d", job.query.id))
            return Draft("so", tokens=(1,), logprobs=(-0.5,))
        if not job.prefill_chunks:
            return PrefillPending(size - known)
        self.now += self.chunk_s
        self.done.append(("r", job.query.id))
        if not self.forgets:
            self.known[job.query.id] = known = known + 1
        return PrefillPending(size - known, Effort(read=10, seconds=self.chunk_s))


class Caller:
    """Asks for the next draft as soon as it has one, ``count`` times."""

    def __init__(self, worker, reader, count=1, chunks=0, wanted=lambda: True):
        self.worker, self.reader, self.left, self.wanted = worker, reader, count, wanted
        self.job, self.replies = job(chunks), []

    def ask(self):
        self.worker.put(QueuedJob(self.reader, "draft", self.job, self.take, self.wanted))

    def take(self, reply):
        self.replies.append(reply)
        self.left -= 1
        if self.left:
            self.ask()


@pytest.fixture
def reader(monkeypatch):
    class Clock:
        """The worker's clock, with the reader's seconds."""

        perf_counter = staticmethod(lambda: reader.now)

        def __getattr__(self, name):
            return getattr(time, name)

    time, reader = worker_module.time, Reader()
    monkeypatch.setattr(worker_module, "time", Clock())
    return reader


def run(worker, reader, *callers):
    """The reader's work in order: "r" for a chunk, "d" for a draft. The callers ask while the
    reader is busy."""
    blocker = Caller(worker, reader)
    blocker.ask()
    assert reader.inside.wait(30)
    for caller in callers:
        caller.ask()
    reader.gate.set()
    assert until(lambda: not any(caller.left for caller in callers if caller.wanted()))
    reader.done.remove(("d", blocker.job.query.id))
    return "".join(what for what, _ in reader.done)


def test_between_two_chunks_other_work_takes_its_share_of_the_time(device, reader):
    worker = Worker(device)
    long, other = Caller(worker, reader, 1, chunks=4), Caller(worker, reader, 40)
    order = run(worker, reader, long, other)
    drafts = int(reader.chunk_s / PREFILL_SHARE / reader.draft_s)
    assert [len(between) for between in order.split("r")[1:4]] == [drafts] * 3
    assert (len(long.replies), len(other.replies)) == (1, 40)


def test_a_prompt_whose_chunks_are_evicted_is_read_at_once(device, reader):
    """In chunks it would never be complete."""
    reader.forgets = True
    worker = Worker(device)
    assert run(worker, reader, Caller(worker, reader, chunks=9)) == "rd"


def test_a_long_prompt_that_is_no_longer_wanted_is_not_read_on(device, reader):
    worker = Worker(device)
    long = Caller(
        worker, reader, chunks=9, wanted=lambda: not any(what == "r" for what, _ in reader.done)
    )
    order = run(worker, reader, long, Caller(worker, reader, 30))
    assert (long.replies, order.count("r")) == ([], 1)
