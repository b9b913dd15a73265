"""Pumps the loop: a :class:`Run` moves it forward from the desks' threads; ``drive`` and ``adrive`` read its rounds.

Whoever delivers the last reply of an ``Ask`` moves that query on, so its next jobs are in the inboxes before the desk
looks for its next batch: queries stay in step, and nobody waits for somebody else's answer to end. The caller's thread
only reads a queue. Closing the iterator, for whatever reason, cancels the run and frees its caches within one round.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from ..core.member import Member
from ..core.rounds import Loop
from ..core.values import Ask, DraftJob, Replies, Reply, Round, Straggler
from .desk import desk_for, forked, refuse_fork
from .gathering import Gathering
from .line import Line, Turn
from .task import Task

Sink = Callable[[Round | BaseException | None], None]
"""Takes the rounds, then None; or an error instead."""


class Run:
    """One answer under way."""

    def __init__(
        self, loop: Loop, query_id: str, members: Mapping[str, Member], patience: Patience, place: Place, sink: Sink
    ) -> None:
        self._loop = loop
        self._query_ids = {query_id}
        """The query's, and those of what else had to be asked about it."""
        self._members = members
        self._patience = patience
        self._place = place
        self._sink = sink
        self._begun = False
        self._over = False

    def start(self) -> None:
        """Begin, now or when it is this answer's turn."""
        self._place.line.enter(self, self._place.turn, self._begin)

    def cancel(self) -> None:
        """Whatever happens from now on, nobody wants it. Frees every member's caches; harmless when over."""
        if not self._over:
            self._over = True
            if forked():
                return  # it is over in the process where it began
            if self._begun:
                self._forget(list(self._members))
            self._place.line.leave(self)

    def _begin(self) -> None:
        self._begun = True
        if not self._over:
            self._advance(None)

    def _advance(self, replies: Replies | None) -> None:
        """Move the loop to its next ``Ask``, handing out the rounds on the way."""
        try:
            item = self._loop.send(replies)
            while not isinstance(item, Ask):
                if self._over:
                    return
                self._forget([departure.member for departure in item.left])
                self._sink(item)
                item = next(self._loop)
            self._ask(item)
        except StopIteration:
            self._end(None)
        except BaseException as error:  # whatever it is belongs to the caller, not to the desk
            self._end(error)

    def _ask(self, ask: Ask) -> None:
        gathering, patience = Gathering(ask), self._patience

        def deliver(name: str, reply: Reply) -> None:
            replies = gathering.take(name, reply)
            if replies is not None and not self._over:
                self._advance(replies)

        def wanted() -> bool:
            return not (gathering.over or self._over)

        tasks: dict[str, list[Task]] = {}
        for name, job in ask.jobs.items():
            self._query_ids.add(job.query.id)
            member = self._members[name]
            work = "draft" if isinstance(job, DraftJob) else "score"
            receive = partial(deliver, name)
            stays, priority = patience.straggler == "leave_out", self._place.turn.priority
            task = Task(member, work, job, receive, wanted, patience.limit_s, stays, priority)
            tasks.setdefault(member.device, []).append(task)
        for device, mine in tasks.items():
            desk_for(device).put(*mine)  # at once, or the first would be taken alone, without its kin

    def _end(self, last: BaseException | None) -> None:
        try:
            self.cancel()
        finally:
            self._sink(last)

    def _forget(self, names: list[str]) -> None:
        # Through the inbox, or it would race with the batch that is running.
        for name in names:
            member = self._members[name]
            for query_id in sorted(self._query_ids):
                call = partial(member.forget, query_id)
                task = Task(member, "call", call, lambda _: None, priority=self._place.turn.priority)
                desk_for(member.device).put(task)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one reply of one member may take, and what becomes of a member that takes longer."""

    member_timeout: float | None = None
    straggler: Straggler = "exit"

    @property
    def limit_s(self) -> float | None:
        return None if self.straggler == "wait" else self.member_timeout


@dataclass(frozen=True, slots=True)
class Place:
    """Where an answer waits for its turn, and what it wants there."""

    line: Line = field(default_factory=Line)
    turn: Turn = field(default_factory=Turn)


class Late(TimeoutError):
    """The answer took too long. ``text`` is what had been agreed until then."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.text = text


class _Deadline:
    """When the whole answer must be there."""

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        self._end = None if timeout is None else time.monotonic() + timeout
        self.agreed = ""

    def left_s(self) -> float | None:
        return None if self._end is None else max(self._end - time.monotonic(), 0.0)

    def error(self) -> TimeoutError:
        return Late(f"no whole answer within timeout={self._timeout:g} s", self.agreed)


def drive(
    loop: Loop,
    query_id: str,
    members: Mapping[str, Member],
    *,
    timeout: float | None = None,
    member_timeout: float | None = None,
    straggler: Straggler = "exit",
    place: Place | None = None,
) -> Iterator[Round]:
    """The rounds of one answer, as they are agreed. ``timeout`` seconds for the whole answer, else TimeoutError."""
    news: queue.SimpleQueue[Round | BaseException | None] = queue.SimpleQueue()
    deadline = _Deadline(timeout)

    def news_in_time() -> Round | BaseException | None:
        refuse_fork()  # in a child nobody is there who could bring any
        try:
            return news.get(timeout=deadline.left_s())
        except queue.Empty:
            raise deadline.error() from None

    run = Run(loop, query_id, members, Patience(member_timeout, straggler), place or Place(), news.put)
    try:
        run.start()
        while (item := news_in_time()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()


async def adrive(
    loop: Loop,
    query_id: str,
    members: Mapping[str, Member],
    *,
    timeout: float | None = None,
    member_timeout: float | None = None,
    straggler: Straggler = "exit",
    place: Place | None = None,
) -> AsyncIterator[Round]:
    """``drive`` for asyncio."""
    news: asyncio.Queue[Round | BaseException | None] = asyncio.Queue()
    here = asyncio.get_running_loop()
    deadline = _Deadline(timeout)

    def post(item: Round | BaseException | None) -> None:
        try:
            here.call_soon_threadsafe(news.put_nowait, item)
        except RuntimeError:  # the event loop was closed under us: nobody reads any more
            run.cancel()

    async def news_in_time() -> Round | BaseException | None:
        try:
            return await asyncio.wait_for(news.get(), deadline.left_s())
        except TimeoutError:
            raise deadline.error() from None

    run = Run(loop, query_id, members, Patience(member_timeout, straggler), place or Place(), post)
    try:
        run.start()
        while (item := await news_in_time()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()
