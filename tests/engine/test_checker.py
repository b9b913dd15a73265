"""Checks are asked side by side, off the caller's threads. Whatever a check does, every ask gets its
verdicts, and nothing is left afterwards."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from langchain_specfuse.core.checks import Check, CheckContext, CheckJob, Verdict, as_check
from langchain_specfuse.engine.checker import LONGEST_REASON, Checker
from langchain_specfuse.engine.limits import Waiting, of_checks

from .conftest import PATIENCE_S, our_threads, until

TEXT = "The sky is blue."
NAME = contextvars.ContextVar("name", default="nobody")


class Asked:
    """Takes the verdicts of one ask."""

    def __init__(self, jobs: Sequence[CheckJob]) -> None:
        self.times = 0
        self.thread: threading.Thread | None = None
        self._verdicts: tuple[Verdict, ...] = ()
        self._came = threading.Event()
        self.waiting = Waiting(range(len(jobs)), self._take)
        self.waiting.limits.update(of_checks(jobs))

    def _take(self, verdicts: list[Verdict]) -> None:
        self.times += 1
        self.thread = threading.current_thread()
        self._verdicts = tuple(verdicts)
        self._came.set()

    def verdicts(self) -> tuple[Verdict, ...]:
        """Wait for them as the caller of an answer does: with the clock."""
        end = time.monotonic() + PATIENCE_S
        while not self._came.wait(self.waiting.left_s()) and time.monotonic() < end:
            for number, limit in self.waiting.late():
                self.waiting.deliver(number, limit.late)
        assert self._came.is_set(), "no verdicts came"
        return self._verdicts

    def reasons(self) -> list[str | None]:
        return [verdict.reason for verdict in self.verdicts()]


def context_of(job: CheckJob) -> CheckContext:
    return CheckContext((), job.draft, job.author, job.ended)


def job(check: Any) -> CheckJob:
    return CheckJob(as_check(check), TEXT, "blue.", "ann", ended=True)


def limited(function: Any, timeout_s: float) -> Check:
    return Check(function, "limited", timeout_s=timeout_s)


def started(checker: Checker, *checks: Any) -> Asked:
    jobs = [job(check) for check in checks]
    asked = Asked(jobs)
    checker.ask(jobs, asked.waiting.deliver)
    return asked


def verdicts_of(*checks: Any, config: Any = None) -> tuple[Verdict, ...]:
    """The verdicts of a synchronous call."""
    checker = Checker(context_of, None, config)
    try:
        return started(checker, *checks).verdicts()
    finally:
        checker.close()


async def averdicts_of(*checks: Any, config: Any = None) -> tuple[Verdict, ...]:
    """The verdicts of a call on this event loop."""
    checker = Checker(context_of, asyncio.get_running_loop(), config)
    try:
        return await asyncio.to_thread(started(checker, *checks).verdicts)
    finally:
        checker.close()


def passes(text: str) -> None:
    return None


def refuses(text: str) -> str:
    return f"no: {text}"


async def apasses(text: str) -> None:
    await asyncio.sleep(0)


async def arefuses(text: str) -> str:
    await asyncio.sleep(0)
    return f"no: {text}"


class Called:
    def __call__(self, text: str) -> str:
        return f"no: {text}"


class AsyncCallable:
    async def __call__(self, text: str) -> str:
        return f"no: {text}"

    async def method(self, text: str) -> str:
        return f"no: {text}"


def with_prefix(prefix: str, text: str) -> str:
    return f"{prefix}: {text}"


async def awith_prefix(prefix: str, text: str) -> str:
    return f"{prefix}: {text}"


REFUSING = [
    refuses,
    arefuses,
    Called(),
    AsyncCallable(),
    AsyncCallable().method,
    functools.partial(with_prefix, "no"),
    functools.partial(awith_prefix, "no"),
    lambda text: arefuses(text),
    RunnableLambda(refuses),
    RunnableLambda(refuses, afunc=arefuses),
]


# --- what can be a check --------------------------------------------------------------------------


@pytest.mark.parametrize("check", REFUSING, ids=lambda check: type(check).__name__)
async def test_every_kind_of_function_is_asked_in_both_kinds_of_calls(check: Any) -> None:
    expected = (Verdict(f"no: {TEXT}"),)
    assert await asyncio.to_thread(verdicts_of, check) == expected
    assert await averdicts_of(check) == expected


async def test_a_runnable_without_a_synchronous_function_is_asked_on_the_callers_loop() -> None:
    assert await averdicts_of(RunnableLambda(arefuses)) == (Verdict(f"no: {TEXT}"),)


def test_verdicts_come_in_the_order_of_the_jobs() -> None:
    def slow(text: str) -> str:
        time.sleep(0.05)
        return "slow"

    assert verdicts_of(slow, passes, arefuses, refuses) == (
        Verdict("slow"),
        Verdict(),
        Verdict(f"no: {TEXT}"),
        Verdict(f"no: {TEXT}"),
    )


async def needs_context(text: str, context: CheckContext) -> str:
    return context.author


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def gives_context(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(text: str) -> Any:
        return function(text, CheckContext((), "", "wrapper", False))

    return wrapper


class Ruled:
    def rule(self, text: str, context: CheckContext) -> str:
        return context.author


@pytest.mark.parametrize(
    ("check", "reason"),
    [
        (lambda text, context: context.author, "ann"),
        (lambda text, context, /: context.author, "ann"),
        (lambda text, context, limit=3: f"{context.author}{limit}", "ann3"),
        (needs_context, "ann"),
        (Ruled().rule, "ann"),
        (functools.partial(with_prefix, text="x"), f"{TEXT}: x"),
        (functools.partial(lambda limit, text, context: context.author, 3), "ann"),
        (wrapped(Ruled().rule), "ann"),
        (gives_context(Ruled().rule), "wrapper"),
        (lambda text, limit=3: f"{limit}", "3"),
        (lambda text, *others: f"{len(others)}", "0"),
        (lambda *texts: f"{len(texts)}", "1"),
        (lambda text, *, limit=3, **others: f"{limit}{len(others)}", "30"),
        (wrapped(refuses), f"no: {TEXT}"),
        (str.upper, TEXT.upper()),
        (len, f"returned {len(TEXT)}, expected"),
        (lambda text, context, more: "", "raised TypeError"),
        (lambda: "", "raised TypeError"),
    ],
)
def test_only_a_required_second_parameter_gets_the_context(check: Any, reason: str) -> None:
    (verdict,) = verdicts_of(check)
    assert str(verdict.reason).startswith(reason)


async def test_runnables_get_the_config_of_the_call() -> None:
    def tagged(text: str, config: Any) -> str:
        return ",".join(config["tags"])

    check = RunnableLambda(tagged)
    config = {"tags": ["mine"]}
    assert await asyncio.to_thread(verdicts_of, check, config=config) == (Verdict("mine"),)
    assert await averdicts_of(check, config=config) == (Verdict("mine"),)


# --- what a check returns or raises ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (True, "True"),
        (False, "False"),
        ("", "''"),
        (0, "0"),
        (AIMessage("no"), "AIMessage"),
        (b"no", "bytes"),
        ([], "list"),
    ],
)
def test_other_results_than_none_and_a_reason_are_the_checks_fault(result: Any, shown: str) -> None:
    async def check(text: str) -> Any:
        return result

    for verdict in verdicts_of(lambda text: result, check):
        assert verdict.is_broken
        assert shown in str(verdict.reason) and "expected None or a reason" in str(verdict.reason)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        KeyError(),
        RecursionError("deep"),
        TimeoutError("late"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_check_raises_reaches_nothing_but_its_verdict(
    error: BaseException,
) -> None:
    def check(text: str) -> None:
        raise error

    async def acheck(text: str) -> None:
        await asyncio.sleep(0)
        raise error

    found = [
        *await asyncio.to_thread(verdicts_of, check, acheck, passes),
        *await averdicts_of(check, acheck, passes),
    ]
    for at, verdict in enumerate(found):
        if at % 3 == 2:
            assert verdict == Verdict()
            continue
        assert verdict.is_broken and str(verdict.reason).startswith("raised ")
        assert verdict.cause is error


def test_a_function_that_ends_its_thread_gives_a_verdict() -> None:
    (verdict,) = verdicts_of(lambda text: sys.exit(3))
    assert verdict.is_broken and verdict.reason == "raised SystemExit: 3"


def test_reasons_are_bounded() -> None:
    def fails(text: str) -> None:
        raise ValueError("x" * 9_000)

    for verdict in verdicts_of(fails, lambda text: "y" * 9_000):
        assert 0 < len(str(verdict.reason)) <= LONGEST_REASON


# --- side by side ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["threads", "background loop"])
def test_checks_of_one_ask_run_side_by_side(kind: str) -> None:
    meeting = threading.Barrier(8)

    def meets(text: str) -> None:
        meeting.wait(PATIENCE_S)

    present: set[int] = set()

    async def ameets(text: str) -> None:
        present.add(id(asyncio.current_task()))
        while len(present) < 8:
            await asyncio.sleep(0.001)

    check = meets if kind == "threads" else ameets
    assert verdicts_of(*[limited(check, PATIENCE_S)] * 8) == (Verdict(),) * 8


async def test_fifty_answers_with_an_asynchronous_check_run_side_by_side() -> None:
    inside = 0
    all_inside = asyncio.Event()

    async def check(text: str) -> None:
        nonlocal inside
        inside += 1
        if inside == 50:
            all_inside.set()
        await all_inside.wait()

    checkers = [Checker(context_of, asyncio.get_running_loop()) for _ in range(50)]
    asked = [started(checker, limited(check, PATIENCE_S)) for checker in checkers]
    found = await asyncio.gather(*[asyncio.to_thread(ask.verdicts) for ask in asked])
    for checker in checkers:
        checker.close()
    assert found == [(Verdict(),)] * 50


async def test_verdicts_come_once_and_never_on_the_thread_that_asks_or_on_the_loop() -> None:
    for check in (passes, apasses, lambda text: 1 / 0):
        checker = Checker(context_of, asyncio.get_running_loop())
        asked = started(checker, check)
        await asyncio.to_thread(asked.verdicts)
        checker.close()
        assert asked.times == 1
        assert asked.thread is not threading.current_thread()


async def test_a_check_may_ask_other_checks() -> None:
    def outer(text: str) -> str | None:
        return verdicts_of(refuses, arefuses)[0].reason

    assert await averdicts_of(outer, outer) == (Verdict(f"no: {TEXT}"),) * 2


# --- context variables ----------------------------------------------------------------------------


async def test_checks_see_the_callers_variables_and_what_they_set_stays_inside() -> None:
    def check(text: str) -> str:
        seen = NAME.get()
        NAME.set("check")
        return seen

    async def acheck(text: str) -> str:
        return check(text)

    checks = (check, acheck, RunnableLambda(check), lambda text: acheck(text))
    token = NAME.set("caller")
    try:
        found = [*await averdicts_of(*checks), *await asyncio.to_thread(verdicts_of, *checks)]
        assert NAME.get() == "caller"
    finally:
        NAME.reset(token)
    assert [verdict.reason for verdict in found] == ["caller"] * 8


def test_the_variables_are_those_of_the_thread_that_made_the_checker() -> None:
    def asks(checker: Checker) -> list[str | None]:
        NAME.set("worker")
        return started(checker, lambda text: NAME.get()).reasons()

    token = NAME.set("caller")
    checker = Checker(context_of, None)
    NAME.reset(token)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(asks(checker)))
    thread.start()
    thread.join(PATIENCE_S)
    checker.close()
    assert found == ["caller"]


# --- time limits ----------------------------------------------------------------------------------


class Hanging:
    """Checks that hang until they are released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.inside = threading.Event()
        self.cancelled = threading.Event()

    def plain(self, text: str) -> str:
        self.inside.set()
        self.released.wait(PATIENCE_S)
        return "late"

    async def coroutine(self, text: str) -> str:
        self.inside.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "late"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    checks = Hanging()
    yield checks
    checks.released.set()


@pytest.mark.parametrize("name", ["plain", "coroutine"])
def test_a_check_that_takes_too_long_is_broken_and_the_others_are_not(
    hanging: Hanging, name: str
) -> None:
    check = limited(getattr(hanging, name), 0.05)
    late, passed, refused = verdicts_of(check, passes, refuses)
    assert (late.is_broken, late.reason) == (True, "took longer than 0.05 s")
    assert (passed, refused) == (Verdict(), Verdict(f"no: {TEXT}"))
    if name == "coroutine":
        assert hanging.cancelled.wait(PATIENCE_S)


async def test_time_limits_hold_on_the_callers_loop(hanging: Hanging) -> None:
    checks = [limited(hanging.plain, 0.05), limited(hanging.coroutine, 0.05)]
    found = await averdicts_of(*checks, apasses)
    assert [verdict.is_broken for verdict in found] == [True, True, False]
    assert await asyncio.to_thread(hanging.cancelled.wait, PATIENCE_S)


def test_each_check_has_its_own_limit(hanging: Hanging) -> None:
    checker = Checker(context_of, None)
    patient = started(checker, limited(hanging.plain, PATIENCE_S))
    assert started(checker, limited(hanging.plain, 0.05)).verdicts()[0].is_broken
    hanging.released.set()
    assert patient.reasons() == ["late"]
    checker.close()


def test_plain_checks_are_asked_however_many_hang(hanging: Hanging) -> None:
    found = verdicts_of(*[limited(hanging.plain, 0.05)] * 50, passes)
    assert [verdict.is_broken for verdict in found] == [True] * 50 + [False]


# --- closing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "coroutine"])
def test_after_close_nothing_is_delivered_and_coroutines_are_cancelled(
    hanging: Hanging, name: str
) -> None:
    checker = Checker(context_of, None)
    asked = started(checker, getattr(hanging, name))
    assert hanging.inside.wait(PATIENCE_S)
    checker.close()
    checker.close()
    hanging.released.set()
    if name == "coroutine":
        assert hanging.cancelled.wait(PATIENCE_S)
    assert until(lambda: not our_threads())
    assert asked.times == 0
    assert started(checker, passes).times == 0


async def test_close_leaves_no_task_on_the_callers_loop(hanging: Hanging) -> None:
    checker = Checker(context_of, asyncio.get_running_loop())
    asked = started(checker, hanging.coroutine, apasses)
    while not hanging.inside.is_set():
        await asyncio.sleep(0.001)
    checker.close()
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert hanging.cancelled.is_set() and asked.times == 0


def test_a_closed_checker_and_its_loop_are_freed_at_once(hanging: Hanging) -> None:
    async def main() -> None:
        checker = Checker(context_of, asyncio.get_running_loop())
        asked = started(checker, passes, apasses, lambda text: apasses(text))
        await asyncio.to_thread(asked.verdicts)
        started(checker, hanging.coroutine, hanging.plain)
        while not hanging.inside.is_set():
            await asyncio.sleep(0.001)
        checker.close()
        freed.append(weakref.ref(checker))

    freed: list[weakref.ref[Any]] = []
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
        loop.run_until_complete(asyncio.sleep(0.01))
    finally:
        loop.close()
    freed.append(weakref.ref(loop))
    hanging.released.set()
    assert until(lambda: not our_threads())
    del loop
    gc.collect()
    assert [ref() for ref in freed] == [None, None]


# --- a loop that ends meanwhile -------------------------------------------------------------------


def test_the_end_of_the_callers_loop_ends_its_checks(hanging: Hanging) -> None:
    async def main() -> tuple[Checker, Asked]:
        checker = Checker(context_of, asyncio.get_running_loop())
        asked = started(checker, hanging.coroutine)
        while not hanging.inside.is_set():
            await asyncio.sleep(0.001)
        return checker, asked

    checker, asked = asyncio.run(main())
    (verdict,) = asked.verdicts()
    checker.close()
    assert verdict.is_broken and hanging.cancelled.is_set()


def test_synchronous_calls_share_one_loop_while_they_are_open() -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    async def check(text: str) -> None:
        loops.append(asyncio.get_running_loop())

    first, second = Checker(context_of, None), Checker(context_of, None)
    for checker in (first, second):
        started(checker, check).verdicts()
    first.close()
    second.close()
    assert len(set(map(id, loops))) == 1


def test_a_hanging_check_does_not_keep_the_interpreter_from_ending() -> None:
    code = """
import asyncio, threading, time
from langchain_specfuse.core.checks import Check, CheckContext, CheckJob
from langchain_specfuse.engine.checker import Checker

inside = threading.Semaphore(0)
def hangs(text):
    inside.release()
    time.sleep(600)
async def blocks(text):
    hangs(text)
async def sleeps(text):
    inside.release()
    await asyncio.sleep(600)
checker = Checker(lambda job: None, None)
jobs = [CheckJob(Check(it, "it"), "", "", "", False) for it in (hangs, sleeps, blocks)]
checker.ask(jobs, print)
for _ in jobs:
    inside.acquire()
print("end")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
