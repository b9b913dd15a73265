"""Interrupts at chosen and at random moments of an answer; afterwards nothing may be held, lost or changed.

    python -m tests.torture.interrupts --minutes 10

Three ways to interrupt: at the n-th entry of a function in the caller's thread (where Python looks for signals, so
that every n is a place where Ctrl-C can strike), by a timer's signal at a random moment, and by cancelling a coroutine
at its n-th await. After each, the same members answer once more, from another thread: their text must be what it
always is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from concurrent.futures import _base, thread
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.engine import desk

BLUE = "The sky is blue because the air scatters short waves more than long ones."
WIDE = "The sky is wide because the air scatters short waves better than long ones."
PATIENCE_S = 60.0
QUESTION = "Why is the sky blue?"
Way = Callable[[SpecFuseChatModel], Any]
"""Asks the question, and reads the whole answer."""

SYNC: dict[str, Way] = {
    "invoke": lambda llm: llm.invoke(QUESTION),
    "stream": lambda llm: list(llm.stream(QUESTION)),
    "batch": lambda llm: llm.batch([QUESTION, QUESTION]),
}


async def _streamed(llm: SpecFuseChatModel) -> list[Any]:
    return [chunk async for chunk in llm.astream(QUESTION)]


ASYNC: dict[str, Callable[[SpecFuseChatModel], Coroutine[Any, Any, Any]]] = {
    "ainvoke": lambda llm: llm.ainvoke(QUESTION),
    "astream": _streamed,
    "abatch": lambda llm: llm.abatch([QUESTION, QUESTION]),
}


@dataclass
class Case:
    """Members that nobody else uses, the model over them, and what is left in them of queries."""

    llm: SpecFuseChatModel
    left: Callable[[], list[Any]]


def scripted() -> Case:
    members = [ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")]
    llm = SpecFuseChatModel(members=members, segment_tokens=4)
    return Case(llm, lambda: [query for one in members for query in one.open_queries])


def hosted() -> Case:
    """Two tiny models whose weights are shared by all cases."""
    from tests.members import tiny

    members = [tiny.member("llama", 1), tiny.member("qwen3", 3)]
    llm = SpecFuseChatModel(members=members, segment_tokens=4, max_tokens=16)
    return Case(llm, lambda: [held for one in members for held in (*one._memos, *one.store.rows)])


CASES: dict[str, Callable[[], Case]] = {"scripted": scripted, "hosted": hosted}


def truth(make: Callable[[], Case]) -> str:
    return str(make().llm.invoke(QUESTION).text)


# --- ways to interrupt ------------------------------------------------------------------------------------------


class AtEntry:
    """Raises KeyboardInterrupt where the n-th function begins, as a signal would that came just then."""

    def __init__(self, number: int, ask: Way) -> None:
        self.number = number
        # LangChain's batch has a pool of threads, and the pool's own locks cannot bear it: that is no fault of ours.
        self.spared = (threading.__file__, thread.__file__, _base.__file__) if ask is SYNC["batch"] else ()
        self.count = 0

    def __call__(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename not in self.spared:
            self.count += 1
            if self.count == self.number:
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(self)
        try:
            yield
        finally:
            sys.settrace(before)


def entries(make: Callable[[], Case], ask: Way) -> int:
    """How many functions begin in the caller's thread while it asks."""
    ask(make().llm)  # what is only done once in a process does not count
    case, watch = make(), AtEntry(0, ask)
    with watch.watching():
        ask(case.llm)
    return watch.count


def entry_of(function: Any, make: Callable[[], Case], ask: Way) -> int:
    """Which entry is this function's first."""
    ask(make().llm)
    case, watch, found = make(), AtEntry(0, ask), 0

    def look(frame: Any, event: str, told: Any) -> None:
        nonlocal found
        watch(frame, event, told)
        if frame.f_code is function.__code__ and not found:
            found = watch.count

    before = sys.gettrace()
    sys.settrace(look)
    try:
        ask(case.llm)
    finally:
        sys.settrace(before)
    return found


def broken_at_entry(case: Case, ask: Way, number: int) -> str:
    """How it ended: ``interrupted``, or ``whole`` where a finalizer caught it."""
    try:
        with AtEntry(number, ask).watching():
            ask(case.llm)
    except KeyboardInterrupt:
        return "interrupted"
    except Exception as error:  # the standard library's own conditions may make another error of it
        return f"interrupted ({type(error).__name__})"
    return "whole"


def broken_at_random(case: Case, ask: Way, after_s: float) -> str:
    """By a timer's signal."""
    armed = True

    def strike(*_: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        ask(case.llm)
        armed = False
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return "whole"


class AtAwait:
    """Strikes where any task waits for the n-th time: cancels that task, or raises something in it."""

    def __init__(self, number: int, error: type[BaseException] | None = None) -> None:
        self.number, self.error = number, error
        self.count = 0

    def task(self, loop: asyncio.AbstractEventLoop, work: Any, **about: Any) -> asyncio.Task[Any]:
        """A task factory."""
        return asyncio.Task(Watched(work, self), loop=loop, **about)

    @property
    def due(self) -> bool:
        self.count += 1
        return self.count == self.number


class Watched(Coroutine[Any, Any, Any]):
    """A coroutine whose awaits are counted."""

    def __init__(self, work: Coroutine[Any, Any, Any], watch: AtAwait) -> None:
        self.work, self.watch = work, watch

    def send(self, told: Any) -> Any:
        return self._awaited(self.work.send(told))

    def throw(self, *error: Any) -> Any:
        return self._awaited(self.work.throw(*error))

    def close(self) -> None:
        self.work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise AssertionError("a task sends and throws")

    def _awaited(self, waited: Any) -> Any:
        if not self.watch.due:
            return waited
        if self.watch.error:
            return self.throw(self.watch.error())
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return waited


async def _rest_cancelled() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


def broken_at_await(
    case: Case, ask: Callable[[SpecFuseChatModel], Any], number: int, error: type[BaseException] | None
) -> tuple[str, int]:
    """How it ended, and how often somebody waited."""
    watch = AtAwait(number, error)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # a gathering whose parts are cancelled one by one complains
    loop.set_task_factory(watch.task)
    try:
        loop.run_until_complete(ask(case.llm))
        how = "whole"
    except (asyncio.CancelledError, KeyboardInterrupt):
        how = "interrupted"
    except Exception as error:  # LangChain takes a part that is cancelled by itself for a result
        how = f"interrupted ({type(error).__name__})"
    finally:
        struck, watch.number = 0 < number <= watch.count, 0
        loop.run_until_complete(_rest_cancelled())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    return how if struck else "too late", watch.count


# --- afterwards -------------------------------------------------------------------------------------------------


def wrong_after(case: Case, text: str) -> list[str]:
    """What is not as it was before: the next answer, the members' memory, the desks."""
    wrong: list[str] = []
    said: list[str] = []

    def ask() -> None:
        try:
            said.append(str(case.llm.invoke(QUESTION).text))
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")

    another = threading.Thread(target=ask, daemon=True)
    another.start()
    another.join(PATIENCE_S)
    if not said:
        return ["the next question is never answered"]
    if said[0] != text:
        wrong.append(f"the next answer is {said[0]!r}")
    if not _soon(lambda: not case.left()):
        wrong.append(f"still held: {case.left()}")
    taken = [one.device for one in list(desk._DESKS.values()) if not _free(one._lock)]
    return wrong + [f"the desk of {device} is locked" for device in taken]


def _free(lock: Any) -> bool:
    """Whether another thread can have it."""
    got: list[bool] = []

    def take() -> None:
        got.append(lock.acquire(timeout=1))
        if got[0]:
            lock.release()

    another = threading.Thread(target=take)
    another.start()
    another.join()
    return got[0]


def _soon(true: Callable[[], object], within_s: float = 2.0) -> bool:
    end = time.monotonic() + within_s
    while not true() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(true())


def threads_left(before: int, within_s: float = 5.0) -> int:
    """How many more threads there are than before, once idle desks have let theirs go."""
    _soon(lambda: threading.active_count() <= before, within_s)
    return threading.active_count() - before


def campaign(
    make: Callable[[], Case], strikes: Sequence[Callable[[Case], str]], text: str, end: float = math.inf
) -> tuple[Counter[str], list[str]]:
    """Every strike at members of its own, until the end: how they ended, and what was wrong afterwards."""
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for number, strike in enumerate(strikes):
        if time.monotonic() >= end:
            break
        case = make()
        ends[strike(case)] += 1
        wrong += [f"strike {number}: {what}" for what in wrong_after(case, text)]
        if wrong:
            break  # what hangs now would hang all the rest
    return ends, wrong


# --- by hand ----------------------------------------------------------------------------------------------------


def every_entry(make: Callable[[], Case], ask: Way, step: int = 1, first: int = 1) -> list[Callable[[Case], str]]:
    return [
        lambda case, n=number: broken_at_entry(case, ask, n) for number in range(first, entries(make, ask) + 1, step)
    ]


def every_await(
    make: Callable[[], Case], ask: Callable[[SpecFuseChatModel], Any], error: type[BaseException] | None, step: int = 1
) -> list[Callable[[Case], str]]:
    _, count = broken_at_await(make(), ask, 0, error)
    return [lambda case, n=number: broken_at_await(case, ask, n, error)[0] for number in range(1, count + 1, step)]


def at_random(ask: Way, longest_s: float, count: int, seed: int) -> list[Callable[[Case], str]]:
    dice = random.Random(seed)
    moments = [dice.uniform(1e-5, longest_s) for _ in range(count)]
    return [lambda case, s=moment: broken_at_random(case, ask, s) for moment in moments]


Plan = tuple[str, Callable[[], Case], Callable[[], list[Callable[[Case], str]]]]
"""What it is called, whom it strikes, and its strikes, which are counted out when it is its turn."""


def everywhere() -> list[Plan]:
    """All entries and awaits."""
    found: list[Plan] = []
    for kind, make in CASES.items():
        for way, ask in ASYNC.items():
            for error in (None, KeyboardInterrupt):
                how = error.__name__ if error else "cancelled"
                found.append((f"{kind}, {way}, {how} at every await", make, partial(every_await, make, ask, error)))
        for way, asked in SYNC.items():
            found.append((f"{kind}, {way}, at every entry", make, partial(every_entry, make, asked)))
    return found


def anywhere(sweep: int) -> list[Plan]:
    """Random moments, others in every sweep."""
    places = [(kind, way) for kind in CASES for way in ("invoke", "stream")]
    seeds = range(sweep * len(places), (sweep + 1) * len(places))
    return [
        (f"{kind}, {way}, at random, seed {seed}", CASES[kind], partial(_moments, CASES[kind], SYNC[way], seed))
        for seed, (kind, way) in zip(seeds, places, strict=True)
    ]


def _moments(make: Callable[[], Case], ask: Way, seed: int) -> list[Callable[[Case], str]]:
    since = time.perf_counter()
    ask(make().llm)
    return at_random(ask, 1.2 * (time.perf_counter() - since), 200, seed)


def shares(plans: Sequence[Plan], end: float) -> Iterator[tuple[Plan, float]]:
    """Each plan with the end of its share of what is left of the time."""
    for at, plan in enumerate(plans):
        now = time.monotonic()
        if now >= end:
            print(f"time is up: {len(plans) - at} of {len(plans)} plans were not begun", flush=True)
            return
        yield plan, now + (end - now) / (len(plans) - at)


def sweeps(end: float | None) -> Iterator[tuple[Plan, float]]:
    """Everywhere once, and anywhere until the end; without one, for ten minutes."""
    yield from shares([*everywhere(), *anywhere(0)], end or math.inf)
    until, sweep = end or time.monotonic() + 600, 1
    while time.monotonic() < until:
        yield from shares(anywhere(sweep), until)
        sweep += 1


def main(told: Sequence[str] | None = None) -> int:
    made = argparse.ArgumentParser(prog="python -m tests.torture.interrupts", description=__doc__)
    made.add_argument("--minutes", type=float, help="no longer than this: some places, by chance, if not all can be")
    minutes = made.parse_args(told).minutes
    before, strikes_made = threading.active_count(), 0
    texts = {make: truth(make) for make in CASES.values()}
    end = None if minutes is None else time.monotonic() + 60 * minutes  # without the time that all take to start
    for (name, make, strikes), until in sweeps(end):
        planned = strikes()
        random.Random(name).shuffle(planned)
        ends, wrong = campaign(make, planned, texts[make], until)
        strikes_made += sum(ends.values())
        print(f"{name}: {sum(ends.values())} of {len(planned)}, {dict(ends)} {wrong or ''}", flush=True)
        if wrong:
            return 1
    left = threads_left(before)
    print(f"{strikes_made} strikes, {left} threads left")
    return int(left > 0)


if __name__ == "__main__":
    sys.exit(main())
