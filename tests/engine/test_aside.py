"""Long texts are read between the others' batches: neither may keep the other from its work."""

from __future__ import annotations

import threading

import pytest

from langchain_specfuse.core.values import Draft, DraftJob, Effort, Sampling, Unread
from langchain_specfuse.engine import desk as module
from langchain_specfuse.engine.aside import SHARE, Aside
from langchain_specfuse.engine.desk import Desk
from langchain_specfuse.engine.task import Task

from .conftest import query, until

DRAFT = Draft("so", tokens=(1,), logprobs=(-0.5,))


class Reader:
    """Reads pieces that take ``piece_s`` by its own clock; a text is as many pieces long as the question says."""

    name = "reader"

    def __init__(self, piece_s=3.0, draft_s=1.0, forgets=False):
        self.piece_s, self.draft_s, self.forgets = piece_s, draft_s, forgets
        self.read, self.now, self.done = {}, 0.0, []
        self.gate = threading.Event()
        self.inside = threading.Event()

    def draft(self, jobs):
        self.inside.set()
        self.gate.wait(10)
        return [self._reply(job) for job in jobs]

    def score(self, jobs):
        return self.draft(jobs)

    def _reply(self, job):
        size = int(job.query.turns[-1].text)
        known = self.read.setdefault(job.query.id, 0)
        if job.pieces is None:
            self.now += self.piece_s * (size - known)
            self.read[job.query.id] = known = size
        if known >= size:
            self.now += self.draft_s
            self.done.append(("draft", job.query.id))
            return DRAFT
        if not job.pieces:
            return Unread(size - known)
        self.now += self.piece_s
        if not self.forgets:
            self.read[job.query.id] += job.pieces
        self.done.append(("piece", job.query.id))
        return Unread(size - self.read[job.query.id], Effort(read=10, seconds=self.piece_s, began=1.0))


def job(size):
    return DraftJob(query(str(size)), (), 4, 20, Sampling())


@pytest.fixture
def reader(monkeypatch):
    made = Reader()
    monkeypatch.setattr(module, "clock", lambda: made.now)
    return made


class Bystander:
    """Asks for the next draft as soon as it has one, so many times."""

    def __init__(self, desk, reader, count, size=0):
        self.desk, self.reader, self.left, self.replies = desk, reader, count, []
        self.job = job(size)

    def ask(self):
        self.desk.put(Task(self.reader, "draft", self.job, self.told))

    def told(self, reply):
        self.replies.append(reply)
        self.left -= 1
        if self.left:
            self.ask()


def run(desk, reader, *askers):
    blocker = Bystander(desk, reader, 1)
    blocker.ask()
    assert until(reader.inside.is_set)
    for one in askers:
        one.ask()
    reader.gate.set()
    assert until(lambda: all(not one.left for one in askers), 10)
    reader.done.remove(("draft", blocker.job.query.id))
    return ["".join(("r" if what == "piece" else "d") for what, _ in reader.done)]


def test_between_two_pieces_others_work_twice_as_long_as_a_piece_takes(device, reader):
    desk = Desk(device)
    long, other = Bystander(desk, reader, 1, size=4), Bystander(desk, reader, 40)
    (order,) = run(desk, reader, long, other)
    assert reader.piece_s / SHARE == 6 * reader.draft_s
    pieces = order.split("r")
    assert [len(between) for between in pieces[1:4]] == [6, 6, 6]
    assert (len(long.replies), len(other.replies)) == (1, 40)


def test_with_nobody_else_it_is_read_without_a_pause_and_told_once(device, reader):
    desk = Desk(device)
    long = Bystander(desk, reader, 1, size=5)
    (order,) = run(desk, reader, long)
    assert order == "rrrrrd"
    assert [work for _, work, _ in desk.batches] == ["draft", "draft", *["read"] * 5, "draft"]


def test_the_reply_tells_what_its_pieces_cost(device, reader):
    desk = Desk(device)
    long = Bystander(desk, reader, 1, size=5)
    run(desk, reader, long)
    (reply,) = long.replies
    assert (reply.effort.read, reply.effort.began) == (50, 1.0)
    assert reply.effort.seconds == 5 * reader.piece_s + reader.draft_s


def test_two_long_texts_are_read_one_after_the_other(device, reader):
    desk = Desk(device)
    one, two = Bystander(desk, reader, 1, size=3), Bystander(desk, reader, 1, size=3)
    run(desk, reader, one, two)
    assert [who for what, who in reader.done if what == "piece"] == [one.job.query.id] * 3 + [two.job.query.id] * 3


def test_a_text_that_others_take_the_room_of_is_read_in_one_go(device, reader):
    """Or it would be begun anew for ever."""
    reader.forgets = True
    desk = Desk(device)
    long = Bystander(desk, reader, 1, size=9)
    (order,) = run(desk, reader, long)
    assert order == "rd"


def test_a_long_text_that_nobody_wants_any_more_is_not_read(device, reader):
    desk, wanted, told = Desk(device), [True], []
    blocker = Bystander(desk, reader, 30)
    blocker.ask()
    assert until(reader.inside.is_set)

    def lost_interest():
        if any(what == "piece" for what, _ in reader.done):
            wanted.clear()
        return bool(wanted)

    desk.put(Task(reader, "draft", job(9), told.append, lost_interest))
    reader.gate.set()
    assert until(lambda: not blocker.left)
    assert until(lambda: not desk._aside)
    assert (told, sum(what == "piece" for what, _ in reader.done)) == ([], 1)


def test_a_closed_desk_reads_no_further(device, reader):
    desk, told = Desk(device), []
    desk.put(Task(reader, "draft", job(9), told.append))
    assert until(reader.inside.is_set)
    threading.Timer(0.05, reader.gate.set).start()
    desk.close()
    assert (told, reader.done, len(desk._aside)) == ([], [], 0)


def test_what_is_owed_is_paid_by_others_work_and_never_saved_up():
    aside = Aside()
    aside.took(100.0, reading=False)
    aside.took(1.0, reading=True)
    aside.put(Task(Reader(), "draft", job(3), lambda _: None), Unread(3))
    assert aside.take(others=True) is None
    aside.took(1.0 / SHARE - 0.1, reading=False)
    assert aside.take(others=True) is None
    aside.took(0.2, reading=False)
    assert aside.take(others=True) is not None
