"""Answers under way: sync and async give the same rounds; members fail, answers exceed their time
limit or are cancelled, and every member forgets what it was asked."""

from __future__ import annotations

import asyncio
import gc
import os
import queue
import signal
import threading

import pytest

from langchain_specfuse.core.member import Probe
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Ask, DraftJob, Sampling
from langchain_specfuse.engine import Ensemble, calls, drive
from langchain_specfuse.engine.drive import Admission
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.scripted import ScriptedMember
from tests.late import three_tries

from .conftest import (
    BLUE,
    GREY,
    PATIENCE_S,
    SHORT,
    Gated,
    collected,
    facts,
    fresh_device,
    open_queries,
    query,
    text,
    until,
    worker_threads,
)

LED = Settings(lead="a", method=Method(sure=0.9, margin=0.0, segment_tokens=2))


def members_of(ensemble):
    return list(ensemble.members.values())


# --- the same answer whichever way ----------------------------------------------------------------


def test_sync_and_async_give_the_same_rounds(pair):
    sync = list(pair.rounds(query(), SHORT))
    assert facts(asyncio.run(collected(pair, query(), SHORT))) == facts(sync)
    # on another event loop
    assert facts(asyncio.run(collected(pair, query(), SHORT))) == facts(sync)
    assert text(sync).startswith("The sky is")
    assert sync[-1].finish
    assert until(lambda: not open_queries(members_of(pair)))


def three(device):
    """Members whose answers differ from question to question."""

    def says(text):
        return lambda q: " ".join(
            f"{w}{q.turns[-1].text if k % 3 == 0 else ''}" for k, w in enumerate(text.split())
        )

    texts = {"a": BLUE, "b": GREY, "c": BLUE.replace("air", "wide air")}
    return Ensemble([ScriptedMember(says(t), name=n, device=device) for n, t in texts.items()])


@pytest.mark.parametrize("settings", [SHORT, LED], ids=["equals", "one leads"])
def test_same_answer_alone_or_in_a_crowd_of_threads_or_tasks(device, settings):
    alone = [facts(three(fresh_device()).rounds(query(str(k)), settings)) for k in range(20)]
    crowd, answers = three(device), {}

    def one(k):
        answers[k] = facts(crowd.rounds(query(str(k)), settings))

    threads = [threading.Thread(target=one, args=[k]) for k in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    async def all_of_them():
        return await asyncio.gather(*(collected(crowd, query(str(k)), settings) for k in range(20)))

    assert [answers[k] for k in range(20)] == alone
    assert [facts(rounds) for rounds in asyncio.run(all_of_them())] == alone
    assert len({str(rounds) for rounds in alone}) == 20


# --- members and loops that fail ------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize(
    "error", [ValueError("burnt out"), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_a_member_that_raises_leaves_and_the_others_finish(device, call, error):
    members = [
        ScriptedMember(GREY, name="a", device=device, fails_in=call, error=error),
        ScriptedMember(BLUE, name="b", device=device),
        ScriptedMember(BLUE, name="c", device=device),
    ]
    rounds = list(Ensemble(members).rounds(query(), SHORT))
    (gone,) = [departure for round in rounds for departure in round.left]
    assert text(rounds) == BLUE
    assert (gone.member, gone.kind, gone.round, gone.cause) == ("a", "error", call, error)
    assert type(error).__name__ in gone.reason
    assert until(lambda: not open_queries(members))


@pytest.mark.parametrize(
    "error", [queue.Empty(), TimeoutError("mine"), ZeroDivisionError("x"), SystemExit(2)]
)
def test_an_error_inside_the_loop_reaches_the_caller_unchanged(error, device):
    def broken():
        raise error
        yield

    with pytest.raises(type(error)) as raised:
        list(drive(broken(), {"a": ScriptedMember(BLUE, device=device)}, SHORT, Admission()))
    assert raised.value is error


@pytest.fixture
def interruptible():
    """Programs that a shell starts in the background ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_question_and_the_next_one_is_answered(device):
    member = Gated(BLUE, name="a", device=device)
    ensemble = Ensemble([member])

    def interrupts():
        member.inside.wait(PATIENCE_S)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupts).start()
    with pytest.raises(KeyboardInterrupt):
        list(ensemble.rounds(query(), SHORT))
    member.gate.set()
    assert text(ensemble.rounds(query(), SHORT)) == BLUE
    assert until(lambda: not open_queries([member]))


def test_members_forget_every_query_that_they_were_asked_and_no_other(device):
    """A loop may derive further queries from the first, for some members only."""
    members = {name: Gated(BLUE, name=name, device=device) for name in "abc"}
    for member in members.values():
        member.gate.set()
    first, second = query("Why?"), query("Why, in short?")

    def job(asked):
        return DraftJob(asked, (), 5, 5, Sampling())

    def loop():
        yield Ask({"a": job(first), "b": job(first)}, 1)
        yield Ask({"a": job(second)}, 1)

    assert list(drive(loop(), members, SHORT, Admission())) == []
    assert until(lambda: not open_queries(members.values()))
    forgotten = {name: member.forgotten for name, member in members.items()}
    assert forgotten == {"a": [first.id, second.id], "b": [first.id], "c": []}


# --- time limits and cancelling -------------------------------------------------------------------


def within(timeout):
    return Settings(method=Method(segment_tokens=2), timeout=timeout)


def test_an_answer_that_exceeds_its_time_limit_raises_with_the_agreed_text(device):
    member = Gated(BLUE, gated_call=2, device=device)
    ensemble, agreed = Ensemble([member]), []
    with pytest.raises(
        TimeoutError, match=r"the answer was not complete within timeout=1 s"
    ) as raised:
        agreed.extend(r.text for r in ensemble.rounds(query(), within(1)))
    # On a busy machine the first round may not be done in time.
    assert raised.value.text == "".join(agreed) and raised.value.text in ("", "The sky")
    with pytest.raises(TimeoutError, match=r"the answer was not complete within timeout=0.01 s"):
        asyncio.run(collected(ensemble, query(), within(0.01)))
    member.gate.set()
    assert until(lambda: not member.open_queries)


@three_tries
def test_a_reader_that_comes_late_gets_the_answer_that_was_complete_in_time(device):
    member = ScriptedMember(BLUE, device=device)

    async def read_late():
        rounds = Ensemble([member]).arounds(query(), within(1))
        agreed = (await anext(rounds)).text
        while member.open_queries:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        return agreed + text([round async for round in rounds])

    assert asyncio.run(read_late()) == BLUE


def ways_to_stop():
    """Each begins an answer, waits until the second draft is under way, and stops in its own
    way."""

    def begin(ensemble):
        running = ensemble.rounds(query(), SHORT)
        next(running)
        assert ensemble.members["a"].inside.wait(PATIENCE_S)
        return running

    async def abegin(ensemble):
        running = ensemble.arounds(query(), SHORT)
        await anext(running)
        assert await asyncio.to_thread(ensemble.members["a"].inside.wait, PATIENCE_S)
        return running

    def close(ensemble):
        begin(ensemble).close()

    def forget(ensemble):
        begin(ensemble)
        gc.collect()

    async def aclose(ensemble):
        await (await abegin(ensemble)).aclose()

    async def aforget(ensemble):
        await abegin(ensemble)
        gc.collect()

    async def cancel(ensemble):
        task = asyncio.create_task(collected(ensemble, query(), SHORT))
        assert await asyncio.to_thread(ensemble.members["a"].inside.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def timeout(ensemble):
        task = asyncio.create_task(collected(ensemble, query(), SHORT))
        assert await asyncio.to_thread(ensemble.members["a"].inside.wait, PATIENCE_S)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.01)

    def event_loop_closed(ensemble):
        loop = asyncio.new_event_loop()
        running = ensemble.arounds(query(), SHORT)
        loop.run_until_complete(anext(running))
        assert ensemble.members["a"].inside.wait(PATIENCE_S)
        loop.close()
        ensemble.kept = running

    def as_sync(way):
        run = lambda ensemble: asyncio.run(way(ensemble))
        run.__name__ = way.__name__
        return run

    return [close, forget, event_loop_closed, *map(as_sync, [aclose, aforget, cancel, timeout])]


@pytest.mark.filterwarnings(
    "ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("way", ways_to_stop(), ids=lambda way: way.__name__)
def test_stopping_early_frees_every_member_within_one_round(way, device):
    member = Gated(BLUE, gated_call=2, name="a", device=device)
    other = ScriptedMember(GREY, name="b", device=fresh_device())
    ensemble = Ensemble([member, other])
    way(ensemble)
    assert member.inside.is_set()
    member.gate.set()
    assert until(lambda: not open_queries([member, other]))
    assert until(lambda: not worker_threads())
    assert member.draft_calls == 2
    assert other.draft_calls <= 2  # its second draft may have been dropped from the queue
    # A closed event loop is noticed when there is a round to hand over, at the end of this one.
    assert [member.score_calls, other.score_calls] == (
        [1, 1] if way.__name__ == "event_loop_closed" else [0, 0]
    )
    assert [member.drafted_after_forget, member.overlaps] == [[], 0]


# --- ensembles ------------------------------------------------------------------------------------


def test_members_are_probed_once_and_a_failed_load_is_tried_again(device):
    class Moody(ScriptedMember):
        probes = 0

        def probe(self):
            self.probes += 1
            if self.probes == 1:
                raise OSError("disk asleep")
            return super().probe()

    member = Moody(BLUE, device=device)
    ensemble = Ensemble([member])
    with pytest.raises(OSError, match="disk asleep"):
        list(ensemble.rounds(query(), SHORT))
    assert text(ensemble.rounds(query(), SHORT)) == text(ensemble.rounds(query(), SHORT)) == BLUE
    assert member.probes == 2 and ensemble.is_ready()


def test_a_thread_that_has_tried_a_model_ends(device):
    """libgomp throttles the waits of all its teams while they have more threads than there are
    cores, and a thread's team lives as long as the thread: one thread kept after a load halved the
    speed of every later answer (SmolLM2 on two cores: 29 instead of 62 tokens a second)."""
    threads = []

    class Noting(ScriptedMember):
        def probe(self):
            threads.append(threading.current_thread())
            return super().probe()

    assert text(Ensemble([Noting(BLUE, device=device)]).rounds(query(), SHORT)) == BLUE
    (thread,) = threads
    thread.join(calls.IDLE_S / 2)
    assert not thread.is_alive()


def test_an_ensemble_needs_members_with_different_names():
    with pytest.raises(UsageError, match="at least one member"):
        Ensemble([])
    with pytest.raises(UsageError, match="two members are called 'a'"):
        Ensemble([ScriptedMember("x", name="a")], [ScriptedMember("y", name="a")])


def test_cancelling_while_members_load_does_not_break_the_load(device):
    gate, loading = threading.Event(), threading.Event()

    class Slow(ScriptedMember):
        def probe(self):
            loading.set()
            gate.wait(2 * PATIENCE_S)
            return super().probe()

    ensemble = Ensemble([Slow(BLUE, device=device)])

    async def impatient():
        task = asyncio.create_task(collected(ensemble, query(), SHORT))
        assert await asyncio.to_thread(loading.wait, PATIENCE_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(impatient())
    gate.set()
    assert text(ensemble.rounds(query(), SHORT)) == BLUE


# --- who leads ------------------------------------------------------------------------------------


class Sized(ScriptedMember):
    """A member with a number of parameters."""

    def __init__(self, name, size):
        super().__init__(BLUE, name=name)
        self.size = size

    def probe(self):
        return Probe(self.name, size=self.size)


def sized(verifiers=(), **sizes):
    members = [Sized(name, size) for name, size in sizes.items() if name not in verifiers]
    ensemble = Ensemble(members, [Sized(name, sizes[name]) for name in verifiers])
    ensemble.loaded().result()
    return ensemble


@pytest.mark.parametrize(
    ("sizes", "lead"),
    [
        ({"a": 270, "b": 135}, "a"),
        ({"a": 269, "b": 135}, None),
        ({"a": 135, "b": 1500}, "b"),
        ({"a": 1500, "b": 0}, None),
    ],
)
def test_the_member_with_twice_the_parameters_of_the_others_leads(sizes, lead):
    ensemble = sized(**sizes)
    assert ensemble.lead(Settings()) == lead
    assert ensemble.panel(Settings()).lead == lead
    assert ensemble.lead(Settings(lead=None)) is None
    assert ensemble.lead(Settings(method=Method.named("specem"))) is None
    assert ensemble.lead(Settings(lead="a")) == "a"
    with pytest.raises(UsageError, match="lead must be one of the members that write, got 'c'"):
        ensemble.lead(Settings(lead="c"))


def test_a_verifier_does_not_lead_however_large():
    assert sized(["big"], a=5, b=4, big=99).lead(Settings()) is None
    assert sized(["big"], a=9, b=4, big=99).lead(Settings()) == "a"


def test_one_member_has_nobody_to_lead():
    assert sized(a=5).lead(Settings(lead="a")) is None


class Silent(ScriptedMember):
    """A member without a vote, or with one that costs requests."""

    def __init__(self, name, scores, ballots=False):
        super().__init__(BLUE, name=name)
        self.known = Probe(name, scores, ballots=ballots)

    def probe(self):
        return self.known


@pytest.mark.parametrize(
    ("members", "lead"),
    [
        ([("a", True, True), ("b", True, True)], "a"),
        ([("a", False), ("b", True)], "a"),
        ([("a", False), ("b", True), ("c", True)], None),
        ([("a", True, True), ("b", True)], "a"),
        ([("a", True, True), ("b", True), ("c", True)], "a"),
    ],
)
def test_the_first_member_leads_if_a_vote_would_cost_requests_or_decide_nothing(members, lead):
    ensemble = Ensemble([Silent(*member) for member in members])
    ensemble.loaded().result()
    assert ensemble.lead(Settings()) == lead
    assert ensemble.lead(Settings(lead=None)) is None


def test_members_that_vote_by_requests_are_put_to_the_vote_if_a_verifier_can_score():
    writers = [Silent(name, scores=True, ballots=True) for name in "ab"]
    ensemble = Ensemble(writers, [ScriptedMember(BLUE, name="judge")])
    ensemble.loaded().result()
    assert ensemble.lead(Settings()) is None
