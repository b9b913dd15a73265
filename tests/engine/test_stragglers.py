"""Members that take longer than they may: left out of a round, sent away, or waited for; and they come back."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from langchain_specfuse.core.values import Failure, Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.engine.desk import desk_for
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import BLUE, SHORT, Gated, fresh_device, query, until

SOON = 0.03
GREY = "The sky is grey because of the heavy clouds above us all today."
"""As many words as the other: whoever wins a round, no word is lost or doubled if it has as many."""


def text(rounds):
    return "".join(round.text for round in rounds)


def is_whole(answer):
    """Whether every word stands at its place in one of the two scripts."""
    words = answer.split()
    return len(words) == 13 and all(w in both for w, *both in zip(words, BLUE.split(), GREY.split(), strict=True))


def facts(rounds):
    """What must not depend on threads and time."""
    return [(r.number, r.text, r.winner, r.totals, r.weights, r.left, r.late, r.finish) for r in rounds]


def asked(ensemble, way, **limits):
    """The rounds of an answer, by threads or by asyncio."""
    settings = limits.pop("settings", SHORT)
    if way == "sync":
        return list(ensemble.rounds(query(), settings, **limits))

    async def collected():
        return [round async for round in ensemble.arounds(query(), settings, **limits)]

    return asyncio.run(collected())


class GatedVote(Gated):
    """Writes at once; its votes wait for the gate."""

    def draft(self, jobs):
        return ScriptedMember.draft(self, jobs)

    def score(self, jobs):
        with self._alone():
            replies = super(Gated, self).score(jobs)
            if self.score_calls >= self.gated_call and not self.gate.is_set():
                self.inside.set()
                self.gate.wait(10)
            return replies


def trio(hung, shared):
    """The hanging member with two that work, on one desk or each at its own."""
    first = fresh_device()
    devices = [first] * 3 if shared else [first, fresh_device(), fresh_device()]
    hung.device = devices[0]
    others = [ScriptedMember(t, name=n, device=d) for t, n, d in zip((BLUE, GREY), "bc", devices[1:], strict=True)]
    return Ensemble([hung, *others])


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("shared", [True, False], ids=["one desk", "three desks"])
def test_who_is_late_is_left_out_of_the_round_and_stays(way, shared):
    hung = Gated(BLUE, gated_call=2, name="a")
    rounds = asked(trio(hung, shared), way, member_timeout=SOON, straggler="leave_out")
    assert is_whole(text(rounds)) and len(rounds) > 3
    assert [gone for r in rounds for gone in r.left] == []
    assert rounds[0].late == {} and rounds[0].stragglers == ()
    assert all(r.late["draft"] == ("a",) and "a" not in r.drafts for r in rounds[1:])
    assert all("a" in r.weights and "a" not in r.scores for r in rounds[1:])
    assert all(r.late.get("verify", ("a",)) == ("a",) for r in rounds)
    hung.gate.set()
    assert until(lambda: not hung.open_queries)
    assert hung.overlaps == 0


def test_sync_and_async_leave_out_alike():
    found = []
    for way in ("sync", "async"):
        hung = Gated(BLUE, gated_call=2, name="a")
        found.append(facts(asked(trio(hung, False), way, member_timeout=SOON, straggler="leave_out")))
        hung.gate.set()
        assert until(lambda: not hung.open_queries)  # noqa: B023
    assert found[0] == found[1]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_who_votes_late_is_left_out_of_the_vote(way):
    hung = GatedVote(BLUE, gated_call=1, name="a")
    rounds = asked(trio(hung, False), way, member_timeout=SOON, straggler="leave_out")
    assert is_whole(text(rounds))
    voted = [r for r in rounds if r.scores or r.late.get("verify")]
    assert voted and all(r.late["verify"] == ("a",) and "a" not in r.scores for r in voted)
    assert "a" in voted[0].drafts and voted[0].totals["a"] > 0  # what it wrote counts, only its vote is missing
    hung.gate.set()
    assert until(lambda: not hung.open_queries)


@pytest.mark.parametrize("straggler", ["exit", "wait", "leave_out"])
@pytest.mark.parametrize("limit", [None, 9.0])
def test_where_nobody_is_late_nothing_changes(pair, straggler, limit):
    plain = facts(pair.rounds(query(), SHORT))
    assert facts(pair.rounds(query(), SHORT, member_timeout=limit, straggler=straggler)) == plain


@pytest.mark.parametrize("straggler", ["wait", "leave_out"])
def test_one_member_alone_is_waited_for(device, straggler):
    """Alone it gives the same answer, however late each of its replies is."""

    class Slow(ScriptedMember):
        def draft(self, jobs):
            time.sleep(0.02)
            return super().draft(jobs)

    slow = Ensemble([Slow(BLUE, name="a", device=device)])
    rounds = asked(slow, "sync", member_timeout=0.005, straggler=straggler)
    assert text(rounds) == BLUE
    assert facts(rounds) == facts(Ensemble([ScriptedMember(BLUE, name="a")]).rounds(query(), SHORT))


def test_waiting_has_no_limit():
    hung = Gated(GREY, gated_call=2, name="a")
    ensemble = trio(hung, False)
    running = ensemble.rounds(query(), SHORT, member_timeout=SOON, straggler="wait")
    first = next(running)
    assert hung.inside.wait(5)
    time.sleep(3 * SOON)
    hung.gate.set()
    rounds = [first, *running]
    assert all(r.late == {} and not {gone.kind for gone in r.left} - {"exit"} for r in rounds)
    assert set(rounds[1].drafts) == {"a", "b", "c"}


@pytest.mark.parametrize("shared", [True, False], ids=["one desk", "two desks"])
def test_a_late_reply_is_not_taken_for_a_later_jobs_and_its_writer_comes_back(shared):
    """a hangs in its second draft, b in its fourth: then a returns, with a draft that is two rounds old."""
    first = fresh_device()
    a = Gated(BLUE, gated_call=2, name="a", device=first)
    b = Gated(BLUE, gated_call=4, name="b", device=first if shared else fresh_device())
    running = Ensemble([a, b]).rounds(query(), SHORT, member_timeout=SOON, straggler="leave_out")
    rounds = [next(running) for _ in range(3)]
    assert [r.late for r in rounds] == [{}, {"draft": ("a",)}, {"draft": ("a",)}]
    assert b.inside.wait(5)
    time.sleep(2 * SOON)  # b is late now too: nobody is left to go on, so they are waited for
    a.gate.set()
    fourth = next(running)
    assert (set(fourth.drafts), fourth.late) == ({"a"}, {"draft": ("b",)})
    b.gate.set()
    rounds += [fourth, *running]
    assert text(rounds) == BLUE
    assert rounds[-1].weights == {"a": 0.5, "b": 0.5}
    batches = [size for name, _, size in desk_for(first).batches if name == "a"]
    assert set(batches) == {1}  # what was parked for rounds that are over was not done with the rest
    assert until(lambda: not (a.open_queries or b.open_queries))
    assert (a.overlaps, b.overlaps) == (0, 0)


def test_who_is_late_is_waited_for_when_the_others_fail():
    late = Gated(BLUE, gated_call=2, name="a", device=fresh_device())
    ill = ScriptedMember(BLUE, name="b", device=fresh_device(), fails_in=2)
    running = Ensemble([late, ill]).rounds(query(), SHORT, member_timeout=SOON, straggler="leave_out")
    first = next(running)
    assert late.inside.wait(5)
    time.sleep(2 * SOON)
    late.gate.set()
    rounds = [first, *running]
    assert text(rounds) == BLUE
    assert [(gone.member, gone.kind) for r in rounds for gone in r.left] == [("b", "error")]
    assert all(not r.late for r in rounds)  # in the end it was there


def test_nonsense_is_no_answer_that_one_could_go_on_with():
    """The only reply in time holds a NaN: the late one is waited for, not taken for lost."""

    class Ill(ScriptedMember):
        def draft(self, jobs):
            from dataclasses import replace

            drafts = super().draft(jobs)
            return [replace(d, logprobs=(float("nan"), *d.logprobs[1:])) for d in drafts]

    late = Gated(BLUE, name="a", device=fresh_device())
    running = Ensemble([late, Ill(BLUE, name="b", device=fresh_device())]).rounds(
        query(), SHORT, member_timeout=SOON, straggler="leave_out"
    )
    time.sleep(2 * SOON)
    late.gate.set()
    rounds = list(running)
    assert text(rounds) == BLUE
    assert [(gone.member, gone.kind) for r in rounds for gone in r.left] == [("b", "nan")]


def test_others_draft_when_the_one_that_is_cast_is_late():
    """With one drafter a round, its lateness is a doubt: the rest are asked, nobody waits."""
    hung = Gated(BLUE, gated_call=3, name="a", device=fresh_device())
    others = [ScriptedMember(t, name=n, device=fresh_device()) for t, n in ((GREY, "b"), (BLUE, "c"))]
    settings = Settings(segment_tokens=2, drafters=1)
    ensemble = Ensemble([hung, *others])
    prior = {"a": 1.2}
    rounds = list(ensemble.rounds(query(), settings, prior=prior, member_timeout=SOON, straggler="leave_out"))
    assert text(rounds) == BLUE
    late = [r for r in rounds if r.late.get("draft")]
    assert late and all(set(r.drafts) == {"b", "c"} for r in late if r.late["draft"] == ("a",))
    hung.gate.set()
    assert until(lambda: not hung.open_queries)


def test_the_one_that_is_cast_is_waited_for_when_the_rest_fail():
    late = Gated(BLUE, gated_call=3, name="a", device=fresh_device())

    class Ill(ScriptedMember):
        def draft(self, jobs):
            if late.inside.is_set():
                raise RuntimeError("ill")
            return super().draft(jobs)

    members = [late, Ill(GREY, name="b", device=fresh_device()), Ill(GREY, name="c", device=fresh_device())]
    settings = Settings(segment_tokens=2, drafters=1, exit="never")
    limits = {"member_timeout": SOON, "straggler": "leave_out"}
    running = Ensemble(members).rounds(query(), settings, prior={"a": 5.0}, **limits)
    first = next(running)
    assert late.inside.wait(5)
    time.sleep(5 * SOON)
    late.gate.set()
    rounds = [first, *running]
    assert is_whole(text(rounds)) and rounds[-1].weights == {"a": 1.0}
    assert {gone.member for r in rounds for gone in r.left} == {"b", "c"}


def test_who_must_leave_leaves_with_a_reason_and_the_rest_do_not_wait_for_it_again():
    hung = Gated(GREY, gated_call=2, name="a")
    rounds = asked(trio(hung, False), "sync", member_timeout=SOON, straggler="exit")
    assert [(d.member, d.kind, d.round, d.reason) for r in rounds for d in r.left] == [
        ("a", "timeout", 2, f"did not answer within member_timeout={SOON:g} s")
    ]
    assert all(not r.late for r in rounds)
    hung.gate.set()
    assert until(lambda: not hung.open_queries)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_an_answer_that_is_given_up_while_a_member_is_late_is_forgotten(way):
    hung = Gated(BLUE, gated_call=2, name="a")
    ensemble = trio(hung, False)

    async def left_early():
        running = ensemble.arounds(query(), SHORT, member_timeout=SOON, straggler="leave_out")
        assert [(await anext(running)).late for _ in range(2)][1]["draft"] == ("a",)
        await running.aclose()

    if way == "async":
        asyncio.run(left_early())
    else:
        running = ensemble.rounds(query(), SHORT, member_timeout=SOON, straggler="leave_out")
        assert [next(running).late for _ in range(2)][1]["draft"] == ("a",)
        running.close()
    hung.gate.set()
    assert until(lambda: not any(member.open_queries for member in ensemble.members.values()))
    assert hung.draft_calls == 2  # what was parked for it was not done


def test_the_whole_answer_still_has_its_time_limit():
    hung = Gated(BLUE, name="a", device=fresh_device())
    with pytest.raises(TimeoutError, match=r"timeout=0\.1"):
        asked(Ensemble([hung]), "sync", timeout=0.1, member_timeout=SOON, straggler="leave_out")
    hung.gate.set()
    assert until(lambda: not hung.open_queries)


def test_one_callers_haste_does_not_hurt_another():
    """Two answers share a member that is slow: the hasty one goes on without it, the patient one has all its drafts."""
    slow = Gated(BLUE, gated_call=1, name="a", device=fresh_device())
    ensemble = Ensemble([slow, ScriptedMember(GREY, name="b", device=fresh_device())])
    hasty = list(ensemble.rounds(query(), SHORT, member_timeout=SOON, straggler="leave_out"))
    assert text(hasty) == GREY and all(r.late for r in hasty)
    patient = ensemble.rounds(query(), SHORT)
    time.sleep(2 * SOON)
    slow.gate.set()
    rounds = list(patient)
    assert all(set(r.drafts) == {"a", "b"} and not r.late and not r.left for r in rounds)


class Moody(ScriptedMember):
    """Sometimes takes longer than it may."""

    dice = random.Random(5)

    def draft(self, jobs):
        time.sleep(self.dice.choice([0, 0, 0, 0.004, 0.012]))
        return super().draft(jobs)

    def score(self, jobs):
        time.sleep(self.dice.choice([0, 0, 0.004, 0.012]))
        return super().score(jobs)


def test_equal_members_give_one_answer_whoever_is_late():
    """Twins in a crowd, each late at random: one text, equal weights, nobody leaves, nothing stays behind."""
    twins = Ensemble([Moody(BLUE, name=n, device=fresh_device()) for n in "abc"])

    async def one():
        limits = {"member_timeout": 0.005, "straggler": "leave_out"}
        return [r async for r in twins.arounds(query(), SHORT, **limits)]

    async def crowd():
        return await asyncio.gather(*(one() for _ in range(30)))

    answers = asyncio.run(crowd())
    assert {text(rounds) for rounds in answers} == {BLUE}
    assert any(r.late for rounds in answers for r in rounds)
    for rounds in answers:
        assert not any(r.left for r in rounds)
        assert all(weight == pytest.approx(1 / 3) for weight in rounds[-1].weights.values())
    assert until(lambda: not any(member.open_queries for member in twins.members.values()))


def test_a_crowd_with_moods_never_loses_or_doubles_a_word():
    members = [Moody(t, name=n, device=d) for t, n, d in ((BLUE, "a", "x1"), (GREY, "b", "x1"), (BLUE, "c", "x2"))]
    ensemble = Ensemble(members)

    async def one(k):
        limits = {"member_timeout": 0.006, "straggler": ["leave_out", "exit", "wait"][k % 3]}
        return [r async for r in ensemble.arounds(query(str(k)), SHORT, **limits)]

    async def crowd():
        return await asyncio.gather(*(one(k) for k in range(30)), return_exceptions=True)

    for rounds in asyncio.run(crowd()):
        if isinstance(rounds, BaseException):  # with "exit" all three may have been too slow
            assert isinstance(rounds, EnsembleError) and {one.kind for one in rounds.failures} == {"timeout"}
            continue
        assert is_whole(text(rounds))
    assert until(lambda: not any(member.open_queries for member in members))


def test_a_member_cannot_call_itself_late(device):
    """Late is what a desk says. A member that never has anything to say is no reason to wait for ever."""

    class Shirker(ScriptedMember):
        def draft(self, jobs):
            error = RuntimeError("I am late")
            error.kind = "late"
            raise error

    members = [Shirker(GREY, name="a", device=device), ScriptedMember(BLUE, name="b", device=device)]
    rounds = list(Ensemble(members).rounds(query(), SHORT))
    assert [(gone.member, gone.kind) for gone in rounds[0].left] == [("a", "error")]
    assert isinstance(rounds[0].failures[0], Failure)
