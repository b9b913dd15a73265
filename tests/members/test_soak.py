"""Many answers of mixed members at once, sync and async, while servers die, refuse and fall silent
and callers give up: none is lost, none hangs, and nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.options import Method
from langchain_specfuse.engine import breaker, calls, limits, worker
from langchain_specfuse.members.chat_model import member

from .remote import KINDS, Remote, RemoteChat, RemoteServer, running, until
from .streaming import StreamingMember
from .test_chat_model import STORY

ANSWERS, FIRST = 300, 100
AT_ONCE = 12
"""How many answers are under way at once, in threads and in an event loop each."""
LONGEST_S = 20.0
"""An answer that takes longer is said to hang: the failure of a member takes a second."""
LEFT = 30
"""This many more objects than after the first answers are no leak: members may be paused."""
Outcome = str


class Unlucky(StreamingMember):
    """A member in this process whose streams sometimes break off."""

    def stream(self, job: Any) -> Iterator[Any]:
        self.breaks_after = random.choice((None, None, 0, 4, 20))
        yield from super().stream(job)


def break_at_random(remote: Remote, rng: random.Random) -> None:
    """Let some of its replies break off, hang or be refused from now on."""
    if isinstance(remote, RemoteChat):
        server = remote.server
        server.released.clear()
        how = rng.choice(("cut", "end", "hang", "503"))
        server.how, server.fails_after = how, rng.choice((None, None, None, 0, 3, 15))
        return
    assert isinstance(remote, RemoteServer)
    remote.server.go.clear()
    faults = ["cut", "cut", 500, "hang", *[None] * 16]
    remote.server.fault = lambda path, _: rng.choice(faults) if "completion" in path else None
    remote.server.pace = lambda _: time.sleep(rng.random() / 500)


class Crowd:
    """Asks the ensembles in turn, and gives some answers up."""

    def __init__(self, models: list[SpecFuseChatModel], remotes: list[Remote]) -> None:
        self.models, self.remotes = models, remotes
        self.outcomes: Counter[Outcome] = Counter()
        self.exits: Counter[str] = Counter()
        self.longest_s = 0.0

    def ask(self, count: int) -> None:
        """Ask so many questions, half of them from an event loop."""
        half = count // 2
        with ThreadPoolExecutor(AT_ONCE) as threads:
            sync = [threads.submit(self._timed, self._sync, seed) for seed in range(half)]
            asyncio.run(self._all(range(half, count)))
            for one in sync:
                one.result()

    def _timed(self, ask: Callable[[random.Random], Outcome], seed: int) -> None:
        rng, since = self._begin(seed), time.monotonic()
        self._end(ask(rng), since)

    def _begin(self, seed: int) -> random.Random:
        rng = random.Random(seed)
        break_at_random(rng.choice(self.remotes), rng)
        return rng

    def _end(self, outcome: Outcome, since: float) -> None:
        self.outcomes[outcome] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - since)

    def _sync(self, rng: random.Random) -> Outcome:
        llm = rng.choice(self.models)
        match rng.randrange(6):
            case 0:
                with closing(llm.stream(question(rng))) as stream:  # type: ignore[type-var]
                    for _ in range(rng.randrange(1, 6)):
                        next(stream, None)
                return "closed"
            case 1:
                try:
                    llm.invoke(question(rng), timeout=0.05)
                except TimeoutError:
                    return "late"
                return "complete"
            case _:
                return self._complete(llm.invoke(question(rng)))

    def _complete(self, message: Any) -> Outcome:
        about = message.response_metadata
        assert message.text and about["finish_reason"] in ("stop", "length")
        self.exits.update(
            f"{exit['member']}: {exit['kind']}" for exit in about["specfuse"]["exits"]
        )
        return "complete"

    async def _all(self, seeds: range) -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(seed: int) -> None:
            async with room:
                rng, since = self._begin(seed), time.monotonic()
                self._end(await self._async(rng), since)

        await asyncio.gather(*map(one, seeds))

    async def _async(self, rng: random.Random) -> Outcome:
        llm = rng.choice(self.models)
        match rng.randrange(6):
            case 0:
                async with aclosing(llm.astream(question(rng))) as stream:  # type: ignore[type-var]
                    for _ in range(rng.randrange(1, 6)):
                        await anext(stream, None)
                return "closed"
            case 1:
                task = asyncio.create_task(llm.ainvoke(question(rng)))
                await asyncio.wait([task], timeout=rng.random() / 10)
                if task.cancel():
                    await asyncio.wait([task])
                    return "cancelled"
                return self._complete(task.result())
            case 2:
                try:
                    async with asyncio.timeout(0.05):
                        return self._complete(await llm.ainvoke(question(rng)))
                except TimeoutError:
                    return "late"
            case _:
                return self._complete(await llm.ainvoke(question(rng)))


def question(rng: random.Random) -> str:
    return f"Why {rng.randrange(8)}?"


def ours() -> list[str]:
    """The threads of the package. Those that wait for more work end soon, see ``IDLE_S``."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("specfuse")]
    return [name for name in names if not name.endswith("-loop")]


def connections(remotes: list[Remote]) -> list[Any]:
    """The connections to the servers that are in use."""
    ports = [urlsplit(remote.server.url).port for remote in remotes[1:]]  # type: ignore[attr-defined]
    open_ = psutil.Process().net_connections("tcp")
    used = [one for one in open_ if one.raddr and one.raddr.port in ports]
    pool = remotes[0].member.model.root_client._client._transport._pool
    return used + [one for one in pool.connections if not one.is_idle()]


def objects() -> Counter[str]:
    """How many objects of the package there are, by class."""
    gc.collect()
    kinds = (type(one) for one in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if str(kind.__module__).startswith("langchain_specfuse")
    )


@pytest.mark.long
def test_answers_under_deaths_time_outs_and_cancellations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(calls, "IDLE_S", 0.2)
    monkeypatch.setattr(limits, "SILENCE_S", 0.5)
    monkeypatch.setattr(limits, "FIRST_SILENCE_S", 1.0)
    monkeypatch.setattr(member, "silence_of", lambda model: None)  # the same for chat models
    monkeypatch.setattr(breaker, "PAUSE_S", 0.0)  # members that fail go on to be asked
    monkeypatch.setattr(breaker, "LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(worker, "IDLE_S", 0.05)
    with (
        running(KINDS[0], "chat") as chat,
        running(KINDS[1], "vllm") as vllm,
        running(KINDS[2], "llama") as llama,
    ):
        remotes = [chat, vllm, llama]
        members = {remote.member.name: remote.member for remote in remotes}
        members["unlucky"] = Unlucky(STORY, name="unlucky")
        members["scripted"] = ScriptedMember(STORY, name="scripted")
        leads = ["chat vllm", "vllm llama", "llama chat", "unlucky chat", "unlucky vllm"]
        models = [
            SpecFuseChatModel(
                members=[members[name] for name in (*names.split(), "scripted")],
                lead=names.split()[0],
                max_tokens=24,
            )
            for names in leads
        ]
        voters = [members[name] for name in ("scripted", "vllm", "llama")]
        models.append(
            SpecFuseChatModel(
                members=voters,
                lead=None,
                max_tokens=12,
                method=Method(exit="never", segment_tokens=4),
                member_timeout=1.0,
            )
        )
        crowd = Crowd(models, remotes)
        crowd.ask(FIRST)
        for remote in remotes:
            remote.go_on()
        assert until(lambda: not ours()), ours()
        first = objects()
        crowd.ask(ANSWERS - FIRST)
        for remote in remotes:
            remote.go_on()
        assert until(lambda: not ours()), ours()
        last = objects()
        for remote in remotes:
            remote.member.unload()
        assert until(lambda: not connections(remotes)), connections(remotes)
        print(crowd.exits)
        print(crowd.outcomes, f"longest {crowd.longest_s:.1f} s", sum(first.values()), last - first)
        assert crowd.outcomes.total() == ANSWERS
        assert crowd.exits.total() > ANSWERS / 10
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert crowd.longest_s < LONGEST_S
        assert sum(last.values()) < sum(first.values()) + LEFT, last - first
