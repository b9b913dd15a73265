"""Pumps the loop: a :class:`Run` moves it forward from the desks' threads; ``drive`` and ``adrive`` read its rounds.

Whoever delivers the last reply of an ``Ask`` moves that query on, so its next jobs are in the inboxes before the desk
looks for its next batch: queries stay in step, and nobody waits for somebody else's answer to end. The caller's thread
only reads a queue. Closing the iterator, for whatever reason, cancels the run and frees its caches within one round.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

from ..core.member import Member
from ..core.rounds import Loop
from ..core.values import Ask, DraftJob, Replies, Reply, Round
from .desk import Task, desk_for

Sink = Callable[[Round | BaseException | None], None]
"""Takes the rounds, then None; or an error instead."""


class Run:
    """One answer under way."""

    def __init__(
        self, loop: Loop, query_id: str, members: Mapping[str, Member], member_timeout: float | None, sink: Sink
    ) -> None:
        self._loop = loop
        self._query_id = query_id
        self._members = members
        self._member_timeout = member_timeout
        self._sink = sink
        self._turn = threading.Lock()
        self._over = False

    def start(self) -> Run:
        self._advance(None)
        return self

    def cancel(self) -> None:
        """Whatever happens from now on, nobody wants it. Frees every member's caches; harmless when over."""
        if not self._over:
            self._over = True
            self._forget(list(self._members))

    def _wanted(self) -> bool:
        return not self._over

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
        replies: dict[str, Reply] = {}

        def deliver(name: str, reply: Reply) -> None:
            with self._turn:
                replies[name] = reply
                complete = len(replies) == len(ask.jobs) and not self._over
            if complete:
                self._advance({name: replies[name] for name in ask.jobs})

        for name, job in ask.jobs.items():
            member = self._members[name]
            work = "draft" if isinstance(job, DraftJob) else "score"
            receive = partial(deliver, name)
            desk_for(member.device).put(Task(member, work, job, receive, self._wanted, self._member_timeout))

    def _end(self, last: BaseException | None) -> None:
        try:
            self.cancel()
        finally:
            self._sink(last)

    def _forget(self, names: list[str]) -> None:
        # Through the inbox, or it would race with the batch that is running.
        for name in names:
            member = self._members[name]
            call = partial(member.forget, self._query_id)
            desk_for(member.device).put(Task(member, "call", call, lambda _: None))


WAKE_S = 0.5
"""Whoever waits for news looks up so often: an interrupt that comes just before a wait begins does not end it."""


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
) -> Iterator[Round]:
    """The rounds of one answer, as they are agreed. ``timeout`` seconds for the whole answer, else TimeoutError."""
    news: queue.SimpleQueue[Round | BaseException | None] = queue.SimpleQueue()
    deadline = _Deadline(timeout)

    def news_in_time() -> Round | BaseException | None:
        while True:
            left = deadline.left_s()
            try:
                return news.get(timeout=WAKE_S if left is None else min(WAKE_S, left))
            except queue.Empty:
                if left is not None and left <= WAKE_S:
                    raise deadline.error() from None

    run = Run(loop, query_id, members, member_timeout, news.put)
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

    run = Run(loop, query_id, members, member_timeout, post)
    try:
        run.start()
        while (item := await news_in_time()) is not None:
            if isinstance(item, BaseException):
                raise item
            deadline.agreed += item.text
            yield item
    finally:
        run.cancel()
