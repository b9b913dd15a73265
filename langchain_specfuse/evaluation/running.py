"""Runs an evaluation: asks every system every question, many at a time, and keeps each result as
soon as it exists.

Up to ``at_once`` questions of a system are under way together, so the workers form batches of them.
Systems run one after another, because one would slow down the other's clock.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from .._version import __version__
from ..core.member import Member
from ..core.round import Round
from ..core.values import Query
from ..engine.ensemble import Ensemble
from ..engine.worker import worker_for
from ..errors import SpecFuseError, UsageError, amount
from ..show.terminal import visible
from .baselines import answered
from .checkers import Grade, Question
from .results import Result, Results
from .systems import System
from .tasks import Task, digest

AT_ONCE = 16
Seen = Callable[[System, int, int], None]
"""Called after every result: which system, how many are done, of how many."""
Asked = tuple[str, Question, int]
"""A result's key, the question and the seed."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is evaluated: systems x questions x seeds."""

    task: Task
    systems: tuple[System, ...]
    members: Mapping[str, Member]
    seeds: tuple[int, ...] = (0,)
    at_once: int = AT_ONCE
    timeout: float | None = None
    """Seconds for one answer; one that takes longer counts as failed."""

    def keys(self, system: System) -> list[Asked]:
        """Everything that this system is asked, with the keys of the results."""
        identities = {name: identity(member) for name, member in self.members.items()}
        mark = digest([__version__, system.name, system.fingerprint(identities)])
        return [
            (digest([mark, self.task.fingerprint(question), seed]), question, seed)
            for seed in self.seeds
            for question in self.task.questions
        ]


def identity(member: Member) -> Any:
    """Everything that affects this member's output, as plain data."""
    spec = getattr(member, "spec", None)
    return [member.name, dict(spec) if isinstance(spec, Mapping) else type(member).__name__]


def run(plan: Plan, results: Results, *, seen: Seen | None = None) -> list[Result]:
    """Ask what has no result yet or has failed, and return all results of the plan."""

    def work() -> list[Result]:
        return asyncio.run(_run(plan, results, seen or (lambda *_: None)))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as pool:  # a notebook's cells run inside a loop
        return pool.submit(work).result()


async def _run(plan: Plan, results: Results, seen: Seen) -> list[Result]:
    for system in plan.systems:
        await _ask(plan, system, results, seen)
    return results.found(key for system in plan.systems for key, _, _ in plan.keys(system))


async def _ask(plan: Plan, system: System, results: Results, seen: Seen) -> None:
    """Ask this system what has no result. An error, such as a usage error, stops the rest."""
    asked = plan.keys(system)
    failed = {result.key for result in results.found(key for key, _, _ in asked) if result.error}
    open = [one for one in asked if one[0] not in results or one[0] in failed]
    done = itertools.count(len(asked) - len(open))
    seen(system, next(done), len(asked))
    if not open:
        return
    ensemble = Ensemble(
        [plan.members[name] for name in system.members],
        [plan.members[name] for name in system.verifiers],
    )
    await asyncio.wrap_future(ensemble.loaded())
    for member in ensemble.members.values():
        # Prompts read for an earlier system would make this one look faster.
        if drop := getattr(member, "drop_prefixes", None):
            await asyncio.wrap_future(on_worker(member, drop))
    limit = asyncio.Semaphore(plan.at_once)

    async def answer(one: Asked) -> None:
        async with limit:
            results.add(await _answer(plan, system, ensemble, *one))
        seen(system, next(done), len(asked))

    try:
        async with asyncio.TaskGroup() as group:
            for one in open:
                group.create_task(answer(one))
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


def on_worker(member: Member, call: Callable[[], Any]) -> Future[Any]:
    """The result of a call in the thread of the member's worker: members are used in no other."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    done.set_running_or_notify_cancel()
    worker_for(member.device).call(member, work)
    return done


async def _answer(
    plan: Plan, system: System, ensemble: Ensemble, key: str, question: Question, seed: int
) -> Result:
    base = system.settings.sampling.seed
    settings = system.settings.model_copy(update={"seed": base + seed})
    query = Query(f"eval-{uuid.uuid4().hex}", question.turns)
    began, since, first = time.time(), time.perf_counter(), None
    rounds: list[Round] = []
    error = ""
    settings = settings.model_copy(update={"timeout": plan.timeout, "prior": system.prior})
    try:
        if system.baseline:
            answer, rounds = await answered(system.baseline, ensemble, question.turns, settings)
        else:
            async with aclosing(ensemble.arounds(query, settings)) as agreed:  # type: ignore[type-var]
                async for round in agreed:
                    rounds.append(round)
                    if first is None and round.text:
                        first = time.perf_counter() - since
            answer = "".join(round.text for round in rounds)
    except UsageError:
        raise
    except (SpecFuseError, TimeoutError) as wrong:
        answer, error = "".join(round.text for round in rounds), f"{type(wrong).__name__}: {wrong}"
    seconds = time.perf_counter() - since
    # In a thread, because a checker may take its time.
    grade = (
        Grade(0.0, "failed")
        if error
        else await asyncio.to_thread(plan.task.grade, question, answer)
    )
    took: dict[str, Any] = {
        "error": error,
        "began": began,
        "seconds": seconds,
        "first_s": first,
        **counts(rounds),
    }
    return Result(key, system.name, question.id, seed, answer, **asdict(grade), **took)


def counts(rounds: Sequence[Round]) -> dict[str, Any]:
    """What a result counts in the rounds of its answer."""
    return {
        "finish": (rounds[-1].finish or "") if rounds else "",
        "tokens": sum(len(round.drafts[round.winner].tokens) for round in rounds),
        "rounds": len(rounds),
        "open": sum(len(round.drafts) > 1 for round in rounds),
        "replaced": sum(bool(round.lead) and round.lead not in round.authors for round in rounds),
        "passes": sum(passes_of(round) for round in rounds),
        "work_s": math.fsum(
            e.seconds for round in rounds for by in round.efforts.values() for e in by.values()
        ),
    }


def passes_of(round: Round) -> int:
    """The forward passes of a round: one per token that was drafted, one per verifier that
    scored."""
    drafted = sum(max(len(draft.tokens), 1) for draft in round.drafts.values())
    return drafted + len(round.efforts.get("verify", {}))


class Progress:
    """Prints how far each system is and how long it will take: ``run(plan, results,
    seen=Progress(sys.stderr))``."""

    EVERY_S = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._system = ""
        self._earlier = 0
        """Results of an earlier run: they say nothing about speed."""
        self._since = self._printed = time.monotonic()

    def __call__(self, system: System, done: int, of: int) -> None:
        now = time.monotonic()
        if system.name != self._system:
            self._system, self._earlier, self._since = system.name, done, now
        line = f"{system.name}: {done} of {amount(of, 'answer')}"
        if self._earlier < done < of:
            seconds = (now - self._since) / (done - self._earlier) * (of - done)
            line += (
                f", about {f'{seconds:.0f} s' if seconds < 90 else f'{seconds / 60:.0f} min'} left"
            )
        if done == of or now - self._printed >= self.EVERY_S:
            self._printed = now
            print(visible(line), file=self._stream, flush=True)
