"""Members that work on several jobs at the same time, because they wait for a server or a chat
model.

Each job has a thread and signs of life of its own, and its reply is delivered as soon as it is
there. A job that is silent for too long, or exceeds its time limit, fails alone: its thread is left
to it, and what it returns later is dropped. When an answer is over, its jobs read no further.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from ..core.call import Call
from ..core.silence import Silence, late, silent
from ..core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ..errors import MemberError, UsageError, amount

log = logging.getLogger("langchain_specfuse")

SHOWN = 300
"""At most this many characters of another program's error message are passed on."""
IDLE_S = 2.0
"""A thread that watches limits ends after this long without any."""

Job = DraftJob | ScoreJob
Work = Literal["draft", "score"]


# --- the members ----------------------------------------------------------------------------------


class ConcurrentMember(ABC):
    """A member that works on several jobs at the same time, each in a thread of its own."""

    name: str
    max_concurrency: Any
    _calls: Calls

    def _start_calls(self) -> None:
        """Begin without any job: for a new member, and for a copy."""
        self._calls = Calls(self.name, self.max_concurrency)

    @abstractmethod
    def _answer(self, work: Work, job: Any) -> Any:
        """The reply to one job. Called from several threads."""

    @abstractmethod
    def _forget(self, query_id: str) -> None:
        """Free what is kept for this query, which no thread works on."""

    def begin(self, work: Work, job: Job, deliver: Callable[[Any], None]) -> None:
        """As in :class:`.Member`."""
        self._calls.max_concurrency = self.max_concurrency
        self._calls.begin(_Call(job, partial(self._answer, work), deliver, self._forget))

    def draft(self, jobs: Sequence[DraftJob]) -> list[Any]:
        return self._each("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Any]:
        return self._each("score", jobs)

    def forget(self, query_id: str) -> None:
        self._calls.when_over(query_id, partial(self._forget, query_id))

    def _each(self, work: Work, jobs: Sequence[Job]) -> list[Any]:
        """The replies to all jobs, in order."""
        replies: list[Any] = [None] * len(jobs)
        left = len(jobs)
        news = threading.Condition()

        def deliver(at: int, reply: Any) -> None:
            nonlocal left
            with news:
                replies[at] = reply
                left -= 1
                news.notify()

        for at, job in enumerate(jobs):
            self.begin(work, job, partial(deliver, at))
        with news:
            while left:
                news.wait()
        return replies


# --- jobs under way -------------------------------------------------------------------------------


class _Call:
    """A job of a member, and the functions that work on it, take its reply, and forget its
    query."""

    def __init__(
        self,
        job: Job,
        work: Callable[[Any], Any],
        deliver: Callable[[Any], None],
        forget: Callable[[str], None],
    ) -> None:
        self.job = job
        self.work = work
        self.deliver = deliver
        self.forget = partial(forget, job.query.id)
        self.handle = Call()
        self.is_late = False
        """Whether it was given up."""
        self.is_over = False
        """Whether its answer is over."""
        self._began = 0.0
        self._silence: Silence | None = None

    @property
    def is_limited(self) -> bool:
        return self.job.silence_s is not None or self.job.timeout_s is not None

    def start_clock(self) -> None:
        """Count its time from now on: waiting in a queue does not count."""
        self._began = self.handle.last = time.monotonic()
        if self.job.silence_s is not None:
            self._silence = Silence(self.job.silence_s, self._began, self._began)

    def pause_s(self, now: float) -> float:
        """The time until the next check of its limits."""
        pauses = []
        if self._silence is not None:
            pauses.append(self._silence.pause_s)
        if self.job.timeout_s is not None:
            pauses.append(max(self._began + self.job.timeout_s - now, 0.0))
        return min(pauses)

    def failure(self, now: float) -> Failure | None:
        """How it fails if it has exceeded a limit."""
        if self._silence is not None and self._silence.is_too_long(now, self.handle.last):
            return silent(self._silence.limit_s)
        if self.job.timeout_s is not None and now >= self._began + self.job.timeout_s:
            return late(self.job.timeout_s)
        return None

    def timed(self, reply: Any) -> Any:
        """Its reply with the time that it took since it began."""
        if not isinstance(reply, Draft | Scored | Failure) or reply.effort.seconds:
            return reply
        effort = replace(reply.effort, seconds=time.monotonic() - self._began)
        return replace(reply, effort=effort)

    def reply(self, reply: Any) -> None:
        """Deliver its reply."""
        try:
            self.deliver(reply)
        except Exception:  # one receiver's error must not end the thread that serves others
            log.exception("a reply could not be delivered")


class Calls:
    """The jobs of one member: at most ``max_concurrency`` under way, and those that wait.

    The threads are daemons, because those of ``concurrent.futures`` keep a program from ending
    while a server hangs.
    """

    def __init__(self, name: str, max_concurrency: int | None) -> None:
        self._name = name
        self.max_concurrency = max_concurrency
        self._waiting: deque[_Call] = deque()
        self._under_way: dict[_Call, None] = {}
        self._late: dict[_Call, None] = {}
        """Calls that were given up and have not returned."""
        self._over: dict[str, Callable[[], None]] = {}
        """Query id -> what to do when its job that is under way has ended."""
        # Re-entrant, because the garbage collector closes the streams that nobody reads any more
        # in any thread, and other answers begin then.
        self._news = threading.Condition(threading.RLock())
        self._watcher: threading.Thread | None = None
        self._next_check = 0.0

    def begin(self, call: _Call) -> None:
        """Work on a job, now or as soon as there is room. The reply or a :class:`.Failure` is
        delivered once. If the reply comes too late, the query is forgotten."""
        with self._news:
            self._waiting.append(call)
        self._begin_waiting()

    def when_over(self, query_id: str, act: Callable[[], None]) -> None:
        """Nobody needs replies for this query any more: drop its waiting jobs, interrupt those that
        are under way, and call ``act`` when these have ended."""
        with self._news:
            dropped = [call for call in self._waiting if call.job.query.id == query_id]
            for call in dropped:
                self._waiting.remove(call)
            interrupted = self._working_on(query_id)
            for call in interrupted:
                call.is_over = True
            if interrupted:
                self._over[query_id] = act
        for call in dropped:
            call.reply(Failure("error", "the answer is over"))
        for call in interrupted:
            call.handle.close()
        if not interrupted:
            act()

    def _working_on(self, query_id: str) -> list[_Call]:
        return [call for call in self._under_way if call.job.query.id == query_id]

    # - beginning and ending

    def _begin_waiting(self) -> None:
        """Begin waiting calls while there is room."""
        while True:
            with self._news:
                limit = self.max_concurrency
                if not self._waiting or (limit and len(self._under_way) >= limit):
                    return
                call = self._waiting.popleft()
                failure = self._refusal(call) or self._start(call)
            if failure is not None:
                call.reply(failure)

    def _refusal(self, call: _Call) -> Failure | None:
        """Calls with limits do not pile up behind others that hang."""
        hung = len(self._late)
        limit = self.max_concurrency
        if not call.is_limited or limit is None or hung < limit:
            return None
        message = f"still waiting for {amount(hung, 'earlier request')} without a reply"
        return Failure("timeout", message)

    def _start(self, call: _Call) -> Failure | None:
        """Start its thread. The caller holds the lock."""
        call.start_clock()
        self._under_way[call] = None
        name = f"specfuse-{self._name}_{len(self._under_way)}"
        try:
            if call.is_limited:
                self._watch(call)
            threading.Thread(target=self._run, args=(call,), name=name, daemon=True).start()
        except RuntimeError as error:  # the system has no room for a thread
            del self._under_way[call]
            return Failure("error", shown(error), error)
        return None

    def _run(self, call: _Call) -> None:
        with call.handle.in_this_thread():
            reply = call.timed(_reply(call))
        forget: Callable[[], None] | None = None
        with self._news:
            if call.is_late:
                del self._late[call]
                forget = call.forget
            else:
                del self._under_way[call]
                query_id = call.job.query.id
                if not self._working_on(query_id):
                    forget = self._over.pop(query_id, None)
        try:
            if forget is not None:
                forget()
        except Exception:
            log.exception("%s cannot forget an answer that is over", self._name)
        self._begin_waiting()
        if not call.is_late:
            call.reply(reply)

    # - limits

    def _watch(self, call: _Call) -> None:
        """Let a thread check the limits of this call. The caller holds the lock."""
        if self._watcher is None or not self._watcher.is_alive():
            watcher = threading.Thread(
                target=self._check_limits, name="specfuse-limits", daemon=True
            )
            watcher.start()
            self._watcher = watcher
        else:
            now = time.monotonic()
            if now + call.pause_s(now) < self._next_check:
                self._news.notify()

    def _check_limits(self) -> None:
        while (exceeded := self._next_exceeded()) is not None:
            for call, failure in exceeded:
                call.handle.close()
                call.reply(failure)
            if exceeded:
                self._begin_waiting()
            del exceeded

    def _next_exceeded(self) -> list[tuple[_Call, Failure]] | None:
        """Wait for the next check, and return the calls that it gives up. None: the thread should
        end."""
        with self._news:
            now = time.monotonic()
            pauses = [call.pause_s(now) for call in self._under_way if call.is_limited]
            pause_s = min(pauses, default=IDLE_S)
            self._next_check = now + pause_s
            is_notified = self._news.wait(pause_s)
            now = time.monotonic()
            limited = [call for call in self._under_way if call.is_limited]
            if not pauses and not limited and not is_notified:
                self._watcher = None
                return None
            exceeded = []
            for call in limited:
                failure = call.failure(now)
                if failure is not None:
                    call.is_late = True
                    del self._under_way[call]
                    self._late[call] = None
                    self._over.pop(call.job.query.id, None)  # it forgets the query itself
                    exceeded.append((call, call.timed(failure)))
            return exceeded


def _reply(call: _Call) -> Any:
    try:
        return call.work(call.job)
    except BaseException as error:  # handed to whoever waits for the reply
        return failure_of(error)


def failure_of(error: BaseException) -> Failure:
    """The failure of a job whose member raised this."""
    if isinstance(error, MemberError | UsageError):
        return Failure.of(error, str(error))
    if isinstance(error, Exception):
        return Failure("error", f"unexpected reply: {shown(error)}", error)
    return Failure.of(error)


def shown(error: Exception) -> str:
    """An error as text for a message. It may quote what another program sent, which may be long or
    hold characters that cannot be encoded."""
    text = f"{type(error).__name__}: {error}"
    return text.encode(errors="backslashreplace").decode()[:SHOWN]
