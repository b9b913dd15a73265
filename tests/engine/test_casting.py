"""When only who has won drafts: the same answer whichever way it is asked for, and nobody draws a token in vain."""

from __future__ import annotations

import asyncio
import threading

import pytest

from langchain_specfuse.core.values import Settings
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.scripted import ScriptedMember

from .conftest import BLUE, GREY, fresh_device, query, until

ONE = Settings(segment_tokens=2, drafters=1)


def three(device):
    """Members whose answers differ from question to question."""

    def says(text):
        return lambda q: " ".join(f"{w}{q.turns[-1].text if k % 3 == 0 else ''}" for k, w in enumerate(text.split()))

    texts = {"a": BLUE, "b": GREY, "c": BLUE.replace("air", "wide air")}
    return Ensemble([ScriptedMember(says(t), name=n, device=device) for n, t in texts.items()])


def facts(rounds):
    return [(r.number, r.text, r.winner, list(r.drafts), r.totals, r.weights, r.finish) for r in rounds]


def asked(ensemble, k):
    return facts(ensemble.rounds(query(str(k)), ONE))


def test_sync_async_alone_and_in_a_crowd_give_the_same_rounds(device):
    alone = [asked(three(fresh_device()), k) for k in range(20)]
    crowd, found = three(device), {}
    threads = [threading.Thread(target=lambda k=k: found.update({k: asked(crowd, k)})) for k in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    async def all_of_them():
        async def one(k):
            return facts([r async for r in crowd.arounds(query(str(k)), ONE)])

        return await asyncio.gather(*map(one, range(20)))

    assert [found[k] for k in range(20)] == alone
    assert asyncio.run(all_of_them()) == alone
    assert any(len(drafts) == 1 for rounds in alone for _, _, _, drafts, *_ in rounds)


def test_members_that_do_not_draft_are_not_asked_for_anything(device):
    ensemble = three(device)
    rounds = list(ensemble.rounds(query(), ONE))
    full = [r for r in rounds if len(r.drafts) == 3]
    assert 0 < len(full) < len(rounds)
    drafted = {name: member.draft_calls for name, member in ensemble.members.items()}
    assert sum(drafted.values()) == sum(len(r.drafts) for r in rounds)
    assert all(member.score_calls <= len(full) for member in ensemble.members.values())


@pytest.mark.parametrize("drafters", [None, 1])
def test_members_that_never_drafted_again_forget_the_query_too(device, drafters):
    ensemble = three(device)
    list(ensemble.rounds(query(), Settings(segment_tokens=2, drafters=drafters)))
    assert until(lambda: not any(member.open_queries for member in ensemble.members.values()))
