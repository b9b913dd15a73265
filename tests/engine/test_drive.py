"""Answers under way: sync and async alike, failing and hanging members, time limits, and cancelling in every way."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import queue
import threading

import pytest

from langchain_specfuse.core.values import Failure, Settings
from langchain_specfuse.engine import Ensemble, drive
from langchain_specfuse.errors import EnsembleError, UsageError
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import BLUE, GREY, SHORT, Gated, fresh_device, our_threads, query, until


def text(rounds):
    return "".join(round.text for round in rounds)


def facts(rounds):
    """What must not depend on threads and time."""
    return [(r.number, r.text, r.winner, r.totals, r.weights, r.left, r.finish) for r in rounds]


async def collected(ensemble, *args, **choices):
    return [round async for round in ensemble.arounds(*args, **choices)]


def open_queries(ensemble):
    return [open_ for member in ensemble.members.values() for open_ in member.open_queries]


class Sure(ScriptedMember):
    """Sure of itself, whatever is asked."""

    def draft(self, jobs):
        return [dataclasses.replace(d, logprobs=tuple(0.1 * p for p in d.logprobs)) for d in super().draft(jobs)]


@pytest.mark.parametrize("cancelled", [False, True])
def test_what_an_umpire_was_asked_is_forgotten_with_the_query(cancelled):
    ensemble = Ensemble(
        [Sure(BLUE, name="a"), Sure("Dust makes it grey.", name="b"), ScriptedMember("Hm. Well.", name="c")]
    )
    under_way = ensemble.rounds(query(), SHORT)
    assert next(under_way).umpire == "c"
    if cancelled:
        under_way.close()
    else:
        assert all(round.umpire == "" for round in under_way)
    assert until(lambda: not open_queries(ensemble))


# --- the same answer whichever way ------------------------------------------------------------------------------


def test_sync_and_async_give_the_same_rounds(pair):
    sync = list(pair.rounds(query(), SHORT))
    assert facts(asyncio.run(collected(pair, query(), SHORT))) == facts(sync)
    assert text(sync).startswith("The sky is")
    assert sync[-1].finish


@pytest.mark.parametrize("devices", [1, 3])
def test_same_answer_whether_members_share_a_desk_or_not(devices):
    names = [fresh_device() for _ in range(devices)]
    texts = [BLUE, GREY, BLUE.replace("air", "wide air")]
    members = [ScriptedMember(t, name=f"m{i}", device=names[i % devices]) for i, t in enumerate(texts)]
    alone = [ScriptedMember(t, name=f"m{i}") for i, t in enumerate(texts)]
    assert facts(Ensemble(members).rounds(query(), SHORT)) == facts(Ensemble(alone).rounds(query(), SHORT))


def varied(device):
    def says(text):
        return lambda q: " ".join(f"{w}{q.turns[-1].text if k % 3 == 0 else ''}" for k, w in enumerate(text.split()))

    return Ensemble([ScriptedMember(says(t), name=n, device=device) for n, t in (("a", BLUE), ("b", GREY))])


def test_same_answer_alone_or_in_a_crowd_of_threads(device):
    alone = [text(varied(fresh_device()).rounds(query(str(k)), SHORT)) for k in range(50)]
    crowd, found = varied(device), {}

    def one(k):
        found[k] = text(crowd.rounds(query(str(k)), SHORT))

    threads = [threading.Thread(target=one, args=[k]) for k in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [found[k] for k in range(50)] == alone
    assert len(set(alone)) == 50


def test_same_answer_alone_or_in_a_crowd_of_tasks(device):
    alone = [text(varied(fresh_device()).rounds(query(str(k)), SHORT)) for k in range(50)]
    crowd = varied(device)

    async def all_of_them():
        return await asyncio.gather(*(collected(crowd, query(str(k)), SHORT) for k in range(50)))

    assert [text(rounds) for rounds in asyncio.run(all_of_them())] == alone


def test_queries_that_run_together_share_their_batches(device):
    from langchain_specfuse.engine.desk import desk_for

    gate = Gated(BLUE, name="a", device=device)
    ensemble = Ensemble([gate, ScriptedMember(GREY, name="b", device=device)])

    async def eight():
        tasks = [asyncio.create_task(collected(ensemble, query(), SHORT)) for _ in range(8)]
        await asyncio.sleep(0.05)
        gate.gate.set()
        return await asyncio.gather(*tasks)

    answers = asyncio.run(eight())
    assert len({text(rounds) for rounds in answers}) == 1
    sizes = [size for _, work, size in desk_for(device).batches if work == "draft"]
    assert sizes.count(8) >= len(sizes) - 6  # all but the first few, before they had fallen into step


def test_rounds_are_handed_out_as_they_are_agreed(device):
    member = Gated(BLUE, gated_call=3, device=device)
    running = Ensemble([member]).rounds(query(), SHORT)
    assert next(running).text == "The sky"
    assert next(running).text == " is blue"
    assert member.inside.wait(5)  # the third is being drafted, the first two are already here
    member.gate.set()
    assert text(running) == BLUE.removeprefix("The sky is blue")


# --- members that fail ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("error", [ValueError("burnt out"), SystemExit(3), KeyboardInterrupt()], ids=repr)
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
    assert until(lambda: not open_queries(Ensemble(members)))


def test_a_member_with_too_few_replies_leaves(device):
    class Lazy(ScriptedMember):
        def draft(self, jobs):
            return []

    ensemble = Ensemble([Lazy(GREY, name="a", device=device), ScriptedMember(BLUE, name="b", device=device)])
    rounds = list(ensemble.rounds(query(), SHORT))
    assert text(rounds) == BLUE
    assert "returned 0 replies to 1 job" in rounds[0].left[0].reason


def test_nobody_left_is_an_error_with_the_agreed_text(device):
    members = [ScriptedMember(BLUE, name=n, device=device, fails_in=k) for n, k in (("a", 2), ("b", 3))]
    running, seen = Ensemble(members).rounds(query(), SHORT), []
    with pytest.raises(EnsembleError) as told:
        seen.extend(running)
    assert told.value.text == "The sky is blue"
    assert [(failure.member, failure.round) for failure in told.value.failures] == [("a", 2), ("b", 3)]
    with pytest.raises(EnsembleError):
        asyncio.run(collected(Ensemble([ScriptedMember(BLUE, device=device, fails_in=1)]), query(), SHORT))
    assert until(lambda: not open_queries(Ensemble(members)))


def test_a_hanging_member_leaves_and_the_others_on_the_same_desk_finish(device):
    hung = Gated(GREY, gated_call=2, name="a", device=device)
    ensemble = Ensemble([hung, *(ScriptedMember(BLUE, name=n, device=device) for n in "bc")])
    q = query()
    rounds = list(ensemble.rounds(q, SHORT, member_timeout=0.5))
    assert text(rounds) == BLUE
    assert [(d.member, d.kind, d.round) for r in rounds for d in r.left] == [("a", "timeout", 2)]
    assert hung.open_queries  # it could not be told yet
    stuck = len(our_threads())
    assert stuck >= 1
    hung.gate.set()
    assert until(lambda: not hung.open_queries)
    assert q.id in hung.forgotten
    assert hung.overlaps == 0
    assert text(ensemble.rounds(query(), SHORT, member_timeout=5)).startswith("The sky is")


def test_a_hanging_member_alone_is_an_error_not_a_hang(device):
    hung = Gated(BLUE, name="a", device=device)
    with pytest.raises(EnsembleError, match=r"member_timeout=0\.05"):
        list(Ensemble([hung]).rounds(query(), SHORT, member_timeout=0.05))
    hung.gate.set()
    assert until(lambda: not hung.open_queries)


# --- time limits for the whole answer ---------------------------------------------------------------------------


def test_a_time_limit_for_the_whole_answer(device):
    member = Gated(BLUE, gated_call=2, device=device)
    ensemble, seen = Ensemble([member]), []
    with pytest.raises(TimeoutError, match=r"no whole answer within timeout=0.05 s"):
        seen.extend(ensemble.rounds(query(), SHORT, timeout=0.05))
    with pytest.raises(TimeoutError, match=r"no whole answer within timeout=0.05 s"):
        asyncio.run(collected(ensemble, query(), SHORT, timeout=0.05))
    member.gate.set()
    assert until(lambda: not member.open_queries)


def test_an_answer_within_its_time_limit_is_whole(pair):
    assert facts(pair.rounds(query(), SHORT, timeout=20)) == facts(pair.rounds(query(), SHORT))


@pytest.mark.parametrize("error", [queue.Empty(), TimeoutError("mine"), ZeroDivisionError("x"), SystemExit(2)])
def test_an_error_inside_the_loop_reaches_the_caller_as_it_is(error, device):
    def broken():
        raise error
        yield

    member = ScriptedMember(BLUE, device=device)
    with pytest.raises(type(error)) as told:
        list(drive(broken(), "q", {"a": member}))
    assert told.value is error


def test_a_broken_loop_after_some_rounds_reaches_the_async_caller(device):
    from langchain_specfuse.engine import adrive

    def broken():
        yield from ()
        raise TimeoutError("mine")

    async def go():
        return [r async for r in adrive(broken(), "q", {"a": ScriptedMember(BLUE, device=device)})]

    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(go())


def test_a_caller_that_throws_a_time_out_into_the_iterator_gets_it_back(pair):
    running = pair.rounds(query(), SHORT)
    next(running)
    with pytest.raises(TimeoutError, match="thrown in"):
        running.throw(TimeoutError("thrown in"))


# --- cancelling -------------------------------------------------------------------------------------------------


def ways_to_stop():
    """Each begins an answer, waits until the second draft is under way, and stops in its own manner."""

    def begun(ensemble):
        running = ensemble.rounds(query(), SHORT)
        next(running)
        assert ensemble.members["a"].inside.wait(5)
        return running

    async def abegun(ensemble):
        running = ensemble.arounds(query(), SHORT)
        await anext(running)
        assert await asyncio.to_thread(ensemble.members["a"].inside.wait, 5)
        return running

    def close(ensemble):
        begun(ensemble).close()

    def forgotten(ensemble):
        begun(ensemble)
        gc.collect()

    def leave(ensemble):
        for _ in ensemble.rounds(query(), SHORT):
            assert ensemble.members["a"].inside.wait(5)
            break

    def error_outside(ensemble):
        def fails():
            for _ in ensemble.rounds(query(), SHORT):
                raise ZeroDivisionError(ensemble.members["a"].inside.wait(5))

        with pytest.raises(ZeroDivisionError):
            fails()

    def time_limit(ensemble):
        with pytest.raises(TimeoutError):
            list(ensemble.rounds(query(), SHORT, timeout=0.1))

    async def aclose(ensemble):
        await (await abegun(ensemble)).aclose()

    async def aleave(ensemble):
        async for _ in ensemble.arounds(query(), SHORT):
            assert await asyncio.to_thread(ensemble.members["a"].inside.wait, 5)
            break

    async def aforgotten(ensemble):
        await abegun(ensemble)
        gc.collect()

    async def cancel(ensemble):
        task = asyncio.create_task(collected(ensemble, query(), SHORT))
        assert await asyncio.to_thread(ensemble.members["a"].inside.wait, 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def wait_for(ensemble):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collected(ensemble, query(), SHORT), 0.1)

    async def timeout(ensemble):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await collected(ensemble, query(), SHORT)

    def event_loop_closed(ensemble):
        loop = asyncio.new_event_loop()
        running = ensemble.arounds(query(), SHORT)
        loop.run_until_complete(anext(running))
        assert ensemble.members["a"].inside.wait(5)
        loop.close()
        ensemble.kept = running

    sync = [close, forgotten, leave, error_outside, time_limit, event_loop_closed]
    return [*sync, *map(_as_sync, [aclose, aleave, aforgotten, cancel, wait_for, timeout])]


def _as_sync(way):
    def run(ensemble):
        asyncio.run(way(ensemble))

    run.__name__ = way.__name__
    return run


@pytest.mark.filterwarnings("ignore:.*was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ways_to_stop(), ids=lambda way: way.__name__)
def test_stopping_early_frees_every_member_within_one_round(way, device):
    member = Gated(BLUE, gated_call=2, name="a", device=device)
    other = ScriptedMember(GREY, name="b", device=fresh_device())
    ensemble = Ensemble([member, other])
    way(ensemble)
    assert member.inside.is_set()
    member.gate.set()
    assert until(lambda: not open_queries(ensemble))
    assert until(lambda: not our_threads())
    assert member.draft_calls == 2
    assert other.draft_calls <= 2  # its second draft may have been called off in the inbox
    # That its event loop was closed is found out when there is a round to hand over, at the end of this one.
    assert [member.score_calls, other.score_calls] == ([1, 1] if way.__name__ == "event_loop_closed" else [0, 0])
    assert [member.drafted_after_forget, member.overlaps] == [[], 0]


def test_a_finished_answer_frees_every_member(pair):
    list(pair.rounds(query(), SHORT))
    assert until(lambda: not open_queries(pair))


def test_a_member_that_left_is_told_to_forget_at_once(device):
    gone = ScriptedMember(GREY, name="a", device=device, fails_in=2)
    waits = Gated(BLUE, gated_call=3, name="b", device=fresh_device())
    running = Ensemble([gone, waits]).rounds(query(), SHORT)
    next(running), next(running)
    assert until(lambda: not gone.open_queries)
    waits.gate.set()
    assert text(running)


def test_two_event_loops_one_after_the_other(pair):
    first = asyncio.run(collected(pair, query(), SHORT))
    assert facts(asyncio.run(collected(pair, query(), SHORT))) == facts(first)


def test_an_iterator_that_is_never_begun_asks_nobody(pair):
    pair.rounds(query(), SHORT)
    assert [member.draft_calls for member in pair.members.values()] == [0, 0]


# --- ensembles --------------------------------------------------------------------------------------------------


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
        ensemble.rounds(query(), SHORT)
    assert text(ensemble.rounds(query(), SHORT)) == BLUE
    assert text(ensemble.rounds(query(), SHORT)) == BLUE
    assert member.probes == 2


def test_making_an_ensemble_loads_nothing_and_tells_wrong_members(device):
    with pytest.raises(UsageError, match="at least one member"):
        Ensemble([])
    with pytest.raises(UsageError, match="two members are called 'a'"):
        Ensemble([ScriptedMember("x", name="a")], [ScriptedMember("y", name="a")])


def test_cancelling_while_loading_does_not_break_the_load(device):
    gate = threading.Event()

    class Slow(ScriptedMember):
        def probe(self):
            gate.wait(5)
            return super().probe()

    ensemble = Ensemble([Slow(BLUE, device=device)])

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(collected(ensemble, query(), SHORT), 0.03)

    asyncio.run(impatient())
    gate.set()
    assert text(ensemble.rounds(query(), SHORT)) == BLUE


def test_verifiers_vote_and_never_draft(device):
    judge = ScriptedMember(BLUE, name="judge", device=device)
    ensemble = Ensemble(
        [ScriptedMember(GREY, name="a", device=device), ScriptedMember(BLUE, name="b", device=device)], [judge]
    )
    assert text(ensemble.rounds(query(), SHORT)) == BLUE
    assert judge.draft_calls == 0
    assert judge.score_calls > 0


def test_a_failure_compares_by_what_it_says():
    assert Failure("error", "x", ValueError()) == Failure("error", "x")


def test_the_budget_holds_over_threads(pair):
    assert len(text(pair.rounds(query(), Settings(segment_tokens=3, max_tokens=5))).split()) == 5
