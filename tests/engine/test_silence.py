"""Members that give no sign of life are late; those that give signs are not, however long they
take."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import DraftJob, Failure, Sampling
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.worker import QueuedJob, Worker
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import (
    BLUE,
    PATIENCE_S,
    Gated,
    fresh_device,
    open_queries,
    query,
    text,
    until,
)

DRIVE = importlib.import_module("langchain_specfuse.engine.drive")  # the package has a function
LIMIT_S = 0.3
SILENT = Failure("timeout", "no token for 0.3 s")
STILL_BUSY = Failure("timeout", "still busy with an earlier call that took too long")


class Speaker:
    """Replies with twice the job. Works until its gate is open, and gives a sign every ``every_s``
    seconds while ``speaks`` is set."""

    name = "speaker"

    def __init__(self, every_s=0.02, speaks=False, closed=True):
        self.last_sign = 0.0
        self.every_s = every_s
        self.batches = []
        self.gate, self.speaks = threading.Event(), threading.Event()
        if speaks:
            self.speaks.set()
        if not closed:
            self.gate.set()

    def draft(self, jobs):
        self.batches.append(list(jobs))
        end = time.monotonic() + PATIENCE_S
        while not self.gate.wait(self.every_s) and time.monotonic() < end:
            if self.speaks.is_set():
                self.last_sign = time.monotonic()
        return [job * 2 for job in jobs]


def ask(worker, member, *jobs, silence_s=LIMIT_S, **options):
    """Queue jobs, all at once; the list returned fills with their replies."""
    replies = []
    worker.put(
        *(
            QueuedJob(member, "draft", job, replies.append, silence_s=silence_s, **options)
            for job in jobs
        )
    )
    return replies


@pytest.fixture
def worker(device):
    return Worker(device)


def test_a_silent_member_is_late_and_the_worker_continues_without_it(worker):
    member, since = Speaker(), time.monotonic()
    late = ask(worker, member, 1, 2)
    other = ask(worker, Speaker(closed=False), 3, silence_s=None)
    assert until(lambda: other == [6])
    assert late == [SILENT, SILENT]
    assert time.monotonic() - since >= LIMIT_S
    member.gate.set()
    back = ask(worker, member, 4, silence_s=None)
    assert until(lambda: back == [8])
    assert len(late) == 2, "a reply that comes too late is dropped"


def test_a_member_that_falls_silent_after_some_signs_is_late(worker):
    member = Speaker(speaks=True)
    replies = ask(worker, member, 1)
    time.sleep(2 * LIMIT_S)
    assert not replies
    member.speaks.clear()
    assert until(lambda: replies == [SILENT])
    member.gate.set()


def test_a_member_that_gives_signs_is_never_late(worker):
    member = Speaker(speaks=True)
    replies = ask(worker, member, *range(32))
    time.sleep(5 * LIMIT_S)
    assert not replies
    member.gate.set()
    assert until(lambda: replies == [2 * number for number in range(32)])


def test_a_sign_that_is_set_ahead_allows_silence_until_then(worker):
    member = Speaker()
    member.last_sign = time.monotonic() + 4 * LIMIT_S
    replies = ask(worker, member, 1)
    time.sleep(3 * LIMIT_S)
    assert not replies
    assert until(lambda: replies == [SILENT])
    member.gate.set()


def test_time_in_the_queue_does_not_count(worker):
    first, second = Speaker(speaks=True), Speaker(closed=False)
    replies = [ask(worker, first, 1), ask(worker, second, 2, silence_s=4 * LIMIT_S)]
    time.sleep(8 * LIMIT_S)
    first.gate.set()
    assert until(lambda: replies == [[2], [4]])


def test_without_a_limit_a_member_may_be_silent(worker):
    member = Speaker()
    replies = ask(worker, member, 1, silence_s=None)
    time.sleep(2 * LIMIT_S)
    member.gate.set()
    assert until(lambda: replies == [2])


# --- limits that differ ---------------------------------------------------------------------------


def blocked(worker):
    """A member at work on another job, so that the next jobs form one batch."""
    member = Speaker()
    ask(worker, member, 0, silence_s=None)
    assert until(lambda: member.batches)
    return member


def next_batch(member):
    """Let the member begin its next batch."""
    gate, member.gate = member.gate, threading.Event()
    gate.set()
    assert until(lambda: len(member.batches) == 2)


def test_jobs_with_and_without_a_limit_share_a_batch_and_the_limit_fails_only_the_first(worker):
    member = blocked(worker)
    limited, patient = ask(worker, member, 1), ask(worker, member, 2, silence_s=None)
    next_batch(member)
    assert until(lambda: limited == [SILENT])
    assert member.batches[1] == [1, 2]
    other = ask(worker, Speaker(closed=False), 3, silence_s=None)
    assert until(lambda: other == [6])
    member.gate.set()
    assert until(lambda: patient == [4])
    assert limited == [SILENT]


def test_a_batch_is_as_patient_as_its_most_patient_limit(worker):
    """A member may read the long prompt of one job before it writes a word for the other."""
    member = blocked(worker)
    short, long = ask(worker, member, 1), ask(worker, member, 2, silence_s=PATIENCE_S)
    next_batch(member)
    time.sleep(3 * LIMIT_S)
    member.gate.set()
    assert until(lambda: (short, long) == ([2], [4]))


def test_jobs_with_different_time_limits_do_not_share_a_batch(worker):
    member = blocked(worker)
    one, other = ask(worker, member, 1, timeout_s=60), ask(worker, member, 2)
    member.gate.set()
    assert until(lambda: (one, other) == ([2], [4]))
    assert member.batches == [[0], [1], [2]]


# --- while the member is silent -------------------------------------------------------------------


def test_no_job_waits_again_for_a_silent_member(worker):
    member = Speaker()
    replies = ask(worker, member, 1)
    assert until(lambda: replies == [SILENT])
    since = time.monotonic()
    again = ask(worker, member, 2, silence_s=PATIENCE_S)
    patient = ask(worker, member, 3, silence_s=None)
    assert until(lambda: again == [STILL_BUSY])
    assert time.monotonic() - since < PATIENCE_S / 2
    member.gate.set()
    assert until(lambda: patient == [6])


def test_a_member_that_gives_signs_again_is_waited_for(worker):
    member = Speaker()
    replies = ask(worker, member, 1)
    assert until(lambda: replies == [SILENT])
    member.speaks.set()
    before = member.last_sign
    assert until(lambda: member.last_sign > before)
    again = ask(worker, member, 2)
    time.sleep(2 * LIMIT_S)
    assert not again
    member.gate.set()
    assert until(lambda: again == [4])


def test_a_wait_for_a_slow_member_ends_when_it_falls_silent(worker):
    member = Speaker(speaks=True)
    replies = ask(worker, member, 1, silence_s=None, timeout_s=0.05)
    assert until(lambda: replies)
    waiting = ask(worker, member, 2)
    time.sleep(2 * LIMIT_S)
    assert not waiting
    member.speaks.clear()
    assert until(lambda: waiting == [STILL_BUSY])
    member.gate.set()


def test_a_wait_that_is_over_does_not_fail_a_later_job(worker):
    member = Speaker()
    replies = ask(worker, member, 1, silence_s=None, timeout_s=0.05)
    assert until(lambda: replies)
    waiting = ask(worker, member, 2)
    time.sleep(LIMIT_S / 2)
    gate, member.gate = member.gate, threading.Event()
    member.speaks.set()
    gate.set()
    assert until(lambda: len(member.batches) == 2)
    time.sleep(2 * LIMIT_S)
    assert not waiting
    member.gate.set()
    assert until(lambda: waiting == [4])


# --- members without signs ------------------------------------------------------------------------


class Mute(Speaker):
    """A member that has no ``last_sign``."""

    def __init__(self, **options):
        super().__init__(**options)
        del self.last_sign

    def draft(self, jobs):
        super().draft([0 for _ in jobs])
        return [Failure("error", "so")] * len(jobs)


def test_a_member_without_signs_has_a_second_more_for_each_token_beyond_the_first_30(worker):
    short = DraftJob(query(), (), 30, 512, Sampling())
    long = DraftJob(query(), (), 31, 512, Sampling())
    brief, slow = Mute(), Mute()
    late = ask(worker, brief, short)
    assert until(lambda: late == [Failure("timeout", "no reply for 0.3 s")])
    since = time.monotonic()
    late = ask(worker, slow, long)
    assert until(lambda: late == [Failure("timeout", "no reply for 1.3 s")])
    assert time.monotonic() - since >= 1.3
    brief.gate.set()
    slow.gate.set()


# --- batch groups ---------------------------------------------------------------------------------


class Group(Speaker):
    def draft(self, jobs):
        return super().draft([job for _, job in jobs])


class Part:
    """A member of a group; the group gives the signs."""

    def __init__(self, name, group):
        self.name, self.batch_group = name, group

    def draft(self, jobs):
        return self.batch_group.draft([(self, job) for job in jobs])


@pytest.mark.parametrize("count", [1, 2])
def test_a_groups_sign_counts_for_its_members(worker, count):
    group = Group(speaks=True)
    parts = [Part(str(number), group) for number in range(count)]
    replies = []
    worker.put(*(QueuedJob(part, "draft", 1, replies.append, silence_s=LIMIT_S) for part in parts))
    time.sleep(3 * LIMIT_S)
    assert not replies
    group.speaks.clear()
    assert until(lambda: replies == [SILENT] * count)
    group.gate.set()


# --- an answer ------------------------------------------------------------------------------------


def test_a_reserve_continues_in_mid_sentence_where_the_lead_hangs(monkeypatch):
    monkeypatch.setattr(DRIVE, "SILENCE_S", LIMIT_S)
    lead = Gated(BLUE, gated_call=3, name="a", device=fresh_device())
    reserve = ScriptedMember(BLUE, name="b", device=fresh_device())
    ensemble = Ensemble([lead, reserve])
    rounds = list(ensemble.rounds(query(), Settings(segment_tokens=2, lead="a")))
    assert text(rounds) == BLUE
    exits = [departure for round in rounds for departure in round.left]
    assert [(gone.member, gone.kind, gone.reason) for gone in exits] == [
        ("a", "timeout", SILENT.message)
    ]
    assert reserve.draft_calls < lead.draft_calls + 6
    lead.gate.set()
    assert until(lambda: not open_queries([lead, reserve]))


def test_the_first_token_of_a_lead_may_take_longer(monkeypatch):
    monkeypatch.setattr(DRIVE, "SILENCE_S", LIMIT_S / 3)
    lead = Gated(BLUE, name="a", device=fresh_device())
    ensemble = Ensemble([lead, ScriptedMember(BLUE, name="b", device=fresh_device())])
    threading.Timer(3 * LIMIT_S, lead.gate.set).start()
    rounds = list(ensemble.rounds(query(), Settings(segment_tokens=2, lead="a")))
    assert text(rounds) == BLUE
    assert not any(round.left for round in rounds)


# --- a process that was suspended -----------------------------------------------------------------

SUSPENDED = """
import sys, time
from langchain_specfuse.engine.worker import QueuedJob, Worker

class Slow:
    name = "slow"
    last_sign = 0.0

    def draft(self, jobs):
        print("at work", flush=True)
        for _ in range(20):
            time.sleep(0.02)
        return ["done"] * len(jobs)

replies = []
Worker("d").put(QueuedJob(Slow(), "draft", 1, replies.append, silence_s=1.5))
while not replies:
    time.sleep(0.01)
print(replies[0], flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot suspend a process")
def test_the_time_while_the_process_was_suspended_does_not_count():
    child = subprocess.Popen([sys.executable, "-c", SUSPENDED], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "at work\n"
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(2.5)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "done\n"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
