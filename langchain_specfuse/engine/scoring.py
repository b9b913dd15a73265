"""Ask members how probable texts are, without writing an answer.

Each request has one score job per member. It goes through the workers like the jobs of an answer:
jobs of several requests that wait for a member at the same time share a batch, and what members
keep for a request is freed when the request is over or cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from ..core.member import Probe
from ..core.options import Settings
from ..core.values import Ask, Failure, Replies, ScoreJob
from ..errors import MemberError
from .drive import Admission, Run
from .ensemble import Ensemble

Jobs = Mapping[str, ScoreJob]
"""member -> its job."""


class Scorers:
    """Members that score texts. A member that cannot be loaded does not affect the others; the next
    request tries to load it again."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.members = ensemble.members
        self._admission = Admission()
        # one ensemble per member, because an ensemble loads all of its members or none
        self._alone = {name: Ensemble([member]) for name, member in self.members.items()}

    def probes(self) -> dict[str, Probe | Failure]:
        """What each member can do. Loads members that are not loaded yet."""
        loading = {name: ensemble.loaded() for name, ensemble in self._alone.items()}
        return {name: _probe(name, future) for name, future in loading.items()}

    async def aprobes(self) -> dict[str, Probe | Failure]:
        """``probes`` for asyncio."""
        loading = {name: ensemble.loaded() for name, ensemble in self._alone.items()}
        waiting = [asyncio.wrap_future(future) for future in loading.values()]
        await asyncio.gather(*waiting, return_exceptions=True)
        return {name: _probe(name, future) for name, future in loading.items()}

    def scored(self, requests: Sequence[Jobs], settings: Settings) -> list[Replies]:
        """The replies to each request. All requests are sent together."""
        futures, runs = self._runs(requests, settings)
        try:
            for run in runs:
                run.start()
            while wait(futures, _left_s(runs)).not_done:
                _expire(runs)
            return [future.result() for future in futures]
        finally:
            for run in runs:
                run.cancel()

    async def ascored(self, requests: Sequence[Jobs], settings: Settings) -> list[Replies]:
        """``scored`` for asyncio."""
        futures, runs = self._runs(requests, settings)
        try:
            for run in runs:
                run.start()
            waiting = [asyncio.wrap_future(future) for future in futures]
            while (await asyncio.wait(waiting, timeout=_left_s(runs)))[1]:
                await asyncio.to_thread(_expire, runs)
            return await asyncio.gather(*waiting)
        finally:
            for run in runs:
                run.cancel()

    def _runs(
        self, requests: Sequence[Jobs], settings: Settings
    ) -> tuple[list[Future[Replies]], list[Run]]:
        futures: list[Future[Replies]] = []
        runs = []
        for jobs in requests:
            future: Future[Replies] = Future()
            future.set_running_or_notify_cancel()
            received: list[Replies] = []
            loop: Any = _asked(jobs, received)
            sink = partial(_finish, future, received)
            runs.append(Run(loop, self.members, settings, self._admission, sink))
            futures.append(future)
        return futures, runs


def _left_s(runs: Sequence[Run]) -> float | None:
    """How long to wait for replies: until the next time limit of a member."""
    limits = [run.left_s() for run in runs]
    return min((limit for limit in limits if limit is not None), default=None)


def _expire(runs: Sequence[Run]) -> None:
    for run in runs:
        run.expire()


def _asked(jobs: Jobs, received: list[Replies]) -> Generator[Ask, Replies, None]:
    """A loop with a single question to its members."""
    received.append((yield Ask(jobs, 1)))


def _finish(future: Future[Replies], received: Sequence[Replies], last: Any) -> None:
    """The end of a run: None if all members have replied, otherwise an error."""
    if isinstance(last, BaseException):
        future.set_exception(last)
    else:
        future.set_result(received[0])


def _probe(name: str, future: Future[dict[str, Probe]]) -> Probe | Failure:
    try:
        return future.result()[name]
    except Exception as error:
        # A member's error says itself what failed.
        return Failure.of(error, error.message if isinstance(error, MemberError) else "")
