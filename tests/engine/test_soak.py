"""Many queries at once, a third of them cancelled at random moments: the others are right, and nothing stays behind."""

from __future__ import annotations

import asyncio
import random
import threading
import time

from langchain_specfuse.engine import Ensemble

from .conftest import BLUE, GREY, SHORT, Gated, fresh_device, query, until
from .test_drive import collected, text


def crowd():
    def says(words):
        return lambda q: " ".join(words.split()[: 4 + int(q.turns[-1].text) % 10])

    members = [
        Gated(says(t), name=n, device=d)
        for n, t, d in (("a", BLUE, "soak-1"), ("b", GREY, "soak-1"), ("c", BLUE, "soak-2"))
    ]
    for member in members:
        member.gate.set()
        draft = member.draft
        member.draft = lambda jobs, draft=draft: (time.sleep(0.0003), draft(jobs))[1]
    return Ensemble(members)


def expected():
    alone = crowd()
    return [text(alone.rounds(query(str(k)), SHORT)) for k in range(10)]


def check(ensemble):
    assert until(lambda: not any(member.open_queries for member in ensemble.members.values()))
    assert [member.overlaps for member in ensemble.members.values()] == [0, 0, 0]
    assert [member.drafted_after_forget for member in ensemble.members.values()] == [[], [], []]


def test_200_mixed_queries_in_tasks_a_third_cancelled():
    right, ensemble, rng = expected(), crowd(), random.Random(0)

    async def one(k):
        await asyncio.sleep(rng.uniform(0, 0.2))
        return text(await collected(ensemble, query(str(k)), SHORT, timeout=30, member_timeout=30))

    async def soak():
        tasks = [asyncio.create_task(one(k)) for k in range(200)]
        doomed = rng.sample(range(200), 66)
        for k in doomed:
            asyncio.get_running_loop().call_later(rng.uniform(0, 0.3), tasks[k].cancel)
        return await asyncio.gather(*tasks, return_exceptions=True), set(doomed)

    answers, doomed = asyncio.run(soak())
    for k, answer in enumerate(answers):
        assert answer == right[k % 10] or (k in doomed and isinstance(answer, asyncio.CancelledError))
    assert sum(isinstance(answer, asyncio.CancelledError) for answer in answers) > 10
    check(ensemble)


def test_mixed_queries_in_threads_a_third_broken_off():
    right, ensemble, rng = expected(), crowd(), random.Random(1)
    wrong, broken_off = [], []

    def one(k, stop_after):
        seen = []
        for round in ensemble.rounds(query(str(k)), SHORT, member_timeout=30):
            seen.append(round)
            if len(seen) == stop_after:
                return broken_off.append(k)
        if text(seen) != right[k % 10]:
            wrong.append((k, text(seen)))

    threads = [
        threading.Thread(target=one, args=[k, rng.choice([1, 2, 3]) if k % 3 == 0 else None]) for k in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert len(broken_off) > 20
    check(ensemble)


def test_members_that_hang_now_and_then_under_load_leave_and_all_answers_end():
    ensemble, rng = Ensemble([Gated(BLUE, name=n, device=d) for d in [fresh_device()] for n in "abc"]), random.Random(2)
    for member in ensemble.members.values():
        member.gate.set()
    sleepy = ensemble.members["a"]
    draft = sleepy.draft
    sleepy.draft = lambda jobs: (time.sleep(0.06 if rng.random() < 0.1 else 0), draft(jobs))[1]

    async def soak():
        return await asyncio.gather(
            *(collected(ensemble, query(), SHORT, timeout=30, member_timeout=0.03) for _ in range(60))
        )

    answers = asyncio.run(soak())
    assert {text(rounds) for rounds in answers} == {BLUE}
    assert {d.kind for rounds in answers for r in rounds for d in r.left} == {"timeout"}
    check(ensemble)
